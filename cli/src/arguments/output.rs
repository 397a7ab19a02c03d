//! The arguments for the format of the output.

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

/// The argument for the format of the output about experiments, whose counts and samples can be exported.
#[derive(Args, Clone, Copy, Debug)]
pub struct ExportOutput {
    /// Format of the output; the fields of json, yaml and csv are stable
    #[arg(long, short, value_name = "FORMAT", default_value = "table")]
    pub output: ExportForm,
}

/// A format of the output about experiments.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum ExportForm {
    /// For people
    Table,
    /// For people, with more columns
    Wide,
    /// For programs
    Json,
    /// For programs
    Yaml,
    /// For spreadsheets: a row for each count and each sample
    Csv,
}

impl ExportForm {
    /// Returns the format if other commands have it too; `None` for CSV.
    #[must_use]
    pub fn form(self) -> Option<Form> {
        match self {
            Self::Table => Some(Form::Table),
            Self::Wide => Some(Form::Wide),
            Self::Json => Some(Form::Json),
            Self::Yaml => Some(Form::Yaml),
            Self::Csv => None,
        }
    }
}
