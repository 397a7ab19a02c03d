//! Networks: the builtins of `net` that regorus does not have.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

use regorus::Value;

use super::functions::Function;
use super::guards::items;
use super::limits::{MAX_ELEMENTS, MAX_PAIRS};

pub(super) const FUNCTIONS: &[(&str, u8, Function)] = &[
    ("net.cidr_contains_matches", 2, contains_matches),
    ("net.cidr_intersects", 2, |values| Ok(intersects(values).unwrap_or(Value::Undefined))),
    ("net.cidr_merge", 1, merge),
    ("net.cidr_overlap", 2, |values| Ok(contains(values).unwrap_or(Value::Undefined))),
];

/// A network: its first address, left-aligned in 128 bits, and how many of its bits are fixed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Network {
    is_v6: bool,
    first: u128,
    bits: u8,
}

impl Network {
    fn new(is_v6: bool, address: u128, bits: u8) -> Self {
        Self { is_v6, first: address & mask(bits), bits }
    }

    /// A network, or one address.
    fn read(text: &str) -> Option<Self> {
        let (address, bits) = match text.split_once('/') {
            Some((address, bits)) => (address, Some(bits)),
            None => (text, None),
        };
        let (is_v6, number, width) = match address.parse().ok()? {
            IpAddr::V4(address) => (false, u128::from(address.to_bits()) << 96, 32),
            IpAddr::V6(address) => (true, address.to_bits(), 128),
        };
        let bits = match bits {
            Some(bits) if bits.bytes().all(|digit| digit.is_ascii_digit()) => bits.parse().ok()?,
            Some(_) => return None,
            None => width,
        };
        (bits <= width).then(|| Self::new(is_v6, number, bits))
    }

    fn contains(self, other: Self) -> bool {
        self.is_v6 == other.is_v6 && self.bits <= other.bits && other.first & mask(self.bits) == self.first
    }

    /// The network that two of the same size make, if they do.
    fn joined(self, other: Self) -> Option<Self> {
        if self.is_v6 != other.is_v6 || self.bits != other.bits || self.bits == 0 {
            return None;
        }
        let whole = Self::new(self.is_v6, self.first, self.bits - 1);
        (self != other && whole.contains(other)).then_some(whole)
    }

    fn written(self) -> String {
        if self.is_v6 {
            format!("{}/{}", std::net::Ipv6Addr::from_bits(self.first), self.bits)
        } else {
            let bytes = self.first.to_be_bytes();
            format!("{}.{}.{}.{}/{}", bytes[0], bytes[1], bytes[2], bytes[3], self.bits)
        }
    }
}

fn mask(bits: u8) -> u128 {
    u128::MAX.checked_shl(128 - u32::from(bits)).unwrap_or(0)
}

fn network(value: &Value) -> Option<Network> {
    match value {
        Value::String(text) => Network::read(text),
        _ => None,
    }
}

fn intersects(values: &[Value]) -> Option<Value> {
    let (left, right) = (network(values.first()?)?, network(values.get(1)?)?);
    Some((left.contains(right) || right.contains(left)).into())
}

/// The older name of `net.cidr_contains`.
fn contains(values: &[Value]) -> Option<Value> {
    Some(network(values.first()?)?.contains(network(values.get(1)?)?).into())
}

/// The pairs of keys for which the first's network contains the second's.
fn contains_matches(values: &[Value]) -> Result<Value, String> {
    let lists = || Some((keyed(values.first()?)?, keyed(values.get(1)?)?));
    let Some((left, right)) = lists() else { return Ok(Value::Undefined) };
    if left.len().saturating_mul(right.len()) > MAX_PAIRS {
        return Err("there are too many networks to compare".into());
    }
    let mut pairs = BTreeSet::new();
    for (left_key, outer) in &left {
        for (right_key, _) in right.iter().filter(|(_, inner)| outer.contains(*inner)) {
            pairs.insert(Value::from(vec![left_key.clone(), right_key.clone()]));
        }
        if pairs.len() > MAX_ELEMENTS {
            return Err("too many networks contain others".into());
        }
    }
    Ok(pairs.into())
}

/// Networks with what names them in the answer: themselves, their place, or their key.
fn keyed(value: &Value) -> Option<Vec<(Value, Network)>> {
    // A network stands alone or begins a list.
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

/// For `net.cidr_merge`, an address without a prefix is the network of its class, as in Go; IPv6 has no classes.
fn network_or_class(value: &Value) -> Option<Network> {
    let Value::String(text) = value else { return None };
    if text.contains('/') {
        return Network::read(text);
    }
    let bits = match text.parse::<std::net::Ipv4Addr>().ok()?.octets()[0] {
        0..128 => 8,
        128..192 => 16,
        192..224 => 24,
        224.. => return None,
    };
    Network::read(text).map(|address| Network::new(false, address.first, bits))
}

/// The fewest networks that hold the same addresses.
fn merge(values: &[Value]) -> Result<Value, String> {
    let Some(items) = items(values, 0) else { return Ok(Value::Undefined) };
    if items.len() > MAX_ELEMENTS {
        return Err("there are too many networks".into());
    }
    let networks = items.map(network_or_class).collect::<Option<BTreeSet<_>>>();
    Ok(networks.map_or(Value::Undefined, merged))
}

fn merged(networks: BTreeSet<Network>) -> Value {
    // From the smallest networks to the largest: two that make one go on as that one.
    let mut by_bits: BTreeMap<u8, BTreeSet<Network>> = BTreeMap::new();
    for network in networks {
        by_bits.entry(network.bits).or_default().insert(network);
    }
    let mut merged: Vec<Network> = Vec::new();
    while let Some((bits, networks)) = by_bits.pop_last() {
        let mut waiting: Option<Network> = None;
        for network in networks {
            match waiting.and_then(|before| before.joined(network)) {
                Some(whole) => {
                    by_bits.entry(bits - 1).or_default().insert(whole);
                    waiting = None;
                }
                None => merged.extend(waiting.replace(network)),
            }
        }
        merged.extend(waiting);
    }
    // Networks hold one another or have nothing in common, so that who holds others stands right before them.
    merged.sort_unstable();
    merged.dedup_by(|network, before| before.contains(*network));
    merged.iter().map(|network| network.written().into()).collect::<BTreeSet<Value>>().into()
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
    fn many_networks_are_merged_in_time_and_too_many_are_refused() {
        let function = |name: &str| FUNCTIONS.iter().find(|(known, ..)| *known == name).unwrap().2;
        // None of them next to another, and each of them twice.
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
            ("net.cidr_overlap", r#"["10.0.0.0/8", "10.1.2.3"]"#, "true"),
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
            ("net.cidr_merge", r#"[["::1"]]"#, r#""<undefined>""#),
            ("net.cidr_merge", "[1]", r#""<undefined>""#),
        ] {
            assert_eq!(answer(name, arguments), expected, "{name} {arguments}");
        }
    }
}
