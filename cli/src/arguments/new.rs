//! The arguments of `proviso new`.

use std::path::PathBuf;

use clap::{Args, ValueEnum};

/// Begin a policy: its program, a manifest, and a suite of tests that passes
#[derive(Args, Debug)]
pub struct New {
    /// What the policy is written in
    pub language: Language,

    /// Name of the policy
    #[arg(value_parser = name)]
    pub name: String,

    /// Folder for it, which must not be there; without it one of its name
    #[arg(long, value_name = "DIR")]
    pub folder: Option<PathBuf>,
}

/// A language that policies are written in.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Language {
    /// Rego, as Gatekeeper's templates have it
    Rego,
    /// Kubernetes' expressions
    Cel,
    /// Go, as a WebAssembly module
    Go,
    /// Rust, as a WebAssembly module
    Rust,
}

fn name(text: &str) -> Result<String, String> {
    proviso_core::policy_id::check_name(text).map(|()| text.to_owned()).map_err(|error| error.to_string())
}
