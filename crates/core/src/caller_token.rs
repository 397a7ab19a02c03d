//! Caller tokens: the secret segments of webhook paths, by which a policy server recognises the API servers. Only this module builds
//! and parses paths with a token: `/t/<token>/<path of an endpoint>`.

use std::fmt;

/// The first segment of a path with a token.
const PREFIX: &str = "/t/";
/// The minimum length of a token, in characters: 128 bits in hexadecimal digits.
const MIN_LENGTH: usize = 32;
/// The maximum length of a token, in characters. The API server accepts segments of up to 253 characters.
const MAX_LENGTH: usize = 128;

/// A caller token. Its `Debug` output does not contain it, and it has no `Display`.
#[derive(Clone, PartialEq, Eq)]
pub struct CallerToken(String);

/// The error of a list of tokens. It does not contain the text.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum CallerTokenError {
    #[error("there is no caller token: expected one token in each line")]
    Empty,
    #[error("line {0} is not a caller token: expected {MIN_LENGTH} to {MAX_LENGTH} characters of a-z and 0-9")]
    Malformed(usize),
}

impl CallerToken {
    /// Encodes random bytes as a token, in hexadecimal digits: a segment of a webhook's path must be a DNS-1123 subdomain.
    #[must_use]
    pub fn from_random(bytes: [u8; 32]) -> Self {
        use fmt::Write as _;
        Self(bytes.iter().fold(String::new(), |mut text, byte| {
            // Writing to a String does not fail.
            let _ = write!(text, "{byte:02x}");
            text
        }))
    }

    /// Parses a token; `None` if it is too short, too long, or no segment of a webhook's path.
    #[must_use]
    pub fn parse(text: &str) -> Option<Self> {
        let is_valid = text.bytes().all(|byte| byte.is_ascii_lowercase() || byte.is_ascii_digit());
        (is_valid && (MIN_LENGTH..=MAX_LENGTH).contains(&text.len())).then(|| Self(text.to_owned()))
    }

    /// Parses a list of tokens: one token in each line.
    ///
    /// # Errors
    /// Returns an error if the list is empty, or if a line is not a token.
    pub fn parse_list(text: &str) -> Result<Vec<Self>, CallerTokenError> {
        let lines = text.lines().enumerate().filter(|(_, line)| !line.trim().is_empty());
        let tokens = lines.map(|(index, line)| Self::parse(line.trim()).ok_or(CallerTokenError::Malformed(index + 1)));
        let tokens = tokens.collect::<Result<Vec<_>, _>>()?;
        if tokens.is_empty() { Err(CallerTokenError::Empty) } else { Ok(tokens) }
    }

    /// Returns the token itself, to store it or to compare it.
    #[must_use]
    pub fn expose(&self) -> &str {
        &self.0
    }

    /// Returns the path of a webhook that sends this token: `/t/<token>`, followed by the path of the endpoint.
    #[must_use]
    pub fn path(&self, endpoint: &impl fmt::Display) -> String {
        format!("{PREFIX}{}{endpoint}", self.0)
    }
}

impl fmt::Debug for CallerToken {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("CallerToken")
    }
}

/// Splits a path into its token and the path of the endpoint. The token is `None` if the path has another form. The token is not
/// checked.
#[must_use]
pub fn split_token(path: &str) -> (Option<&str>, &str) {
    let rest = path.strip_prefix(PREFIX);
    let split = rest.and_then(|rest| rest.find('/').map(|end| rest.split_at(end)));
    split.map_or((None, path), |(token, endpoint)| (Some(token), endpoint))
}

#[cfg(test)]
mod tests {
    use super::*;

    const TEXT: &str = "0123456789abcdef0123456789abcdef";

    #[test]
    fn a_path_with_a_token_is_split_into_the_token_and_the_endpoint() {
        for (path, expected) in [
            ("/t/secret/validate/cluster.a/1", (Some("secret"), "/validate/cluster.a/1")),
            ("/t/secret/", (Some("secret"), "/")),
            ("/t//validate/cluster.a", (Some(""), "/validate/cluster.a")),
            ("/t/secret", (None, "/t/secret")),
            ("/t/", (None, "/t/")),
            ("/validate/cluster.a/1", (None, "/validate/cluster.a/1")),
            ("/validate/t/secret/1", (None, "/validate/t/secret/1")),
            ("t/secret/validate/cluster.a", (None, "t/secret/validate/cluster.a")),
            ("", (None, "")),
        ] {
            assert_eq!(split_token(path), expected, "{path:?}");
        }
        let token = CallerToken::from_random([0xaf; 32]);
        let path = token.path(&"/validate/cluster.a/1");
        assert_eq!(split_token(&path), (Some(token.expose()), "/validate/cluster.a/1"));
        assert!(CallerToken::parse(token.expose()).is_some_and(|parsed| parsed == token));
    }

    #[test]
    fn a_list_of_tokens_has_one_token_in_each_line() {
        let list = CallerToken::parse_list(&format!("{TEXT}\n\n {}1\n", "a".repeat(31))).unwrap();
        assert_eq!(list.iter().map(CallerToken::expose).collect::<Vec<_>>(), [TEXT, &format!("{}1", "a".repeat(31))]);
        for (text, expected) in [
            ("", CallerTokenError::Empty),
            (" \n\n", CallerTokenError::Empty),
            ("short", CallerTokenError::Malformed(1)),
            (&format!("{TEXT}\n{}", TEXT.to_uppercase()), CallerTokenError::Malformed(2)),
            (&format!("{TEXT}/x"), CallerTokenError::Malformed(1)),
            (&"a".repeat(129), CallerTokenError::Malformed(1)),
        ] {
            assert_eq!(CallerToken::parse_list(text), Err(expected), "{text:?}");
        }
    }

    #[test]
    fn debug_output_does_not_contain_the_token() {
        assert_eq!(format!("{:?}", CallerToken::parse(TEXT)), "Some(CallerToken)");
    }
}
