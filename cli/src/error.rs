//! The errors of commands, with remedies and exit codes.

use std::fmt;
use std::process::ExitCode;

use kube::config::KubeconfigError;
use proviso_core::PolicyId;
use proviso_evaluation::documents::DocumentError;
use proviso_evaluation::suite::{FilterError, SuiteError};
use proviso_import::{ImportError, ImportErrors};

use crate::access::Access;
use crate::objects::SubscriptionName;
use crate::server::error::ServerError;

/// The error of a command.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error("there is no kubeconfig, and the program does not run in a pod: {0}")]
    NoKubeconfig(KubeconfigError),
    #[error("the kubeconfig is invalid: {error}")]
    Kubeconfig { error: KubeconfigError, contexts: Vec<String> },
    #[error("cannot create a client for {server}: {cause}")]
    Client { server: String, cause: String },
    #[error("{server} does not answer: {cause}")]
    Unreachable { server: String, cause: String },
    #[error("{server} refused the credentials: {cause}")]
    Unauthorized { server: String, cause: String },
    #[error("you may not {access}")]
    Forbidden { access: Access, cause: String },
    #[error("this cluster has no {0}: Proviso's CustomResourceDefinitions are not installed")]
    NotInstalled(&'static str),
    #[error("the API server could not {access}: {cause}")]
    Refused { access: Access, cause: String },
    #[error("there is no {0}")]
    Missing(Missing),
    #[error("there is no PolicySubscription {} in the namespace {}", .0.name.name, .0.name.namespace)]
    MissingSubscription(MissingSubscription),
    #[error("{name} is the name of two {what}")]
    Ambiguous { what: &'static str, name: String, ids: Vec<PolicyId> },
    #[error("{what} is invalid: {error}")]
    Malformed { what: String, error: crate::objects::ObjectError },
    #[error("{policy} has no revision of generation {generation}")]
    NoRevision { policy: PolicyId, generation: i64, kept: Vec<i64> },
    #[error("{0}")]
    Rollback(#[from] crate::rollback::error::PlanError),
    #[error("{0}")]
    Manifest(#[from] crate::manifest::ManifestError),
    #[error("{0}")]
    Experiment(#[from] crate::experiment::error::ExperimentError),
    #[error("{0}")]
    Server(#[from] ServerError),
    #[error("{0}")]
    Document(#[from] DocumentError),
    #[error("{0}")]
    Field(proviso_crds::validation::FieldError),
    #[error("{0}")]
    Prepare(#[from] proviso_evaluation::PrepareError),
    #[error("{0}")]
    Requests(#[from] proviso_evaluation::RequestPoliciesError),
    #[error("{0}")]
    Patch(#[from] proviso_evaluation::PatchError),
    #[error("{0}")]
    Suite(#[from] SuiteError),
    #[error("--run: {0}")]
    Filter(#[from] FilterError),
    #[error("--run {0:?} matches no test case")]
    NoCase(String),
    #[error("{}", import_errors(.0))]
    Import(#[from] ImportErrors),
    #[error("{0}")]
    Module(#[from] crate::module::ModuleError),
    #[error("{0}")]
    Reference(#[from] proviso_artifacts::ReferenceError),
    #[error("{0}")]
    Fetch(Box<proviso_artifacts::FetchError>),
    #[error("{0}")]
    Push(Box<proviso_artifacts::PushError>),
    #[error("{name} has the digest {actual}, not {wanted}")]
    DigestMismatch { name: String, actual: proviso_artifacts::Digest, wanted: proviso_artifacts::Digest },
    #[error("{}: {error}", file.display())]
    File { file: std::path::PathBuf, error: std::io::Error },
    #[error("{0}")]
    Usage(String),
    #[error("the output cannot be written: {0}")]
    Output(#[from] std::io::Error),
    #[error("the output cannot be serialized: {0}")]
    Json(#[from] serde_json::Error),
    #[error("the output cannot be serialized: {0}")]
    Yaml(#[from] serde_yaml::Error),
    #[error("the output cannot be serialized: {0}")]
    Csv(#[from] csv::Error),
}

/// A policy or an experiment that was not found.
#[derive(Debug)]
pub struct Missing {
    /// The namespaced and the cluster-scoped kind.
    pub kinds: [&'static str; 2],
    /// The command that shows all of them; `None` if there is none.
    pub show: Option<&'static str>,
    /// The ids that were requested.
    pub candidates: Vec<PolicyId>,
    /// The ids of existing objects with a similar name.
    pub similar: Vec<PolicyId>,
    /// The requests of the search that were forbidden.
    pub forbidden: Vec<Access>,
}

/// A subscription that was not found.
#[derive(Debug)]
pub struct MissingSubscription {
    pub name: SubscriptionName,
    /// The existing subscriptions with a similar name.
    pub similar: Vec<SubscriptionName>,
}

impl fmt::Display for Missing {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let places = self.candidates.iter().map(|id| match id.namespace() {
            Some(namespace) => format!("{} {} in the namespace {namespace}", self.kinds[0], id.name()),
            None => format!("{} {}", self.kinds[1], id.name()),
        });
        f.write_str(&places.collect::<Vec<_>>().join(", and no "))
    }
}

impl Error {
    /// Returns advice for the user; `None` if the message of the error has it. `program` is the name by which the user calls
    /// this program.
    #[must_use]
    pub fn remedy(&self, program: &str) -> Option<String> {
        Some(match self {
            Self::NoKubeconfig(_) => "Name one with --kubeconfig or KUBECONFIG.".to_owned(),
            Self::Kubeconfig { error: KubeconfigError::LoadContext(_) | KubeconfigError::CurrentContextNotSet, contexts } => {
                format!("Choose a context with --context: {}.", join(contexts))
            }
            Self::Kubeconfig { .. } | Self::Client { .. } => "Does `kubectl version` work with it?".to_owned(),
            Self::Unreachable { .. } => {
                "Is the cluster up, and is this its context? See `kubectl config current-context`; a VPN or a proxy may \
                 be missing."
                    .to_owned()
            }
            Self::Unauthorized { .. } => "Log in again; `kubectl auth whoami` shows if it worked.".to_owned(),
            Self::Forbidden { access, cause } => {
                format!("The API server says: {cause}. Ask for the permission; `{}` shows if you have it.", access.can_i())
            }
            Self::NotInstalled(_) => "Install Proviso, or choose the right cluster with --context.".to_owned(),
            Self::Missing(missing) => missing.remedy(program)?,
            Self::MissingSubscription(missing) => missing.remedy(program),
            Self::Ambiguous { ids, .. } => format!("Use one of these names: {}.", join(ids)),
            Self::Malformed { .. } => "Is this program older than Proviso in the cluster? See --version.".to_owned(),
            Self::NoRevision { kept, .. } if kept.is_empty() => "No generation is kept.".to_owned(),
            Self::NoRevision { kept, .. } => format!("Kept generations: {}.", join(kept)),
            Self::Rollback(error) => error.remedy(program)?,
            Self::Experiment(error) => error.remedy(program)?,
            Self::Server(error) => error.remedy()?.to_owned(),
            // The message of the error is enough.
            _ => return None,
        })
    }

    /// Returns the error for a file that cannot be read or written.
    #[must_use]
    pub fn file(file: &std::path::Path, error: std::io::Error) -> Self {
        Self::File { file: file.to_owned(), error }
    }

    /// Returns true if the server did not answer, or failed, so that the request may have succeeded.
    #[must_use]
    pub fn is_unanswered(&self) -> bool {
        match self {
            Self::Unreachable { .. } | Self::Server(ServerError::Unreachable { .. }) => true,
            Self::Experiment(error) => error.is_unanswered(),
            _ => false,
        }
    }

    /// Returns the exit code of the program.
    #[must_use]
    pub fn exit_code(&self) -> ExitCode {
        match self {
            Self::Fetch(error) if matches!(**error, proviso_artifacts::FetchError::Unverified(_)) => ExitCode::FAILURE,
            // The exit code 1 means a failed test, a denial or a failed verification.
            Self::Usage(_)
            | Self::Document(_)
            | Self::Field(_)
            | Self::Prepare(_)
            | Self::Requests(_)
            | Self::Patch(_)
            | Self::Suite(_)
            | Self::Filter(_)
            | Self::NoCase(_)
            | Self::Import(_)
            | Self::File { .. }
            | Self::Module(_)
            | Self::Reference(_)
            | Self::Fetch(_)
            | Self::Push(_) => ExitCode::from(2),
            // The reader of the output has closed it, such as `head`.
            Self::Output(error) if error.kind() == std::io::ErrorKind::BrokenPipe => ExitCode::SUCCESS,
            _ => ExitCode::FAILURE,
        }
    }
}

impl Missing {
    fn remedy(&self, program: &str) -> Option<String> {
        let mut remedies = Vec::new();
        if !self.similar.is_empty() {
            remedies.push(format!(
                "Did you mean {}?",
                self.similar.iter().map(ToString::to_string).collect::<Vec<_>>().join(" or ")
            ));
        }
        if !self.forbidden.is_empty() {
            remedies.push(format!("Not searched, because you may not: {}.", join(&self.forbidden)));
        }
        remedies.extend(self.show.map(|show| format!("`{program} {show} -A` shows all.")));
        (!remedies.is_empty()).then(|| remedies.join(" "))
    }
}

impl MissingSubscription {
    fn remedy(&self, program: &str) -> String {
        let all = format!("`{program} subscriptions list -A` shows all.");
        let similar = self.similar.iter().map(|SubscriptionName { namespace, name }| format!("{name} -n {namespace}"));
        match similar.collect::<Vec<_>>()[..] {
            [] => all,
            ref similar => format!("Did you mean {}? {all}", similar.join(" or ")),
        }
    }
}

/// Returns the errors of an import, one a line, with the options that resolve them.
fn import_errors(ImportErrors(errors): &ImportErrors) -> String {
    let line = |error: &ImportError| match error {
        ImportError::UnknownResource { kind, guess, .. } => {
            format!("{error}: name it with an option such as --resource {kind}={guess}")
        }
        ImportError::Document(error) => error.to_string(),
    };
    errors.iter().map(line).collect::<Vec<_>>().join("\n")
}

fn join<T: fmt::Display>(items: &[T]) -> String {
    items.iter().map(ToString::to_string).collect::<Vec<_>>().join(", ")
}

impl From<proviso_artifacts::FetchError> for Error {
    fn from(error: proviso_artifacts::FetchError) -> Self {
        Self::Fetch(Box::new(error))
    }
}

impl From<proviso_artifacts::PushError> for Error {
    fn from(error: proviso_artifacts::PushError) -> Self {
        Self::Push(Box::new(error))
    }
}

/// Returns the innermost cause of an error.
#[must_use]
pub fn root_cause(error: &(dyn std::error::Error + 'static)) -> String {
    let mut error = error;
    while let Some(source) = error.source() {
        error = source;
    }
    error.to_string()
}

#[cfg(test)]
mod tests {
    use super::*;
    use proviso_evaluation::documents::DocumentPosition;

    #[test]
    fn a_missing_object_is_reported_with_similar_names() {
        let (own, cluster) = (PolicyId::namespaced("team", "lables").unwrap(), PolicyId::cluster("lables").unwrap());
        let similar = vec![PolicyId::namespaced("team", "labels").unwrap()];
        let forbidden =
            vec![Access { verb: "list", resource: "clusterpolicies.proviso.dev", subresource: None, namespace: None }];
        let error = Error::Missing(Missing {
            kinds: ["Policy", "ClusterPolicy"],
            show: Some("status"),
            candidates: vec![own, cluster],
            similar,
            forbidden,
        });
        assert_eq!(error.to_string(), "there is no Policy lables in the namespace team, and no ClusterPolicy lables");
        let remedy = error.remedy("proviso").unwrap();
        assert_eq!(
            remedy,
            "Did you mean ns.team.labels? Not searched, because you may not: list clusterpolicies.proviso.dev. \
             `proviso status -A` shows all."
        );
    }

    #[test]
    fn an_import_names_the_option_for_the_resource_of_a_custom_kind() {
        let unknown = ImportError::UnknownResource {
            place: DocumentPosition { file: "a.yaml".into(), number: Some(2) },
            field: "spec.match.kinds[0].kinds".to_owned(),
            kind: "Widget".to_owned(),
            guess: "widgets".to_owned(),
        };
        let error = Error::from(ImportErrors(vec![unknown]));
        assert_eq!(
            error.to_string(),
            "a.yaml: document 2: spec.match.kinds[0].kinds: the resource of the kind Widget is not known here: name it with \
             an option such as --resource Widget=widgets"
        );
    }

    #[test]
    fn a_missing_permission_is_reported_with_the_command_that_checks_it() {
        let namespace = Some("proviso-system".to_owned());
        let access = Access { verb: "list", resource: "policyrevisions.proviso.dev", subresource: None, namespace };
        let error = Error::Forbidden { access, cause: "User \"u\" cannot".to_owned() };
        assert_eq!(error.to_string(), "you may not list policyrevisions.proviso.dev in the namespace proviso-system");
        let remedy = error.remedy("proviso").unwrap();
        assert!(remedy.starts_with("The API server says: User \"u\" cannot."), "{remedy}");
        assert!(remedy.contains("kubectl auth can-i list policyrevisions.proviso.dev -n proviso-system"), "{remedy}");
    }
}
