//! The headers by which the store acts as its caller: see "User impersonation" in the Kubernetes documentation.

use axum::http::{HeaderMap, HeaderName, HeaderValue};
use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, utf8_percent_encode};

use super::Result;
use crate::error::{Code, Error};
use crate::store::Caller;

/// The characters of a key of extra data that are escaped in the name of a header.
const ESCAPED: &AsciiSet = &NON_ALPHANUMERIC.remove(b'-').remove(b'.').remove(b'_');

/// Returns the headers that name the caller.
///
/// # Errors
/// Fails if the user has no name, or if a text cannot be sent unchanged in a header.
pub(super) fn headers(caller: &Caller) -> Result<HeaderMap> {
    let mut headers = HeaderMap::new();
    if caller.user.is_empty() {
        // The API server would do the write as the operator.
        return Err(invalid(""));
    }
    headers.append("impersonate-user", value(&caller.user)?);
    if !caller.uid.is_empty() {
        headers.append("impersonate-uid", value(&caller.uid)?);
    }
    for group in &caller.groups {
        headers.append("impersonate-group", value(group)?);
    }
    for (key, texts) in &caller.extra {
        let name = format!("impersonate-extra-{}", utf8_percent_encode(&key.to_lowercase(), ESCAPED));
        let name = HeaderName::try_from(name).map_err(|_| invalid(key))?;
        for text in texts {
            headers.append(&name, value(text)?);
        }
    }
    Ok(headers)
}

/// Returns the value of a header. HTTP servers remove spaces and tabs at both ends of a value, so such a text would name another user or
/// group.
fn value(text: &str) -> Result<HeaderValue> {
    if text.trim() != text || text.chars().any(char::is_control) {
        return Err(invalid(text));
    }
    HeaderValue::from_bytes(text.as_bytes()).map_err(|_| invalid(text))
}

fn invalid(text: &str) -> Error {
    let message =
        format!("the identity of the caller cannot be sent to the API server: {text:?} is not the value of a header");
    Error::new(Code::FailedPrecondition, "IMPERSONATION", message)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_headers_name_the_user_with_all_attributes() {
        let caller = Caller {
            user: "jürgen".to_owned(),
            uid: "7".to_owned(),
            groups: vec!["dev".to_owned(), "system:authenticated".to_owned()],
            extra: [("Example.com/Scopes".to_owned(), vec!["a".to_owned(), "b".to_owned()])].into(),
        };
        let headers = headers(&caller).unwrap();
        let values = |name: &str| -> Vec<&[u8]> { headers.get_all(name).iter().map(HeaderValue::as_bytes).collect() };
        assert_eq!(values("Impersonate-User"), ["jürgen".as_bytes()]);
        assert_eq!(values("Impersonate-Uid"), [b"7"]);
        assert_eq!(values("Impersonate-Group"), [&b"dev"[..], b"system:authenticated"]);
        assert_eq!(values("Impersonate-Extra-example.com%2Fscopes"), [b"a", b"b"]);
        assert_eq!(headers.len(), 6);
    }

    #[test]
    fn a_text_that_a_header_would_change_is_refused() {
        for text in [
            "a\nImpersonate-Group: system:masters",
            "ann ",
            " ann",
            "\tann",
            "a\tb",
            "ann\u{a0}",
            "a\u{7f}",
            "a\u{85}b",
        ] {
            let valid = Caller { user: "ann".to_owned(), ..Caller::default() };
            for caller in [
                Caller { user: text.to_owned(), ..Caller::default() },
                Caller { uid: text.to_owned(), ..valid.clone() },
                Caller { groups: vec!["dev".to_owned(), text.to_owned()], ..valid.clone() },
                Caller { extra: [("key".to_owned(), vec![text.to_owned()])].into(), ..valid.clone() },
            ] {
                assert_eq!(headers(&caller).unwrap_err().reason(), "IMPERSONATION", "{caller:?}");
            }
        }
        assert_eq!(headers(&Caller::default()).unwrap_err().reason(), "IMPERSONATION", "a caller without a name");
    }
}
