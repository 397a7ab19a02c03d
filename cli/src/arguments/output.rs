//! The argument for the format of the output.

use clap::{Args, ValueEnum};

/// The argument for the format of the output.
#[derive(Args, Clone, Copy, Debug)]
pub struct Output {
    /// Format of the output; the fields of json and yaml are stable
    #[arg(long, short, value_name = "FORMAT", default_value = "table")]
    pub output: Form,
}

/// A format of the output.
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
