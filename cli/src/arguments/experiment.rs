//! The arguments of `proviso experiment`.

use std::path::PathBuf;
use std::time::Duration;

use clap::{Args, Subcommand};

use super::duration::duration;
use super::output::Output;
use super::server::Server;
use crate::policy_ref::{ExperimentRef, ExperimentsRef, PolicyRef};

/// What to do to experiments, and where.
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
    /// Stop previewing; what was counted stays
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

        /// Do not ask
        #[arg(long, short)]
        yes: bool,
    },
}

/// Create an experiment of a policy, in its namespace
///
/// It begins as a copy of the policy's spec, as the spec of a file, or with a program that allows everything. Nobody is
/// denied by it. A policy has at most 10. With -o yaml or -o json the manifest is printed, and nothing is created.
#[derive(Args, Debug)]
#[allow(clippy::struct_excessive_bools, reason = "one for each flag")]
pub struct Create {
    /// Name of the new experiment
    #[arg(value_parser = name)]
    pub name: String,

    /// The policy, by any of its names
    #[arg(long, value_name = "POLICY")]
    pub from: PolicyRef,

    /// The policy as it would become: its whole manifest, or only its spec, as YAML or JSON; `-` for standard input
    #[arg(long, short, value_name = "FILE", conflicts_with = "no_op")]
    pub file: Option<PathBuf>,

    /// With a program that allows everything: a preview of the policy's deletion
    #[arg(long)]
    pub no_op: bool,

    /// Start previewing at once
    #[arg(long, conflicts_with = "dry_run")]
    pub start: bool,

    /// Start previewing on creation and after every change, by itself: `autoStart` in its spec
    #[arg(long)]
    pub auto_start: bool,

    /// Ask the API server of the cluster whether it would take it, show what would change, and create nothing
    #[arg(long)]
    pub dry_run: bool,

    #[command(flatten)]
    pub output: Output,
}

/// Start previewing, with counts from 0
///
/// Exit code: 0 when it is started, and with --wait when every replica previews it; 1 if not.
#[derive(Args, Debug)]
pub struct Start {
    /// The experiment, by any of its names
    pub experiment: ExperimentRef,

    /// Wait until every replica previews it
    #[arg(long)]
    pub wait: bool,

    /// How long to wait, such as 90s or 5m
    #[arg(long, value_name = "DURATION", default_value = "5m", value_parser = duration, requires = "wait")]
    pub timeout: Duration,
}

/// Show what experiments would change: how many requests they decided otherwise, and which
#[derive(Args, Debug)]
pub struct Status {
    /// The experiment, by any of its names, or a policy as policy/NAME or clusterpolicy/NAME; without it all that you may
    /// see: ClusterPolicyExperiments, and the PolicyExperiments of the namespace
    #[allow(clippy::doc_markdown, reason = "the doc comments are the help text that a terminal shows")]
    #[arg(value_name = "EXPERIMENT|POLICY")]
    pub of: Option<ExperimentsRef>,

    /// The experiments of all namespaces
    #[arg(long, short = 'A', conflicts_with_all = ["of", "namespace"])]
    pub all_namespaces: bool,

    /// Follow the changes, until Ctrl-C: a live table; a line for each change where the output is no terminal
    #[arg(long, short)]
    pub watch: bool,

    #[command(flatten)]
    pub output: Output,
}

/// Make an experiment the policy, and delete the experiment
///
/// Shows what would change, and asks. What is committed is what was shown: if the experiment or the policy changes
/// meanwhile, nothing is done.
///
/// Exit code: 0 when the policy's new generation is live, 1 if it is not.
#[derive(Args, Debug)]
pub struct Commit {
    /// The experiment, by any of its names
    pub experiment: ExperimentRef,

    /// Only if this is its version
    #[arg(long, value_name = "ETAG")]
    pub etag: Option<String>,

    /// Only if this is the policy's version
    #[arg(long, value_name = "ETAG")]
    pub parent_etag: Option<String>,

    /// Do not ask
    #[arg(long, short)]
    pub yes: bool,

    /// Whether to wait until the new generation is live
    #[arg(long, value_name = "BOOL", default_value_t = true, num_args = 0..=1, require_equals = true, default_missing_value = "true", action = clap::ArgAction::Set)]
    pub wait: bool,

    /// How long to wait, such as 90s or 5m
    #[arg(long, value_name = "DURATION", default_value = "5m", value_parser = duration)]
    pub timeout: Duration,
}

fn name(text: &str) -> Result<String, String> {
    proviso_core::policy_id::check_name(text).map(|()| text.to_owned()).map_err(|error| error.to_string())
}
