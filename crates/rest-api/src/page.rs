//! Pages of lists (AIP-158).

use base64::Engine as _;
use base64::prelude::BASE64_URL_SAFE_NO_PAD;
use serde_json::Value;
use sha2::{Digest as _, Sha256};

use crate::error::Error;

/// What a list has that was asked for no size.
const DEFAULT: usize = 50;
/// The most that a page has; more is asked for in vain.
const MAX: usize = 1000;

/// Which part of a list is asked for.
#[derive(Debug)]
pub(crate) struct Page {
    size: usize,
    /// The name that the page before ended with.
    after: Option<String>,
    /// Of everything else that was asked: a token is good for the same list only.
    arguments: String,
}

impl Page {
    /// `arguments` are all others of the list.
    pub(crate) fn new(size: Option<&str>, token: Option<&str>, arguments: &[&str]) -> Result<Self, Error> {
        let size = match size.filter(|size| !size.is_empty()) {
            None => DEFAULT,
            Some(text) => match text.parse::<i32>() {
                Ok(0) => DEFAULT,
                Ok(size) if size > 0 => usize::try_from(size).unwrap_or(MAX).min(MAX),
                Ok(_) => return Err(Error::invalid("pageSize", "is negative")),
                Err(_) => return Err(Error::invalid("pageSize", "is no number of 32 bits")),
            },
        };
        let mut hash = Sha256::new();
        for argument in arguments {
            hash.update(argument.len().to_le_bytes());
            hash.update(argument);
        }
        let arguments = BASE64_URL_SAFE_NO_PAD.encode(&hash.finalize()[..12]);
        let after = match token.filter(|token| !token.is_empty()) {
            None => None,
            Some(token) => {
                let wrong =
                    || Error::invalid("pageToken", "is not one that this list answered: begin again without it");
                let text = BASE64_URL_SAFE_NO_PAD.decode(token).ok().and_then(|text| String::from_utf8(text).ok());
                let text = text.ok_or_else(wrong)?;
                let (of, after) = text.split_once(' ').ok_or_else(wrong)?;
                if of != arguments {
                    return Err(Error::invalid("pageToken", "is of a list with other arguments"));
                }
                Some(after.to_owned())
            }
        };
        Ok(Self { size, after, arguments })
    }

    /// The page of these resources, by their names, as the answer of a list.
    pub(crate) fn cut(&self, collection: &str, mut resources: Vec<Value>) -> Value {
        let name = |resource: &Value| resource["name"].as_str().unwrap_or_default().to_owned();
        resources.sort_by_key(name);
        if let Some(after) = &self.after {
            resources.retain(|resource| name(resource) > *after);
        }
        let is_last = resources.len() <= self.size;
        resources.truncate(self.size);
        let mut list = serde_json::Map::new();
        if let Some(last) = resources.last().filter(|_| !is_last) {
            let token = BASE64_URL_SAFE_NO_PAD.encode(format!("{} {}", self.arguments, name(last)));
            list.insert("nextPageToken".to_owned(), token.into());
        }
        list.insert(collection.to_owned(), resources.into());
        list.into()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use serde_json::json;

    fn resources(count: usize) -> Vec<Value> {
        (0..count).map(|index| json!({"name": format!("a/{index:04}")})).collect()
    }

    #[test]
    fn sizes_are_bounded_and_a_negative_one_is_refused() {
        let count = |size: Option<&str>| {
            let list = Page::new(size, None, &[]).unwrap().cut("x", resources(2000));
            list["x"].as_array().unwrap().len()
        };
        assert_eq!([None, Some("0"), Some("7"), Some("5000")].map(count), [50, 50, 7, 1000]);
        for wrong in ["-1", "many", "3000000000"] {
            assert!(Page::new(Some(wrong), None, &[]).is_err(), "{wrong}");
        }
    }

    #[test]
    fn a_token_is_good_for_the_same_list_only() {
        let list = Page::new(Some("2"), None, &["a", "b"]).unwrap().cut("x", resources(3));
        let token = list["nextPageToken"].as_str();
        assert!(Page::new(Some("9"), token, &["a", "b"]).is_ok(), "the size may differ");
        for other in [&["ab", ""][..], &["a", "c"], &[]] {
            assert!(Page::new(None, token, other).is_err());
        }
    }

    proptest! {
        #[test]
        fn pages_have_everything_once_whatever_goes_meanwhile(count in 0usize..40, size in 1usize..9, gone in 0usize..40) {
            let mut seen = Vec::new();
            let mut token: Option<String> = None;
            loop {
                let page = Page::new(Some(&size.to_string()), token.as_deref(), &["f"]).unwrap();
                let mut all = resources(count);
                if !seen.is_empty() && gone < all.len() {
                    all.remove(gone);
                }
                let list = page.cut("x", all);
                seen.extend(list["x"].as_array().unwrap().iter().map(|one| one["name"].as_str().unwrap().to_owned()));
                match list.get("nextPageToken") {
                    Some(next) => token = next.as_str().map(ToOwned::to_owned),
                    None => break,
                }
            }
            let left = format!("a/{gone:04}");
            for index in 0..count {
                let name = format!("a/{index:04}");
                let times = seen.iter().filter(|seen| **seen == name).count();
                prop_assert!(times == 1 || (name == left && times == 0), "{name}: {times}");
            }
        }

        #[test]
        fn no_token_is_a_panic(token in ".{0,60}") {
            let _ = Page::new(None, Some(&token), &[]);
            let _ = Page::new(None, Some(&BASE64_URL_SAFE_NO_PAD.encode(token)), &[]);
        }
    }
}
