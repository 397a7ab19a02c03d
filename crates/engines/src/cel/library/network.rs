//! IP addresses and networks: `ip`, `isIP`, `ip.isCanonical`, `cidr`, `isCIDR` and what these values can do.
//! No zones, no leading zeros, and no IPv4 addresses within IPv6 ones.

mod address;
mod cidr;

use cel::{DeclarationError, Env};

pub(super) fn declare(environment: &mut Env) -> Result<(), DeclarationError> {
    address::declare(environment)?;
    cidr::declare(environment)
}
