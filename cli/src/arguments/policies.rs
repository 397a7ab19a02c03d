//! The arguments of what needs no cluster: `proviso test` and `proviso run`.

use std::path::PathBuf;

use clap::{Args, ValueEnum};
use proviso_core::review::Operation;
use proviso_crds::{RegoDialect, WasmMode};

use super::output::Output;
use super::signatures::Signatures;

/// Where modules come from.
#[derive(Args, Clone, Debug, Default)]
#[command(next_help_heading = "Registries")]
pub struct Registries {
    /// File that says which servers are insecure or have authorities of their own, as of a policy server
    #[arg(long, value_name = "FILE", env = "PROVISO_SOURCES")]
    pub sources: Option<PathBuf>,

    /// Folder with a folder for each pull secret, with its .dockerconfigjson
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
    /// Files, and folders that are looked through
    #[arg(default_value = ".")]
    pub paths: Vec<PathBuf>,

    /// Run only what matches: a regular expression for tests or cases, or TEST//CASE
    #[arg(long, value_name = "REGEX")]
    pub run: Option<String>,

    /// Show every case
    #[arg(long, short)]
    pub verbose: bool,

    /// Form of the output
    #[arg(long, short, value_name = "FORM", default_value = "text")]
    pub output: TestForm,

    #[command(flatten)]
    pub registries: Registries,
}

/// A form of what came of tests.
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

/// Turn policies of other systems into ours
///
/// ConstraintTemplates with their constraints, Kubewarden's policies and groups, ValidatingAdmissionPolicies and
/// MutatingAdmissionPolicies with their bindings. What has no equivalent is an error, and then nothing is written.
#[derive(Args, Debug)]
#[allow(clippy::doc_markdown, reason = "the doc comments are the help text that a terminal shows")]
pub struct Import {
    /// Files with policies and what belongs to them, in any order; - is the standard input
    #[arg(required = true, value_name = "FILE")]
    pub files: Vec<PathBuf>,

    /// Folder to write a file for each policy into; without it all are printed
    #[arg(long, value_name = "DIR")]
    pub output_dir: Option<PathBuf>,

    /// Resource of a kind of your own, as it stands in URLs; may be repeated
    #[arg(long = "resource", value_name = "KIND=RESOURCE", value_parser = resource)]
    pub resources: Vec<(String, String)>,
}

fn resource(text: &str) -> Result<(String, String), String> {
    match text.split_once('=') {
        Some((kind, resource)) if !kind.is_empty() && !resource.is_empty() => {
            Ok((kind.to_owned(), resource.to_owned()))
        }
        _ => Err("is not like Gateway=gateways".to_owned()),
    }
}

/// Ask a policy about a request, without any cluster
///
/// The policy is a manifest, a .rego or .wasm file, or a module as `registry://…` or `https://…`. The request is an
/// AdmissionReview, what such a one has as its request, or an object: then it is created, unless --operation or
/// --old-object say otherwise. With --namespace the request is one in that namespace.
///
/// Exit code: 0 if it is allowed, 1 if it is denied, 2 if that could not be found out.
#[derive(Args, Debug)]
pub struct Run {
    /// Manifest, .rego or .wasm file, or module reference
    pub policy: String,

    /// File with the object, AdmissionReview or its request; - is the standard input
    #[arg(default_value = "-")]
    pub request: PathBuf,

    /// Name of the policy, where its file has several
    #[arg(long, value_name = "NAME")]
    pub name: Option<String>,

    /// What is done to the object; default: it is created
    #[arg(long, value_name = "OPERATION", ignore_case = true)]
    pub operation: Option<OperationName>,

    /// File with the object as it was before
    #[arg(long, value_name = "FILE")]
    pub old_object: Option<PathBuf>,

    /// Subresource, such as scale
    #[arg(long, value_name = "NAME")]
    pub sub_resource: Option<String>,

    /// The request is what a raw policy is asked: {"request": <any JSON>}
    #[arg(long, conflicts_with_all = ["operation", "old_object", "sub_resource", "user", "groups"])]
    pub raw: bool,

    /// Who asks
    #[arg(long, value_name = "NAME")]
    pub user: Option<String>,

    /// A group of who asks; may be repeated
    #[arg(long = "group", value_name = "NAME")]
    pub groups: Vec<String>,

    /// File with the settings, in place of the policy's own
    #[arg(long, value_name = "FILE")]
    pub settings: Option<PathBuf>,

    /// File with objects of the cluster: Namespaces, for their labels; may be repeated
    #[arg(long, value_name = "FILE")]
    pub cluster: Vec<PathBuf>,

    /// How a module is called that does not say it
    #[arg(long, value_name = "MODE")]
    pub mode: Option<ModeName>,

    /// What a .rego file is given; default: gatekeeper where it has a rule `violation`
    #[arg(long, value_name = "DIALECT")]
    pub dialect: Option<DialectName>,

    /// Rule that answers, of a .rego file of the dialect admission
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
    /// What Kubewarden's SDKs build
    Wapc,
    /// Rego compiled by `opa build`, as OPA's admission policies are written
    Opa,
    /// Rego compiled by `opa build`, as Gatekeeper's are
    Gatekeeper,
    /// A command that reads its standard input
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
