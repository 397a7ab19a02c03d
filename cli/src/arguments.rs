//! The arguments. Nothing else reads the environment, but the client for KUBECONFIG and the terminal for its colours.

mod connection;
mod duration;
mod experiment;
mod modules;
mod new;
mod output;
mod policies;
mod server;
mod signatures;

use std::path::PathBuf;
use std::time::Duration;

use clap::parser::ValueSource;
use clap::{ArgMatches, Args, CommandFactory as _, Parser, Subcommand};
use clap_complete::Shell;

pub use connection::Connection;
pub use experiment::{Commit, Create, Experiment, Experiments, Start, Status as ExperimentStatus};
pub use modules::{Annotate, DigestOf, Inspect, Pull, Push, Verify};
pub use new::{Language, New};
pub use output::{Form, Output};
pub use policies::{Import, Registries, Run, Test, TestForm};
pub use server::Server;
pub use signatures::Signatures;

use self::duration::duration;
use crate::policy_ref::PolicyRef;

/// Where policies stand, what they were, the way back, and what they may become.
///
/// Talks to the cluster of KUBECONFIG, as kubectl does.
#[derive(Debug, Parser)]
#[command(name = "proviso", version, max_term_width = 100, arg_required_else_help = true)]
pub struct Arguments {
    #[command(flatten)]
    pub connection: Connection,

    #[command(subcommand)]
    pub command: Command,
}

impl Arguments {
    /// Returns the command that calls this program with the same server again: options of the command line that name the
    /// server come first, as variables. `matches` are the matches of these arguments.
    #[must_use]
    pub fn called(&self, matches: &ArgMatches, program: &'static str) -> &'static str {
        let (Command::Experiment(Experiments { server, .. }), Some((_, matches))) =
            (&self.command, matches.subcommand())
        else {
            return program;
        };
        let all = Server::ALL.into_iter().zip(server.values());
        let said = all.filter(|((id, _), _)| matches.value_source(id) == Some(ValueSource::CommandLine));
        let said: Vec<_> = said.filter_map(|((_, variable), value)| Some((variable, value?))).collect();
        // It lives as long as the program.
        if said.is_empty() { program } else { server::with_variables(&said, program).leak() }
    }
}

/// What to do.
#[derive(Debug, Subcommand)]
pub enum Command {
    Status(Status),
    /// Show what a policy was: the revisions that are kept
    #[command(subcommand, visible_alias = "revision")]
    Revisions(Revisions),
    Rollback(Rollback),
    /// Preview the next version of a policy on live traffic, and make it the policy
    ///
    /// In the cluster, or with --server at a policy server over a folder.
    #[command(visible_alias = "exp", alias = "experiments", arg_required_else_help = true)]
    Experiment(Experiments),
    Test(Test),
    Run(Run),
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

/// Show where policies stand: which generation answers, and why a newer one does not
///
/// Exit code: 0 if every policy asked about is Active or Disabled, 1 if one is Failed, 3 if none is but one is still on
/// its way.
#[derive(Args, Debug)]
#[allow(clippy::doc_markdown, reason = "the doc comments are the help text that a terminal shows")]
pub struct Status {
    /// The policy, by any of its names; without it all that you may see: ClusterPolicies, and the Policies of the
    /// namespace
    pub policy: Option<PolicyRef>,

    /// The Policies of all namespaces
    #[arg(long, short = 'A', conflicts_with_all = ["policy", "namespace"])]
    pub all_namespaces: bool,

    /// Look again every two seconds, until Ctrl-C
    #[arg(long, short)]
    pub watch: bool,

    #[command(flatten)]
    pub output: Output,
}

/// What a policy was.
#[derive(Debug, Subcommand)]
pub enum Revisions {
    /// List them: what became of each, and what it changed
    List {
        /// The policy, by any of its names
        policy: PolicyRef,
        #[command(flatten)]
        output: Output,
    },
    /// Show one: its spec, its modules, and what each replica says about it
    Show {
        /// The policy, by any of its names
        policy: PolicyRef,
        /// Number of the generation, as `revisions list` shows it
        #[arg(value_parser = generation)]
        generation: i64,
        #[command(flatten)]
        output: Output,
    },
    /// Compare two specs; without generations: what answers now with the newest
    Diff {
        /// The policy, by any of its names
        policy: PolicyRef,
        /// Generation to start from; without it the live one
        #[arg(value_parser = generation)]
        from: Option<i64>,
        /// Generation to compare with; without it the newest
        #[arg(value_parser = generation)]
        to: Option<i64>,
    },
}

/// Make a policy what it was, as a new generation
///
/// The operator does it: the new generation is rolled out like any other, and the present one answers until then. Without
/// --to: a newest generation that is not live is undone, else the policy becomes what was live before.
///
/// Exit code: 0 when the new generation is live, 1 if it is not.
#[derive(Args, Debug)]
pub struct Rollback {
    /// The policy, by any of its names
    pub policy: PolicyRef,

    /// Number of the generation to go back to, as `revisions list` shows it
    #[arg(long, value_name = "GENERATION", value_parser = generation)]
    pub to: Option<i64>,

    /// Show what would change, and change nothing
    #[arg(long)]
    pub dry_run: bool,

    /// Whether to wait until the new generation is live
    #[arg(long, value_name = "BOOL", default_value_t = true, num_args = 0..=1, require_equals = true, default_missing_value = "true", action = clap::ArgAction::Set)]
    pub wait: bool,

    /// How long to wait, such as 90s or 5m
    #[arg(long, value_name = "DURATION", default_value = "5m", value_parser = duration)]
    pub timeout: Duration,
}

/// The arguments of this program, by the name it goes by.
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
    number.ok_or_else(|| "is no generation: a number from 1, as `revisions list` shows it".to_owned())
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
    fn the_arguments_are_well_formed_under_both_names() {
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
    fn what_makes_no_sense_is_refused_with_its_remedy() {
        for (arguments, wanted) in [
            (vec!["status", "pod/a"], "policy/NAME"),
            (vec!["status", "a", "-A"], "cannot be used with"),
            (vec!["status", "-A", "-n", "team"], "cannot be used with"),
            (vec!["revisions", "show", "a", "newest"], "is no generation"),
            (vec!["revisions", "show", "a", "0"], "is no generation"),
            (vec!["rollback", "a", "--to", "-1"], "unexpected argument"),
            (vec!["rollback", "a", "--timeout", "soon"], "90s or 5m"),
            (vec!["experiment", "create", "a"], "--from <POLICY>"),
            (vec!["exp", "create", "A", "--from", "b"], "is no policy name"),
            (vec!["exp", "create", "a", "--from", "pvx/b"], "policy/NAME"),
            (vec!["exp", "create", "a", "--from", "b", "-f", "c", "--no-op"], "cannot be used with"),
            (vec!["exp", "create", "a", "--from", "b", "--start", "--dry-run"], "cannot be used with"),
            (vec!["exp", "start", "policy/a"], "policyexperiment/NAME"),
            (vec!["exp", "start", "a", "--timeout", "1m"], "--wait"),
            (vec!["exp", "status", "a", "-A"], "cannot be used with"),
            (vec!["exp", "commit"], "<EXPERIMENT>"),
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
}
