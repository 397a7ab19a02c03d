//! The arguments of `proviso experiment`.

use std::path::PathBuf;
use std::time::Duration;

use clap::{Args, Subcommand};

use super::duration::duration;
use super::output::Output;
use super::server::Server;
use crate::policy_ref::{ExperimentRef, ExperimentsRef, PolicyRef};

/// A command about experiments, and the server with the experiments.
#[derive(Args, Debug)]
pub struct Experiments {
    #[command(flatten)]
    pub server: Server,

    #[command(subcommand)]
    pub command: Experiment,
}

/// Preview the next version of a policy on live traffic.
#[derive(Debug, Subcommand)]
pub enum Experiment {
    Create(Create),
    Start(Start),
    /// Stop previewing; the counts are kept
    Stop {
        /// The experiment, by any of its names
        experiment: ExperimentRef,
    },
    Status(Status),
    /// Show what a commit would change in the policy
    Diff {
        /// The experiment, by any of its names
        experiment: ExperimentRef,
    },
    Commit(Commit),
    /// Delete an experiment; the policy stays as it is
    Delete {
        /// The experiment, by any of its names
        experiment: ExperimentRef,

        /// Do not ask for confirmation
        #[arg(long, short)]
        yes: bool,
    },
}

/// Create an experiment of a policy, in its namespace
///
/// The experiment has a copy of the policy's spec, the spec of a file, or a program that allows everything. It never
/// denies a request. A policy has at most 10 experiments. With -o yaml or -o json the manifest is printed, and nothing is
/// created.
#[derive(Args, Debug)]
#[allow(clippy::struct_excessive_bools, reason = "one for each flag")]
pub struct Create {
    /// Name of the new experiment
    #[arg(value_parser = name)]
    pub name: String,

    /// The policy, by any of its names
    #[arg(long, value_name = "POLICY")]
    pub from: PolicyRef,

    /// File with the changed policy: its whole manifest, or only its spec, as YAML or JSON; `-` is standard input
    #[arg(long, short, value_name = "FILE", conflicts_with = "no_op")]
    pub file: Option<PathBuf>,

    /// Use a program that allows everything, to preview the deletion of the policy
    #[arg(long)]
    pub no_op: bool,

    /// Start previewing at once
    #[arg(long, conflicts_with = "dry_run")]
    pub start: bool,

    /// Let the operator start the preview on creation and after every change: `autoStart` in the spec
    #[arg(long)]
    pub auto_start: bool,

    /// Check that the API server of the cluster would accept the experiment, and show the changes; create nothing
    #[arg(long)]
    pub dry_run: bool,

    #[command(flatten)]
    pub output: Output,
}

/// Start previewing, with counts from 0
///
/// Exit code: 0 if the preview was started, and with --wait if every replica previews the experiment; otherwise 1.
#[derive(Args, Debug)]
pub struct Start {
    /// The experiment, by any of its names
    pub experiment: ExperimentRef,

    /// Wait until every replica previews the experiment
    #[arg(long)]
    pub wait: bool,

    /// Longest time to wait, such as 90s or 5m
    #[arg(long, value_name = "DURATION", default_value = "5m", value_parser = duration, requires = "wait")]
    pub timeout: Duration,
}

/// Show how the verdicts of experiments differ from those of their policies: counts, and samples of requests
#[derive(Args, Debug)]
pub struct Status {
    /// The experiment, by any of its names, or a policy as policy/NAME or clusterpolicy/NAME; default: the
    /// ClusterPolicyExperiments, and the PolicyExperiments of the namespace, that you may see
    #[allow(clippy::doc_markdown, reason = "the doc comments are the help text that a terminal shows")]
    #[arg(value_name = "EXPERIMENT|POLICY")]
    pub subject: Option<ExperimentsRef>,

    /// The experiments of all namespaces
    #[arg(long, short = 'A', conflicts_with_all = ["subject", "namespace"])]
    pub all_namespaces: bool,

    /// Follow the changes, until Ctrl-C: on a terminal as a live table, otherwise with a line for each change
    #[arg(long, short)]
    pub watch: bool,

    #[command(flatten)]
    pub output: Output,
}

/// Commit an experiment: give its spec to the policy, and delete the experiment
///
/// Shows the changes, and asks for confirmation. The versions that were shown are committed: if the experiment or the
/// policy has changed since, nothing is committed.
///
/// Exit code: 0 if the policy's new generation is live, otherwise 1.
#[derive(Args, Debug)]
pub struct Commit {
    /// The experiment, by any of its names
    pub experiment: ExperimentRef,

    /// Commit only if the experiment has this etag
    #[arg(long, value_name = "ETAG")]
    pub etag: Option<String>,

    /// Commit only if the policy has this etag
    #[arg(long, value_name = "ETAG")]
    pub parent_etag: Option<String>,

    /// Do not ask for confirmation
    #[arg(long, short)]
    pub yes: bool,

    /// Wait until the new generation is live
    #[arg(
        long,
        value_name = "BOOL",
        default_value_t = true,
        num_args = 0..=1,
        require_equals = true,
        default_missing_value = "true",
        action = clap::ArgAction::Set
    )]
    pub wait: bool,

    /// Longest time to wait, such as 90s or 5m
    #[arg(long, value_name = "DURATION", default_value = "5m", value_parser = duration)]
    pub timeout: Duration,
}

fn name(text: &str) -> Result<String, String> {
    proviso_core::policy_id::check_name(text).map(|()| text.to_owned()).map_err(|error| error.to_string())
}
