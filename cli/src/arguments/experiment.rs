//! The arguments of `proviso experiment`.

use std::path::PathBuf;
use std::time::Duration;

use clap::{Args, Subcommand, ValueEnum};
use proviso_crds::{PreviewLogging, time_to_live};

use super::duration::duration;
use super::output::{ExportOutput, Output};
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
    Stop(Stop),
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

    /// Share of the requests that are previewed, from above 0 to 1; default: 1
    #[arg(long, value_name = "SHARE", value_parser = share)]
    pub sample_rate: Option<f64>,

    /// Previewed requests that are logged; default: all
    #[arg(long, value_name = "REQUESTS")]
    pub logging: Option<Logging>,

    /// Time until the preview stops by itself, such as 90m or 48h, from 1m to 8760h; default: 336h
    #[arg(long, value_name = "DURATION", value_parser = ttl)]
    pub ttl: Option<String>,

    /// Check that the API server of the cluster would accept the experiment, and show the changes; create nothing
    #[arg(long)]
    pub dry_run: bool,

    #[command(flatten)]
    pub output: Output,
}

/// The previewed requests that are logged.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Logging {
    /// Every previewed request
    All,
    /// Only requests on which the verdicts differ
    Divergences,
}

impl From<Logging> for PreviewLogging {
    fn from(logging: Logging) -> Self {
        match logging {
            Logging::All => Self::All,
            Logging::Divergences => Self::Divergences,
        }
    }
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

/// Stop previewing; the counts are kept
///
/// Exit code: 0 if the preview was stopped, and unless --wait=false if no replica evaluates the experiment any more;
/// otherwise 1.
#[derive(Args, Debug)]
pub struct Stop {
    /// The experiment, by any of its names
    pub experiment: ExperimentRef,

    /// Wait until no replica evaluates the experiment any more, and the counts are final
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
    #[arg(long, value_name = "DURATION", default_value = "1m", value_parser = duration)]
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
    pub output: ExportOutput,
}

/// Commit an experiment: give its spec to the policy, and delete the experiment
///
/// Shows the changes, and asks for confirmation. The versions that were shown are committed: if the experiment or the
/// policy has changed since, nothing is committed. With --to-file the policy is written to a file instead, for a
/// repository whose policies Argo CD, Flux or a pipeline applies.
///
/// Exit code: 0 if the policy's new generation is live, or the file was written; otherwise 1.
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

    /// Write the policy with the spec of the experiment to this new file, and change nothing else; `-` is standard output
    #[arg(long, value_name = "FILE", conflicts_with_all = ["yes", "wait", "timeout"])]
    pub to_file: Option<PathBuf>,

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

/// Parses the share of the requests that are previewed.
fn share(text: &str) -> Result<f64, String> {
    let share: Option<f64> = text.parse().ok().filter(|share| *share > 0.0 && *share <= 1.0);
    share.ok_or_else(|| "is not a share above 0 and up to 1: 0.1 previews a tenth of the requests".to_owned())
}

/// Checks the time to live of a preview. The spec of an experiment has it as text.
fn ttl(text: &str) -> Result<String, String> {
    time_to_live(text).map(|_| text.to_owned())
}
