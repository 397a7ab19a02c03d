//! `proviso run`: evaluates one policy for one request, without a cluster.

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use proviso_artifacts::Fetcher;
use proviso_core::{PolicyId, Review};
use proviso_crds::{PolicySpec, RegoDialect, WasmMode};
use proviso_evaluation::documents::{self, DocumentError};
use proviso_evaluation::review::{self, Request};
use proviso_evaluation::{Answer, Evaluator, PolicyFile, PrepareError, namespaces};
use serde_json::{Map, Value, json};

use super::{Session, fetcher, in_form, print};
use crate::arguments::Run;
use crate::changes;
use crate::error::Error;
use crate::render;
use crate::report::verdict::VerdictReport;
use crate::signatures;

/// The `admission` section for a program without a manifest: it matches every request, and allows mutations.
const MATCH_ALL: &str = r#"{"mutating": true, "rules": [
    {"operations": ["*"], "apiGroups": ["*"], "apiVersions": ["*"], "resources": ["*", "*/*"]}]}"#;

pub async fn run(session: &Session<()>, arguments: &Run, namespace: Option<&str>) -> Result<ExitCode, Error> {
    let fetcher = arguments.signatures.configure(fetcher(&arguments.registries));
    let policy = policy(arguments, &fetcher).await?;
    let (value, review) = request(arguments, namespace)?;
    let mut cluster = Vec::new();
    for file in &arguments.cluster {
        cluster.extend(documents::read(file)?.into_iter().map(|it| it.value));
    }
    let name = name(&policy);
    let evaluator = Evaluator::new(fetcher);
    let prepared = policy.prepare(&evaluator, &cluster).await?;
    let answer = prepared.evaluate(&review, &namespaces(&cluster)).await?;
    let report = VerdictReport::new(name, &answer);
    let request = &value["request"];
    let difference = difference(&answer, if arguments.raw { request } else { &request["object"] })?;
    let form = arguments.output.output;
    print(&in_form(&report, form, || render::verdict(&report, &difference, &session.view(form)))?)?;
    Ok(match (&answer.failure, answer.verdict.allowed) {
        (Some(_), _) => ExitCode::from(2),
        (None, true) => ExitCode::SUCCESS,
        (None, false) => ExitCode::FAILURE,
    })
}

/// Returns the policy that the arguments name.
async fn policy(arguments: &Run, fetcher: &Fetcher) -> Result<PolicyFile, Error> {
    let path = Path::new(&arguments.policy);
    let extension = path.extension().and_then(|it| it.to_str()).unwrap_or_default();
    let is_reference = arguments.policy.contains("://");
    let is_wasm = is_reference || extension == "wasm";
    if arguments.mode.is_some() && !is_wasm {
        return Err(Error::Usage("--mode is for modules: a manifest has spec.program.wasm.mode".to_owned()));
    }
    if (arguments.dialect.is_some() || arguments.entrypoint.is_some()) && (is_wasm || extension != "rego") {
        return Err(Error::Usage("--dialect and --entrypoint are for .rego files".to_owned()));
    }
    if arguments.signatures.names_signers() && !is_reference {
        let message = "--verification-key, --cert-email and --github-owner are for module references: for the modules of a \
                       manifest use --verification-config-path";
        return Err(Error::Usage(message.to_owned()));
    }
    let program = match extension {
        _ if arguments.signatures.names_signers() => {
            let verifying = signatures::verify(fetcher, &arguments.policy, &arguments.signatures).await;
            let (verified, _) = verifying.map_err(|error| match error {
                // The same error as with --verification-config-path: the policy was not evaluated.
                Error::Fetch(error) => {
                    PrepareError::Fetch { field: "spec.program.wasm.module".to_owned(), error }.into()
                }
                error => error,
            })?;
            module(&verified.to_string(), arguments)
        }
        _ if is_reference => module(&arguments.policy, arguments),
        "wasm" => {
            let absolute =
                std::path::absolute(path).map_err(|error| DocumentError::Read { file: path.into(), error })?;
            module(&format!("file://{}", absolute.display()), arguments)
        }
        "rego" => rego(&documents::text(path)?, arguments),
        _ => {
            let policy = PolicyFile::read(path, arguments.name.as_deref())?;
            return match settings(arguments)? {
                Some(settings) => policy.with_settings(settings).map_err(Error::Field),
                None => Ok(policy),
            };
        }
    };
    let admission: Value = serde_json::from_str(MATCH_ALL)?;
    let spec =
        json!({"program": program, "settings": settings(arguments)?.unwrap_or_default(), "admission": admission});
    let spec: PolicySpec = documents::typed("spec", &spec).map_err(Error::Field)?;
    Ok(PolicyFile { name: arguments.policy.clone(), namespace: None, spec, file: PathBuf::new() })
}

fn module(reference: &str, arguments: &Run) -> Value {
    let mode = arguments.mode.map(WasmMode::from);
    json!({"wasm": {"module": reference, "mode": mode}})
}

fn rego(source: &str, arguments: &Run) -> Value {
    let is_violation = |line: &str| line.strip_prefix("violation").is_some_and(|rest| rest.starts_with(['[', ' ']));
    let guessed = if source.lines().any(is_violation) { RegoDialect::Gatekeeper } else { RegoDialect::Admission };
    let dialect = arguments.dialect.map_or(guessed, RegoDialect::from);
    json!({"rego": {"source": source, "dialect": dialect, "entrypoint": arguments.entrypoint}})
}

fn settings(arguments: &Run) -> Result<Option<Map<String, Value>>, Error> {
    let Some(file) = &arguments.settings else { return Ok(None) };
    let document = documents::only(file)?;
    match document.value {
        Value::Object(settings) => Ok(Some(settings)),
        _ => Err(Error::Usage(format!("--settings: {} is not an object", document.place))),
    }
}

/// Returns the name of the policy for messages: its id, or the file of its program.
fn name(policy: &PolicyFile) -> String {
    if policy.file.as_os_str().is_empty() {
        return policy.name.clone();
    }
    let id = match &policy.namespace {
        Some(namespace) => PolicyId::namespaced(namespace, &policy.name),
        None => PolicyId::cluster(&policy.name),
    };
    id.map_or_else(|_| policy.name.clone(), |id| id.to_string())
}

/// Returns the review, as JSON and as the type that policies evaluate.
fn request(arguments: &Run, namespace: Option<&str>) -> Result<(Value, Review), Error> {
    let document = documents::only(&arguments.request)?;
    let old_object = arguments.old_object.as_deref().map(documents::only).transpose()?.map(|it| it.value);
    let place = document.place.clone();
    let wrong = |error| Error::Document(DocumentError::Field { place: place.clone(), error });
    if arguments.raw {
        if namespace.is_some() {
            return Err(Error::Usage("--raw: a raw request has no namespace: leave out --namespace".to_owned()));
        }
        let review = review::raw(&document.value).map_err(wrong)?;
        return Ok((document.value, review));
    }
    let mut user = Map::new();
    if let Some(name) = &arguments.user {
        user.insert("username".to_owned(), name.as_str().into());
    }
    if !arguments.groups.is_empty() {
        user.insert("groups".to_owned(), arguments.groups.clone().into());
    }
    let document = review::of_request(&document.value).unwrap_or(document.value);
    let value = if review::is_review(&document) {
        if arguments.operation.is_some() || old_object.is_some() || !user.is_empty() || namespace.is_some() {
            let message = "an AdmissionReview has its own operation, objects, user and namespace: leave out --operation, \
                           --old-object, --user, --group and --namespace";
            return Err(Error::Usage(message.to_owned()));
        }
        review::completed(&document)
    } else {
        let request = Request {
            operation: arguments.operation.map(Into::into),
            object: Some(document),
            old_object,
            namespace: namespace.map(ToOwned::to_owned),
            name: None,
            sub_resource: arguments.sub_resource.clone(),
            user,
            is_dry_run: false,
        };
        request.to_review()
    };
    let value = value.map_err(wrong)?;
    let review = review::admission(&value).map_err(wrong)?;
    Ok((value, review))
}

/// Returns the diff of the object before and after the mutation; empty if the policy does not mutate it.
fn difference(answer: &Answer, object: &Value) -> Result<String, Error> {
    if answer.verdict.patch.is_none() {
        return Ok(String::new());
    }
    Ok(changes::diff(("before the mutation", object), ("after the mutation", &answer.patched(object)?))?)
}
