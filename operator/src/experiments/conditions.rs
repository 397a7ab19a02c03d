//! The conditions of an experiment. Pure.

use proviso_core::Failure;
use proviso_core::experiment::MAX_EXPERIMENTS;
use proviso_core::experiment::rollout::{Acceptance, Decision, Initialization, Progress};
use proviso_crds::{ConditionState, ConditionType, PreviewMetadata, reasons};

use super::configuration;
use super::observe::{self, ObservedObjects};
use crate::configurations::VALID;
use crate::context::Error;
use crate::kinds::{self, ExperimentObject};
use crate::replicas::causes;
use crate::revisions::NOT_LOADED;

/// The conditions of an experiment.
pub(super) const TYPES: [ConditionType; 3] =
    [ConditionType::Accepted, ConditionType::Initialized, ConditionType::Previewing];

/// Returns the states of the conditions of [`TYPES`].
pub(super) fn states<K: ExperimentObject>(
    experiment: &K,
    found: &ObservedObjects<K>,
    decision: &Decision,
) -> Result<[ConditionState; 3], Error> {
    let policy = kinds::policy_id(experiment, &experiment.spec().policy_ref.name)?.to_string();
    let generation = experiment.meta().generation.ok_or(Error::Incomplete("generation"))?;
    let preview = observe::preview(experiment);
    let accepted = accepted(decision.acceptance, &policy, found);
    let is_configuration = experiment.spec().policy.configuration.is_some();
    let previewing = if is_configuration {
        configuration::previewing(decision, &accepted, preview.as_ref(), generation, !found.canaries.is_empty())
    } else {
        previewing(decision, &accepted, preview.as_ref(), generation, found.live.is_some())
    };
    let initialized = match &decision.initialization {
        Initialization::NotNeeded => ConditionState::unknown(previewing.reason.clone(), previewing.message.clone()),
        Initialization::Running if is_configuration => configuration::validating(&found.candidates),
        Initialization::Running => ConditionState::unknown(reasons::PREPARING, "the policy server prepares it"),
        Initialization::Prepared if is_configuration => ConditionState::yes(reasons::VALIDATED, VALID),
        Initialization::Prepared => {
            ConditionState::yes(reasons::PREPARED, "its program was compiled and accepted its settings")
        }
        Initialization::Failed(failure) => failure.clone().into(),
    };
    Ok([accepted, initialized, previewing])
}

fn accepted<K: ExperimentObject>(acceptance: Acceptance, policy: &str, found: &ObservedObjects<K>) -> ConditionState {
    match acceptance {
        Acceptance::Accepted => {
            let message = format!("it is one of at most {MAX_EXPERIMENTS} experiments of {policy}");
            ConditionState::yes(reasons::ACCEPTED, message)
        }
        Acceptance::PolicyNotFound => {
            let message = format!("there is no policy {policy}: the experiment waits for it");
            ConditionState::no(reasons::POLICY_NOT_FOUND, message)
        }
        Acceptance::PolicyMalformed => {
            let malformed = found.policy.as_deref().and_then(|policy| policy.0.as_ref().err());
            let error = malformed.map_or("", |malformed| malformed.error.as_str());
            let message = format!("the policy {policy} cannot be read, correct it or delete it: {error}");
            ConditionState::no(reasons::MALFORMED, message)
        }
        Acceptance::NotPermitted => match &found.refusal {
            Some(Failure { reason, message }) => ConditionState::no(reason.clone(), message.clone()),
            None => ConditionState::no(reasons::NOT_PERMITTED, "the policy server does not permit it"),
        },
        Acceptance::TooMany => {
            let message =
                format!("{policy} has {MAX_EXPERIMENTS} older experiments, more are not previewed: delete one");
            ConditionState::no(reasons::TOO_MANY, message)
        }
    }
}

fn previewing(
    decision: &Decision,
    accepted: &ConditionState,
    preview: Option<&PreviewMetadata>,
    generation: i64,
    is_live: bool,
) -> ConditionState {
    use ConditionState as State;
    match &decision.progress {
        Progress::NotAccepted => State::no(reasons::NOT_ACCEPTED, accepted.message.clone()),
        Progress::NotStarted => State::no(reasons::NOT_STARTED, "it was not started, and spec.autoStart is false"),
        Progress::Stopping => State::no(
            reasons::STOPPING,
            "replicas finish the evaluations that have begun, and report their final counts",
        ),
        Progress::Suspended => State::no(reasons::SUSPENDED, suspended_message(preview, generation)),
        Progress::Initializing => State::no(reasons::PREPARING, NOT_LOADED),
        Progress::InitializationFailed(_) => State::no(reasons::NOT_INITIALIZED, "it cannot be prepared"),
        Progress::NoReplicas => State::no(reasons::NO_REPLICAS, "no replica of the policy server is Ready"),
        Progress::Loading => State::no(reasons::LOADING, NOT_LOADED),
        Progress::LoadingFailed(replicas) => {
            State::no(reasons::LOADING_FAILED, format!("{NOT_LOADED}; {}", causes(replicas)))
        }
        Progress::Previewing => State::yes(reasons::PREVIEWING, previewing_message(decision.webhook, is_live)),
    }
}

/// Returns the message about a suspended preview.
pub(super) fn suspended_message(preview: Option<&PreviewMetadata>, generation: i64) -> String {
    let of_generation = preview.filter(|preview| preview.generation == generation);
    match of_generation.map(|preview| &preview.stop_cause) {
        Some(Some(cause)) => format!("generation {generation} is suspended: {}: {}", cause.reason, cause.message),
        Some(None) => format!("generation {generation} was stopped by a caller"),
        None => format!("generation {generation} is not started"),
    }
}

/// Returns the message about the requests that the experiment evaluates.
fn previewing_message(has_webhook: bool, is_live: bool) -> &'static str {
    match (has_webhook, is_live) {
        (false, _) => "every replica evaluates it for the requests that the policy answers",
        (true, true) => "it covers other requests than the policy, and has its own webhook, which allows every request",
        (true, false) => {
            "the policy is not live: the experiment has its own webhook, and is compared with a policy that allows all"
        }
    }
}
