//! Networks (CIDRs).

use cel::common::types::{STRING_TYPE, Type};
use cel::common::value::CowVal;
use cel::objects::Opaque;
use cel::{DeclarationError, Env, ExecutionError};
use ipnet::IpNet;

use super::super::argument::{Result, opaque, return_bool, return_int, return_opaque, return_text, text};
use super::super::overload::{function, method};
use super::address::{self, Address};

const NAME: &str = "net.CIDR";

/// A network. The bits after the prefix keep their values.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Cidr(IpNet);

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
    function(environment, "cidr", vec![STRING_TYPE], |arguments| return_opaque(parse("cidr", text(&arguments, 0)?)?))?;
    function(environment, "isCIDR", vec![STRING_TYPE], |arguments| {
        return_bool(parse("isCIDR", text(&arguments, 0)?).is_ok())
    })?;
    function(environment, "string", vec![of_type()], |arguments| return_text(this(&arguments)?.0.to_string()))?;
    method(environment, of_type(), "containsIP", vec![address::of_type()], |arguments| {
        return_bool(this(&arguments)?.0.contains(&opaque::<Address>(&arguments, 1)?.0))
    })?;
    method(environment, of_type(), "containsIP", vec![STRING_TYPE], |arguments| {
        return_bool(this(&arguments)?.0.contains(&address::parse("containsIP", text(&arguments, 1)?)?))
    })?;
    method(environment, of_type(), "containsCIDR", vec![of_type()], |arguments| {
        return_bool(this(&arguments)?.0.contains(&opaque::<Cidr>(&arguments, 1)?.0))
    })?;
    method(environment, of_type(), "containsCIDR", vec![STRING_TYPE], |arguments| {
        return_bool(this(&arguments)?.0.contains(&parse("containsCIDR", text(&arguments, 1)?)?.0))
    })?;
    method(environment, of_type(), "ip", vec![], |arguments| return_opaque(Address(this(&arguments)?.0.addr())))?;
    method(environment, of_type(), "masked", vec![], |arguments| return_opaque(Cidr(this(&arguments)?.0.trunc())))?;
    method(environment, of_type(), "prefixLength", vec![], |arguments| {
        return_int(this(&arguments)?.0.prefix_len().into())
    })
}

fn this(arguments: &[CowVal<'_, '_>]) -> Result<Cidr> {
    opaque(arguments, 0)
}

fn parse(name: &str, source: &str) -> Result<Cidr> {
    let refuse = || ExecutionError::function_error(name, format!("{source:?}: not a network such as 10.0.0.0/8"));
    let (ip, prefix) = source.split_once('/').ok_or_else(refuse)?;
    let ip = address::parse(name, ip)?;
    let is_plain = prefix.bytes().all(|byte| byte.is_ascii_digit()) && (prefix == "0" || !prefix.starts_with('0'));
    let prefix = prefix.parse().ok().filter(|_| is_plain).ok_or_else(refuse)?;
    IpNet::new(ip, prefix).map(Cidr).map_err(|_| refuse())
}
