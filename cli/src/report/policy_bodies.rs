//! The bodies of policies that a component has, and of those that it should have.

use std::collections::BTreeMap;

use serde::Serialize;
use serde_json::Value;

use super::subscription::{ItemReport, ItemState};
use crate::changes::lines_diff;

/// A body, or the cause for which it is not known.
pub type Body = Result<Value, String>;

/// The bodies of the policies of a component, by policy id.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Bodies {
    pub has: BTreeMap<String, Body>,
    pub should: BTreeMap<String, Body>,
}

/// The bodies of one policy.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct PolicyBodies {
    pub policy: String,
    /// The body that the component has; absent if it has none, or if the body is not known.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub has: Option<Value>,
    /// The body that the component should have; absent if it should have none, or if the body is not known.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub should: Option<Value>,
    /// The causes for which bodies are not known.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub unknown: Vec<String>,
    /// The unified diff of the bodies as YAML; empty if a body is not known.
    pub diff: String,
}

impl Bodies {
    /// Returns the policies whose bodies differ, or are not known. `items` are all policies of the component.
    ///
    /// # Errors
    /// When a body cannot be written as YAML, which does not happen with JSON.
    pub fn compare(&self, items: &[ItemReport]) -> Result<Vec<PolicyBodies>, serde_yaml::Error> {
        items.iter().filter_map(|item| self.of(item).transpose()).collect()
    }

    /// Returns the bodies of one policy; `None` if they are equal.
    fn of(&self, item: &ItemReport) -> Result<Option<PolicyBodies>, serde_yaml::Error> {
        let has = side("has", item.has.as_deref(), self.has.get(&item.policy));
        let should = side("should have", item.should.as_deref(), self.should.get(&item.policy));
        let is_known = has.is_ok() && should.is_ok();
        if (is_known || item.state == ItemState::Current) && has.as_ref().ok() == should.as_ref().ok() {
            return Ok(None);
        }
        let unknown = [&has, &should].into_iter().filter_map(|side| side.as_ref().err().cloned()).collect();
        let (has, should) = (has.ok().flatten(), should.ok().flatten());
        let diff = if is_known {
            let header = |word: &str, version: Option<&str>| match version {
                Some(version) => format!("{} version {version} ({word})", item.policy),
                None => format!("no {} ({word})", item.policy),
            };
            let (before, after) = (yaml(has.as_ref())?, yaml(should.as_ref())?);
            let (old, new) = (header("has", item.has.as_deref()), header("should have", item.should.as_deref()));
            lines_diff((&old, &before), (&new, &after))
        } else {
            String::new()
        };
        Ok(Some(PolicyBodies { policy: item.policy.clone(), has, should, unknown, diff }))
    }
}

/// Returns the body of one side; `None` if the component has or should have none there.
fn side(word: &str, version: Option<&str>, body: Option<&Body>) -> Result<Option<Value>, String> {
    match (version, body) {
        (None, _) => Ok(None),
        (Some(_), Some(Ok(body))) => Ok(Some(body.clone())),
        (Some(version), Some(Err(cause))) => Err(format!("the body of version {version} ({word}): {cause}")),
        (Some(version), None) => Err(format!("the body of version {version} ({word}) is not known")),
    }
}

fn yaml(body: Option<&Value>) -> Result<String, serde_yaml::Error> {
    body.map_or_else(|| Ok(String::new()), serde_yaml::to_string)
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn item(has: Option<&str>, should: Option<&str>, state: ItemState) -> ItemReport {
        let owned = |version: Option<&str>| version.map(str::to_owned);
        ItemReport { policy: "cluster.memory".to_owned(), has: owned(has), should: owned(should), state, message: None }
    }

    fn compare(item: ItemReport, has: Option<Body>, should: Option<Body>) -> Vec<PolicyBodies> {
        let map = |body: Option<Body>| body.map(|body| (item.policy.clone(), body)).into_iter().collect();
        Bodies { has: map(has), should: map(should) }.compare(&[item]).unwrap()
    }

    #[test]
    fn only_policies_that_differ_are_compared() {
        let body = |min: i64| Ok(json!({"config": {"min": min}}));
        assert_eq!(compare(item(Some("1"), Some("1"), ItemState::Current), Some(body(1)), Some(body(1))), []);
        // Nothing is known about the bodies of a policy that is up to date, and nothing is asked.
        assert_eq!(compare(item(Some("1"), Some("1"), ItemState::Current), None, None), []);
        let [changed] = &compare(item(Some("1"), Some("2"), ItemState::Pending), Some(body(1)), Some(body(2)))[..]
        else {
            panic!("one difference")
        };
        let wanted = "\
--- cluster.memory version 1 (has)
+++ cluster.memory version 2 (should have)
@@ -1,2 +1,2 @@
 config:
-  min: 1
+  min: 2
";
        assert_eq!((changed.diff.as_str(), changed.unknown.len()), (wanted, 0));
        let [removed] = &compare(item(Some("1"), None, ItemState::Pending), Some(body(1)), None)[..] else {
            panic!("one difference")
        };
        assert!(removed.diff.contains("+++ no cluster.memory (should have)\n"), "{}", removed.diff);
        assert!(removed.diff.ends_with("-config:\n-  min: 1\n"), "{}", removed.diff);
    }

    #[test]
    fn an_unknown_body_has_its_cause_in_place_of_a_diff() {
        let cause = Err("a template computes it".to_owned());
        let body = Ok(json!({"config": {}}));
        let [changed] = &compare(item(Some("1"), Some("2"), ItemState::Rejected), Some(body), Some(cause))[..] else {
            panic!("one difference")
        };
        assert_eq!(changed.unknown, ["the body of version 2 (should have): a template computes it"]);
        assert_eq!((changed.diff.as_str(), &changed.should), ("", &None));
    }
}
