//! Networks.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use cel::common::types::{STRING_TYPE, Type};
use cel::common::value::CowVal;
use cel::objects::Opaque;
use cel::{DeclarationError, Env, ExecutionError};

use super::super::argument::{Result, give, give_bool, give_int, give_text, held, text};
use super::super::overload::{function, method};
use super::address::{self, Address};

const NAME: &str = "net.CIDR";

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Cidr {
    ip: IpAddr,
    prefix: u8,
}

impl Opaque for Cidr {
    fn runtime_type_name(&self) -> &str {
        NAME
    }
}

fn of_type() -> Type {
    Type::new_opaque_type(NAME)
}

pub(super) fn declare(environment: &mut Env) -> std::result::Result<(), DeclarationError> {
    environment.add_type(of_type())?;
    function(environment, "cidr", vec![STRING_TYPE], |arguments| give(parse("cidr", text(&arguments, 0)?)?))?;
    function(environment, "isCIDR", vec![STRING_TYPE], |arguments| {
        give_bool(parse("isCIDR", text(&arguments, 0)?).is_ok())
    })?;
    function(environment, "string", vec![of_type()], |arguments| {
        let cidr = this(&arguments)?;
        give_text(format!("{}/{}", cidr.ip, cidr.prefix))
    })?;
    method(environment, of_type(), "containsIP", vec![address::of_type()], |arguments| {
        give_bool(this(&arguments)?.contains(held::<Address>(&arguments, 1)?.0))
    })?;
    method(environment, of_type(), "containsIP", vec![STRING_TYPE], |arguments| {
        give_bool(this(&arguments)?.contains(address::parse("containsIP", text(&arguments, 1)?)?))
    })?;
    method(environment, of_type(), "containsCIDR", vec![of_type()], |arguments| {
        give_bool(this(&arguments)?.covers(held(&arguments, 1)?))
    })?;
    method(environment, of_type(), "containsCIDR", vec![STRING_TYPE], |arguments| {
        give_bool(this(&arguments)?.covers(parse("containsCIDR", text(&arguments, 1)?)?))
    })?;
    method(environment, of_type(), "ip", vec![], |arguments| give(Address(this(&arguments)?.ip)))?;
    method(environment, of_type(), "masked", vec![], |arguments| give(this(&arguments)?.masked()))?;
    method(environment, of_type(), "prefixLength", vec![], |arguments| give_int(this(&arguments)?.prefix.into()))
}

fn this(arguments: &[CowVal<'_, '_>]) -> Result<Cidr> {
    held(arguments, 0)
}

fn parse(name: &str, source: &str) -> Result<Cidr> {
    let refuse = || ExecutionError::function_error(name, format!("{source:?}: not a network such as 10.0.0.0/8"));
    let (ip, prefix) = source.split_once('/').ok_or_else(refuse)?;
    let ip = address::parse(name, ip)?;
    let is_plain = prefix.bytes().all(|byte| byte.is_ascii_digit()) && (prefix == "0" || !prefix.starts_with('0'));
    let prefix = prefix.parse().ok().filter(|_| is_plain).ok_or_else(refuse)?;
    if prefix > if ip.is_ipv4() { 32 } else { 128 } {
        return Err(refuse());
    }
    Ok(Cidr { ip, prefix })
}

impl Cidr {
    fn masked(self) -> Self {
        Self { ip: mask(self.ip, self.prefix), ..self }
    }

    fn contains(self, ip: IpAddr) -> bool {
        self.ip.is_ipv4() == ip.is_ipv4() && mask(ip, self.prefix) == mask(self.ip, self.prefix)
    }

    fn covers(self, other: Self) -> bool {
        self.prefix <= other.prefix && self.contains(other.ip)
    }
}

/// The address with nothing behind its first bits.
fn mask(ip: IpAddr, prefix: u8) -> IpAddr {
    match ip {
        IpAddr::V4(ip) => {
            let mask = u32::MAX.checked_shl(32 - u32::from(prefix)).unwrap_or(0);
            Ipv4Addr::from_bits(ip.to_bits() & mask).into()
        }
        IpAddr::V6(ip) => {
            let mask = u128::MAX.checked_shl(128 - u32::from(prefix)).unwrap_or(0);
            Ipv6Addr::from_bits(ip.to_bits() & mask).into()
        }
    }
}
