//! Checks the spec of a policy or an experiment in a child process of the operator. The child parses the spec, compiles its programs
//! and evaluates a trial request: all that a user can make expensive. Few checks run at a time, and few requests wait for one.

use std::ffi::OsString;
use std::process::ExitCode;
use std::time::Duration;

use proviso_core::PolicyId;
use proviso_crds::validation::FieldError;
use proviso_crds::{ExperimentSpec, PolicySpec, Tenants};
use proviso_sandbox::{Defence, Failure, Job, JobError, run_job};
use serde::de::IgnoredAny;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use serde_json::value::RawValue;
use tokio::sync::{Semaphore, SemaphorePermit};

use super::check;
use super::review::Refusal;
use super::tenants::ServerTenants;
use crate::jobs::{self, CHECK_LIMITS};

/// The internal command of the operator: see [`run_check_job`].
const COMMAND: &str = "check-spec";
/// The number of checks at the same time, and of requests that wait for one.
const MAX_CHECKS: usize = 2;
const MAX_WAITING: usize = 16;
/// The time for which a request waits for the checks of others.
const QUEUE_TIMEOUT: Duration = Duration::from_millis(1500);

/// The kind of object whose spec is checked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Subject {
    Policy,
    Experiment,
}

impl Subject {
    /// Returns the path of the programs of the object, or of its template and schema, for errors.
    fn compiled_field(self, spec: &RawValue) -> &'static str {
        #[derive(Default, Deserialize)]
        struct Head {
            configuration: Option<IgnoredAny>,
            #[serde(default)]
            policy: Box<Option<Head>>,
        }
        let head: Head = serde_json::from_str(spec.get()).unwrap_or_default();
        match (self, head.policy.as_ref()) {
            (Self::Policy, _) if head.configuration.is_some() => "spec.configuration",
            (Self::Policy, _) => "spec.program",
            (Self::Experiment, Some(Head { configuration: Some(_), .. })) => "spec.policy.configuration",
            (Self::Experiment, _) => "spec.policy.program",
        }
    }

    fn as_str(self) -> &'static str {
        match self {
            Self::Policy => "policy",
            Self::Experiment => "experiment",
        }
    }
}

/// The checks that run, shared by all requests.
pub(super) struct ProgramChecks {
    running: Semaphore,
    /// The requests that run a check or wait for one.
    admitted: Semaphore,
}

/// The input of the child process.
#[derive(Deserialize, Serialize)]
struct Input<T, S> {
    /// The limits of the policy server for Policies; `None` if there are none.
    tenants: Option<T>,
    spec: S,
}

impl ProgramChecks {
    pub fn new() -> Self {
        Self { running: Semaphore::new(MAX_CHECKS), admitted: Semaphore::new(MAX_CHECKS + MAX_WAITING) }
    }

    /// Waits for the checks of others. The result is held during the check.
    async fn admit(&self) -> Result<[SemaphorePermit<'_>; 2], Refusal> {
        let busy = || Refusal::busy("the operator checks many other policies now: try again in a moment");
        let admitted = self.admitted.try_acquire().map_err(|_| busy())?;
        match tokio::time::timeout(QUEUE_TIMEOUT, self.running.acquire()).await {
            Ok(Ok(running)) => Ok([admitted, running]),
            _ => Err(busy()),
        }
    }

    /// Runs a check that needs no child process, on a thread that may block.
    ///
    /// # Errors
    /// Returns a refusal if the operator has too many checks.
    pub async fn run_blocking<T: Send + 'static>(
        &self,
        check: impl FnOnce() -> T + Send + 'static,
    ) -> Result<T, Refusal> {
        let _permits = self.admit().await?;
        let checked = tokio::task::spawn_blocking(check).await;
        checked.map_err(|error| Refusal::busy(format!("the check has no result: {error}")))
    }

    /// Checks a spec. `tenants` are the limits of its policy server for Policies.
    ///
    /// # Errors
    /// Returns the errors of the spec as a refusal. Returns another refusal if the spec exceeds the limits of a check, or the operator has too many checks.
    pub async fn run(
        &self,
        subject: Subject,
        namespace: Option<&str>,
        name: &str,
        (tenants, spec): (Option<&ServerTenants>, &RawValue),
    ) -> Result<(), Refusal> {
        let _permits = self.admit().await?;
        let job = job(subject, namespace, name);
        let at = subject.compiled_field(spec);
        let input = Input { tenants: tenants.map(|found| &found.tenants), spec };
        let input = serde_json::to_vec(&input).map_err(|error| Refusal::from(error.to_string()))?;
        let output = job.run(&input).await.map_err(|error| refusal(at, error))?;
        let errors: Vec<FieldError> = serde_json::from_slice(&output)
            .map_err(|error| Refusal::from(format!("{at}: its check has no result: {error}")))?;
        if errors.is_empty() { Ok(()) } else { Err(Refusal::from(jobs::to_text(&errors))) }
    }
}

fn job(subject: Subject, namespace: Option<&str>, name: &str) -> Job {
    let arguments = [subject.as_str(), name, namespace.unwrap_or_default()].map(ToOwned::to_owned).to_vec();
    Job { command: COMMAND, arguments, limits: CHECK_LIMITS }
}

/// Checks the spec of a configuration policy as at `kubectl apply`, in a child process. The caller limits the number of checks at the same
/// time. Returns the errors of the spec.
///
/// # Errors
/// Returns an error if the spec exceeds the limits of a check, or if the check has no result.
pub(crate) async fn check_configuration_policy(policy: &PolicyId, spec: &Value) -> Result<Vec<FieldError>, JobError> {
    let stopped = |error: serde_json::Error| JobError::Stopped(error.to_string());
    let input = serde_json::to_vec(&Input::<(), _> { tenants: None, spec }).map_err(stopped)?;
    let output = job(Subject::Policy, policy.namespace(), policy.name()).run(&input).await?;
    serde_json::from_slice(&output).map_err(stopped)
}

/// Returns the refusal of a check that has no result. `at` is the field with the programs.
fn refusal(at: &str, error: JobError) -> Refusal {
    match (jobs::limit_message("compiling", &error), error) {
        (Some(message), _) => Refusal::from(format!("{at}: {message}")),
        (None, JobError::Failed(Failure { message, .. })) => Refusal::from(message),
        (None, error) => Refusal::busy(format!("{at}: the compiler stopped: {error}")),
    }
}

/// Runs a check in this process, if the arguments of the program say so: see [`run_job`].
pub(crate) fn run_check_job(arguments: impl IntoIterator<Item = OsString>) -> Option<ExitCode> {
    run_job(arguments, COMMAND, &Defence::ALL, |arguments, input| jobs::write(errors(arguments, &input)))
}

fn errors(arguments: &[String], input: &[u8]) -> Result<Vec<FieldError>, String> {
    let [subject, name, namespace] = arguments else { return Err("wrong arguments".to_owned()) };
    let namespace = Some(namespace.as_str()).filter(|namespace| !namespace.is_empty());
    // A use that the policy server does not permit makes further errors irrelevant.
    let unless_refused = |refused: Vec<FieldError>, check: &dyn Fn() -> Vec<FieldError>| {
        if refused.is_empty() { check() } else { refused }
    };
    let refused = |tenants: Option<Tenants>, at: &str, spec: &PolicySpec| {
        tenants.map(|tenants| tenants.check(at, &spec.policy_server, spec)).unwrap_or_default()
    };
    if subject == "policy" {
        let Input::<Tenants, PolicySpec> { tenants, spec } = jobs::read(input)?;
        return Ok(unless_refused(refused(tenants, "spec", &spec), &|| check::policy(namespace, name, &spec)));
    }
    let Input::<Tenants, ExperimentSpec> { tenants, spec } = jobs::read(input)?;
    let refused = refused(tenants, "spec.policy", &spec.policy);
    Ok(unless_refused(refused, &|| check::experiment(namespace, name, &spec)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_spec_that_cannot_be_read_names_its_field() {
        let arguments = ["policy", "a", "team"].map(ToOwned::to_owned);
        let error =
            errors(&arguments, br#"{"tenants": null, "spec": {"program": {"cel": {"validations": 1}}}}"#).unwrap_err();
        assert!(error.starts_with("spec.program"), "{error}");
        let valid = br#"{"tenants": null, "spec": {"program": {"cel": {"validations": [{"expression": "object."}]}},
            "admission": {"rules": [
                {"operations": ["*"], "apiGroups": [""], "apiVersions": ["*"], "resources": ["pods"]}]}}}"#;
        let found = errors(&arguments, valid).unwrap();
        assert_eq!(found.iter().map(|error| error.field.as_str()).collect::<Vec<_>>(), ["spec.program.cel"]);
    }

    #[test]
    fn the_template_of_a_configuration_policy_is_checked() {
        let arguments = ["policy", "a", "team"].map(ToOwned::to_owned);
        let template = r#"{"configuration": {"configName": "memory", "template": {"cel": "{'a': object.b}"}}}"#;
        let found = errors(&arguments, format!(r#"{{"tenants": null, "spec": {template}}}"#).as_bytes()).unwrap();
        assert_eq!(
            found.iter().map(|error| error.field.as_str()).collect::<Vec<_>>(),
            ["spec.configuration.template.cel"]
        );
        for (subject, spec, field) in [
            (Subject::Policy, template.to_owned(), "spec.configuration"),
            (Subject::Policy, r#"{"program": {}}"#.to_owned(), "spec.program"),
            (Subject::Experiment, format!(r#"{{"policy": {template}}}"#), "spec.policy.configuration"),
            (Subject::Experiment, r#"{"policy": {}}"#.to_owned(), "spec.policy.program"),
        ] {
            let spec = RawValue::from_string(spec).unwrap();
            assert_eq!(subject.compiled_field(&spec), field, "{spec}");
        }
    }

    #[test]
    fn a_limit_is_named_in_the_refusal() {
        let texts = [
            (JobError::Memory(64), None, "spec.program: compiling it takes more than 64 MiB of memory"),
            (JobError::Timeout(Duration::from_secs(5)), None, "spec.program: compiling it took longer than 5 s"),
            (JobError::Killed, Some(503), "spec.program: the compiler stopped"),
        ];
        for (error, code, words) in texts {
            let found = refusal("spec.program", error);
            assert!(found.code == code && found.message.starts_with(words), "{}", found.message);
        }
    }
}
