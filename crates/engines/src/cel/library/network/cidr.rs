//! Networks.

use cel::common::types::{STRING_TYPE, Type};
use cel::common::value::CowVal;
use cel::objects::Opaque;
use cel::{DeclarationError, Env, ExecutionError};
use ipnet::IpNet;

use super::super::argument::{Result, give, give_bool, give_int, give_text, held, text};
use super::super::overload::{function, method};
use super::address::{self, Address};

const NAME: &str = "net.CIDR";

/// A network as it was written: the bits behind the prefix stay.
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
    function(environment, "cidr", vec![STRING_TYPE], |arguments| give(parse("cidr", text(&arguments, 0)?)?))?;
    function(environment, "isCIDR", vec![STRING_TYPE], |arguments| {
        give_bool(parse("isCIDR", text(&arguments, 0)?).is_ok())
    })?;
    function(environment, "string", vec![of_type()], |arguments| give_text(this(&arguments)?.0.to_string()))?;
    method(environment, of_type(), "containsIP", vec![address::of_type()], |arguments| {
        give_bool(this(&arguments)?.0.contains(&held::<Address>(&arguments, 1)?.0))
    })?;
    method(environment, of_type(), "containsIP", vec![STRING_TYPE], |arguments| {
        give_bool(this(&arguments)?.0.contains(&address::parse("containsIP", text(&arguments, 1)?)?))
    })?;
    method(environment, of_type(), "containsCIDR", vec![of_type()], |arguments| {
        give_bool(this(&arguments)?.0.contains(&held::<Cidr>(&arguments, 1)?.0))
    })?;
    method(environment, of_type(), "containsCIDR", vec![STRING_TYPE], |arguments| {
        give_bool(this(&arguments)?.0.contains(&parse("containsCIDR", text(&arguments, 1)?)?.0))
    })?;
    method(environment, of_type(), "ip", vec![], |arguments| give(Address(this(&arguments)?.0.addr())))?;
    method(environment, of_type(), "masked", vec![], |arguments| give(Cidr(this(&arguments)?.0.trunc())))?;
    method(environment, of_type(), "prefixLength", vec![], |arguments| {
        give_int(this(&arguments)?.0.prefix_len().into())
    })
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
    IpNet::new(ip, prefix).map(Cidr).map_err(|_| refuse())
}
