//! The command-line arguments, and the environment variables `PROVISO_*` in place of them. Outside of this module, only the
//! Kubernetes client (KUBECONFIG) and the terminal library (colours) read the environment.

mod connection;
mod duration;
mod experiment;
mod modules;
mod new;
mod output;
mod policies;
mod server;
mod signatures;
mod subscriptions;

use std::path::PathBuf;
use std::time::Duration;

use clap::parser::ValueSource;
use clap::{ArgMatches, Args, CommandFactory as _, Parser, Subcommand};
use clap_complete::Shell;

pub use connection::Connection;
pub use experiment::{Commit, Create, Experiment, Experiments, Start, Status as ExperimentStatus, Stop};
pub use modules::{Annotate, DigestOf, Inspect, Pull, Push, Verify};
pub use new::{Language, New};
pub use output::{ExportForm, Form, Output};
pub use policies::{Evaluate, Import, Registries, Run, Test, TestForm};
pub use server::Server;
pub use signatures::Signatures;
pub use subscriptions::{List as SubscriptionList, Resend, Status as SubscriptionStatus, Subscription, Subscriptions};

use self::duration::duration;
use crate::policy_ref::PolicyRef;

/// Show, roll back, preview and test policies.
///
/// The cluster is that of KUBECONFIG, as for kubectl.
#[derive(Debug, Parser)]
#[command(name = "proviso", version, max_term_width = 100, arg_required_else_help = true)]
pub struct Arguments {
    #[command(flatten)]
    pub connection: Connection,

    #[command(subcommand)]
    pub command: Command,
}

impl Arguments {
    /// Returns the beginning of a command that calls this program with the same server. Options of the command line that
    /// name the server become environment variables before the program name. `matches` are the matches of these arguments.
    #[must_use]
    pub fn command_prefix(&self, matches: &ArgMatches, program: &'static str) -> &'static str {
        let (
            Command::Experiment(Experiments { server, .. }) | Command::Subscriptions(Subscriptions { server, .. }),
            Some((_, matches)),
        ) = (&self.command, matches.subcommand())
        else {
            return program;
        };
        let all = Server::ALL.into_iter().zip(server.values());
        let given = all.filter(|((id, _), _)| matches.value_source(id) == Some(ValueSource::CommandLine));
        let given: Vec<_> = given.filter_map(|((_, variable), value)| Some((variable, value?))).collect();
        // The text is used until the program ends, so it may leak.
        if given.is_empty() { program } else { server::with_variables(&given, program).leak() }
    }
}

/// A command of the program.
#[derive(Debug, Subcommand)]
pub enum Command {
    Status(Status),
    /// Show the revisions of a policy that are kept
    #[command(subcommand, visible_alias = "revision")]
    Revisions(Revisions),
    Rollback(Rollback),
    /// Preview the next version of a policy on live traffic, and commit it
    ///
    /// Works with the cluster, or with --server with a policy server over a folder.
    #[command(visible_alias = "exp", alias = "experiments", arg_required_else_help = true)]
    Experiment(Experiments),
    /// Show and repeat the delivery of configuration policies to components
    ///
    /// Works with the cluster, or with --server with an operator or a policy server over a folder.
    #[command(visible_alias = "sub", alias = "subscription", arg_required_else_help = true)]
    Subscriptions(Subscriptions),
    Test(Test),
    Run(Run),
    Evaluate(Evaluate),
    Import(Import),
    Inspect(Inspect),
    Digest(DigestOf),
    Verify(Verify),
    Pull(Pull),
    Push(Push),
    Annotate(Annotate),
    New(New),
    /// Write a manual page for each command into a folder
    Man {
        /// The folder
        folder: PathBuf,
    },
    /// Print completions for a shell
    Completions {
        /// The shell
        shell: Shell,
    },
}

/// Show the status of policies: the live generation, and the problem of a newer one
///
/// Exit code: 0 if each requested policy is Active or Disabled, 1 if one is Failed, 3 if none is Failed and one is
/// Pending or Updating.
#[derive(Args, Debug)]
#[allow(clippy::doc_markdown, reason = "the doc comments are the help text that a terminal shows")]
pub struct Status {
    /// The policy, by any of its names; default: the ClusterPolicies, and the Policies of the namespace, that you may see
    pub policy: Option<PolicyRef>,

    /// The Policies of all namespaces
    #[arg(long, short = 'A', conflicts_with_all = ["policy", "namespace"])]
    pub all_namespaces: bool,

    /// Refresh every two seconds, until Ctrl-C
    #[arg(long, short)]
    pub watch: bool,

    #[command(flatten)]
    pub output: Output,
}

/// Show the revisions of a policy that are kept.
#[derive(Debug, Subcommand)]
pub enum Revisions {
    /// List the revisions: the state of each, and the fields that it changed
    List {
        /// The policy, by any of its names
        policy: PolicyRef,
        #[command(flatten)]
        output: Output,
    },
    /// Show one revision: its spec, its modules, and its status on each replica
    Show {
        /// The policy, by any of its names
        policy: PolicyRef,
        /// Number of the generation, as `revisions list` shows it
        #[arg(value_parser = generation)]
        generation: i64,
        #[command(flatten)]
        output: Output,
    },
    /// Compare the specs of two generations; default: the live one with the newest
    Diff {
        /// The policy, by any of its names
        policy: PolicyRef,
        /// Generation to start from; default: the live one
        #[arg(value_parser = generation)]
        from: Option<i64>,
        /// Generation to compare with; default: the newest
        #[arg(value_parser = generation)]
        to: Option<i64>,
    },
}

/// Roll a policy back: the spec of an earlier generation becomes a new generation
///
/// The operator rolls the new generation out like any other; the live generation answers requests until then. Without
/// --to: if the newest generation is not live, the policy gets the spec of the live one; otherwise it gets the last
/// different spec that was live before.
///
/// Exit code: 0 if the new generation is live, otherwise 1.
#[derive(Args, Debug)]
pub struct Rollback {
    /// The policy, by any of its names
    pub policy: PolicyRef,

    /// Number of the generation to roll back to, as `revisions list` shows it
    #[arg(long, value_name = "GENERATION", value_parser = generation)]
    pub to: Option<i64>,

    /// Show the changes without making them
    #[arg(long)]
    pub dry_run: bool,

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

/// Returns the definition of the arguments. `program` is the name by which the user calls this program.
#[must_use]
pub fn command(program: &'static str) -> clap::Command {
    Arguments::command().bin_name(program).display_name(program).after_help(format!(
        "Examples:
  {program} status
  {program} status policy/required-labels --namespace team
  {program} revisions diff policy/required-labels
  {program} rollback clusterpolicy/trusted-registries --dry-run
  {program} experiment create stricter --from policy/required-labels -f changed.yaml --start
  {program} experiment status stricter --watch
  {program} experiment commit stricter
  {program} subscriptions status collector --diff
  {program} test policies/
  {program} run policy.yaml pod.yaml

Names of a policy:
  policy/NAME, pvp/NAME          a Policy of the namespace
  clusterpolicy/NAME, pvcp/NAME  a ClusterPolicy
  cluster.NAME, ns.NS.NAME       the policy's id, as this program prints it
  NAME                           if only one kind has it
Names of an experiment:
  policyexperiment/NAME, pvx/NAME, clusterpolicyexperiment/NAME, pvcx/NAME, cluster.NAME, ns.NS.NAME, NAME"
    ))
}

fn generation(text: &str) -> Result<i64, String> {
    let number: Option<i64> = text.parse().ok().filter(|number| *number > 0);
    number.ok_or_else(|| "is not a generation: expected a number from 1, as `revisions list` shows it".to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::FromArgMatches as _;

    fn parse(arguments: &[&str]) -> Result<Arguments, String> {
        let arguments = std::iter::once(&"proviso").chain(arguments);
        let matches = command("proviso").try_get_matches_from(arguments).map_err(|error| error.to_string())?;
        Arguments::from_arg_matches(&matches).map_err(|error| error.to_string())
    }

    #[test]
    fn arguments_are_valid_under_both_program_names() {
        for program in ["proviso", "kubectl proviso"] {
            let mut command = command(program);
            command.clone().debug_assert();
            let help = command.render_long_help().to_string();
            assert!(help.contains(&format!("Usage: {program} ")), "{help}");
            assert!(help.contains(&format!("{program} rollback clusterpolicy/")), "{help}");
            let matches = command.try_get_matches_from(["kubectl-proviso", "status", "--help"]).unwrap_err();
            assert!(matches.to_string().contains(&format!("Usage: {program} status")), "{matches}");
        }
    }

    #[test]
    fn invalid_arguments_are_refused_with_a_hint() {
        for (arguments, wanted) in [
            (vec!["status", "pod/a"], "policy/NAME"),
            (vec!["status", "a", "-A"], "cannot be used with"),
            (vec!["status", "-A", "-n", "team"], "cannot be used with"),
            (vec!["revisions", "show", "a", "newest"], "is not a generation"),
            (vec!["revisions", "show", "a", "0"], "is not a generation"),
            (vec!["rollback", "a", "--to", "-1"], "unexpected argument"),
            (vec!["rollback", "a", "--timeout", "soon"], "90s or 5m"),
            (vec!["experiment", "create", "a"], "--from <POLICY>"),
            (vec!["exp", "create", "A", "--from", "b"], "is not a policy name"),
            (vec!["exp", "create", "a", "--from", "pvx/b"], "policy/NAME"),
            (vec!["exp", "create", "a", "--from", "b", "-f", "c", "--no-op"], "cannot be used with"),
            (vec!["exp", "create", "a", "--from", "b", "--start", "--dry-run"], "cannot be used with"),
            (vec!["exp", "create", "a", "--from", "b", "--sample-rate", "0"], "above 0 and up to 1"),
            (vec!["exp", "create", "a", "--from", "b", "--sample-rate", "1.5"], "a tenth of the requests"),
            (vec!["exp", "create", "a", "--from", "b", "--logging", "none"], "[possible values: all, divergences]"),
            (vec!["exp", "create", "a", "--from", "b", "--ttl", "30s"], "from 1m to 8760h"),
            (vec!["exp", "create", "a", "--from", "b", "--ttl", "soon"], "90m or 48h"),
            (vec!["exp", "create", "a", "--from", "b", "-o", "csv"], "[possible values: table, wide, json, yaml]"),
            (vec!["exp", "commit", "a", "--to-file", "b", "--yes"], "cannot be used with"),
            (vec!["exp", "commit", "a", "--to-file", "b", "--wait"], "cannot be used with"),
            (vec!["exp", "start", "policy/a"], "policyexperiment/NAME"),
            (vec!["exp", "start", "a", "--timeout", "1m"], "--wait"),
            (vec!["exp", "status", "a", "-A"], "cannot be used with"),
            (vec!["exp", "commit"], "<EXPERIMENT>"),
            (vec!["subscriptions", "list", "-A", "-n", "team"], "cannot be used with"),
            (vec!["subscriptions", "status", "team/a"], "--namespace"),
            (vec!["sub", "resend"], "<SUBSCRIPTION>"),
            (vec!["sub", "resend", "a", "--timeout", "soon"], "90s or 5m"),
        ] {
            let error = parse(&arguments).unwrap_err();
            assert!(error.contains(wanted), "{arguments:?}: {error}");
        }
    }

    #[test]
    fn waiting_can_be_switched_off() {
        for (arguments, wanted) in [(vec![], true), (vec!["--wait"], true), (vec!["--wait=false"], false)] {
            let parsed = parse(&[&["rollback", "a"], arguments.as_slice()].concat()).unwrap();
            let Command::Rollback(rollback) = parsed.command else { panic!("another command") };
            assert_eq!(rollback.wait, wanted, "{arguments:?}");
        }
    }

    #[test]
    fn the_default_wait_of_a_commit_does_not_exclude_a_file() {
        let parsed = parse(&["exp", "commit", "a", "--to-file", "-"]).unwrap();
        let Command::Experiment(Experiments { command: Experiment::Commit(commit), .. }) = parsed.command else {
            panic!("another command")
        };
        assert_eq!(commit.to_file.as_deref(), Some(std::path::Path::new("-")));
    }
}
