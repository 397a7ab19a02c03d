//! Checks the spec of a policy or an experiment in a child process of the operator. The child parses the spec, compiles its programs
//! and evaluates a trial request: all that a user can make expensive. Few checks run at a time, and few requests wait for one.

use std::ffi::OsString;
use std::process::ExitCode;
use std::time::Duration;

use proviso_crds::validation::FieldError;
use proviso_crds::{ExperimentSpec, PolicySpec, Tenants};
use proviso_sandbox::{Defence, Failure, Job, JobError, Limits, run_job};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;
use tokio::sync::Semaphore;

use super::check;
use super::review::Refusal;
use super::tenants::ServerTenants;

/// The internal command of the operator: see [`run_check_job`].
const COMMAND: &str = "check-spec";
/// The limits of one check. Its memory is a part of the operator's container. The API server waits for 10 s.
const LIMITS: Limits = Limits { memory_mib: 64, time: Duration::from_secs(5), output: 256 * 1024 };
/// The number of checks at the same time, and of requests that wait for one.
const MAX_CHECKS: usize = 2;
const MAX_WAITING: usize = 16;
/// The time for which a request waits for the checks of others.
const QUEUE_TIMEOUT: Duration = Duration::from_millis(1500);
/// The exit code of a check that could not be carried out.
const UNREADABLE: u8 = 10;

/// The kind of object whose spec is checked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Subject {
    Policy,
    Experiment,
}

impl Subject {
    /// Returns the path of the programs of the object, for errors.
    fn program(self) -> &'static str {
        match self {
            Self::Policy => "spec.program",
            Self::Experiment => "spec.policy.program",
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

/// The error of a spec, as the child process writes it.
#[derive(Deserialize, Serialize)]
struct Error {
    field: String,
    message: String,
}

impl ProgramChecks {
    pub fn new() -> Self {
        Self { running: Semaphore::new(MAX_CHECKS), admitted: Semaphore::new(MAX_CHECKS + MAX_WAITING) }
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
        let busy = || Refusal::busy("the operator checks many other policies now: try again in a moment");
        let _admitted = self.admitted.try_acquire().map_err(|_| busy())?;
        let Ok(Ok(_running)) = tokio::time::timeout(QUEUE_TIMEOUT, self.running.acquire()).await else {
            return Err(busy());
        };
        let arguments = vec![
            if subject == Subject::Policy { "policy" } else { "experiment" }.to_owned(),
            name.to_owned(),
            namespace.unwrap_or_default().to_owned(),
        ];
        let job = Job { command: COMMAND, arguments, limits: LIMITS };
        let input = Input { tenants: tenants.map(|found| &found.tenants), spec };
        let input = serde_json::to_vec(&input).map_err(|error| Refusal::from(error.to_string()))?;
        let output = job.run(&input).await.map_err(|error| refusal(subject, error))?;
        let errors: Vec<Error> = serde_json::from_slice(&output)
            .map_err(|error| Refusal::from(format!("{}: its check has no result: {error}", subject.program())))?;
        if errors.is_empty() {
            return Ok(());
        }
        let errors = errors.into_iter().map(|Error { field, message }| FieldError { field, message }.to_string());
        Err(Refusal::from(errors.collect::<Vec<_>>().join("; ")))
    }
}

fn refusal(subject: Subject, error: JobError) -> Refusal {
    let at = subject.program();
    match error {
        JobError::Failed(Failure { message, .. }) => Refusal::from(message),
        JobError::Timeout(limit) => {
            Refusal::from(format!("{at}: compiling it took longer than {} s: make it smaller", limit.as_secs()))
        }
        JobError::Memory(mib) => {
            Refusal::from(format!("{at}: compiling it takes more than {mib} MiB of memory: make it smaller"))
        }
        JobError::Output(_) => Refusal::from(format!("{at}: it has too many errors")),
        JobError::Killed | JobError::Stopped(_) => Refusal::busy(format!("{at}: the compiler stopped: {error}")),
    }
}

/// Runs a check in this process, if the arguments of the program say so: see [`run_job`].
pub(crate) fn run_check_job(arguments: impl IntoIterator<Item = OsString>) -> Option<ExitCode> {
    run_job(arguments, COMMAND, &Defence::ALL, |arguments, input| {
        let errors = errors(arguments, &input).map_err(|message| Failure { code: UNREADABLE, message })?;
        let errors = errors.into_iter().map(|FieldError { field, message }| Error { field, message });
        serde_json::to_vec(&errors.collect::<Vec<_>>())
            .map_err(|error| Failure { code: UNREADABLE, message: error.to_string() })
    })
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
        let Input::<Tenants, PolicySpec> { tenants, spec } = read(input)?;
        return Ok(unless_refused(refused(tenants, "spec", &spec), &|| check::policy(namespace, name, &spec)));
    }
    let Input::<Tenants, ExperimentSpec> { tenants, spec } = read(input)?;
    let refused = refused(tenants, "spec.policy", &spec.policy);
    Ok(unless_refused(refused, &|| check::experiment(namespace, name, &spec)))
}

fn read<T: DeserializeOwned>(input: &[u8]) -> Result<T, String> {
    let deserializer = &mut serde_json::Deserializer::from_slice(input);
    serde_path_to_error::deserialize(deserializer).map_err(|error| format!("{}: {}", error.path(), error.inner()))
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
    fn a_limit_is_named_in_the_refusal() {
        let texts = [
            (JobError::Memory(64), None, "spec.program: compiling it takes more than 64 MiB of memory"),
            (JobError::Timeout(Duration::from_secs(5)), None, "spec.program: compiling it took longer than 5 s"),
            (JobError::Killed, Some(503), "spec.program: the compiler stopped"),
        ];
        for (error, code, words) in texts {
            let found = refusal(Subject::Policy, error);
            assert!(found.code == code && found.message.starts_with(words), "{}", found.message);
        }
    }
}
