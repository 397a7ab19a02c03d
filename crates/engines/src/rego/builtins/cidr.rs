//! The `net.cidr_*` builtins that regorus does not have, or answers differently from OPA. The arithmetic is from the ipnet
//! crate. Its parser is not used, because it accepts leading zeros (krisprice/ipnet#32).

use std::collections::BTreeSet;
use std::net::IpAddr;

use ipnet::IpNet;
use regorus::Value;

use super::functions::Function;
use super::guards::items;
use super::limits::{MAX_ELEMENTS, MAX_PAIRS};

pub(super) const FUNCTIONS: &[(&str, u8, Function)] = &[
    ("net.cidr_contains", 2, |values| Ok(contains(values).unwrap_or(Value::Undefined))),
    ("net.cidr_contains_matches", 2, contains_matches),
    ("net.cidr_expand", 1, |values| Ok(expand(values).unwrap_or(Value::Undefined))),
    ("net.cidr_intersects", 2, |values| Ok(intersects(values).unwrap_or(Value::Undefined))),
    ("net.cidr_is_valid", 1, |values| Ok(values.first().and_then(network).is_some().into())),
    ("net.cidr_merge", 1, merge),
    // The deprecated name of `net.cidr_contains`.
    ("net.cidr_overlap", 2, |values| Ok(contains(values).unwrap_or(Value::Undefined))),
];

/// Parses an address like Go's `net.ParseIP`: an IPv4-mapped IPv6 address is an IPv4 address. Otherwise a request could evade a
/// rule by writing an address in another form.
fn address(text: &str) -> Option<IpAddr> {
    text.parse::<IpAddr>().ok().map(|address| address.to_canonical())
}

/// Parses a network like Go's `net.ParseCIDR`.
fn network(value: &Value) -> Option<IpNet> {
    let Value::String(text) = value else { return None };
    let (address, bits) = text.split_once('/')?;
    if !bits.bytes().all(|digit| digit.is_ascii_digit()) {
        return None;
    }
    let (address, bits): (IpAddr, u8) = (address.parse().ok()?, bits.parse().ok()?);
    let network = match address {
        // The prefix length of an IPv4-mapped network includes the 96 bits before the IPv4 address.
        IpAddr::V6(mapped) if bits >= 96 => match mapped.to_ipv4_mapped() {
            Some(address) => IpNet::new(address.into(), bits - 96),
            None => IpNet::new(address, bits),
        },
        _ => IpNet::new(address, bits),
    };
    network.ok().map(|network| network.trunc())
}

/// Parses a network or an address.
fn network_or_address(value: &Value) -> Option<IpNet> {
    let Value::String(text) = value else { return None };
    address(text).map(IpNet::from).or_else(|| network(value))
}

fn intersects(values: &[Value]) -> Option<Value> {
    let (left, right) = (network(values.first()?)?, network(values.get(1)?)?);
    Some((left.contains(&right) || right.contains(&left)).into())
}

fn contains(values: &[Value]) -> Option<Value> {
    Some(network(values.first()?)?.contains(&network_or_address(values.get(1)?)?).into())
}

/// Returns the addresses of a network. A guard refuses large networks.
fn expand(values: &[Value]) -> Option<Value> {
    let network = network(values.first()?)?;
    let addresses = network.subnets(network.max_prefix_len()).ok()?;
    Some(addresses.map(|one| Value::from(one.addr().to_string())).collect::<BTreeSet<Value>>().into())
}

/// Returns the pairs of keys such that the network of the first key contains the network or address of the second key.
fn contains_matches(values: &[Value]) -> Result<Value, String> {
    let lists = || Some((keyed(values.first()?, network)?, keyed(values.get(1)?, network_or_address)?));
    let Some((left, right)) = lists() else { return Ok(Value::Undefined) };
    if left.len().saturating_mul(right.len()) > MAX_PAIRS {
        return Err("there are too many networks to compare".into());
    }
    let mut pairs = BTreeSet::new();
    for (left_key, outer) in &left {
        for (right_key, _) in right.iter().filter(|(_, inner)| outer.contains(inner)) {
            pairs.insert(Value::from(vec![left_key.clone(), right_key.clone()]));
        }
        if pairs.len() > MAX_ELEMENTS {
            return Err("too many networks contain others".into());
        }
    }
    Ok(pairs.into())
}

/// Returns the networks in a value with their keys in the answer. The key is the string itself, the item of a set, the index in
/// an array, or the key of an object.
fn keyed(value: &Value, network: fn(&Value) -> Option<IpNet>) -> Option<Vec<(Value, IpNet)>> {
    // An item is a network, or a list whose first element is the network.
    let of_item = |item: &Value| match item {
        Value::Array(items) => network(items.first()?),
        other => network(other),
    };
    match value {
        Value::String(_) => Some(vec![(value.clone(), network(value)?)]),
        Value::Array(items) => {
            items.iter().enumerate().map(|(index, item)| Some((Value::from(index as u64), of_item(item)?))).collect()
        }
        Value::Set(items) => items.iter_sorted().map(|item| Some((item.clone(), of_item(item)?))).collect(),
        Value::Object(members) => members.iter().map(|(key, item)| Some((key.clone(), of_item(item)?))).collect(),
        _ => None,
    }
}

/// Parses a network for `net.cidr_merge`. An IPv4 address without a prefix length is the network of its class, as in Go. IPv6
/// has no classes.
fn network_or_class(value: &Value) -> Option<IpNet> {
    let Value::String(text) = value else { return None };
    if text.contains('/') {
        return network(value);
    }
    let IpAddr::V4(address) = address(text)? else { return None };
    let bits = match address.octets()[0] {
        0..128 => 8,
        128..192 => 16,
        192.. => 24,
    };
    IpNet::new(address.into(), bits).ok().map(|network| network.trunc())
}

/// Merges networks: returns the smallest set of networks with the same addresses.
fn merge(values: &[Value]) -> Result<Value, String> {
    let Some(items) = items(values, 0) else { return Ok(Value::Undefined) };
    if items.len() > MAX_ELEMENTS {
        return Err("there are too many networks".into());
    }
    let Some(networks) = items.map(network_or_class).collect::<Option<Vec<_>>>() else { return Ok(Value::Undefined) };
    let merged = IpNet::aggregate(&networks);
    Ok(merged.iter().map(|network| network.to_string().into()).collect::<BTreeSet<Value>>().into())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn answer(name: &str, arguments: &str) -> String {
        let Ok(Value::Array(arguments)) = crate::rego::value::read(arguments) else { panic!("{arguments}") };
        let arguments: Vec<Value> = arguments.iter().cloned().collect();
        let (.., function) = FUNCTIONS.iter().find(|(known, ..)| *known == name).unwrap();
        function(&arguments).unwrap().to_string()
    }

    #[test]
    fn many_networks_merge_fast_and_too_many_are_refused() {
        let function = |name: &str| FUNCTIONS.iter().find(|(known, ..)| *known == name).unwrap().2;
        // No two networks are adjacent, and each network occurs twice.
        let apart = |index: u32| Value::from(format!("{}/32", std::net::Ipv4Addr::from_bits(2 * index)));
        let many: Vec<Value> = (0..100_000).flat_map(|index| [apart(index), apart(index)]).collect();
        let started = std::time::Instant::now();
        let Ok(Value::Set(merged)) = function("net.cidr_merge")(&[many.clone().into()]) else { panic!() };
        assert_eq!(merged.len(), 100_000);
        assert!(started.elapsed() < std::time::Duration::from_secs(30), "{:?}", started.elapsed());
        let shared: Value = vec![many[0].clone(); 1_000_001].into();
        assert!(function("net.cidr_merge")(&[shared]).unwrap_err().contains("too many networks"));
        let all: Value = many.into();
        let error = function("net.cidr_contains_matches")(&[all.clone(), all]).unwrap_err();
        assert!(error.contains("too many networks"), "{error}");
    }

    #[test]
    fn networks_are_compared_and_merged() {
        for (name, arguments, expected) in [
            ("net.cidr_intersects", r#"["10.0.0.0/8", "10.1.0.0/16"]"#, "true"),
            ("net.cidr_intersects", r#"["10.0.0.0/8", "11.0.0.0/8"]"#, "false"),
            ("net.cidr_intersects", r#"["10.0.0.0/8", "::/0"]"#, "false"),
            ("net.cidr_intersects", r#"["10.0.0.0/8", "x"]"#, r#""<undefined>""#),
            ("net.cidr_intersects", r#"["10.0.0.1", "10.0.0.0/8"]"#, r#""<undefined>""#),
            ("net.cidr_overlap", r#"["10.0.0.0/8", "10.1.2.3"]"#, "true"),
            ("net.cidr_contains", r#"["10.0.0.0/8", "10.1.0.0/16"]"#, "true"),
            ("net.cidr_contains", r#"["10.0.0.0/8", "::ffff:10.0.0.1"]"#, "true"),
            ("net.cidr_contains", r#"["10.0.0.0/8", "::ffff:a00:1/128"]"#, "true"),
            ("net.cidr_contains", r#"["::ffff:10.0.0.0/104", "10.1.2.3"]"#, "true"),
            ("net.cidr_contains", r#"["::/0", "10.1.2.3"]"#, "false"),
            ("net.cidr_contains", r#"["010.0.0.0/8", "10.1.2.3"]"#, r#""<undefined>""#),
            ("net.cidr_contains", r#"["10.0.0.1", "10.0.0.1"]"#, r#""<undefined>""#),
            ("net.cidr_is_valid", r#"["10.0.0.0/8"]"#, "true"),
            ("net.cidr_is_valid", r#"["10.0.0.0/008"]"#, "true"),
            ("net.cidr_is_valid", r#"["10.0.0.0/+8"]"#, "false"),
            ("net.cidr_is_valid", r#"["10.0.0.0/33"]"#, "false"),
            ("net.cidr_is_valid", r#"["10.0.0.0/"]"#, "false"),
            ("net.cidr_is_valid", "[1]", "false"),
            ("net.cidr_expand", r#"["10.0.0.3/31"]"#, r#"["10.0.0.2","10.0.0.3"]"#),
            ("net.cidr_expand", r#"["::ffff:10.0.0.3/127"]"#, r#"["10.0.0.2","10.0.0.3"]"#),
            ("net.cidr_contains_matches", r#"["1.1.1.0/24", "1.1.1.128"]"#, r#"[["1.1.1.0/24","1.1.1.128"]]"#),
            (
                "net.cidr_contains_matches",
                r#"[{"a": "1.1.0.0/16", "b": ["2.0.0.0/8", 7]}, ["1.1.1.1", "3.3.3.3", "2.2.0.0/16"]]"#,
                r#"[["a",0],["b",2]]"#,
            ),
            ("net.cidr_merge", r#"[["192.0.128.0/24", "192.0.129.0/24"]]"#, r#"["192.0.128.0/23"]"#),
            (
                "net.cidr_merge",
                r#"[["0.0.0.0/1", "128.0.0.0/1", "::1/128", "10.0.0.1"]]"#,
                r#"["0.0.0.0/0","::1/128"]"#,
            ),
            ("net.cidr_merge", r#"[["10.0.0.0/24", "10.0.2.0/24"]]"#, r#"["10.0.0.0/24","10.0.2.0/24"]"#),
            (
                "net.cidr_merge",
                r#"[["10.0.0.0/8", "10.1.0.0/16", "10.1.2.3/32", "10.1.2.0/24", "11.0.0.0/8", "12.0.0.1/32"]]"#,
                r#"["10.0.0.0/7","12.0.0.1/32"]"#,
            ),
            ("net.cidr_merge", r#"[["192.0.128.0", "192.0.129.0"]]"#, r#"["192.0.128.0/23"]"#),
            ("net.cidr_merge", r#"[["224.0.0.1"]]"#, r#"["224.0.0.0/24"]"#),
            ("net.cidr_merge", r#"[["::1"]]"#, r#""<undefined>""#),
            ("net.cidr_merge", "[1]", r#""<undefined>""#),
        ] {
            assert_eq!(answer(name, arguments), expected, "{name} {arguments}");
        }
    }
}
