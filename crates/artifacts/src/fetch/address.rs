//! Which addresses modules are never fetched from: those where clouds keep the credentials of their machines, and
//! those that are nobody's. Loopback and private ones are allowed, for registries within the cluster.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

/// Metadata services outside the link-local networks: Alibaba's; Amazon's and Google's over IPv6.
const METADATA: [IpAddr; 3] = [
    IpAddr::V4(Ipv4Addr::new(100, 100, 100, 200)),
    IpAddr::V6(Ipv6Addr::new(0xfd00, 0xec2, 0, 0, 0, 0, 0, 0x254)),
    IpAddr::V6(Ipv6Addr::new(0xfd20, 0xce, 0, 0, 0, 0, 0, 0x254)),
];

/// Whether a module may come from there.
pub(super) fn is_allowed(address: IpAddr) -> bool {
    let address = plain(address);
    let is_odd = match address {
        IpAddr::V4(address) => address.is_link_local() || address.octets()[0] == 0 || address.is_broadcast(),
        IpAddr::V6(address) => address.is_unicast_link_local(),
    };
    !is_odd && !address.is_unspecified() && !address.is_multicast() && !METADATA.contains(&address)
}

/// The IPv4 address within an IPv6 one, where it is only wrapped: mapped, compatible, NAT64 (RFC 6052), 6to4.
fn plain(address: IpAddr) -> IpAddr {
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
    fn link_local_addresses_are_refused_however_they_are_written() {
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
}
