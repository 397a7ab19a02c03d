//! An experiment.

use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition;
use kube::ResourceExt as _;
use kube::core::DynamicObject;
use proviso_core::experiment::etag;
use proviso_core::{Failure, PolicyId};
use proviso_crds::reasons;
use proviso_crds::{
    ConditionType, Conditions as _, ExperimentStatus, PolicyRef, PreviewLogging, PreviewState, StopCause,
};
use serde_json::Value;

use super::error::ObjectError;
use super::fields::{created, field};

/// A `PolicyExperiment` or a `ClusterPolicyExperiment`.
#[derive(Clone, Debug)]
pub struct ExperimentObject {
    /// The id, in the form of a policy id: `cluster.NAME` or `ns.NAMESPACE.NAME`.
    pub id: PolicyId,
    pub uid: String,
    /// The etag of this version, which a commit names.
    pub etag: String,
    /// `metadata.generation`; 0 for an experiment of the REST API, which has no generations.
    pub generation: i64,
    pub created: Option<Timestamp>,
    pub is_being_deleted: bool,
    /// The policy of the experiment.
    pub policy: PolicyId,
    /// The spec that the policy would get.
    pub spec: Value,
    pub auto_start: bool,
    /// The share of the requests that are previewed; `None` if the server does not know this field.
    pub sample_rate: Option<f64>,
    /// The previewed requests that are logged; `None` if the server does not know this field.
    pub logging: Option<PreviewLogging>,
    /// The time from a start until the preview stops by itself; `None` if the server does not know this field.
    pub ttl: Option<String>,
    pub status: ExperimentStatus,
    /// True if the experiment is from a cluster, false if it is from the REST API, which has no conditions.
    pub is_in_cluster: bool,
    /// The failure of this version from the REST API; `None` for an experiment of a cluster, whose conditions have it.
    pub failure: Option<Failure>,
}

impl ExperimentObject {
    /// Reads an experiment of a cluster.
    ///
    /// # Errors
    /// When its name, its reference to a policy or its status is invalid.
    pub fn read(object: &DynamicObject) -> Result<Self, ObjectError> {
        let (namespace, spec) = (object.namespace(), &object.data["spec"]);
        let policy = serde_json::from_value::<PolicyRef>(spec["policyRef"].clone());
        let policy = policy.map_err(|error| ObjectError::Field { field: "spec.policyRef", error })?;
        let (uid, generation) = (object.uid().unwrap_or_default(), object.metadata.generation.unwrap_or_default());
        Ok(Self {
            id: PolicyId::new(namespace.as_deref(), &object.name_any())?,
            etag: etag(&uid, generation),
            uid,
            generation,
            created: created(object),
            is_being_deleted: object.metadata.deletion_timestamp.is_some(),
            policy: PolicyId::new(namespace.as_deref(), &policy.name)?,
            spec: spec["policy"].clone(),
            auto_start: spec["autoStart"].as_bool().unwrap_or_default(),
            sample_rate: field(&spec["sampleRate"], "spec.sampleRate")?,
            logging: field(&spec["logging"], "spec.logging")?,
            ttl: field(&spec["ttl"], "spec.ttl")?,
            status: field(&object.data["status"], "status")?,
            is_in_cluster: true,
            failure: None,
        })
    }

    /// Returns true for an experiment on a configuration policy: its candidate is delivered to canaries.
    #[must_use]
    pub fn is_configuration(&self) -> bool {
        self.spec["configuration"].is_object()
    }

    /// Returns the state of the preview; `None` before the first start. An update suspends the preview at once, even if the
    /// status does not show it yet.
    #[must_use]
    pub fn state(&self) -> Option<PreviewState> {
        self.status.preview_metadata.as_ref().map(|preview| preview.state(self.generation))
    }

    /// Returns a condition about this version; `None` if it is missing, or about an earlier version.
    #[must_use]
    pub fn condition(&self, type_: ConditionType) -> Option<&Condition> {
        self.status.conditions.condition(type_).filter(|it| it.observed_generation == Some(self.generation))
    }

    /// Returns true if the operator has processed the last start, so that the counts in the status are those of the last preview.
    #[must_use]
    pub fn is_observed(&self) -> bool {
        let Some(preview) = &self.status.preview_metadata else { return true };
        let loaded = self.status.previewed_start_time.as_ref();
        let counted = self.status.divergence.as_ref().map(|counts| &counts.since);
        // Counts restart when the live version changes, so they may be younger than the preview.
        [loaded, counted].into_iter().flatten().any(|since| *since >= preview.start_time)
    }

    /// Returns true if the preview was stopped, and replicas may still evaluate the experiment.
    #[must_use]
    pub fn is_stopping(&self) -> bool {
        self.condition(ConditionType::Previewing).is_some_and(|condition| condition.reason == reasons::STOPPING)
    }

    /// Returns the cause for which the preview of this version is stopped; `None` if it is not stopped, or a caller stopped it.
    #[must_use]
    pub fn stop_cause(&self) -> Option<&StopCause> {
        self.status.stop_cause(self.generation)
    }

    /// Returns the reason why this version cannot be prepared; `None` if it was prepared, or this is not known yet.
    #[must_use]
    pub fn preparation_failure(&self) -> Option<Failure> {
        if !self.is_in_cluster {
            // A stop cause of the REST API may be about an earlier version: the server compares the versions.
            return self.failure.clone();
        }
        self.status.preparation_failure(self.generation)
    }
}

#[cfg(test)]
pub mod tests {
    //! Experiments for the tests of this crate.

    use super::*;
    use crate::objects::tests::{condition, spec};
    use serde_json::json;

    const START: &str = "2026-11-21T09:48:00Z";

    /// Returns the `PolicyExperiment` `stricter` of the policy `labels`, which requires another label.
    pub fn experiment(generation: i64, status: &Value) -> ExperimentObject {
        let object = json!({
            "metadata": {
                "name": "stricter", "namespace": "team", "uid": "x", "generation": generation,
                "creationTimestamp": "2026-11-21T07:00:00Z",
            },
            "spec": {
                "policyRef": {"name": "labels"}, "policy": spec("team"), "sampleRate": 1, "logging": "All", "ttl": "336h",
            },
            "status": status,
        });
        ExperimentObject::read(&serde_json::from_value(object).unwrap()).unwrap()
    }

    /// Returns the status of an experiment that every replica previews.
    pub fn previewing(generation: i64) -> Value {
        json!({
            "etag": etag("x", generation), "liveEtag": etag("u", 2),
            "previewMetadata": {
                "state": "ACTIVE", "logPrefix": "PolicyPreviewLog", "startTime": START, "generation": generation,
                "expireTime": "2026-12-05T09:48:00Z",
            },
            "previewedStartTime": START,
            "divergence": {
                "evaluated": 1200, "same": 1187, "newlyDenied": 10, "newlyAllowed": 0, "mutationDiffers": 0,
                "messageDiffers": 2, "errors": 1, "dropped": 6, "since": START,
                "etag": etag("x", generation), "liveEtag": etag("u", 2),
            },
            "samples": [
                sample("NewlyDenied", 10, "Pod", "lacks the label team, which every Pod of a team must have"),
                sample("ExperimentError", 1, "Job.batch", ""),
            ],
            "replicas": {"ready": 2, "total": 2, "summary": "2/2"},
            "conditions": [
                condition("Accepted", "True", "Accepted", "it is one of at most 10 experiments of ns.team.labels", generation),
                condition("Initialized", "True", "Prepared", "its program was compiled and accepted its settings", generation),
                condition(
                    "Previewing",
                    "True",
                    "Previewing",
                    "every replica evaluates it for the requests that the policy answers",
                    generation
                ),
            ],
        })
    }

    fn sample(divergence: &str, count: u64, kind: &str, message: &str) -> Value {
        json!({
            "divergence": divergence, "kind": kind, "namespace": "team", "user": "alice", "count": count, "name": "web-1",
            "message": message, "firstSeen": "2026-11-21T09:49:00Z", "lastSeen": "2026-11-21T09:59:00Z",
        })
    }

    #[test]
    fn an_update_suspends_before_the_status_shows_it() {
        let states = [(1, Some(PreviewState::Active)), (2, Some(PreviewState::Suspended))];
        for (generation, wanted) in states {
            assert_eq!(experiment(generation, &previewing(1)).state(), wanted);
        }
        assert_eq!(experiment(1, &Value::Null).state(), None);
        assert!(
            experiment(2, &previewing(1)).condition(ConditionType::Previewing).is_none(),
            "the condition is about an earlier version"
        );
    }

    #[test]
    fn counts_of_an_earlier_preview_are_not_observed() {
        let mut status = previewing(1);
        assert!(experiment(1, &status).is_observed());
        status["previewMetadata"]["startTime"] = json!("2026-11-21T09:55:00Z");
        assert!(!experiment(1, &status).is_observed());
        status["divergence"]["since"] = json!("2026-11-21T09:59:00Z");
        assert!(experiment(1, &status).is_observed(), "the counts restarted when the live version changed");
        assert!(experiment(1, &Value::Null).is_observed(), "no preview was started, and no counts exist");
    }

    #[test]
    fn only_the_preparation_of_this_version_fails_it() {
        let mut status = previewing(1);
        assert_eq!(experiment(1, &status).preparation_failure(), None);
        status["conditions"][1] = condition("Initialized", "False", "CompileError", "no", 1);
        let failure = experiment(1, &status).preparation_failure().unwrap();
        assert_eq!(failure.to_string(), "CompileError: no");
        assert_eq!(experiment(2, &status).preparation_failure(), None, "the condition is about an earlier version");
    }

    #[test]
    fn after_a_start_that_failed_the_cause_of_the_stop_has_the_failure_of_the_preparation() {
        let stopped_for = |reason: &str| {
            let mut status = previewing(1);
            status["previewMetadata"]["state"] = json!("SUSPENDED");
            status["previewMetadata"]["stopCause"] = json!({"reason": reason, "message": "no"});
            status["conditions"][1] = condition("Initialized", "Unknown", "Suspended", "", 1);
            status
        };
        for (reason, is_failure) in [
            ("CompileError", true),
            ("SettingsInvalid", true),
            ("PullError", true),
            ("Updated", false),
            ("Expired", false),
            ("NoReplicas", false),
            ("LoadingFailed", false),
            ("PolicyNotFound", false),
            ("TooMany", false),
        ] {
            let found = experiment(1, &stopped_for(reason)).preparation_failure();
            assert_eq!(found, is_failure.then(|| Failure::new(reason, "no")), "{reason}");
        }
        let mut status = stopped_for("CompileError");
        assert_eq!(experiment(2, &status).preparation_failure(), None, "the stop is of an earlier version");
        status["conditions"][1] = condition("Initialized", "True", "Prepared", "", 1);
        assert_eq!(experiment(1, &status).preparation_failure(), None, "it was prepared after the stop");
        let mut status = stopped_for("CompileError");
        status["previewMetadata"]["state"] = json!("ACTIVE");
        assert_eq!(experiment(1, &status).preparation_failure(), None, "it was started again");
    }
}
