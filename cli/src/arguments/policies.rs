//! The arguments of the commands that need no cluster: `proviso test`, `proviso import` and `proviso run`.

use std::path::PathBuf;

use clap::{Args, ValueEnum};
use proviso_core::request::FieldPath;
use proviso_core::review::Operation;
use proviso_crds::{RegoDialect, WasmMode};

use super::output::Output;
use super::signatures::Signatures;

/// The files that configure the access to registries.
#[derive(Args, Clone, Debug, Default)]
#[command(next_help_heading = "Registries")]
pub struct Registries {
    /// File that lists insecure servers and private certificate authorities, as for a policy server
    #[arg(long, value_name = "FILE", env = "PROVISO_SOURCES")]
    pub sources: Option<PathBuf>,

    /// Folder with a folder for each image pull secret, which has a file .dockerconfigjson
    #[arg(long, value_name = "DIR", env = "PROVISO_PULL_SECRETS")]
    pub pull_secrets: Option<PathBuf>,
}

/// Run the tests of policies
///
/// Suites are YAML files: Proviso's own (apiVersion test.proviso.dev/v1alpha1, kind Suite), and Gatekeeper's (apiVersion
/// test.gatekeeper.sh/v1alpha1) as `gator verify` runs them.
///
/// Exit code: 0 if all passed, 1 if one failed, 2 if one could not be run.
#[derive(Args, Debug)]
pub struct Test {
    /// Files, and folders to search
    #[arg(default_value = ".")]
    pub paths: Vec<PathBuf>,

    /// Run only matching tests: a regular expression for the names of tests or cases, or TEST//CASE
    #[arg(long, value_name = "REGEX")]
    pub run: Option<String>,

    /// Show every case
    #[arg(long, short)]
    pub verbose: bool,

    /// Format of the output
    #[arg(long, short, value_name = "FORMAT", default_value = "text")]
    pub output: TestForm,

    #[command(flatten)]
    pub registries: Registries,
}

/// A format of test results.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
#[allow(clippy::doc_markdown, reason = "the doc comments are the help text that a terminal shows")]
pub enum TestForm {
    /// For people, suite by suite
    Text,
    /// JUnit's XML
    Junit,
    /// Test Anything Protocol, version 14
    Tap,
    /// For programs
    Json,
}

/// Convert policies of other systems to Proviso
///
/// ConstraintTemplates with their constraints, Kubewarden's policies and groups, ValidatingAdmissionPolicies and
/// MutatingAdmissionPolicies with their bindings. A part without an equivalent is an error, and then nothing is written.
#[derive(Args, Debug)]
#[allow(clippy::doc_markdown, reason = "the doc comments are the help text that a terminal shows")]
pub struct Import {
    /// Files with the policies, and with their templates or bindings, in any order; - is standard input
    #[arg(required = true, value_name = "FILE")]
    pub files: Vec<PathBuf>,

    /// Folder for a file for each policy; default: all policies are printed
    #[arg(long, value_name = "DIR")]
    pub output_dir: Option<PathBuf>,

    /// Resource of a custom kind, as in URLs of the Kubernetes API; may be repeated
    #[arg(long = "resource", value_name = "KIND=RESOURCE", value_parser = resource)]
    pub resources: Vec<(String, String)>,
}

fn resource(text: &str) -> Result<(String, String), String> {
    match text.split_once('=') {
        Some((kind, resource)) if !kind.is_empty() && !resource.is_empty() => {
            Ok((kind.to_owned(), resource.to_owned()))
        }
        _ => Err("is not a kind and its resource, such as Gateway=gateways".to_owned()),
    }
}

/// Evaluate a request to a service with a chain of request policies, without a cluster
///
/// The policies are those with `spec.request` in the manifests. The request is its payload, or the body of a request to
/// /api/v1/engine/evaluate or /api/v1alpha1/policies:evaluateRequest. The trail shows each policy that covers the request, in
/// the order of the chain, and its part in the outcome.
///
/// Exit code: 0 if the request is allowed, 1 if it is rejected or two policies conflict, 2 if a policy failed.
#[derive(Args, Debug)]
pub struct Evaluate {
    /// File with the request; - is standard input
    #[arg(long, short, value_name = "FILE", default_value = "-")]
    pub file: PathBuf,

    /// Manifest, or folder with manifests
    #[arg(long, value_name = "PATH", default_value = ".")]
    pub policies: PathBuf,

    /// Id of the user, in place of that of the file
    #[arg(long, value_name = "ID")]
    pub user: Option<String>,

    /// Id of the tenant, in place of that of the file
    #[arg(long, value_name = "ID")]
    pub tenant: Option<String>,

    /// Explain a field of the payload, such as spec.cpu: the policies that set it and hold it
    #[arg(long, value_name = "FIELD", value_parser = field_path)]
    pub explain: Option<FieldPath>,

    #[command(flatten)]
    pub output: Output,

    #[command(flatten)]
    pub registries: Registries,
}

fn field_path(text: &str) -> Result<FieldPath, String> {
    text.parse().map_err(|error: proviso_core::request::FieldPathError| error.to_string())
}

/// Evaluate a policy for one request, without a cluster
///
/// The policy is a manifest, a .rego or .wasm file, or a module as `registry://…` or `https://…`. The request is an
/// AdmissionReview, the `request` of an AdmissionReview, or an object. For an object the operation is CREATE, unless
/// --operation or --old-object is given. With --namespace the request is in that namespace.
///
/// Exit code: 0 if the request is allowed, 1 if it is denied, 2 if the evaluation failed.
#[derive(Args, Debug)]
pub struct Run {
    /// Manifest, .rego or .wasm file, or module reference
    pub policy: String,

    /// File with the object, the AdmissionReview or its `request`; - is standard input
    #[arg(default_value = "-")]
    pub request: PathBuf,

    /// Name of the policy, if its file has several
    #[arg(long, value_name = "NAME")]
    pub name: Option<String>,

    /// Operation on the object; default: CREATE, and with --old-object UPDATE
    #[arg(long, value_name = "OPERATION", ignore_case = true)]
    pub operation: Option<OperationName>,

    /// File with the object before the request
    #[arg(long, value_name = "FILE")]
    pub old_object: Option<PathBuf>,

    /// Subresource, such as scale
    #[arg(long, value_name = "NAME")]
    pub sub_resource: Option<String>,

    /// Evaluate a raw policy: the request is {"request": <any JSON>}
    #[arg(long, conflicts_with_all = ["operation", "old_object", "sub_resource", "user", "groups"])]
    pub raw: bool,

    /// Name of the user that makes the request
    #[arg(long, value_name = "NAME")]
    pub user: Option<String>,

    /// Group of the user; may be repeated
    #[arg(long = "group", value_name = "NAME")]
    pub groups: Vec<String>,

    /// File with the settings, in place of the policy's own
    #[arg(long, value_name = "FILE")]
    pub settings: Option<PathBuf>,

    /// File with objects of the cluster: Namespaces, for their labels; may be repeated
    #[arg(long, value_name = "FILE")]
    pub cluster: Vec<PathBuf>,

    /// Calling convention of the module, if its metadata has none
    #[arg(long, value_name = "MODE")]
    pub mode: Option<ModeName>,

    /// Dialect of a .rego file; default: gatekeeper if it has a rule `violation`, otherwise admission
    #[arg(long, value_name = "DIALECT")]
    pub dialect: Option<DialectName>,

    /// Rule that has the verdict, in a .rego file of the dialect admission
    #[arg(long, value_name = "RULE")]
    pub entrypoint: Option<String>,

    #[command(flatten)]
    pub output: Output,

    #[command(flatten)]
    pub signatures: Signatures,

    #[command(flatten)]
    pub registries: Registries,
}

/// An operation by its name.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum OperationName {
    Create,
    Update,
    Delete,
    Connect,
}

impl From<OperationName> for Operation {
    fn from(name: OperationName) -> Self {
        match name {
            OperationName::Create => Self::Create,
            OperationName::Update => Self::Update,
            OperationName::Delete => Self::Delete,
            OperationName::Connect => Self::Connect,
        }
    }
}

/// A calling convention of modules by its name.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum ModeName {
    /// waPC, as modules of Kubewarden's SDKs
    Wapc,
    /// Rego compiled by `opa build`, in the form of OPA's admission policies
    Opa,
    /// Rego compiled by `opa build`, in the form of Gatekeeper's policies
    Gatekeeper,
    /// WASI: a command that reads its standard input
    Wasi,
}

impl From<ModeName> for WasmMode {
    fn from(name: ModeName) -> Self {
        match name {
            ModeName::Wapc => Self::Wapc,
            ModeName::Opa => Self::Opa,
            ModeName::Gatekeeper => Self::Gatekeeper,
            ModeName::Wasi => Self::Wasi,
        }
    }
}

/// A dialect of Rego by its name.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum DialectName {
    /// `violation` over input.review and input.parameters
    Gatekeeper,
    /// `deny` and `warn` over input.request
    Admission,
}

impl From<DialectName> for RegoDialect {
    fn from(name: DialectName) -> Self {
        match name {
            DialectName::Gatekeeper => Self::Gatekeeper,
            DialectName::Admission => Self::Admission,
        }
    }
}
