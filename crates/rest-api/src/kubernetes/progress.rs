//! The progress of an operation, as a pure function of the object and of the status that the operator writes.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition;
use kube::ResourceExt as _;
use kube::api::DynamicObject;
use proviso_crds::{ConditionType, Conditions as _, PreviewState};

use super::object;
use crate::error::{Code, Error};
use crate::operation::{AwaitedEffect, Effect, Progress};
use crate::store::{State, StoredExperiment};

/// Returns the progress of an operation. `object` is the object that now has the name of the operation's target; `None`
/// means that there is no such object.
pub(super) fn compute(awaited: &AwaitedEffect, object: Option<&DynamicObject>) -> Result<Progress, Error> {
    let object = object.filter(|object| object.uid().as_deref() == Some(&awaited.uid));
    let object = match (object, awaited.effect) {
        (None, Effect::Delete) => return Ok(Progress::Done),
        (None, _) => return Ok(Progress::Failed(Error::not_found(&awaited.target()))),
        (Some(_), Effect::Delete) => return Ok(Progress::Running("the deletion of the object to finish".to_owned())),
        (Some(object), _) => object,
    };
    let generation: i64 = awaited.version.parse().unwrap_or_default();
    if awaited.experiment.is_none() || awaited.effect == Effect::Commit {
        policy(object, generation)
    } else {
        experiment(awaited.effect, object, generation)
    }
}

fn policy(object: &DynamicObject, generation: i64) -> Result<Progress, Error> {
    let live = object.data["status"]["liveGeneration"].as_i64();
    let stored = object::policy(object)?;
    Ok(match stored.state {
        _ if live.is_some_and(|live| live >= generation) => Progress::Done,
        State::Active | State::Disabled => Progress::Done,
        State::Failed => Progress::Failed(stored.to_error()),
        State::Pending | State::Updating => Progress::Running(
            stored.problem.map_or_else(|| "the operator to process the change".to_owned(), |problem| problem.message),
        ),
    })
}

fn experiment(effect: Effect, object: &DynamicObject, generation: i64) -> Result<Progress, Error> {
    let StoredExperiment { preview, auto_start, problem, .. } = object::experiment(object)?;
    let is_same = object.metadata.generation == Some(generation);
    let waits = match effect {
        Effect::StartPreview => true,
        Effect::Create | Effect::Update => auto_start && is_same,
        Effect::StopPreview | Effect::Delete | Effect::Commit => false,
    };
    if let Some(problem) = problem.filter(|_| is_same && effect != Effect::StopPreview) {
        return Ok(Progress::Failed(Error::failed_version(&problem)));
    }
    let is_active = preview.is_some_and(|preview| preview.state == PreviewState::Active);
    if effect == Effect::StartPreview && !(is_same && is_active) {
        let message = "the preview was suspended before every replica had loaded the experiment";
        return Ok(Progress::Failed(Error::new(Code::Aborted, "SUSPENDED", message)));
    }
    let conditions: Vec<Condition> =
        serde_json::from_value(object.data["status"]["conditions"].clone()).unwrap_or_default();
    let is_everywhere = conditions.is_true(ConditionType::Previewing)
        && conditions.condition(ConditionType::Previewing).and_then(|it| it.observed_generation) == Some(generation);
    if waits && !(is_active && is_everywhere) {
        return Ok(Progress::Running("every replica of the policy server to load it".to_owned()));
    }
    Ok(Progress::Done)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proviso_crds::fixtures;
    use serde_json::{Value, json};

    fn progress_of(effect: Effect, kind: &str, auto_start: bool, status: &Value) -> Progress {
        let spec = json!({"program": {"cel": {"validations": []}}});
        let is_experiment = kind.ends_with("Experiment");
        let object: DynamicObject = serde_json::from_value(json!({
            "apiVersion": "proviso.dev/v1alpha1", "kind": kind,
            "metadata": {"name": "x", "uid": "u", "generation": 2},
            "spec": if is_experiment { json!({"policyRef": {"name": "p"}, "policy": spec, "autoStart": auto_start}) } else { spec },
            "status": status,
        }))
        .unwrap();
        let awaited = AwaitedEffect {
            effect,
            policy: "cluster.p".parse().unwrap(),
            experiment: is_experiment.then(|| "x".to_owned()),
            uid: "u".into(),
            version: "2".into(),
        };
        compute(&awaited, Some(&object)).unwrap()
    }

    fn condition(type_: &str, status: &str, generation: i64) -> Value {
        fixtures::condition(type_, status, "CompileError", "no", generation)
    }

    #[test]
    fn the_operation_of_a_policy_runs_until_the_policy_is_live_or_failed() {
        let failed =
            json!({"phase": "Failed", "liveGeneration": 1, "conditions": [condition("Initialized", "False", 2)]});
        for (status, wanted) in [
            (json!(null), "running"),
            (json!({"phase": "Active", "liveGeneration": 1, "conditions": [condition("Live", "True", 1)]}), "running"),
            (json!({"phase": "Active", "liveGeneration": 2, "conditions": [condition("Live", "True", 2)]}), "done"),
            (json!({"phase": "Disabled", "conditions": [condition("Live", "False", 2)]}), "done"),
            (failed, "COMPILE_ERROR"),
        ] {
            let found = match progress_of(Effect::Update, "ClusterPolicy", false, &status) {
                Progress::Running(_) => "running".to_owned(),
                Progress::Done => "done".to_owned(),
                Progress::Failed(error) => error.reason().to_owned(),
            };
            assert_eq!(found, wanted, "{status}");
        }
    }

    #[test]
    fn a_preview_start_waits_for_every_replica_and_a_stop_for_none() {
        let preview = |state: &str, generation: i64| json!({"state": state, "logPrefix": "PolicyPreviewLog", "startTime": "2026-11-20T09:14:07Z", "generation": generation});
        let everywhere = json!([condition("Previewing", "True", 2)]);
        for (effect, auto_start, status, wanted) in [
            (Effect::StartPreview, false, json!({"previewMetadata": preview("ACTIVE", 2)}), "running"),
            (
                Effect::StartPreview,
                false,
                json!({"previewMetadata": preview("ACTIVE", 2), "conditions": everywhere}),
                "done",
            ),
            (
                Effect::StartPreview,
                false,
                json!({"previewMetadata": preview("SUSPENDED", 2), "conditions": everywhere}),
                "SUSPENDED",
            ),
            (Effect::StartPreview, false, json!({"previewMetadata": preview("ACTIVE", 1)}), "SUSPENDED"),
            (
                Effect::StartPreview,
                false,
                json!({"previewMetadata": preview("ACTIVE", 2), "conditions": [condition("Initialized", "False", 2)]}),
                "COMPILE_ERROR",
            ),
            (Effect::StopPreview, false, json!({"previewMetadata": preview("SUSPENDED", 2)}), "done"),
            (Effect::Create, false, json!(null), "done"),
            (Effect::Create, true, json!(null), "running"),
            (Effect::Create, false, json!({"conditions": [condition("Accepted", "False", 2)]}), "COMPILE_ERROR"),
        ] {
            let found = match progress_of(effect, "ClusterPolicyExperiment", auto_start, &status) {
                Progress::Running(_) => "running".to_owned(),
                Progress::Done => "done".to_owned(),
                Progress::Failed(error) => error.reason().to_owned(),
            };
            assert_eq!(found, wanted, "{effect:?} {status}");
        }
    }
}
