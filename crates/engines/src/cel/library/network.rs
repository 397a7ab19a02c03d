//! IP addresses and networks: `ip`, `isIP`, `ip.isCanonical`, `cidr`, `isCIDR` and the methods of their values. Zones, leading
//! zeros and IPv4-mapped IPv6 addresses are not valid.

mod address;
mod cidr;

use cel::{DeclarationError, Env};

pub(super) fn declare(environment: &mut Env) -> Result<(), DeclarationError> {
    address::declare(environment)?;
    cidr::declare(environment)
}
