//! Authentication challenges: the header `WWW-Authenticate` of a response 401 (RFC 9110, section 11), as far as registries
//! use it.

use hyper::HeaderMap;
use hyper::header::WWW_AUTHENTICATE;

/// The kind of credentials that a server requests.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Challenge {
    /// A user name and password.
    Basic,
    /// A token from the token server at `realm`.
    Bearer { realm: String, service: Option<String>, scope: Option<String> },
}

impl Challenge {
    /// Returns the first challenge of a supported scheme; `None` if there is none.
    pub(super) fn read(headers: &HeaderMap) -> Option<Self> {
        headers.get_all(WWW_AUTHENTICATE).iter().find_map(|value| Self::parse(value.to_str().ok()?))
    }

    fn parse(text: &str) -> Option<Self> {
        let (scheme, rest) = text.trim().split_once(' ').unwrap_or((text.trim(), ""));
        if scheme.eq_ignore_ascii_case("basic") {
            return Some(Self::Basic);
        }
        if !scheme.eq_ignore_ascii_case("bearer") {
            return None;
        }
        let (mut realm, mut service, mut scope) = (None, None, None);
        for (name, value) in parameters(rest) {
            match name.to_ascii_lowercase().as_str() {
                "realm" => realm = Some(value),
                "service" => service = Some(value),
                "scope" => scope = Some(value),
                _ => {}
            }
        }
        Some(Self::Bearer { realm: realm?, service, scope })
    }
}

/// Parses parameters of the form `name="value", name=value, …`.
fn parameters(mut text: &str) -> Vec<(&str, String)> {
    let mut found = Vec::new();
    while let Some((name, rest)) = text.split_once('=') {
        let (value, rest) = if let Some(quoted) = rest.strip_prefix('"') {
            unquoted(quoted)
        } else {
            let (value, rest) = rest.split_once(',').unwrap_or((rest, ""));
            (value.trim().to_owned(), rest)
        };
        found.push((name.trim_matches([' ', ',']), value));
        text = rest;
    }
    found
}

/// Returns the text up to the closing quote without escapes, and the text after the quote.
fn unquoted(text: &str) -> (String, &str) {
    let mut value = String::new();
    let mut characters = text.char_indices();
    while let Some((at, character)) = characters.next() {
        match character {
            '"' => return (value, &text[at + 1..]),
            '\\' => value.extend(characters.next().map(|(_, escaped)| escaped)),
            _ => value.push(character),
        }
    }
    (value, "")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn challenges_of_registries_are_parsed() {
        let bearer = |realm: &str, service: Option<&str>, scope: Option<&str>| {
            let own = |text: &str| text.to_owned();
            Some(Challenge::Bearer { realm: own(realm), service: service.map(own), scope: scope.map(own) })
        };
        for (text, wanted) in [
            (r#"Basic realm="a registry""#, Some(Challenge::Basic)),
            ("basic", Some(Challenge::Basic)),
            (
                r#"Bearer realm="https://auth.docker.io/token",service="registry.docker.io",scope="repository:a/b:pull,push""#,
                bearer("https://auth.docker.io/token", Some("registry.docker.io"), Some("repository:a/b:pull,push")),
            ),
            (r#"bearer Realm="https://a/\"t\"" , service=s"#, bearer("https://a/\"t\"", Some("s"), None)),
            (r#"Bearer realm="https://a/t"#, bearer("https://a/t", None, None)),
            ("Bearer service=s", None),
            ("Negotiate", None),
            ("", None),
        ] {
            assert_eq!(Challenge::parse(text), wanted, "{text}");
        }
    }
}
