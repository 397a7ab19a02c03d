//! What the operator is told at its start.

use std::path::PathBuf;

use clap::{Parser, ValueEnum};

/// Rolls policies out in a cluster: makes a revision of every generation, waits until every replica of the policy server
/// serves it, and then points the webhook at it.
///
/// Talks to the cluster of its pod, or else of KUBECONFIG.
#[derive(Clone, Debug, Parser)]
#[command(version, max_term_width = 100)]
pub struct Config {
    /// Where revisions, policy servers and the operator itself live
    #[arg(long, env = "PROVISO_NAMESPACE", default_value = "proviso-system", value_name = "NAMESPACE")]
    pub namespace: String,

    /// PEM file of who vouches for the policy servers' certificates
    #[arg(long, env = "PROVISO_CA_BUNDLE", value_name = "FILE")]
    pub ca_bundle: PathBuf,

    /// How log lines look
    #[arg(long, env = "PROVISO_LOG_FORMAT", value_enum, default_value_t = LogFormat::Text, value_name = "FORMAT")]
    pub log_format: LogFormat,
}

/// How log lines look.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum LogFormat {
    /// For people
    Text,
    /// One object a line
    Json,
}
