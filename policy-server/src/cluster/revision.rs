//! Parses `PolicyRevision` objects. The Kubernetes client does not parse them, because then one invalid object, for example of
//! another version of Proviso, would fail the whole list.

use std::sync::Arc;

use kube::core::DynamicObject;
use proviso_core::policy_id::check_name;
use proviso_core::{Failure, PolicyId, Reason};
use proviso_crds::{PolicyKind, PolicyRevisionSpec, PolicySpec, RevisedPolicy, RevisionRole, validation};
use serde_json::Value;

use super::reported::Reported;
use crate::config::Replica;
use crate::manifests::ExperimentId;

/// The last observed state of a `PolicyRevision`.
#[derive(Debug)]
pub(super) struct ObservedRevision {
    pub uid: String,
    /// `metadata.generation` of the `PolicyRevision` itself.
    pub object_generation: Option<i64>,
    /// The revision in the spec, or the reason why the spec is invalid.
    pub desired: Result<DesiredRevision, Failure>,
    pub reported: Reported,
}

/// The revision in the spec of a `PolicyRevision`.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct DesiredRevision {
    pub policy: PolicyId,
    /// The uid of the policy; for a candidate, of its experiment.
    pub origin_uid: String,
    /// The generation of the policy; for a candidate, of its experiment.
    pub generation: u64,
    /// The experiment of a candidate; `None` for a revision that answers requests.
    pub experiment: Option<ExperimentId>,
    pub is_enabled: bool,
    pub spec: Arc<PolicySpec>,
}

impl ObservedRevision {
    pub(super) fn read(object: &DynamicObject, replica: &Replica) -> Self {
        let name = object.metadata.name.as_deref().unwrap_or_default();
        Self {
            uid: object.metadata.uid.clone().unwrap_or_default(),
            object_generation: object.metadata.generation,
            desired: read(name, &object.data["spec"], &replica.policy_server)
                .map_err(|message| Failure { reason: Reason::INVALID, message }),
            reported: Reported::read(object, &replica.pod_name),
        }
    }
}

fn read(name: &str, spec: &Value, policy_server: &str) -> Result<DesiredRevision, String> {
    let revision = read_spec(spec)?;
    if revision.policy_server != policy_server {
        return Err(format!("spec.policyServer: is {:?}, but the label is {policy_server:?}", revision.policy_server));
    }
    let (policy, policy_generation) = read_policy(&revision.policy_ref)?;
    let (expected_name, experiment, origin_uid, generation) = match (revision.role, revision.experiment_ref) {
        (RevisionRole::Live, _) => {
            (format!("{policy}-{policy_generation}"), None, revision.policy_ref.uid, policy_generation)
        }
        (RevisionRole::Candidate, None) => return Err("spec.experimentRef: is missing".to_owned()),
        (RevisionRole::Candidate, Some(found)) => {
            check_name(&found.name).map_err(|error| format!("spec.experimentRef.name: {error}"))?;
            let generation = read_generation("spec.experimentRef", found.generation)?;
            let id = ExperimentId { namespace: policy.namespace().map(ToOwned::to_owned), name: found.name };
            (format!("experiment.{id}-{generation}"), Some(id), found.uid, generation)
        }
    };
    if name != expected_name {
        // With one name for each generation, no two objects can claim the same path.
        return Err(format!("metadata.name: is not {expected_name}, the name of this generation's revision"));
    }
    if let Some(error) = validation::policy(&revision.data).first() {
        return Err(error.to_string());
    }
    Ok(DesiredRevision {
        policy,
        origin_uid,
        generation,
        experiment,
        is_enabled: revision.enabled,
        spec: Arc::new(revision.data),
    })
}

/// Parses the spec. An unknown field is an error, because a server that ignores a field could decide differently than the author
/// of the policy wants.
fn read_spec(spec: &Value) -> Result<PolicyRevisionSpec, String> {
    let mut unknown = Vec::new();
    let mut track = serde_path_to_error::Track::new();
    let tracked = serde_path_to_error::Deserializer::new(spec, &mut track);
    let read = serde_ignored::deserialize(tracked, |path| unknown.push(path.to_string()));
    let read = read.map_err(|error: serde_json::Error| format!("spec.{}: {error}", track.path()))?;
    match unknown.first() {
        None => Ok(read),
        Some(field) => Err(format!("spec.{field}: is not known to this version of the policy server")),
    }
}

fn read_policy(policy: &RevisedPolicy) -> Result<(PolicyId, u64), String> {
    let namespace = match (policy.kind, policy.namespace.as_deref()) {
        (PolicyKind::Policy, Some(namespace)) => Some(namespace),
        (PolicyKind::ClusterPolicy, None) => None,
        (PolicyKind::Policy, None) => return Err("spec.policyRef.namespace: is missing".to_owned()),
        (PolicyKind::ClusterPolicy, Some(_)) => {
            return Err("spec.policyRef.namespace: a ClusterPolicy belongs to no namespace".to_owned());
        }
    };
    let id = PolicyId::new(namespace, &policy.name).map_err(|error| format!("spec.policyRef: {error}"))?;
    Ok((id, read_generation("spec.policyRef", policy.generation)?))
}

fn read_generation(at: &str, generation: i64) -> Result<u64, String> {
    let read = u64::try_from(generation).ok().filter(|generation| *generation > 0);
    read.ok_or_else(|| format!("{at}.generation: is {generation}"))
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;
    use serde_json::json;

    /// Returns the spec of the revision `cluster.a-1` of the policy server `default`.
    fn spec() -> Value {
        json!({
            "policyServer": "default", "enabled": true,
            "policyRef": {"kind": "ClusterPolicy", "name": "a", "uid": "u", "generation": 1},
            "data": {
                "program": {"cel": {"validations": []}},
                "admission": {"rules": [{"operations": ["*"], "apiGroups": ["*"], "apiVersions": ["*"], "resources": ["*"]}]},
            },
        })
    }

    /// Returns the object of the revision `cluster.a-1`.
    pub(in crate::cluster) fn object(enabled: bool) -> DynamicObject {
        let mut spec = spec();
        spec["enabled"] = json!(enabled);
        let metadata = json!({"name": "cluster.a-1", "uid": "o", "generation": 7});
        serde_json::from_value(json!({"metadata": metadata, "spec": spec})).unwrap()
    }

    #[test]
    fn a_revision_is_read() {
        let revision = read("cluster.a-1", &spec(), "default").unwrap();
        assert_eq!((revision.policy.as_str(), revision.generation, revision.is_enabled), ("cluster.a", 1, true));
    }

    /// Returns the spec of the candidate of generation 3 of the experiment `b`.
    fn candidate() -> Value {
        let mut spec = spec();
        spec["role"] = json!("Candidate");
        spec["experimentRef"] = json!({"name": "b", "uid": "e", "generation": 3});
        spec
    }

    #[test]
    fn a_candidate_has_the_uid_and_generation_of_its_experiment() {
        let revision = read("experiment.cluster.b-3", &candidate(), "default").unwrap();
        let origin = (revision.policy.as_str(), revision.origin_uid.as_str(), revision.generation);
        assert_eq!(origin, ("cluster.a", "e", 3));
        assert_eq!(revision.experiment.map(|id| id.to_string()).as_deref(), Some("cluster.b"));
        // A committed experiment leaves its reference in the live revision.
        let mut committed = candidate();
        committed["role"] = json!("Live");
        let revision = read("cluster.a-1", &committed, "default").unwrap();
        assert_eq!((revision.origin_uid.as_str(), revision.experiment), ("u", None));
        for (pointer, value, field) in [
            ("/experimentRef", Value::Null, "spec.experimentRef: is missing"),
            ("/experimentRef/name", json!("B"), "spec.experimentRef.name: "),
            ("/experimentRef/generation", json!(0), "spec.experimentRef.generation: is 0"),
            ("/experimentRef/generation", json!(4), "metadata.name: is not experiment.cluster.b-4"),
        ] {
            let mut spec = candidate();
            let (parent, key) = pointer.rsplit_once('/').unwrap();
            spec.pointer_mut(parent).unwrap()[key] = value;
            let error = read("experiment.cluster.b-3", &spec, "default").unwrap_err();
            assert!(error.starts_with(field), "{pointer}: {error}");
        }
    }

    #[test]
    fn an_invalid_revision_is_refused_with_its_field() {
        for (pointer, value, field) in [
            ("/policyServer", json!("other"), "spec.policyServer: "),
            ("/policyRef/kind", json!("Deployment"), "spec.policyRef.kind: "),
            ("/policyRef/kind", json!("Policy"), "spec.policyRef.namespace: "),
            ("/policyRef/namespace", json!("n"), "spec.policyRef.namespace: "),
            ("/policyRef/name", json!("A"), "spec.policyRef: "),
            ("/policyRef/name", json!("b"), "metadata.name: is not cluster.b-1"),
            ("/policyRef/generation", json!(0), "spec.policyRef.generation: is 0"),
            ("/enabled", Value::Null, "spec.enabled: "),
            ("/data/program", json!({}), "spec.data.program: "),
            ("/data/newer", json!(1), "spec.data.newer: is not known"),
            ("/data/admission/rules", json!([]), "spec.admission.rules: "),
        ] {
            let mut spec = spec();
            let (parent, key) = pointer.rsplit_once('/').unwrap();
            spec.pointer_mut(parent).unwrap()[key] = value;
            let error = read("cluster.a-1", &spec, "default").unwrap_err();
            assert!(error.starts_with(field), "{pointer}: {error}");
        }
        assert!(read("cluster.a-1", &Value::Null, "default").is_err());
    }
}
