//! The objects that a request found, and the objects that it had to omit.

use std::fmt::Display;
use std::pin::Pin;

use futures_util::Stream;
use kube::ResourceExt as _;
use kube::core::DynamicObject;
use serde::Serialize;

use crate::error::Error;
use crate::objects::ObjectError;

/// The kinds of an overview, as [`Omitted::what`] names them.
pub const CLUSTER_POLICIES: &str = "ClusterPolicies";
pub const POLICIES: &str = "Policies";
pub const CLUSTER_EXPERIMENTS: &str = "ClusterPolicyExperiments";
pub const EXPERIMENTS: &str = "PolicyExperiments";

/// The objects that a request found, and the objects that it had to omit.
#[derive(Debug)]
pub struct Found<T> {
    pub items: Vec<T>,
    /// The objects that the user may not read, or that are invalid.
    pub unseen: Vec<Omitted>,
}

/// A stream of all objects, again each time that one changes.
pub type Updates<T> = Pin<Box<dyn Stream<Item = Result<Found<T>, Error>> + Send>>;

/// Objects that are missing from the output.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Omitted {
    /// The objects, such as a kind or `NAMESPACE/NAME`.
    pub what: String,
    /// `Forbidden` or `Malformed`.
    pub reason: &'static str,
    pub message: String,
}

impl Omitted {
    /// Returns the omission of objects that the user may not read.
    #[must_use]
    pub fn forbidden(what: &str, error: &impl Display) -> Self {
        Self { what: what.to_owned(), reason: "Forbidden", message: error.to_string() }
    }

    /// Returns the omission of an invalid object.
    #[must_use]
    pub fn malformed(what: &str, error: &ObjectError) -> Self {
        Self { what: what.to_owned(), reason: "Malformed", message: error.to_string() }
    }
}

impl<T> Found<T> {
    /// Adds these objects. Invalid objects are omitted.
    pub fn read<'a>(
        &mut self,
        objects: impl IntoIterator<Item = &'a DynamicObject>,
        read: impl Fn(&DynamicObject) -> Result<T, ObjectError>,
    ) {
        for object in objects {
            match read(object) {
                Ok(item) => self.items.push(item),
                Err(error) => self.unseen.push(Omitted::malformed(&name(object), &error)),
            }
        }
    }
}

/// Returns `NAMESPACE/NAME` or `NAME`, for messages.
fn name(object: &DynamicObject) -> String {
    let name = object.name_any();
    object.namespace().map_or_else(|| name.clone(), |namespace| format!("{namespace}/{name}"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::objects::PolicyObject;
    use serde_json::json;

    #[test]
    fn an_invalid_object_does_not_hide_the_others() {
        let object = |name: &str, phase: &str| {
            let object =
                json!({"metadata": {"name": name, "namespace": "team"}, "spec": {}, "status": {"phase": phase}});
            serde_json::from_value(object).unwrap()
        };
        let mut found = Found { items: Vec::new(), unseen: Vec::new() };
        found.read(&[object("a", "Sleeping"), object("b", "Active")], PolicyObject::read);
        assert_eq!(found.items.iter().map(|policy| policy.id.as_str()).collect::<Vec<_>>(), ["ns.team.b"]);
        assert_eq!((found.unseen[0].what.as_str(), found.unseen[0].reason), ("team/a", "Malformed"));
    }
}
