//! The addresses that modules are never fetched from: link-local addresses and metadata services, which return the
//! credentials of cloud machines, and reserved addresses. Loopback and private addresses are allowed, for registries in the
//! cluster.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

/// The metadata services outside the link-local networks: Alibaba, and Amazon and Google over IPv6.
const METADATA: [IpAddr; 3] = [
    IpAddr::V4(Ipv4Addr::new(100, 100, 100, 200)),
    IpAddr::V6(Ipv6Addr::new(0xfd00, 0xec2, 0, 0, 0, 0, 0, 0x254)),
    IpAddr::V6(Ipv6Addr::new(0xfd20, 0xce, 0, 0, 0, 0, 0, 0x254)),
];

/// Returns true if a module may be fetched from `address`.
pub(super) fn is_allowed(address: IpAddr) -> bool {
    let address = unwrap_ipv4(address);
    let is_reserved = match address {
        IpAddr::V4(address) => address.is_link_local() || address.octets()[0] == 0 || address.is_broadcast(),
        IpAddr::V6(address) => address.is_unicast_link_local(),
    };
    !is_reserved && !address.is_unspecified() && !address.is_multicast() && !METADATA.contains(&address)
}

/// Returns true if an address is on the public Internet: neither loopback nor private, shared (RFC 6598) or reserved.
pub(super) fn is_public(address: IpAddr) -> bool {
    let address = unwrap_ipv4(address);
    let is_internal = match address {
        IpAddr::V4(v4) => {
            let [a, b, c, _] = v4.octets();
            let is_shared = a == 100 && (64..128).contains(&b);
            let is_special = (a, b, c) == (192, 0, 0) || (a == 198 && (18..20).contains(&b)) || a >= 240;
            v4.is_loopback() || v4.is_private() || v4.is_documentation() || is_shared || is_special
        }
        IpAddr::V6(v6) => v6.is_loopback() || v6.is_unique_local() || v6.segments()[0] & 0xffc0 == 0xfec0,
    };
    is_allowed(address) && !is_internal
}

/// Returns the IPv4 address in a mapped, compatible, NAT64 (RFC 6052) or 6to4 IPv6 address, and any other address as it is.
fn unwrap_ipv4(address: IpAddr) -> IpAddr {
    let IpAddr::V6(v6) = address else { return address };
    let wrapped = match v6.segments() {
        [0, 0, 0, 0, 0, 0, high, low] if high != 0 => Some((high, low)),
        [0, 0, 0, 0, 0, 0xffff, high, low] | [0x64, 0xff9b, 0, 0, 0, 0, high, low] | [0x2002, high, low, ..] => {
            Some((high, low))
        }
        _ => None,
    };
    wrapped.map_or(address, |(high, low)| IpAddr::V4((u32::from(high) << 16 | u32::from(low)).into()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn link_local_and_reserved_addresses_are_refused_in_each_spelling() {
        for address in [
            "169.254.169.254",
            "169.254.0.1",
            "::ffff:169.254.169.254",
            "::169.254.169.254",
            "64:ff9b::a9fe:a9fe",
            "2002:a9fe:a9fe::1",
            "fe80::1",
            "febf::1",
            "0.0.0.0",
            "0.1.2.3",
            "::",
            "::ffff:0.0.0.0",
            "255.255.255.255",
            "224.0.0.1",
            "ff02::1",
            "100.100.100.200",
            "fd00:ec2::254",
            "fd20:ce::254",
        ] {
            assert!(!is_allowed(address.parse().unwrap()), "{address}");
        }
        for address in ["127.0.0.1", "::1", "10.0.0.1", "192.168.0.1", "100.64.0.1", "fd00::1", "8.8.8.8", "2606::1"] {
            assert!(is_allowed(address.parse().unwrap()), "{address}");
        }
    }

    #[test]
    fn internal_addresses_are_not_public_in_each_spelling() {
        for address in [
            "127.0.0.1",
            "::1",
            "::ffff:127.0.0.1",
            "10.96.0.1",
            "172.16.0.1",
            "192.168.0.1",
            "100.64.0.1",
            "198.18.0.1",
            "240.0.0.1",
            "::ffff:10.0.0.1",
            "64:ff9b::a00:1",
            "2002:a00:1::1",
            "fd00::1",
            "fec0::1",
            "169.254.169.254",
        ] {
            assert!(!is_public(address.parse().unwrap()), "{address}");
        }
        for address in ["8.8.8.8", "100.128.0.1", "172.32.0.1", "2606::1", "64:ff9b::808:808"] {
            assert!(is_public(address.parse().unwrap()), "{address}");
        }
    }
}
