//! The actions on experiments: start, stop, commit. They are requests to the aggregated API. Pure.

use proviso_core::PolicyId;
use serde_json::{Value, json};

use crate::access::Access;

/// The API group of the actions.
const GROUP: &str = "actions.proviso.dev";
const VERSION: &str = "v1alpha1";

/// A custom method of AIP-236.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Action {
    Start,
    Stop,
    /// Commits this version of the experiment over this version of the policy.
    Commit {
        etag: String,
        parent_etag: String,
    },
}

impl Action {
    /// Returns the name of the action, as the path has it.
    #[must_use]
    pub fn name(&self) -> &'static str {
        match self {
            Self::Start => "start",
            Self::Stop => "stop",
            Self::Commit { .. } => "commit",
        }
    }

    /// Returns the body of the request.
    pub(super) fn body(&self) -> Value {
        let version = format!("{GROUP}/{VERSION}");
        match self {
            Self::Start => json!({"apiVersion": version, "kind": "PreviewStart"}),
            Self::Stop => json!({"apiVersion": version, "kind": "PreviewStop"}),
            Self::Commit { etag, parent_etag } => {
                json!({"apiVersion": version, "kind": "ExperimentCommit", "etag": etag, "parentEtag": parent_etag})
            }
        }
    }

    /// Returns the path of the request.
    pub(super) fn path(&self, experiment: &PolicyId) -> String {
        let object = match experiment.namespace() {
            Some(namespace) => format!("namespaces/{namespace}/policyexperiments"),
            None => "clusterpolicyexperiments".to_owned(),
        };
        format!("/apis/{GROUP}/{VERSION}/{object}/{}/{}", experiment.name(), self.name())
    }

    /// Returns the request for messages about permissions.
    pub(super) fn access(&self, experiment: &PolicyId) -> Access {
        let resource = match experiment.namespace() {
            Some(_) => "policyexperiments.actions.proviso.dev",
            None => "clusterpolicyexperiments.actions.proviso.dev",
        };
        let namespace = experiment.namespace().map(str::to_owned);
        Access { verb: "create", resource, subresource: Some(self.name()), namespace }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_action_is_a_subresource() {
        let commit = Action::Commit { etag: "\"1\"".to_owned(), parent_etag: "\"2\"".to_owned() };
        for (action, id, path, body) in [
            (
                Action::Start,
                PolicyId::namespaced("team", "a.b").unwrap(),
                "/apis/actions.proviso.dev/v1alpha1/namespaces/team/policyexperiments/a.b/start",
                json!({"apiVersion": "actions.proviso.dev/v1alpha1", "kind": "PreviewStart"}),
            ),
            (
                commit,
                PolicyId::cluster("x").unwrap(),
                "/apis/actions.proviso.dev/v1alpha1/clusterpolicyexperiments/x/commit",
                json!({
                    "apiVersion": "actions.proviso.dev/v1alpha1", "kind": "ExperimentCommit", "etag": "\"1\"",
                    "parentEtag": "\"2\"",
                }),
            ),
        ] {
            assert_eq!((action.path(&id).as_str(), action.body()), (path, body));
        }
    }
}
