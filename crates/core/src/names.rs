//! The syntax of Kubernetes names: DNS names, and keys and values of labels and annotations.

/// The maximum length of a DNS name, in characters.
const MAX_SUBDOMAIN: usize = 253;
/// The maximum length of the name of a label, and of its value, in characters.
const MAX_NAME: usize = 63;

/// Returns true if `text` is a DNS label in lower case (RFC 1123). The length is not checked.
#[must_use]
pub fn is_dns_label(text: &str) -> bool {
    is_delimited(text, |byte| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'-')
}

/// Returns true if `text` is a valid key of a label or an annotation: `name` or `subdomain/name`.
#[must_use]
pub fn is_key(text: &str) -> bool {
    let (domain, name) = text.split_once('/').map_or((None, text), |(domain, name)| (Some(domain), name));
    let is_subdomain = |domain: &str| domain.len() <= MAX_SUBDOMAIN && domain.split('.').all(is_dns_label);
    is_name(name) && domain.is_none_or(is_subdomain)
}

/// Returns true if `text` is a valid name without a domain. The value of a label is such a name, or empty.
#[must_use]
pub fn is_name(text: &str) -> bool {
    text.len() <= MAX_NAME && is_delimited(text, |byte| byte.is_ascii_alphanumeric() || b"-_.".contains(&byte))
}

/// Returns true if all bytes are allowed, and the first and the last byte are letters or digits.
fn is_delimited(text: &str, is_allowed: impl Fn(u8) -> bool) -> bool {
    let is_end = |end: Option<u8>| end.is_some_and(|end| end.is_ascii_alphanumeric());
    is_end(text.bytes().next()) && is_end(text.bytes().next_back()) && text.bytes().all(is_allowed)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_follow_the_syntax_of_kubernetes() {
        let (name, domain) = ("n".repeat(63), vec!["d"; 127].join("."));
        for key in ["a", "A.b_c-1", "x.y/Z", &name, &format!("{domain}/{name}"), &format!("{}/a", "d".repeat(200))] {
            assert!(is_key(key), "{key}");
        }
        for key in ["", "-a", "a.", "ä", "a b", "/a", "a/", "a/b/c", "A/b", "a..b/c", "a_b/c", &format!("{name}n")] {
            assert!(!is_key(key), "{key}");
        }
        assert!(!is_key(&format!("{domain}d/a")), "254 characters");
    }
}
