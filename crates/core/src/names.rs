//! Names as Kubernetes has them: of DNS, and of labels and annotations.

/// The longest name of DNS, in characters.
const MAX_SUBDOMAIN: usize = 253;
/// The longest name of a label, and its longest value, in characters.
const MAX_NAME: usize = 63;

/// Whether this is a label of DNS in lower case (RFC 1123), its length aside.
#[must_use]
pub fn is_dns_label(text: &str) -> bool {
    is_between_letters(text, |byte| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'-')
}

/// Whether a label or an annotation may have this key: a name, if need be after a subdomain of DNS and a slash.
#[must_use]
pub fn is_key(text: &str) -> bool {
    let (domain, name) = text.split_once('/').map_or((None, text), |(domain, name)| (Some(domain), name));
    let is_subdomain = |domain: &str| domain.len() <= MAX_SUBDOMAIN && domain.split('.').all(is_dns_label);
    is_name(name) && domain.is_none_or(is_subdomain)
}

/// Whether this is a name without a domain. The value of a label is one, or empty.
#[must_use]
pub fn is_name(text: &str) -> bool {
    text.len() <= MAX_NAME && is_between_letters(text, |byte| byte.is_ascii_alphanumeric() || b"-_.".contains(&byte))
}

/// Whether all bytes are allowed, and those at both ends are letters or digits.
fn is_between_letters(text: &str, is_allowed: impl Fn(u8) -> bool) -> bool {
    let is_end = |end: Option<u8>| end.is_some_and(|end| end.is_ascii_alphanumeric());
    is_end(text.bytes().next()) && is_end(text.bytes().next_back()) && text.bytes().all(is_allowed)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_are_those_of_kubernetes() {
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
