//! The uid in the beginning of a review that did not arrive completely, because it is too large or too slow.

/// Returns `request.uid` of a review of which only the beginning is known; `None` if it is not there.
///
/// API servers write the uid as the first member of the request, so it is within the first hundred bytes.
#[must_use]
pub fn uid_of_prefix(prefix: &[u8]) -> Option<String> {
    let mut at = 0;
    let mut depth = 0_usize;
    // The last key of the review, and the last key of its member.
    let mut keys: [Option<String>; 2] = [None, None];
    while let Some(byte) = prefix.get(at) {
        match byte {
            b'{' | b'[' => {
                if let Some(key) = keys.get_mut(depth) {
                    *key = None;
                }
                depth += 1;
            }
            b'}' | b']' => depth = depth.checked_sub(1)?,
            b'"' => {
                let end = at + string_length(&prefix[at..])?;
                let text = &prefix[at..end];
                at = end;
                let is_key = prefix[at..].iter().find(|byte| !byte.is_ascii_whitespace()) == Some(&b':');
                match (depth, is_key, &keys) {
                    (1 | 2, true, _) => keys[depth - 1] = serde_json::from_slice(text).ok(),
                    (2, false, [Some(member), Some(key)]) if member == "request" && key == "uid" => {
                        return serde_json::from_slice(text).ok().filter(|uid: &String| !uid.is_empty());
                    }
                    _ => {}
                }
                continue;
            }
            _ => {}
        }
        at += 1;
    }
    None
}

/// Returns the length of the JSON string at the start of the text, with its quotes; `None` if its end is missing.
fn string_length(text: &[u8]) -> Option<usize> {
    let mut is_escaped = false;
    for (index, byte) in text.iter().enumerate().skip(1) {
        match byte {
            _ if is_escaped => is_escaped = false,
            b'\\' => is_escaped = true,
            b'"' => return Some(index + 1),
            _ => {}
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_uid_is_found_in_the_beginning_of_a_review() {
        let head = r#"{"kind":"AdmissionReview","apiVersion":"admission.k8s.io/v1","request":{"uid":"u-1""#;
        for (text, uid) in [
            (format!(r#"{head},"object":{{"a":"<<<<"#), Some("u-1")),
            (head.to_owned(), Some("u-1")),
            (head.trim_end_matches('"').to_owned(), None),
            (r#"{"request" : { "uid" : "a\u0062" , "#.to_owned(), Some("ab")),
            (r#"{"request":{"object":{"uid":"x"},"list":["uid","y"],"uid":"u""#.to_owned(), Some("u")),
            (r#"{"request":{"userInfo":{"uid":"x"},"uid":1,"a":"uid""#.to_owned(), None),
            (r#"{"other":{"uid":"x"},"request":{"uid":"u""#.to_owned(), Some("u")),
            (r#"{"other":{"request":{"uid":"x""#.to_owned(), None),
            (r#"["request",{"uid":"x""#.to_owned(), None),
            (r#"{"a":"\"request\":{\"uid\":\"x\"","request":{"uid":"u""#.to_owned(), Some("u")),
            (r#"{"request":{"uid":"""#.to_owned(), None),
            ("}".to_owned(), None),
            (String::new(), None),
        ] {
            assert_eq!(uid_of_prefix(text.as_bytes()).as_deref(), uid, "{text}");
        }
    }

    #[test]
    fn every_longer_prefix_has_the_uid_and_no_shorter_one_has_another() {
        let text = r#"{"kind":"AdmissionReview","request":{"uid":"u\n1","kind":{"kind":"Pod"},"object":{"uid":"x"}}}"#;
        for end in 0..=text.len() {
            let is_complete = end >= text.find(r#"u\n1""#).unwrap() + 5;
            let uid = uid_of_prefix(&text.as_bytes()[..end]);
            assert_eq!(uid.as_deref(), is_complete.then_some("u\n1"), "{}", &text[..end]);
        }
    }
}
