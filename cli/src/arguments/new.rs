//! The arguments of `proviso new`.

use std::path::PathBuf;

use clap::{Args, ValueEnum};

/// Create a folder with a new policy: its program, a manifest, and a suite of tests that passes
#[derive(Args, Debug)]
pub struct New {
    /// Language of the policy
    pub language: Language,

    /// Name of the policy
    #[arg(value_parser = name)]
    pub name: String,

    /// Folder to create, which must not exist; default: the name of the policy
    #[arg(long, value_name = "DIR")]
    pub folder: Option<PathBuf>,
}

/// A language that policies are written in.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Language {
    /// Rego, in the dialect of Gatekeeper's templates
    Rego,
    /// CEL, the expression language of Kubernetes
    Cel,
    /// Go, as a WebAssembly module
    Go,
    /// Rust, as a WebAssembly module
    Rust,
}

fn name(text: &str) -> Result<String, String> {
    proviso_core::policy_id::check_name(text).map(|()| text.to_owned()).map_err(|error| error.to_string())
}
