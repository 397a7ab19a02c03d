//! The validation of revisions that configure components. No policy server prepares them: the operator checks the content, the template
//! and the schema, and writes the condition `Initialized` of the revision.

use std::collections::VecDeque;
use std::sync::Mutex;
use std::time::{Duration, Instant};

use jiff::Timestamp;
use kube::api::{Patch, PatchParams};
use kube::{Api, ResourceExt as _};
use proviso_core::{Failure, PolicyId, Reason};
use proviso_crds::conditions::status_patch;
use proviso_crds::names::field_managers;
use proviso_crds::validation::FieldError;
use proviso_crds::{ConditionState, ConditionStatus, ConditionType, Conditions as _, PolicyRevision, reasons};
use proviso_programs::templates::check_configuration;
use proviso_sandbox::JobError;
use serde_json::json;

use crate::admission;
use crate::cache::lock;
use crate::context::{Context, Error};
use crate::revisions::{RevisedConfiguration, Revision};

/// The delay of a reconcile whose validation has no place.
pub(crate) const RETRY_VALIDATION: Duration = Duration::from_secs(1);
/// A namespace that has not asked again for this time waits no more, for example because its policy was deleted.
const WAIT_TIMEOUT: Duration = Duration::from_secs(5);
/// The message about a revision that is valid.
pub(crate) const VALID: &str = "its content or its template is valid";

/// The result of the reconcile's part in a validation.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Validation {
    /// There is nothing to validate, or nothing new to say.
    Unchanged,
    /// Others are validated now: to try again after [`RETRY_VALIDATION`].
    Busy,
    /// The result was written.
    Written,
}

/// The namespace of a policy; `None` for a policy of the cluster.
type Namespace = Option<String>;

/// The validations of all controllers. One runs at a time: it may take the memory of a check at `kubectl apply`, which the operator's
/// container has to spare once. No reconcile waits for another validation, because there are only a few reconciles at a time for all
/// namespaces.
#[derive(Debug, Default)]
pub(crate) struct Validations(Mutex<Places>);

#[derive(Debug, Default)]
struct Places {
    is_running: bool,
    /// The namespaces that wait, each with the time of its last try. The first one is next, however many policies others have.
    waiting: VecDeque<(Namespace, Instant)>,
}

/// The permission to run a validation.
struct Running<'a>(&'a Validations);

impl Drop for Running<'_> {
    fn drop(&mut self) {
        lock(&self.0.0).is_running = false;
    }
}

impl Validations {
    /// Returns the permission to validate a policy of this namespace; `None` if another validation runs, or another namespace is next.
    fn begin(&self, namespace: Option<&str>, now: Instant) -> Option<Running<'_>> {
        let mut places = lock(&self.0);
        places.waiting.retain(|(_, tried)| now.saturating_duration_since(*tried) < WAIT_TIMEOUT);
        match places.waiting.iter_mut().find(|(waiting, _)| waiting.as_deref() == namespace) {
            Some((_, tried)) => *tried = now,
            None => places.waiting.push_back((namespace.map(ToOwned::to_owned), now)),
        }
        let is_next = places.waiting.front().is_some_and(|(first, _)| first.as_deref() == namespace);
        if places.is_running || !is_next {
            return None;
        }
        places.waiting.pop_front();
        places.is_running = true;
        Some(Running(self))
    }

    /// Returns the result of a validation; `None` if it has to wait.
    ///
    /// # Errors
    /// Returns the error of a validation that has no result, for a reason that is not in the policy.
    async fn run(
        &self,
        policy: &PolicyId,
        revised: &RevisedConfiguration,
    ) -> Result<Option<Result<(), Failure>>, JobError> {
        let RevisedConfiguration { configuration, settings } = revised;
        if configuration.template.is_none() && configuration.schema.is_none() {
            // No text of a tenant is compiled.
            let errors = check_configuration("spec", policy, configuration, settings);
            return Ok(Some(errors.first().map_or(Ok(()), |error| Err(invalid(error.to_string())))));
        }
        let Some(_running) = self.begin(policy.namespace(), Instant::now()) else { return Ok(None) };
        let spec = json!({"configuration": configuration, "settings": settings});
        result(admission::check_configuration_policy(policy, &spec).await).map(Some)
    }
}

/// Returns the result of a job. A job that takes too long may be on a slow machine, and is repeated.
fn result(checked: Result<Vec<FieldError>, JobError>) -> Result<Result<(), Failure>, JobError> {
    match checked {
        Ok(errors) if errors.is_empty() => Ok(Ok(())),
        Ok(errors) => {
            let errors: Vec<_> = errors.iter().map(ToString::to_string).collect();
            Ok(Err(invalid(errors.join("; "))))
        }
        Err(error @ (JobError::Killed | JobError::Stopped(_) | JobError::Timeout(_))) => Err(error),
        Err(error) => Ok(Err(invalid(format!("spec.configuration: it cannot be validated: {error}: make it smaller")))),
    }
}

fn invalid(message: String) -> Failure {
    Failure::new(Reason::INVALID, message)
}

/// Validates a revision that has no result yet, and writes the result to its condition `Initialized`. Does nothing for the revision of
/// another enforcement point.
///
/// # Errors
/// Returns [`Error::Validation`] if the validation has no result, and must be repeated. The condition is `Unknown` then.
pub(crate) async fn validate(revision: &Revision, context: &Context) -> Result<Validation, Error> {
    let known = revision.status.conditions.condition(ConditionType::Initialized);
    let unknown = ConditionStatus::Unknown.as_str();
    let (Some(revised), true) = (&revision.configuration, known.is_none_or(|known| known.status == unknown)) else {
        return Ok(Validation::Unchanged);
    };
    let policy = PolicyId::new(revision.policy_ref.namespace.as_deref(), &revision.policy_ref.name)?;
    let (state, error) = match context.validations.run(&policy, revised).await {
        Ok(None) => return Ok(Validation::Busy),
        Ok(Some(Ok(()))) => (ConditionState::yes(reasons::VALIDATED, VALID), None),
        Ok(Some(Err(failure))) => (failure.into(), None),
        Err(error) => {
            let message = format!("the operator cannot validate it, and tries again: {error}");
            (ConditionState::unknown(reasons::VALIDATION_FAILED, message), Some(error.to_string()))
        }
    };
    let generation = match &revision.experiment_ref {
        Some(experiment) if revision.is_candidate() => experiment.generation,
        _ => revision.policy_ref.generation,
    };
    let conditions = &revision.status.conditions;
    let condition = state.into_condition(ConditionType::Initialized, conditions, Some(generation), Timestamp::now());
    let is_new = known != Some(&condition);
    if is_new {
        let revisions = Api::<PolicyRevision>::namespaced(context.client.clone(), &context.namespace);
        let patch = Patch::Apply(status_patch::<PolicyRevision>(&json!({"conditions": [condition]})));
        let params = PatchParams::apply(field_managers::OPERATOR_VALIDATION).force();
        context.caches.write_revision(revisions.patch_status(&revision.name_any(), &params, &patch)).await?;
    }
    let done = if is_new { Validation::Written } else { Validation::Unchanged };
    error.map_or(Ok(done), |error| Err(Error::Validation(error)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_namespace_has_its_turn() {
        let (validations, now) = (Validations::default(), Instant::now());
        let begin = |namespace| validations.begin(namespace, now);
        let first = begin(Some("many")).unwrap();
        assert!(begin(Some("many")).is_none() && begin(Some("other")).is_none() && begin(None).is_none());
        drop(first);
        // One more of the namespace waits already, and is before the others.
        drop(begin(Some("many")).unwrap());
        assert!(begin(Some("many")).is_none(), "the other namespace waits for a longer time");
        assert!(begin(None).is_none());
        drop(begin(Some("other")).unwrap());
        drop(begin(None).unwrap());
        drop(begin(Some("many")).unwrap());
    }

    #[test]
    fn a_namespace_that_does_not_try_again_stops_nobody() {
        let (validations, now) = (Validations::default(), Instant::now());
        let running = validations.begin(Some("a"), now);
        assert!(validations.begin(Some("gone"), now).is_none());
        drop(running);
        assert!(validations.begin(Some("a"), now + RETRY_VALIDATION).is_none());
        assert!(validations.begin(Some("a"), now + WAIT_TIMEOUT).is_some());
    }

    #[test]
    fn a_slow_machine_is_no_error_of_the_policy() {
        let timeout = JobError::Timeout(Duration::from_secs(5));
        assert!(matches!(result(Err(timeout)), Err(JobError::Timeout(_))));
        assert!(matches!(result(Err(JobError::Killed)), Err(JobError::Killed)));
        let failure = result(Err(JobError::Memory(64))).unwrap().unwrap_err();
        assert!(failure.message.starts_with("spec.configuration: it cannot be validated: "), "{}", failure.message);
        let failure = result(Ok(vec![FieldError::new("spec.a", "is b")])).unwrap().unwrap_err();
        assert_eq!(failure.message, "spec.a: is b");
        assert!(result(Ok(Vec::new())).unwrap().is_ok());
    }
}
