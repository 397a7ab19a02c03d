//! The required subject of a certificate: an exact name, or a URL prefix.

use std::fmt;
use std::str::FromStr;

use url::Url;

/// A required subject of a certificate.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Subject {
    /// The exact name.
    Equal(String),
    /// A URL at or below this prefix.
    Prefix(UrlPrefix),
}

/// A URL prefix, which ends at the end of a path segment: `https://a/org` covers `https://a/org/repo` and not
/// `https://a/org-evil`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UrlPrefix(Url);

/// The error of a text that is not a URL prefix.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0:?} is not a URL prefix: give one like https://github.com/organization, without user, query and fragment")]
pub struct PrefixError(String);

impl Subject {
    pub(super) fn matches(&self, name: &str) -> bool {
        match self {
            Self::Equal(wanted) => name == wanted,
            Self::Prefix(prefix) => prefix.covers(name),
        }
    }
}

impl UrlPrefix {
    /// Returns true if `text` is a URL at or below the prefix.
    ///
    /// The comparison uses parsed URLs, so that URLs that only look alike, with `..` or a user name like a host, do not match.
    fn covers(&self, text: &str) -> bool {
        let Some(url) = plain_url(text) else { return false };
        let rest = url.path().strip_prefix(self.0.path().trim_end_matches('/'));
        url.origin() == self.0.origin()
            && url.scheme() == self.0.scheme()
            && rest.is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
    }
}

/// Parses a URL whose text and meaning are the same; `None` for any other text, which no certificate needs.
///
/// The parser removes white space and resolves `..`, and a user name can look like a host.
pub(super) fn plain_url(text: &str) -> Option<Url> {
    let is_plain = text.chars().all(|character| character.is_ascii_graphic())
        && !text.contains(['\\', '%'])
        && !text.split(['/', '?', '#']).any(|part| part == "." || part == "..");
    let url = Url::parse(text).ok().filter(|_| is_plain)?;
    (url.username().is_empty() && url.password().is_none()).then_some(url)
}

impl FromStr for UrlPrefix {
    type Err = PrefixError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let url = Url::parse(text).ok().filter(|url| {
            url.host_str().is_some()
                && matches!(url.scheme(), "http" | "https")
                && url.username().is_empty()
                && url.password().is_none()
                && url.query().is_none()
                && url.fragment().is_none()
        });
        url.map(Self).ok_or_else(|| PrefixError(text.chars().take(300).collect()))
    }
}

impl fmt::Display for Subject {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Equal(name) => write!(f, "{name:?}"),
            Self::Prefix(UrlPrefix(url)) => write!(f, "below {:?}", url.as_str()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_prefix_ends_at_the_end_of_a_path_segment() {
        for (prefix, name, covers) in [
            ("https://github.com/org", "https://github.com/org", true),
            ("https://github.com/org", "https://github.com/org/repo/.github/workflows/a.yml@refs/tags/v1", true),
            ("https://github.com/org/", "https://github.com/org/repo", true),
            ("https://github.com", "https://github.com/anybody", true),
            ("https://GitHub.com:443/org", "https://github.com/org/repo", true),
            ("https://github.com/org", "https://github.com/org-evil/repo", false),
            ("https://github.com/org/", "https://github.com/organization", false),
            ("https://github.com", "https://github.com.evil.example/org", false),
            ("https://github.com/org", "https://github.com@evil.example/org/repo", false),
            ("https://github.com/org", "https://evil.example/github.com/org/repo", false),
            ("https://github.com/org", "http://github.com/org/repo", false),
            ("https://github.com/org", "https://github.com:8443/org/repo", false),
            ("https://github.com/org", "https://github.com/org/../evil/repo", false),
            ("https://github.com/org", "https://github.com/evil/../org/repo", false),
            ("https://github.com/org", "https://github.com/org/%2e%2e/evil", false),
            ("https://github.com/org", "https://github.com/evil%2Forg", false),
            ("https://github.com/org", r"https://github.com\org\repo", false),
            ("https://github.com/org", "https://github.com/Org/repo", false),
            ("https://github.com/org", "ann@github.com/org", false),
            ("https://github.com/org", "https://github.com/evil/.\t./org/repo", false),
            ("https://github.com/org", "https://github.com/\norg/repo", false),
        ] {
            let subject = Subject::Prefix(prefix.parse().unwrap());
            assert_eq!(subject.matches(name), covers, "{prefix} {name}");
        }
        assert!(Subject::Equal("https://a/b".to_owned()).matches("https://a/b"));
        assert!(!Subject::Equal("https://a/b".to_owned()).matches("https://a/b/"));
    }

    #[test]
    fn invalid_url_prefixes_are_refused() {
        for text in ["", "github.com/org", "mailto:a@b", "https://a@b/", "https://a/?b", "https://a/#b", "file:///a"] {
            assert!(text.parse::<UrlPrefix>().is_err(), "{text:?}");
        }
    }
}
