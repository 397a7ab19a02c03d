//! The arguments of what is done to modules.

use std::path::PathBuf;

use clap::{ArgGroup, Args};
use proviso_artifacts::{Artifact, Digest};

use super::output::Output;
use super::policies::Registries;
use super::signatures::Signatures;

/// Show what is in a module: its digest, what it says about itself, what it needs and offers
#[derive(Args, Debug)]
pub struct Inspect {
    /// File, or reference as `registry://…` or `https://…`
    pub module: String,

    #[command(flatten)]
    pub output: Output,

    #[command(flatten)]
    pub registries: Registries,
}

/// Print the digest of a module, as `spec.program.wasm.digest` wants it
///
/// It is that of the module's bytes, not that of a manifest in a registry.
#[derive(Args, Debug)]
pub struct DigestOf {
    /// File, or reference as `registry://…` or `https://…`
    pub module: String,

    #[command(flatten)]
    pub registries: Registries,
}

/// Check that a module is the one that is meant, and signed by whom you trust
///
/// Of several signatures that are wanted, each must be there. They are those of cosign, beside an artifact in a registry.
///
/// Exit code: 0 if it is, 1 if it is not, 2 if that could not be found out.
#[derive(Args, Debug)]
#[command(group = ArgGroup::new("wanted").args(["digest", "verification_config_path", "keys", "cert_email", "github_owner"]).multiple(true).required(true))]
pub struct Verify {
    /// File, or reference as `registry://…` or `https://…`; only what is in a registry has signatures
    pub module: String,

    /// Digest that it must have
    #[arg(long, value_name = "sha256:…")]
    pub digest: Option<Digest>,

    #[command(flatten)]
    pub signatures: Signatures,

    #[command(flatten)]
    pub registries: Registries,
}

/// Fetch a module into a file
#[derive(Args, Debug)]
pub struct Pull {
    /// Reference as `registry://…` or `https://…`
    pub module: String,

    /// File to write; without it the last part of the module's name. One that is there stays
    #[arg(long, short = 'f', value_name = "FILE")]
    pub file: Option<PathBuf>,

    #[command(flatten)]
    pub signatures: Signatures,

    #[command(flatten)]
    pub registries: Registries,
}

/// Push a module to a registry, as Kubewarden and Proviso fetch it
#[derive(Args, Debug)]
pub struct Push {
    /// File with the module
    pub file: PathBuf,

    /// Where to: `registry://HOST/REPOSITORY:TAG`
    #[arg(value_parser = artifact)]
    pub artifact: Artifact,

    #[command(flatten)]
    pub registries: Registries,
}

/// Write into a module what it says about itself
///
/// The metadata is a file in YAML or JSON, as Kubewarden has it: rules, mutating, executionMode, contextAwareResources,
/// hostCapabilities, annotations. What stood there before is replaced.
#[derive(Args, Debug)]
pub struct Annotate {
    /// File with the module
    pub file: PathBuf,

    /// File with the metadata
    #[arg(long, short, value_name = "FILE")]
    pub metadata: PathBuf,

    /// File to write; without it the module itself is replaced
    #[arg(long, short = 'f', value_name = "FILE")]
    pub to: Option<PathBuf>,
}

fn artifact(text: &str) -> Result<Artifact, String> {
    let rest = text.strip_prefix("registry://").ok_or("does not begin with registry://")?;
    rest.parse().map_err(|error| format!("{error}"))
}
