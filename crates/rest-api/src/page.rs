//! Pages of lists (AIP-158).

use base64::Engine as _;
use base64::prelude::BASE64_URL_SAFE_NO_PAD;
use serde_json::Value;
use sha2::{Digest as _, Sha256};

use crate::error::Error;

/// The page size of a request that sets none.
const DEFAULT_SIZE: usize = 50;
/// The maximum page size. A larger size counts as this size.
const MAX_SIZE: usize = 1000;

/// The requested page of a list.
#[derive(Debug)]
pub(crate) struct Page {
    size: usize,
    /// The name of the last resource of the previous page. `None` means the first page.
    after: Option<String>,
    /// The digest of the other arguments of the list. A page token works only with the arguments for which it was returned.
    arguments_digest: String,
}

impl Page {
    /// Parses the page size and the page token. `arguments` are all other arguments of the list.
    pub(crate) fn new(size: Option<&str>, token: Option<&str>, arguments: &[&str]) -> Result<Self, Error> {
        let size = match size {
            None => DEFAULT_SIZE,
            Some(text) => match text.parse::<i32>() {
                Ok(0) => DEFAULT_SIZE,
                Ok(size) if size > 0 => usize::try_from(size).unwrap_or(MAX_SIZE).min(MAX_SIZE),
                Ok(_) => return Err(Error::invalid("pageSize", "is negative")),
                Err(_) => return Err(Error::invalid("pageSize", "is not a 32-bit integer")),
            },
        };
        let mut hash = Sha256::new();
        for argument in arguments {
            hash.update(argument.len().to_le_bytes());
            hash.update(argument);
        }
        let arguments_digest = BASE64_URL_SAFE_NO_PAD.encode(&hash.finalize()[..12]);
        let after = match token.filter(|token| !token.is_empty()) {
            None => None,
            Some(token) => {
                let wrong = || Error::invalid("pageToken", "is not a token of this list: start again without a token");
                let text = BASE64_URL_SAFE_NO_PAD.decode(token).ok().and_then(|text| String::from_utf8(text).ok());
                let text = text.ok_or_else(wrong)?;
                let (digest, after) = text.split_once(' ').ok_or_else(wrong)?;
                if digest != arguments_digest {
                    return Err(Error::invalid("pageToken", "is a token of a list with other arguments"));
                }
                Some(after.to_owned())
            }
        };
        Ok(Self { size, after, arguments_digest })
    }

    /// Returns the position of the last resource of the previous page, as it was passed to [`Self::token`].
    pub(crate) fn after(&self) -> Option<&str> {
        self.after.as_deref()
    }

    /// Returns the token of the page that starts after the resource at this position.
    pub(crate) fn token(&self, last: &str) -> String {
        BASE64_URL_SAFE_NO_PAD.encode(format!("{} {last}", self.arguments_digest))
    }

    pub(crate) const fn size(&self) -> usize {
        self.size
    }

    /// Returns true if a resource with this name comes after the previous page.
    pub(crate) fn is_after_previous(&self, name: &str) -> bool {
        self.after.as_deref().is_none_or(|after| name > after)
    }

    /// Returns the response of a list: the page of these resources, ordered by name.
    pub(crate) fn paginate(&self, collection: &str, mut resources: Vec<Value>) -> Value {
        let name = |resource: &Value| resource["name"].as_str().unwrap_or_default().to_owned();
        resources.sort_by_key(name);
        resources.retain(|resource| self.is_after_previous(&name(resource)));
        let is_last = resources.len() <= self.size;
        resources.truncate(self.size);
        let last = resources.last().filter(|_| !is_last).map(name);
        self.response(collection, resources, last.as_deref())
    }

    /// Returns the response with the resources of this page. `last` is the name after which the next page starts; `None` means that
    /// there is no other page.
    pub(crate) fn response(&self, collection: &str, resources: Vec<Value>, last: Option<&str>) -> Value {
        let mut response = serde_json::Map::new();
        if let Some(last) = last {
            response.insert("nextPageToken".to_owned(), self.token(last).into());
        }
        response.insert(collection.to_owned(), resources.into());
        response.into()
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
    fn page_sizes_are_bounded_and_a_negative_size_is_refused() {
        let count = |size: Option<&str>| {
            let list = Page::new(size, None, &[]).unwrap().paginate("x", resources(2000));
            list["x"].as_array().unwrap().len()
        };
        assert_eq!([None, Some("0"), Some("7"), Some("5000")].map(count), [50, 50, 7, 1000]);
        for wrong in ["", "-1", "many", "3000000000"] {
            assert!(Page::new(Some(wrong), None, &[]).is_err(), "{wrong}");
        }
    }

    #[test]
    fn a_page_token_works_only_for_the_same_list() {
        let list = Page::new(Some("2"), None, &["a", "b"]).unwrap().paginate("x", resources(3));
        let token = list["nextPageToken"].as_str();
        assert!(Page::new(Some("9"), token, &["a", "b"]).is_ok(), "the size may differ");
        for other in [&["ab", ""][..], &["a", "c"], &[]] {
            assert!(Page::new(None, token, other).is_err());
        }
    }

    proptest! {
        #[test]
        fn pages_list_each_resource_once_despite_deletions(count in 0usize..40, size in 1usize..9, deleted in 0usize..40) {
            let mut seen = Vec::new();
            let mut token: Option<String> = None;
            loop {
                let page = Page::new(Some(&size.to_string()), token.as_deref(), &["f"]).unwrap();
                let mut all = resources(count);
                if !seen.is_empty() && deleted < all.len() {
                    all.remove(deleted);
                }
                let list = page.paginate("x", all);
                seen.extend(list["x"].as_array().unwrap().iter().map(|one| one["name"].as_str().unwrap().to_owned()));
                match list.get("nextPageToken") {
                    Some(next) => token = next.as_str().map(ToOwned::to_owned),
                    None => break,
                }
            }
            let deleted = format!("a/{deleted:04}");
            for index in 0..count {
                let name = format!("a/{index:04}");
                let times = seen.iter().filter(|seen| **seen == name).count();
                prop_assert!(times == 1 || (name == deleted && times == 0), "{name}: {times}");
            }
        }

        #[test]
        fn parsing_a_page_token_never_panics(token in ".{0,60}") {
            let _ = Page::new(None, Some(&token), &[]);
            let _ = Page::new(None, Some(&BASE64_URL_SAFE_NO_PAD.encode(token)), &[]);
        }
    }
}
