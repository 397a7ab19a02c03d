//! The arguments of the commands about modules.

use std::path::PathBuf;

use clap::{ArgGroup, Args};
use proviso_artifacts::{Artifact, Digest};

use super::output::Output;
use super::policies::Registries;
use super::signatures::Signatures;

/// Show the digest, the metadata, the imports and the exports of a module
#[derive(Args, Debug)]
pub struct Inspect {
    /// File, or reference as `registry://…` or `https://…`
    pub module: String,

    #[command(flatten)]
    pub output: Output,

    #[command(flatten)]
    pub registries: Registries,
}

/// Print the digest of a module, for `spec.program.wasm.digest`
///
/// The digest is that of the module's bytes, not that of a manifest in a registry.
#[derive(Args, Debug)]
pub struct DigestOf {
    /// File, or reference as `registry://…` or `https://…`
    pub module: String,

    #[command(flatten)]
    pub registries: Registries,
}

/// Verify the digest and the signatures of a module
///
/// If several signatures are required, the module must have each of them. Signatures are those of cosign, which are stored
/// next to an artifact in a registry.
///
/// Exit code: 0 if the module is verified, 1 if it does not meet a requirement, 2 if the verification failed.
#[derive(Args, Debug)]
#[command(
    group = ArgGroup::new("wanted")
        .args(["digest", "verification_config_path", "keys", "cert_email", "github_owner"])
        .multiple(true)
        .required(true)
)]
pub struct Verify {
    /// File, or reference as `registry://…` or `https://…`; only modules in a registry have signatures
    pub module: String,

    /// Digest that the module must have
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

    /// File to write, which must not exist; default: the last part of the module's name
    #[arg(long, short = 'f', value_name = "FILE")]
    pub file: Option<PathBuf>,

    #[command(flatten)]
    pub signatures: Signatures,

    #[command(flatten)]
    pub registries: Registries,
}

/// Push a module to a registry, as an artifact that Kubewarden and Proviso fetch
#[derive(Args, Debug)]
pub struct Push {
    /// File with the module
    pub file: PathBuf,

    /// Destination: `registry://HOST/REPOSITORY:TAG`
    #[arg(value_parser = artifact)]
    pub artifact: Artifact,

    #[command(flatten)]
    pub registries: Registries,
}

/// Write metadata into a module
///
/// The metadata is a file in YAML or JSON with the fields of Kubewarden: rules, mutating, executionMode,
/// contextAwareResources, hostCapabilities, annotations. The previous metadata is replaced.
#[derive(Args, Debug)]
pub struct Annotate {
    /// File with the module
    pub file: PathBuf,

    /// File with the metadata
    #[arg(long, short, value_name = "FILE")]
    pub metadata: PathBuf,

    /// File to write; default: the module's own file is replaced
    #[arg(long, short = 'f', value_name = "FILE")]
    pub to: Option<PathBuf>,
}

fn artifact(text: &str) -> Result<Artifact, String> {
    let rest = text.strip_prefix("registry://").ok_or("does not begin with registry://")?;
    rest.parse().map_err(|error| format!("{error}"))
}
