//! IP addresses.

use std::net::IpAddr;

use cel::common::types::{STRING_TYPE, Type};
use cel::common::value::CowVal;
use cel::objects::Opaque;
use cel::{DeclarationError, Env, ExecutionError};

use super::super::argument::{Result, opaque, return_bool, return_int, return_opaque, return_text, text};
use super::super::overload::{function, method};

const NAME: &str = "net.IP";

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Address(pub IpAddr);

impl Opaque for Address {
    fn runtime_type_name(&self) -> &str {
        NAME
    }
}

pub(super) fn of_type() -> Type {
    Type::new_opaque_type(NAME)
}

pub(super) fn declare(environment: &mut Env) -> std::result::Result<(), DeclarationError> {
    environment.add_type(of_type())?;
    function(environment, "ip", vec![STRING_TYPE], |arguments| {
        return_opaque(Address(parse("ip", text(&arguments, 0)?)?))
    })?;
    function(environment, "isIP", vec![STRING_TYPE], |arguments| {
        return_bool(parse("isIP", text(&arguments, 0)?).is_ok())
    })?;
    function(environment, "ip.isCanonical", vec![STRING_TYPE], |arguments| {
        let source = text(&arguments, 0)?;
        return_bool(parse("ip.isCanonical", source)?.to_string() == source)
    })?;
    function(environment, "string", vec![of_type()], |arguments| {
        return_text(opaque::<Address>(&arguments, 0)?.0.to_string())
    })?;
    method(environment, of_type(), "family", vec![], |arguments| {
        return_int(if opaque::<Address>(&arguments, 0)?.0.is_ipv4() { 4 } else { 6 })
    })?;
    method(environment, of_type(), "isUnspecified", vec![], |arguments| is(&arguments, |ip| ip.is_unspecified()))?;
    method(environment, of_type(), "isLoopback", vec![], |arguments| is(&arguments, |ip| ip.is_loopback()))?;
    method(environment, of_type(), "isLinkLocalMulticast", vec![], |arguments| {
        is(&arguments, |ip| match ip {
            IpAddr::V4(ip) => ip.octets()[..3] == [224, 0, 0],
            IpAddr::V6(ip) => ip.segments()[0] & 0xff0f == 0xff02,
        })
    })?;
    method(environment, of_type(), "isLinkLocalUnicast", vec![], |arguments| is(&arguments, is_link_local))?;
    method(environment, of_type(), "isGlobalUnicast", vec![], |arguments| {
        is(&arguments, |ip| {
            let is_broadcast = matches!(ip, IpAddr::V4(ip) if ip.is_broadcast());
            !(ip.is_unspecified() || ip.is_loopback() || ip.is_multicast() || is_broadcast || is_link_local(ip))
        })
    })
}

fn is<'b, 'v>(arguments: &[CowVal<'b, 'v>], holds: impl Fn(IpAddr) -> bool) -> Result<CowVal<'b, 'v>> {
    return_bool(holds(opaque::<Address>(arguments, 0)?.0))
}

fn is_link_local(ip: IpAddr) -> bool {
    match ip {
        IpAddr::V4(ip) => ip.is_link_local(),
        IpAddr::V6(ip) => ip.is_unicast_link_local(),
    }
}

pub(super) fn parse(name: &str, source: &str) -> Result<IpAddr> {
    let refuse = |why: &str| ExecutionError::function_error(name, format!("{source:?}: {why}"));
    match source.parse::<IpAddr>() {
        Ok(IpAddr::V6(ip)) if ip.to_ipv4_mapped().is_some() => Err(refuse("an IPv4 address within an IPv6 one")),
        Ok(ip) => Ok(ip),
        Err(_) => Err(refuse("not an IP address")),
    }
}
