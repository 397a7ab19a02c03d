//! Parses URLs according to RFC 3986: an absolute URI, or an absolute path. The url crate is not used: it follows browsers, and
//! normalizes default ports, dot segments and letters.

/// The parts of a URL. Only the host is decoded.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Url {
    /// The scheme in lower case; empty for a path.
    pub scheme: String,
    /// The host with its port.
    pub host: String,
    pub path: String,
    query: String,
}

impl Url {
    pub(super) fn parse(source: &str) -> Result<Self, &'static str> {
        if source.is_empty() {
            return Err("it is empty");
        }
        if source.bytes().any(|byte| byte < b' ' || byte == 0x7f) {
            return Err("it has control characters");
        }
        if source == "*" {
            return Ok(Self { path: source.to_owned(), ..Self::default() });
        }
        let (scheme, rest) = scheme(source)?;
        let (rest, query) = rest.split_once('?').unwrap_or((rest, ""));
        let mut url = Self { scheme: scheme.to_ascii_lowercase(), query: query.to_owned(), ..Self::default() };
        if !rest.starts_with('/') {
            // A URI such as mailto:someone has no path.
            return if scheme.is_empty() {
                Err("it is neither absolute nor a path that begins with /")
            } else {
                Ok(url)
            };
        }
        let path = match rest.strip_prefix("//").filter(|_| !scheme.is_empty()) {
            Some(rest) => {
                let end = rest.find('/').unwrap_or(rest.len());
                let (authority, path) = rest.split_at(end);
                url.host = host(authority)?;
                path
            }
            None => rest,
        };
        url.path = escaped_path(path)?;
        Ok(url)
    }

    /// Returns the host without port and brackets.
    pub(super) fn hostname(&self) -> &str {
        let host = self
            .host
            .strip_suffix(self.port())
            .map_or(self.host.as_str(), |rest| rest.strip_suffix(':').unwrap_or(rest));
        host.strip_prefix('[').and_then(|rest| rest.strip_suffix(']')).unwrap_or(host)
    }

    /// Returns the port; empty if the URL has none.
    pub(super) fn port(&self) -> &str {
        let after_brackets = self.host.rfind(']').map_or(0, |end| end + 1);
        self.host[after_brackets..].rsplit_once(':').map_or("", |(_, port)| port)
    }

    /// Returns the decoded keys and values of the query. Pairs that cannot be decoded are omitted.
    pub(super) fn query(&self) -> impl Iterator<Item = (String, String)> {
        self.query.split('&').filter(|pair| !pair.is_empty() && !pair.contains(';')).filter_map(|pair| {
            let (key, value) = pair.split_once('=').unwrap_or((pair, ""));
            let decoded = |part: &str| decode(&part.replace('+', " "));
            Some((decoded(key)?, decoded(value)?))
        })
    }
}

/// Splits off the scheme: the text before the first colon. The scheme is empty if that text is not a valid scheme.
fn scheme(source: &str) -> Result<(&str, &str), &'static str> {
    for (index, byte) in source.bytes().enumerate() {
        match byte {
            b'a'..=b'z' | b'A'..=b'Z' => {}
            b'0'..=b'9' | b'+' | b'-' | b'.' if index > 0 => {}
            b':' if index == 0 => return Err("its scheme is missing"),
            b':' => return Ok((&source[..index], &source[index + 1..])),
            _ => return Ok(("", source)),
        }
    }
    Ok(("", source))
}

fn host(authority: &str) -> Result<String, &'static str> {
    let (user, host) = authority.rsplit_once('@').unwrap_or(("", authority));
    let in_user = |byte: u8| byte.is_ascii_alphanumeric() || b"-._:~!$&'()*+,;=%@".contains(&byte);
    if !user.bytes().all(in_user) || decode(user).is_none() {
        return Err("its user is not valid");
    }
    let port = match host.strip_prefix('[') {
        Some(rest) => rest.rsplit_once(']').ok_or("a bracket of its host is not closed")?.1,
        None => host.find(':').map_or("", |_| &host[host.rfind(':').unwrap_or_default()..]),
    };
    let is_port =
        port.is_empty() || port.strip_prefix(':').is_some_and(|port| port.bytes().all(|b| b.is_ascii_digit()));
    if !is_port {
        return Err("its port is not valid");
    }
    // Only characters outside of ASCII may be escaped in a host.
    let in_host =
        |byte: u8| !byte.is_ascii() || byte.is_ascii_alphanumeric() || b"-_.~!$&'()*+,;=:[]<>\"".contains(&byte);
    let mut bytes = host.bytes();
    while let Some(byte) = bytes.next() {
        let escaped =
            byte == b'%' && bytes.next().is_some_and(|b| matches!(b, b'8' | b'9' | b'a'..=b'f' | b'A'..=b'F'));
        if !in_host(byte) && !escaped {
            return Err("its host is not valid");
        }
    }
    decode(host).ok_or("its host is not valid")
}

/// Returns the path with all characters escaped that must be escaped.
fn escaped_path(path: &str) -> Result<String, &'static str> {
    use std::fmt::Write as _;
    if decode_bytes(path).is_none() {
        return Err("its path has an escape that is not valid");
    }
    let allowed = |byte: u8| byte.is_ascii_alphanumeric() || b"-_.~!$&'()*+,;=:@/[]%".contains(&byte);
    let mut escaped = String::with_capacity(path.len());
    for byte in path.bytes() {
        if allowed(byte) {
            escaped.push(byte.into());
        } else {
            let _ = write!(escaped, "%{byte:02X}");
        }
    }
    Ok(escaped)
}

fn decode(text: &str) -> Option<String> {
    String::from_utf8(decode_bytes(text)?).ok()
}

fn decode_bytes(text: &str) -> Option<Vec<u8>> {
    let mut bytes = text.bytes();
    let mut decoded = Vec::with_capacity(text.len());
    while let Some(byte) = bytes.next() {
        decoded.push(match byte {
            b'%' => {
                let mut digit = || char::from(bytes.next()?).to_digit(16);
                u8::try_from(digit()? * 16 + digit()?).ok()?
            }
            other => other,
        });
    }
    Some(decoded)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn urls_are_split_into_their_parts() {
        for (source, scheme, host, hostname, port, path) in [
            ("https://example.com:80/a/../b?x=1", "https", "example.com:80", "example.com", "80", "/a/../b"),
            ("HTTPS://u:p@Example.com", "https", "Example.com", "Example.com", "", ""),
            ("https://[::1]:80/", "https", "[::1]:80", "::1", "80", "/"),
            ("https://[::1]", "https", "[::1]", "::1", "", ""),
            ("/a b/%20", "", "", "", "", "/a%20b/%20"),
            ("//a/b", "", "", "", "", "//a/b"),
            ("mailto:a@b", "mailto", "", "", "", ""),
            ("https://example.com:", "https", "example.com:", "example.com", "", ""),
            ("https://example.com/#a", "https", "example.com", "example.com", "", "/%23a"),
        ] {
            let url = Url::parse(source).unwrap();
            let parts = (url.scheme.as_str(), url.host.as_str(), url.hostname(), url.port(), url.path.as_str());
            assert_eq!(parts, (scheme, host, hostname, port, path), "{source}");
        }
    }

    #[test]
    fn invalid_urls_are_refused() {
        for source in [
            "",
            "a/b",
            "../a",
            ":a",
            "http://a b",
            "http://[::1",
            "http://a:b",
            "/%zz",
            "http://a\n",
            "1:a",
            "http://%41",
        ] {
            assert!(Url::parse(source).is_err(), "{source}");
        }
    }

    #[test]
    fn queries_may_have_several_values_for_a_key() {
        let query: Vec<_> = Url::parse("/?a=1&a=2&b&c=x+y%21&%zz=1&d;e=1").unwrap().query().collect();
        let wanted = [("a", "1"), ("a", "2"), ("b", ""), ("c", "x y!")];
        assert_eq!(query, wanted.map(|(key, value)| (key.to_owned(), value.to_owned())));
    }
}
