//! Conversion between the objects of the cluster and the resources of the API. The API has one kind of policy and one kind of
//! experiment, which represent both the namespaced and the cluster-scoped kinds.

use std::collections::BTreeMap;

use kube::ResourceExt as _;
use kube::api::DynamicObject;
use kube::core::ApiResource;
use proviso_core::{Failure, PolicyId, experiment::etag};
use proviso_crds::conditions::failure;
use proviso_crds::names::is_reserved;
use proviso_crds::{
    ClusterPolicy, ClusterPolicyExperiment, ConditionStatus, ConditionType, ExperimentSpec, ExperimentStatus,
    PointMismatch, Policy, PolicyExperiment, PolicyPhase, PolicySpec, PolicyStatus, PreviewState,
};
use serde::de::DeserializeOwned;
use serde_json::{Value, json};

use crate::error::{Code, Error};
use crate::names::ExperimentName;
use crate::store::{Change, Meta, State, StoredExperiment, StoredPolicy};

/// A kind of the API.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    Policy,
    Experiment,
}

impl Kind {
    pub(super) fn resource(self, is_namespaced: bool) -> ApiResource {
        match (self, is_namespaced) {
            (Self::Policy, true) => ApiResource::erase::<Policy>(&()),
            (Self::Policy, false) => ApiResource::erase::<ClusterPolicy>(&()),
            (Self::Experiment, true) => ApiResource::erase::<PolicyExperiment>(&()),
            (Self::Experiment, false) => ApiResource::erase::<ClusterPolicyExperiment>(&()),
        }
    }

    pub(super) fn plural(self, is_namespaced: bool) -> &'static str {
        match (self, is_namespaced) {
            (Self::Policy, true) => "policies",
            (Self::Policy, false) => "clusterpolicies",
            (Self::Experiment, true) => "policyexperiments",
            (Self::Experiment, false) => "clusterpolicyexperiments",
        }
    }
}

fn parse_field<T: DeserializeOwned>(object: &DynamicObject, name: &str) -> Result<T, Error> {
    serde_json::from_value(object.data[name].clone()).map_err(|error| {
        let message = format!("the object {} is malformed: {name}: {error}", object.name_any());
        Error::new(Code::FailedPrecondition, "MALFORMED", message)
    })
}

pub(super) fn status<T: DeserializeOwned + Default>(object: &DynamicObject) -> Result<T, Error> {
    if object.data["status"].is_null() { Ok(T::default()) } else { parse_field(object, "status") }
}

pub(super) fn generation(object: &DynamicObject) -> i64 {
    object.metadata.generation.unwrap_or_default()
}

pub(super) fn etag_of(object: &DynamicObject) -> String {
    etag(&object.uid().unwrap_or_default(), generation(object))
}

fn meta(object: &DynamicObject) -> Meta {
    let fields = object.metadata.managed_fields.iter().flatten();
    // A change of the status is no update of the resource. A start or a stop by another caller than the last one counts as an update,
    // because the store also records the caller in an annotation.
    let written = fields.filter(|field| field.subresource.is_none()).filter_map(|field| field.time.clone());
    Meta {
        etag: etag_of(object),
        uid: object.uid().unwrap_or_default(),
        revision: object.resource_version().unwrap_or_default(),
        version: generation(object).to_string(),
        annotations: object.annotations().clone(),
        create_time: object.creation_timestamp(),
        update_time: written.max(),
    }
}

pub(super) fn policy(object: &DynamicObject) -> Result<StoredPolicy, Error> {
    let id = PolicyId::new(object.namespace().as_deref(), &object.name_any())
        .map_err(|error| Error::new(Code::FailedPrecondition, "MALFORMED", error.to_string()))?;
    let status: PolicyStatus = status(object)?;
    let (state, problem) = state(&status, generation(object));
    Ok(StoredPolicy { id, meta: meta(object), spec: parse_field::<PolicySpec>(object, "spec")?, state, problem })
}

/// Checks that an experiment with this spec can belong to the policy. A policy that this version cannot read has no enforcement point.
///
/// # Errors
/// Returns an error if the enforcement points differ.
pub(super) fn check_point(id: &PolicyId, policy: &DynamicObject, spec: &PolicySpec) -> Result<(), PointMismatch> {
    match parse_field::<PolicySpec>(policy, "spec") {
        Ok(live) => spec.check_experiment_of(id, &live),
        Err(_) => Ok(()),
    }
}

fn state(status: &PolicyStatus, generation: i64) -> (State, Option<Failure>) {
    let seen = status.conditions.iter().any(|condition| condition.observed_generation == Some(generation));
    let state = match status.phase.filter(|_| seen) {
        Some(PolicyPhase::Active) => State::Active,
        Some(PolicyPhase::Failed) => State::Failed,
        Some(PolicyPhase::Disabled) => State::Disabled,
        _ if status.live_generation.is_some() => State::Updating,
        _ => State::Pending,
    };
    if state == State::Active || !seen {
        return (state, None);
    }
    let wrong = status.conditions.iter().find(|condition| condition.status != ConditionStatus::True.as_str());
    (state, wrong.map(failure))
}

/// Returns the name of the policy of an experiment.
pub(super) fn policy_of(object: &DynamicObject) -> Option<&str> {
    object.data["spec"]["policyRef"]["name"].as_str()
}

/// Returns the failure of the condition by which this generation of an experiment is not accepted, or cannot be prepared; `None` if there
/// is no such condition.
pub(super) fn refusal(status: &ExperimentStatus, generation: i64) -> Option<Failure> {
    let refusal = status.conditions.iter().find(|condition| {
        condition.status == ConditionStatus::False.as_str()
            && condition.type_ != ConditionType::Previewing.as_str()
            && condition.observed_generation == Some(generation)
    });
    refusal.map(failure)
}

pub(super) fn experiment(object: &DynamicObject) -> Result<StoredExperiment, Error> {
    let spec: ExperimentSpec = parse_field(object, "spec")?;
    let policy = PolicyId::new(object.namespace().as_deref(), &spec.policy_ref.name)
        .map_err(|error| Error::new(Code::FailedPrecondition, "MALFORMED", error.to_string()))?;
    let status: ExperimentStatus = status(object)?;
    let generation = generation(object);
    let problem = refusal(&status, generation).or_else(|| status.preparation_failure(generation));
    let preview = status.preview_metadata.map(|mut preview| {
        if preview.state(generation) == PreviewState::Suspended {
            // An update of the experiment suspends its preview, even before the operator has written the new state.
            preview.state = PreviewState::Suspended;
        }
        preview
    });
    Ok(StoredExperiment {
        name: ExperimentName { policy, name: object.name_any() },
        meta: meta(object),
        auto_start: spec.auto_start,
        preview_settings: spec.preview_settings(),
        spec: spec.policy,
        ttl: spec.ttl,
        preview,
        divergence: status.divergence,
        samples: status.samples,
        canaries: status.canaries,
        problem,
    })
}

/// Replaces the fields of an experiment that clients may write. Fields that do not change stay as they are written, because another
/// spelling, such as `1.0` instead of `1`, would be another version.
pub(super) fn replace_experiment(object: &mut DynamicObject, content: Change) -> Result<(), Error> {
    let known = experiment(object)?;
    replace_annotations(object, content.annotations);
    let spec = &mut object.data["spec"];
    spec["policy"] = json!(content.spec);
    spec["autoStart"] = json!(content.auto_start);
    if content.preview_settings != known.preview_settings {
        spec["sampleRate"] = json!(content.preview_settings.sample_rate);
        spec["logging"] = json!(content.preview_settings.logging);
    }
    spec["ttl"] = json!(content.ttl);
    Ok(())
}

/// Replaces the annotations that clients may write by `annotations`, and keeps the reserved ones.
pub(super) fn replace_annotations(object: &mut DynamicObject, annotations: BTreeMap<String, String>) {
    let mut all = std::mem::take(object.annotations_mut());
    all.retain(|key, _| is_reserved(key));
    all.extend(annotations);
    *object.annotations_mut() = all;
}

fn new(kind: Kind, policy: &PolicyId, name: &str, content: &Change, spec: &Value) -> DynamicObject {
    let resource = kind.resource(policy.namespace().is_some());
    let mut object = DynamicObject::new(name, &resource).data(json!({"spec": spec}));
    object.metadata.namespace = policy.namespace().map(ToOwned::to_owned);
    replace_annotations(&mut object, content.annotations.clone());
    object
}

pub(super) fn new_policy(id: &PolicyId, content: &Change) -> DynamicObject {
    new(Kind::Policy, id, id.name(), content, &json!(content.spec))
}

pub(super) fn new_experiment(name: &ExperimentName, content: &Change) -> DynamicObject {
    let spec = json!({
        "policyRef": {"name": name.policy.name()},
        "policy": content.spec,
        "autoStart": content.auto_start,
        "sampleRate": content.preview_settings.sample_rate,
        "logging": content.preview_settings.logging,
        "ttl": content.ttl,
    });
    new(Kind::Experiment, &name.policy, &name.name, content, &spec)
}

#[cfg(test)]
mod tests {
    use proviso_crds::fixtures::condition;

    use super::*;

    const TIME: &str = "2026-11-20T09:14:07Z";

    /// Returns generation 2 of an experiment with this status.
    fn stored(status: &Value) -> StoredExperiment {
        let object: DynamicObject = serde_json::from_value(json!({
            "apiVersion": "proviso.dev/v1alpha1", "kind": "ClusterPolicyExperiment",
            "metadata": {"name": "e", "uid": "u", "generation": 2},
            "spec": {"policyRef": {"name": "p"}, "policy": {"program": {"cel": {"validations": []}}}},
            "status": status,
        }))
        .unwrap();
        experiment(&object).unwrap()
    }

    /// Returns the status after a start of this generation that the operator has suspended for this reason.
    fn suspended(generation: i64, reason: &str) -> Value {
        json!({
            "previewMetadata": {
                "state": "SUSPENDED", "logPrefix": "PolicyPreviewLog", "startTime": TIME, "stopTime": TIME,
                "stopCause": {"reason": reason, "message": "why"}, "generation": generation,
            },
            "conditions": [condition("Initialized", "Unknown", "Suspended", "", 2)],
        })
    }

    #[test]
    fn after_a_start_that_failed_an_experiment_has_the_failure_of_its_preparation_as_its_problem() {
        let mut prepared = suspended(2, "CompileError");
        prepared["conditions"] = json!([condition("Initialized", "True", "Prepared", "", 2)]);
        let refused = |type_: &str, reason: &str| json!({"conditions": [condition(type_, "False", reason, "no", 2)]});
        for (status, wanted) in [
            (Value::Null, None),
            (refused("Initialized", "CompileError"), Some("CompileError: no")),
            (refused("Accepted", "TooMany"), Some("TooMany: no")),
            (refused("Previewing", "Loading"), None),
            (suspended(2, "CompileError"), Some("CompileError: why")),
            (suspended(2, "PullError"), Some("PullError: why")),
            // The start was that of an earlier version, or this version was prepared later.
            (suspended(1, "CompileError"), None),
            (prepared, None),
            // The preview has ended for another reason.
            (suspended(2, "Expired"), None),
            (suspended(2, "NoReplicas"), None),
        ] {
            let experiment = stored(&status);
            let problem = experiment.problem.as_ref().map(ToString::to_string);
            assert_eq!(problem.as_deref(), wanted, "{status}");
            // `proviso experiment commit --to-file` reads these fields.
            let json = experiment.to_json();
            let shown = json["stateReason"].as_str().zip(json["stateMessage"].as_str());
            let shown = shown.map(|(reason, message)| format!("{reason}: {message}"));
            assert_eq!(shown.as_deref(), wanted, "{status}");
        }
    }
}
