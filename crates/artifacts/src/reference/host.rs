//! Server names `host[:port]` in references, sources and pull secrets.

use std::fmt;
use std::str::FromStr;

use url::Url;

/// A server. The default port is omitted, so that two spellings of one server are equal.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Host {
    /// The name in lower case; an IPv6 address has brackets.
    name: String,
    /// The port; `None` means 443 for HTTPS and 80 for HTTP.
    port: Option<u16>,
}

/// The error of a text that is not a server name.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0:?} is not a host or host:port")]
pub struct HostError(String);

impl Host {
    /// Returns the server of a URL; `None` if the URL has no host.
    #[must_use]
    pub fn of(url: &Url) -> Option<Self> {
        Some(Self { name: url.host_str()?.to_owned(), port: url.port() })
    }

    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }
}

impl FromStr for Host {
    type Err = HostError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let error = || HostError(text.chars().take(300).collect());
        let is_plain_host = !text.contains(['/', '\\', '?', '#', '@']) && !text.chars().any(char::is_whitespace);
        let url = Url::parse(&format!("https://{text}/")).ok().filter(|_| is_plain_host).ok_or_else(error)?;
        Self::of(&url).ok_or_else(error)
    }
}

impl fmt::Display for Host {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.name)?;
        self.port.map_or(Ok(()), |port| write!(f, ":{port}"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn two_spellings_of_a_server_are_equal() {
        for (text, name) in [
            ("ghcr.io", "ghcr.io"),
            ("GHCR.io:443", "ghcr.io"),
            ("127.0.0.1:5000", "127.0.0.1:5000"),
            ("[::1]:5000", "[::1]:5000"),
            ("2130706433:5000", "127.0.0.1:5000"),
        ] {
            assert_eq!(text.parse::<Host>().unwrap().to_string(), name);
        }
        for text in ["", ":5000", "a b", "a/b", "u@a", "a:port", "a:99999", "https://a", "a?b", "a\n"] {
            assert!(text.parse::<Host>().is_err(), "{text:?}");
        }
    }
}
