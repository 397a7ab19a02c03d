//! Reads policies and experiments of the REST API, which has no generations and no conditions.

use std::collections::BTreeMap;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use proviso_core::{Failure, PolicyId};
use proviso_crds::{
    Canary, DivergenceCounts, DivergenceSample, ExperimentStatus, PolicyStatus, PreviewLogging, PreviewMetadata,
    PreviewState, StopCause,
};
use serde::Deserialize;
use serde_json::Value;

use super::error::ObjectError;
use super::experiment::ExperimentObject;
use super::policy::PolicyObject;

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct PolicyResource {
    name: String,
    uid: String,
    etag: String,
    spec: Value,
    #[serde(default)]
    annotations: BTreeMap<String, String>,
    create_time: Option<Time>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct ExperimentResource {
    name: String,
    uid: String,
    etag: String,
    policy: EmbeddedPolicy,
    preview_metadata: Option<Preview>,
    #[serde(default)]
    auto_start: bool,
    sample_rate: Option<f64>,
    logging: Option<PreviewLogging>,
    ttl: Option<String>,
    live_etag: Option<String>,
    divergence: Option<DivergenceCounts>,
    #[serde(default)]
    samples: Vec<DivergenceSample>,
    #[serde(default)]
    canaries: Vec<Canary>,
    create_time: Option<Time>,
    state_reason: Option<String>,
    #[serde(default)]
    state_message: String,
}

#[derive(Deserialize)]
struct EmbeddedPolicy {
    spec: Value,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Preview {
    state: PreviewState,
    log_prefix: String,
    start_time: Time,
    stop_time: Option<Time>,
    expire_time: Option<Time>,
    stop_cause: Option<StopCause>,
}

fn read<T: for<'de> Deserialize<'de>>(value: &Value, field: &'static str) -> Result<T, ObjectError> {
    T::deserialize(value).map_err(|error| ObjectError::Field { field, error })
}

fn invalid_name(name: &str) -> ObjectError {
    let error = serde::de::Error::custom(format!("{name:?} is not a resource name of this kind"));
    ObjectError::Field { field: "name", error }
}

impl PolicyObject {
    /// Reads a policy of the REST API.
    ///
    /// # Errors
    /// When a field is missing or invalid.
    pub fn read_resource(value: &Value) -> Result<Self, ObjectError> {
        let policy: PolicyResource = read(value, "the policy")?;
        let id = policy.name.strip_prefix("policies/").ok_or_else(|| invalid_name(&policy.name))?;
        Ok(Self {
            id: id.parse()?,
            uid: policy.uid,
            etag: policy.etag,
            generation: 0,
            created: policy.create_time.map(|time| time.0),
            is_being_deleted: false,
            rollback_to: None,
            labels: BTreeMap::new(),
            annotations: policy.annotations,
            managers: Vec::new(),
            spec: policy.spec,
            status: PolicyStatus::default(),
        })
    }
}

impl ExperimentObject {
    /// Reads an experiment of the REST API.
    ///
    /// # Errors
    /// When a field is missing or invalid.
    pub fn read_resource(value: &Value) -> Result<Self, ObjectError> {
        let experiment: ExperimentResource = read(value, "the experiment")?;
        let name = experiment.name.strip_prefix("policies/").and_then(|name| name.split_once("/experiments/"));
        let (policy, name) = name.ok_or_else(|| invalid_name(&experiment.name))?;
        let policy: PolicyId = policy.parse()?;
        let preview = experiment.preview_metadata.map(|preview| PreviewMetadata {
            state: preview.state,
            log_prefix: preview.log_prefix,
            start_time: preview.start_time,
            stop_time: preview.stop_time,
            expire_time: preview.expire_time,
            stop_cause: preview.stop_cause,
            // 0 is the generation of the object, so the state is that of this version.
            generation: 0,
        });
        Ok(Self {
            id: PolicyId::new(policy.namespace(), name)?,
            uid: experiment.uid,
            etag: experiment.etag,
            generation: 0,
            created: experiment.create_time.map(|time| time.0),
            is_being_deleted: false,
            policy,
            spec: experiment.policy.spec,
            auto_start: experiment.auto_start,
            sample_rate: experiment.sample_rate,
            logging: experiment.logging,
            ttl: experiment.ttl,
            status: ExperimentStatus {
                live_etag: experiment.live_etag,
                preview_metadata: preview,
                divergence: experiment.divergence,
                samples: experiment.samples,
                canaries: experiment.canaries,
                ..ExperimentStatus::default()
            },
            is_in_cluster: false,
            failure: experiment
                .state_reason
                .map(|reason| Failure { reason: reason.into(), message: experiment.state_message }),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::report::ExperimentReport;
    use serde_json::json;

    fn experiment() -> Value {
        json!({
            "name": "policies/ns.team.labels/experiments/stricter", "uid": "x", "etag": "\"1\"", "autoStart": false,
            "policy": {"name": "policies/ns.team.labels", "spec": {"settings": {"label": "team"}}},
            "previewMetadata": {
                "state": "ACTIVE", "logPrefix": "PolicyPreviewLog", "startTime": "2026-11-21T09:48:00Z",
            },
        })
    }

    #[test]
    fn absent_fields_of_a_resource_stay_absent_in_the_report() {
        let object = ExperimentObject::read_resource(&experiment()).unwrap();
        assert_eq!((object.id.as_str(), object.policy.as_str()), ("ns.team.stricter", "ns.team.labels"));
        let report = serde_json::to_value(ExperimentReport::new(&object)).unwrap();
        assert_eq!((&report["state"], &report["etag"]), (&json!("ACTIVE"), &json!("\"1\"")));
        for absent in ["generation", "liveEtag", "replicas", "divergence", "problem", "created", "sampleRate", "ttl"] {
            assert_eq!(report.get(absent), None, "{absent}");
        }
        assert!(report["previewMetadata"].get("generation").is_none(), "{report}");
        let policy = json!({"name": "policies/cluster.a", "uid": "u", "etag": "\"2\"", "spec": {}});
        let policy = PolicyObject::read_resource(&policy).unwrap();
        assert_eq!((policy.id.as_str(), policy.etag.as_str()), ("cluster.a", "\"2\""));
        assert_eq!(policy.name_of(policy.generation), "cluster.a");
    }

    #[test]
    fn the_settings_and_the_end_of_a_preview_are_read() {
        let mut resource = experiment();
        let preview = json!({
            "state": "SUSPENDED", "logPrefix": "PolicyPreviewLog", "startTime": "2026-11-21T09:48:00Z",
            "stopTime": "2026-11-21T09:49:00Z", "expireTime": "2026-11-21T09:49:00Z",
            "stopCause": {"reason": "Expired", "message": "its ttl has passed"},
        });
        let fields = [("previewMetadata", preview), ("sampleRate", json!(0.5)), ("logging", json!("Divergences"))];
        for (field, value) in fields.into_iter().chain([("ttl", json!("1m")), ("liveEtag", json!("\"2\""))]) {
            resource[field] = value;
        }
        let object = ExperimentObject::read_resource(&resource).unwrap();
        assert_eq!((object.sample_rate, object.logging), (Some(0.5), Some(PreviewLogging::Divergences)));
        assert_eq!((object.ttl.as_deref(), object.status.live_etag.as_deref()), (Some("1m"), Some("\"2\"")));
        let preview = object.status.preview_metadata.unwrap();
        assert_eq!((preview.expire_time, preview.stop_cause.unwrap().reason.as_str()), (preview.stop_time, "Expired"));
    }

    #[test]
    fn an_invalid_resource_is_refused() {
        for (pointer, value) in
            [("/name", json!("experiments/e")), ("/name", json!("policies/x/experiments/e")), ("/etag", Value::Null)]
        {
            let mut experiment = experiment();
            *experiment.pointer_mut(pointer).unwrap() = value;
            assert!(ExperimentObject::read_resource(&experiment).is_err(), "{experiment}");
        }
    }
}
