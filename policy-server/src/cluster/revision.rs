//! Parses `PolicyRevision` objects. The Kubernetes client does not parse them, because then one invalid object, for example of
//! another version of Proviso, would fail the whole list.

use std::sync::Arc;

use kube::core::DynamicObject;
use proviso_core::policy_id::check_name;
use proviso_core::{Failure, PolicyId, Reason};
use proviso_crds::{
    PolicyKind, PolicyRevisionSpec, PolicySpec, PreviewSettings, RevisedPolicy, RevisionRole, validation,
};
use serde_json::Value;

use super::identity::Identity;
use super::reported::Reported;
use super::schema::{FieldPath, Schema};
use super::status::SERVER_VERSION;
use crate::config::Replica;
use crate::manifests::ExperimentId;

/// The last observed state of a `PolicyRevision`.
#[derive(Debug)]
pub(super) struct ObservedRevision {
    pub uid: String,
    /// `metadata.generation` of the `PolicyRevision` itself.
    pub object_generation: Option<i64>,
    /// The identity in the name; `None` for a candidate.
    pub identity: Option<Identity>,
    /// `spec.enabled`, also if the other fields cannot be read; `None` if it is no boolean.
    pub is_enabled: Option<bool>,
    /// True unless the revision has the section `admission`, also if the other fields cannot be read.
    pub is_request: bool,
    /// The content of the spec, or the reason why the spec is invalid.
    spec: Result<ReadSpec, Failure>,
    pub reported: Reported,
}

/// The revision in the spec of a `PolicyRevision`. A spec is immutable, except for `enabled`.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct DesiredRevision {
    pub policy: PolicyId,
    /// The uid of the policy; for a candidate, of its experiment.
    pub origin_uid: String,
    /// The generation of the policy; for a candidate, of its experiment.
    pub generation: u64,
    /// The experiment of a candidate; `None` for a revision that answers requests.
    pub experiment: Option<ExperimentId>,
    /// The settings of the preview of a candidate.
    pub settings: PreviewSettings,
    pub spec: Arc<PolicySpec>,
}

/// The content of a spec.
#[derive(Debug)]
struct ReadSpec {
    revision: DesiredRevision,
    unknown: Option<UnknownFields>,
}

/// The fields of a spec that this version does not know.
#[derive(Debug)]
struct UnknownFields {
    fields: Vec<FieldPath>,
    /// The whole spec.
    spec: Value,
}

impl ObservedRevision {
    pub(super) fn read(object: &DynamicObject, replica: &Replica) -> Self {
        let name = object.metadata.name.as_deref().unwrap_or_default();
        let spec = &object.data["spec"];
        Self {
            uid: object.metadata.uid.clone().unwrap_or_default(),
            object_generation: object.metadata.generation,
            identity: Identity::from_name(name),
            is_enabled: spec["enabled"].as_bool(),
            is_request: spec["data"]["admission"].is_null(),
            spec: read(name, spec, &replica.policy_server)
                .map_err(|message| Failure { reason: Reason::INVALID, message }),
            reported: Reported::read(object, &replica.pod_name),
        }
    }

    /// Returns the revision in the spec. `schema` is the installed schema of the spec; `None` if it is not known.
    ///
    /// # Errors
    /// Returns a failure if the spec is invalid, or if it has a field that this version does not know and that does not have its
    /// default. A server that ignores such a field could decide differently than the author of the policy wants.
    pub(super) fn revision(&self, schema: Option<&Schema>) -> Result<DesiredRevision, Failure> {
        let read = self.spec.as_ref().map_err(Clone::clone)?;
        match read.unknown.as_ref().and_then(|unknown| unknown.refused(schema)) {
            None => Ok(read.revision.clone()),
            Some(message) => Err(Failure { reason: Reason::INVALID, message }),
        }
    }

    /// Returns true if the spec has fields that this version does not know, so that [`Self::revision`] depends on the schema.
    pub(super) fn has_unknown_fields(&self) -> bool {
        self.spec.as_ref().is_ok_and(|read| read.unknown.is_some())
    }
}

impl UnknownFields {
    /// Returns the message about the first field that does not have its default; `None` if each field has its default.
    fn refused(&self, schema: Option<&Schema>) -> Option<String> {
        let is_accepted = |field: &&FieldPath| schema.is_some_and(|schema| schema.is_default(&self.spec, field));
        let field = self.fields.iter().find(|field| !is_accepted(field))?;
        let why = match schema {
            Some(_) => "and does not have its default: upgrade the policy server",
            None => "and the API server has not returned the schema with its default yet",
        };
        Some(format!("spec.{field}: is not known to this version of the policy server ({SERVER_VERSION}), {why}"))
    }
}

fn read(name: &str, spec: &Value, policy_server: &str) -> Result<ReadSpec, String> {
    let (revision, unknown) = read_spec(spec)?;
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
    let (settings, spec) = (revision.preview.unwrap_or_default(), Arc::new(revision.data));
    let revision = DesiredRevision { policy, origin_uid, generation, experiment, settings, spec };
    Ok(ReadSpec { revision, unknown })
}

/// Parses the spec, and collects the fields that this version does not know.
fn read_spec(spec: &Value) -> Result<(PolicyRevisionSpec, Option<UnknownFields>), String> {
    let mut fields = Vec::new();
    let mut track = serde_path_to_error::Track::new();
    let tracked = serde_path_to_error::Deserializer::new(spec, &mut track);
    let read = serde_ignored::deserialize(tracked, |path| fields.push(FieldPath::from(&path)));
    let read = read.map_err(|error: serde_json::Error| format!("spec.{}: {error}", track.path()))?;
    let unknown = (!fields.is_empty()).then(|| UnknownFields { fields, spec: spec.clone() });
    Ok((read, unknown))
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
    use proviso_crds::PreviewLogging;
    use serde_json::json;

    pub(in crate::cluster) fn replica() -> Replica {
        Replica {
            policy_server: "default".to_owned(),
            namespace: "proviso".to_owned(),
            pod_name: "default-0".to_owned(),
            pod_uid: "pod".to_owned(),
        }
    }

    fn observe(name: &str, spec: &Value) -> ObservedRevision {
        let object = json!({"metadata": {"name": name, "uid": "o"}, "spec": spec});
        ObservedRevision::read(&serde_json::from_value(object).unwrap(), &replica())
    }

    /// Reads a spec without a schema.
    fn read_revision(name: &str, spec: &Value) -> Result<DesiredRevision, String> {
        observe(name, spec).revision(None).map_err(|failure| failure.message)
    }

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
        let revision = read_revision("cluster.a-1", &spec()).unwrap();
        assert_eq!((revision.policy.as_str(), revision.generation), ("cluster.a", 1));
    }

    /// Returns the object of the candidate `experiment.cluster.b-3`.
    pub(in crate::cluster) fn candidate_object(enabled: bool) -> DynamicObject {
        let mut spec = candidate();
        spec["enabled"] = json!(enabled);
        let metadata = json!({"name": "experiment.cluster.b-3", "uid": "c", "generation": 1});
        serde_json::from_value(json!({"metadata": metadata, "spec": spec})).unwrap()
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
        let revision = read_revision("experiment.cluster.b-3", &candidate()).unwrap();
        let origin = (revision.policy.as_str(), revision.origin_uid.as_str(), revision.generation);
        assert_eq!(origin, ("cluster.a", "e", 3));
        assert_eq!(revision.experiment.map(|id| id.to_string()).as_deref(), Some("cluster.b"));
        assert_eq!(revision.settings, PreviewSettings::default());
        let mut sampled = candidate();
        sampled["preview"] = json!({"sampleRate": 0.5, "logging": "Divergences"});
        let settings = read_revision("experiment.cluster.b-3", &sampled).unwrap().settings;
        assert_eq!(settings, PreviewSettings { sample_rate: 0.5, logging: PreviewLogging::Divergences });
        // A committed experiment leaves its reference in the live revision.
        let mut committed = candidate();
        committed["role"] = json!("Live");
        let revision = read_revision("cluster.a-1", &committed).unwrap();
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
            let error = read_revision("experiment.cluster.b-3", &spec).unwrap_err();
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
            let error = read_revision("cluster.a-1", &spec).unwrap_err();
            assert!(error.starts_with(field), "{pointer}: {error}");
        }
        assert!(read_revision("cluster.a-1", &Value::Null).is_err());
    }

    #[test]
    fn a_field_that_is_not_known_needs_its_default() {
        let schema = json!({"properties": {"data": {"properties": {
            "newer": {"default": "as before"},
            "admission": {"properties": {"rules": {"items": {"properties": {"newer": {"default": 1}}}}}},
        }}}});
        let schema: Schema = serde_json::from_value(schema).unwrap();
        for (pointer, value, wanted) in [
            ("/data/newer", json!("as before"), None),
            ("/data/newer", json!("other"), Some("spec.data.newer: is not known")),
            ("/data/admission/rules/0/newer", json!(1), None),
            ("/data/admission/rules/0/newer", json!(2), Some("spec.data.admission.rules[0].newer: is not known")),
            ("/data/other", json!("as before"), Some("spec.data.other: is not known")),
        ] {
            let mut spec = spec();
            let (parent, key) = pointer.rsplit_once('/').unwrap();
            spec.pointer_mut(parent).unwrap()[key] = value;
            let observed = observe("cluster.a-1", &spec);
            assert!(observed.has_unknown_fields() && observed.revision(None).is_err(), "{pointer} without a schema");
            let refused = observed.revision(Some(&schema)).err();
            let is_right = match (&refused, wanted) {
                (None, None) => true,
                (Some(failure), Some(wanted)) => failure.message.starts_with(wanted),
                _ => false,
            };
            assert!(is_right, "{pointer}: {refused:?}");
        }
        assert!(!observe("cluster.a-1", &spec()).has_unknown_fields());
    }

    #[test]
    fn a_spec_that_cannot_be_read_has_its_name_and_its_enabled() {
        let observed = observe("cluster.a-1", &json!({"enabled": false, "data": 1}));
        assert!(observed.revision(None).is_err() && observed.is_enabled == Some(false));
        assert_eq!(observed.identity, Identity::from_name("cluster.a-1"));
        let observed = observe("experiment.cluster.a-1", &json!({"enabled": "no"}));
        assert_eq!((observed.is_enabled, observed.identity), (None, None));
    }
}
