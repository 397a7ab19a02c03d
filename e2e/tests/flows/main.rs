//! The lifecycle of policies as their users see it: Proviso, installed by its charts on a full node, with a policy server of
//! three replicas and a volume that they share. One test for each flow of the RFC (Kubewarden's policy lifecycle), all on one
//! cluster. Flows that touch nothing but their own policies run together, the others one after the other. Needs root:
//! `make e2e`.

#![allow(clippy::print_stderr, reason = "what was measured is for people to read")]

mod experiments;
mod guide;
mod load;
mod policies;
mod quickstart;
mod restart;
mod servers;
mod stage;

use std::future::Future;
use std::io::Write as _;
use std::pin::Pin;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Instant;

use anyhow::Result;
use libtest_mimic::{Arguments, Trial};
use proviso_e2e::Node;
use tokio::runtime::Runtime;
use tokio::sync::RwLock;

use restart::End;
use stage::Stage;

/// How many flows run at the same time, of those that may.
const TOGETHER: usize = 4;

type Running<'a> = Pin<Box<dyn Future<Output = Result<()>> + 'a>>;
type Flow = for<'a> fn(&'a Stage) -> Running<'a>;
type Run = Box<dyn for<'a> Fn(&'a Stage) -> Running<'a> + Send>;

macro_rules! flows {
    ($($module:ident: $($flow:ident),+;)+) => {
        vec![$($((stringify!($flow), (|stage| Box::pin($module::$flow(stage))) as Flow)),+),+]
    };
}

/// A flow, and whether it disturbs others.
struct Entry {
    name: String,
    run: Run,
    is_alone: bool,
}

/// Every flow, those that run together first.
fn entries() -> Vec<Entry> {
    // Each of these touches nothing but its own policy.
    let together = flows! {
        policies:
            first_policy,
            update,
            update_that_fails_at_each_step_and_recovers,
            two_updates_in_quick_succession,
            rollback_to_any_kept_revision,
            rollback_from_the_command_line,
            history_is_limited_and_collected,
            cached_modules_that_nobody_needs_are_collected,
            disable_and_delete,
            validating_becomes_mutating_and_back,
            mode_message_and_conditions_are_carried_over,
            a_namespaced_owner_can_debug;
        experiments:
            preview_of_a_new_policy,
            preview_of_an_update,
            preview_of_a_deletion;
    };
    let alone = flows! {
        policies:
            update_while_the_cache_fails,
            update_while_a_replica_hangs;
        servers:
            move_to_another_policy_server,
            policy_server_deleted_with_policies_on_it,
            scale_up_and_down,
            leader_killed_and_frozen,
            updates_while_operators_are_killed,
            bootstrap_with_many_policies,
            server_version_upgrade_loses_no_request;
        guide:
            the_guide_of_experiments_as_written;
        quickstart:
            every_policy_of_the_quickstart;
        load:
            a_hundred_edits_lose_no_request;
    };
    // All that the operator has a part in.
    let restarted = flows! {
        policies:
            first_policy,
            update,
            update_that_fails_at_each_step_and_recovers,
            update_while_the_cache_fails,
            update_while_a_replica_hangs,
            two_updates_in_quick_succession,
            rollback_to_any_kept_revision,
            history_is_limited_and_collected,
            disable_and_delete,
            validating_becomes_mutating_and_back;
        servers:
            move_to_another_policy_server,
            policy_server_deleted_with_policies_on_it,
            scale_up_and_down,
            leader_killed_and_frozen,
            bootstrap_with_many_policies,
            server_version_upgrade_loses_no_request;
    };
    let restarted = restarted.into_iter().zip((1..=6).cycle()).map(|((name, flow), changes)| {
        let name = format!("operator_restarted_in_the_middle_of::{name}");
        let run: Run =
            Box::new(move |stage| Box::pin(restart::in_the_middle_of(flow(stage), changes, End::Terminated, stage)));
        (name, run)
    });
    let named = |(name, flow): (&str, Flow)| (name.to_owned(), Box::new(flow) as Run);
    let alone = alone.into_iter().map(named).chain(restarted).map(|(name, run)| Entry { name, run, is_alone: true });
    let together = together.into_iter().map(named).map(|(name, run)| Entry { name, run, is_alone: false });
    together.chain(alone).collect()
}

fn main() -> ExitCode {
    let arguments = Arguments { test_threads: Some(TOGETHER), ..Arguments::from_args() };
    if !Node::is_possible() && !arguments.list {
        let reason = "skipped: a full node needs root";
        let _ = writeln!(std::io::stderr(), "{reason}");
        let must_run = std::env::var("CI").is_ok_and(|value| value == "true");
        return if must_run { ExitCode::FAILURE } else { ExitCode::SUCCESS };
    }
    let runtime = match Runtime::new() {
        Ok(runtime) => Arc::new(runtime),
        Err(error) => return fail(&error.into()),
    };
    if arguments.list {
        let trials = entries().into_iter().map(|entry| Trial::test(entry.name, || Ok(())));
        return libtest_mimic::run(&arguments, trials.collect()).exit_code();
    }
    let stage = match runtime.block_on(Stage::start()) {
        Ok(stage) => Arc::new(stage),
        Err(error) => return fail(&error),
    };
    let others = Arc::new(RwLock::new(()));
    let trials = entries().into_iter().map(|Entry { name, run, is_alone }| {
        let (runtime, stage, others) = (Arc::clone(&runtime), Arc::clone(&stage), Arc::clone(&others));
        Trial::test(name.clone(), move || {
            let result = runtime.block_on(async {
                let _alone = if is_alone { Some(others.write().await) } else { None };
                let _together = if is_alone { None } else { Some(others.read().await) };
                let begin = Instant::now();
                // Whatever became of the one before.
                stage.restore().await?;
                let result = run(&stage).await;
                // `.ci/times` reads this line.
                eprintln!("flow {name} took {:.1} s", begin.elapsed().as_secs_f64());
                result
            });
            result.map_err(|error: anyhow::Error| format!("{error:?}").into())
        })
    });
    let conclusion = libtest_mimic::run(&arguments, trials.collect());
    if conclusion.has_failed() {
        stage.tell();
    }
    conclusion.exit_code()
}

fn fail(error: &anyhow::Error) -> ExitCode {
    let _ = writeln!(std::io::stderr(), "{error:?}");
    ExitCode::FAILURE
}
