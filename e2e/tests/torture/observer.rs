//! Looks at the cluster again and again, and records the generations of the policies and the webhooks that point at them.

use std::sync::Arc;
use std::time::Duration;

use anyhow::Result;
use kube::api::{Api, DynamicObject, ListParams};
use proviso_crds::ConditionType;
use proviso_e2e::torture::plan::POLICIES;
use serde_json::Value;
use tokio::time::MissedTickBehavior;

use crate::objects::{Objects, generations_of};
use crate::recorder::Recorder;
use crate::specs::{parse, policy_name};

/// The interval between two looks at the webhooks.
const INTERVAL: Duration = Duration::from_millis(200);
/// The number of looks at the webhooks between two looks at the revisions. The revisions show a generation for longer: they are
/// kept as the history of their policy.
const LOOKS_BETWEEN_REVISIONS: u32 = 3;
/// The time limit of a look. A look that fails is no observation.
const TIMEOUT: Duration = Duration::from_secs(5);

/// Observes until the task is aborted.
pub async fn observe(objects: Objects, recorder: Arc<Recorder>) {
    let mut interval = tokio::time::interval(INTERVAL);
    interval.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let mut looks = 0_u32;
    loop {
        interval.tick().await;
        let _ = tokio::time::timeout(TIMEOUT, look_at_webhooks(&objects, &recorder)).await;
        if looks.is_multiple_of(LOOKS_BETWEEN_REVISIONS) {
            let _ = tokio::time::timeout(TIMEOUT, look_at_generations(&objects, &recorder)).await;
        }
        looks = looks.wrapping_add(1);
    }
}

async fn look_at_webhooks(objects: &Objects, recorder: &Recorder) -> Result<()> {
    let asked = recorder.now();
    let configurations = objects.webhook_configurations().await?;
    let answered = recorder.now();
    for policy in (0..POLICIES).map(policy_name) {
        let generations = generations_of(&policy, &configurations);
        // Between the two lists, a policy may have changed from one kind of webhook to the other. Then this look found none.
        if let (Some(oldest), Some(newest)) = (generations.iter().min(), generations.iter().max()) {
            recorder.with(|history| {
                history.policies.entry(policy).or_default().sight(*oldest, *newest, asked, answered);
            });
        }
    }
    Ok(())
}

/// Records the specs of all generations, and the generations that were live.
pub async fn look_at_generations(objects: &Objects, recorder: &Recorder) -> Result<()> {
    for policy in list(&objects.policies).await? {
        if let (Some(name), Some(generation)) = (&policy.metadata.name, policy.metadata.generation) {
            add(recorder, name, generation, &policy.data["spec"]);
        }
    }
    for revision in list(&objects.revisions).await? {
        let spec = &revision.data["spec"];
        // A candidate has the generation of its policy, and another spec.
        if spec["role"] == "Candidate" {
            continue;
        }
        let reference = &spec["policyRef"];
        let (Some(name), Some(generation)) = (reference["name"].as_str(), reference["generation"].as_i64()) else {
            continue;
        };
        add(recorder, name, generation, &spec["data"]);
        if was_live(&revision.data["status"]) {
            recorder.with(|history| history.policies.entry(name.to_owned()).or_default().lived.insert(generation));
        }
    }
    Ok(())
}

async fn list(api: &Api<DynamicObject>) -> Result<Vec<DynamicObject>> {
    Ok(api.list(&ListParams::default()).await?.items)
}

fn add(recorder: &Recorder, policy: &str, generation: i64, spec: &Value) {
    if let Some((marker, verdict)) = parse(spec) {
        recorder.with(|history| {
            history.policies.entry(policy.to_owned()).or_default().add(generation, &marker, verdict);
        });
    }
}

/// Returns true if a revision is or was live. The condition is False after another revision has replaced this one.
fn was_live(status: &Value) -> bool {
    let mut conditions = status["conditions"].as_array().into_iter().flatten();
    conditions.any(|condition| condition["type"] == ConditionType::Live.as_str())
}
