//! The arguments for the form of the output.

use clap::{Args, ValueEnum};

/// The form of the output.
#[derive(Args, Clone, Copy, Debug)]
pub struct Output {
    /// Form of the output; json and yaml keep their shape
    #[arg(long, short, value_name = "FORM", default_value = "table")]
    pub output: Form,
}

/// A form of output.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Form {
    /// For people
    Table,
    /// For people, with more columns
    Wide,
    /// For programs
    Json,
    /// For programs
    Yaml,
}
