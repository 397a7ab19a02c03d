//! The plural of a kind, as Kubernetes names resources: `ingresses` for `Ingress`.

/// Returns the resource of a kind by the rule that all kinds of Kubernetes follow. The result for a custom kind is a guess,
/// the same as that of `kubectl`.
#[must_use]
pub fn plural(kind: &str) -> String {
    let kind = kind.to_lowercase();
    if kind.is_empty() || kind == "endpoints" {
        return kind;
    }
    match kind.as_bytes() {
        [.., b's'] => kind + "es",
        [.., before, b'y'] if !b"aeiou".contains(before) => format!("{}ies", &kind[..kind.len() - 1]),
        _ => kind + "s",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn kinds_of_kubernetes_have_the_expected_resources() {
        for (kind, wanted) in [
            ("Pod", "pods"),
            ("Ingress", "ingresses"),
            ("NetworkPolicy", "networkpolicies"),
            ("Gateway", "gateways"),
            ("Endpoints", "endpoints"),
            ("StorageClass", "storageclasses"),
            ("CSIStorageCapacity", "csistoragecapacities"),
            ("IPAddress", "ipaddresses"),
        ] {
            assert_eq!(plural(kind), wanted);
        }
    }
}
