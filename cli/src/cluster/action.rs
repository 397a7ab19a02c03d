//! The actions on experiments: start, stop, commit. Each action is a request to the aggregated API. Pure.

use proviso_core::PolicyId;
use proviso_crds::actions::{self, GROUP, VERSION};
use serde_json::{Value, json};

use crate::access::Access;

/// An action on an experiment (a custom method of AIP-236).
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
    /// Returns the action without its arguments.
    fn action(&self) -> actions::Action {
        match self {
            Self::Start => actions::Action::Start,
            Self::Stop => actions::Action::Stop,
            Self::Commit { .. } => actions::Action::Commit,
        }
    }

    /// Returns the name of the action in the path.
    #[must_use]
    pub fn name(&self) -> &'static str {
        self.action().as_str()
    }

    /// Returns the body of the request.
    pub(super) fn body(&self) -> Value {
        let mut body = json!({"apiVersion": format!("{GROUP}/{VERSION}"), "kind": self.action().kind()});
        if let Self::Commit { etag, parent_etag } = self {
            body["etag"] = json!(etag);
            body["parentEtag"] = json!(parent_etag);
        }
        body
    }

    /// Returns the path of the request.
    pub(super) fn path(&self, experiment: &PolicyId) -> String {
        let [of_namespace, of_cluster] = self.action().resources();
        let object = match experiment.namespace() {
            Some(namespace) => format!("namespaces/{namespace}/{of_namespace}"),
            None => of_cluster.to_owned(),
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
