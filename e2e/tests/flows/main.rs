//! Tests of the lifecycle of policies. The charts install Proviso on a full node, with a policy server of three replicas that
//! share a volume. Each flow of the RFC (Kubewarden's policy lifecycle) has a test; all tests but that of an upgrade use one
//! cluster. Flows that change only their own policies run concurrently, the others one after the other. Needs root: `make e2e`.

#![allow(clippy::print_stderr, reason = "prints measured times for the user")]

mod configuration;
mod experiments;
mod guide;
mod installation;
mod load;
mod out_of_memory;
mod policies;
mod quickstart;
mod restart;
mod servers;
mod switches;
mod tenants;
mod test_cluster;
mod upgrade;

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

use restart::OperatorEnd;
use test_cluster::TestCluster;

/// The largest number of concurrent flows.
const MAX_CONCURRENT: usize = 4;

type Running<'a> = Pin<Box<dyn Future<Output = Result<()>> + 'a>>;
type Flow = for<'a> fn(&'a TestCluster) -> Running<'a>;
type Run = Box<dyn for<'a> Fn(&'a TestCluster) -> Running<'a> + Send>;

macro_rules! flows {
    ($($module:ident: $($flow:ident),+;)+) => {
        vec![$($((stringify!($flow), (|cluster| Box::pin($module::$flow(cluster))) as Flow)),+),+]
    };
}

/// A flow with its name.
struct Entry {
    name: String,
    run: Run,
    /// True if the flow must not run at the same time as others, because it disturbs them.
    is_exclusive: bool,
}

/// Returns every flow. The concurrent flows come first.
fn entries() -> Vec<Entry> {
    // Each of these flows changes only its own policy.
    let concurrent = flows! {
        policies:
            first_policy,
            update,
            update_that_fails_at_each_step_and_recovers,
            two_updates_in_quick_succession,
            rollback_to_any_kept_revision,
            rollback_from_the_command_line,
            history_is_limited_and_collected,
            unused_modules_in_the_cache_are_collected,
            disable_and_delete,
            validating_becomes_mutating_and_back,
            mode_message_and_match_conditions_are_applied,
            a_namespaced_owner_can_debug;
        experiments:
            preview_of_a_new_policy,
            preview_of_an_update,
            preview_of_a_deletion;
        configuration:
            a_component_gets_installs_updates_removals_and_rejections,
            a_component_is_notified_by_http,
            bad_subscriptions_have_conditions_and_delay_no_other;
        switches:
            the_previous_generation_answers_until_the_end_of_its_grace_period;
        out_of_memory:
            a_replica_out_of_memory_is_reported_while_another_one_answers;
    };
    let exclusive = flows! {
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
        tenants:
            two_tenants_and_an_outsider_change_nothing_of_others;
        configuration:
            changes_without_an_operator_are_delivered_after_its_start;
        guide:
            the_guide_of_experiments_as_written;
        quickstart:
            every_policy_of_the_quickstart;
        load:
            a_hundred_edits_lose_no_request;
    };
    // The flows in which the operator takes part.
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
        let run: Run = Box::new(move |cluster| {
            Box::pin(restart::with_operator_end(flow(cluster), changes, OperatorEnd::Terminated, cluster))
        });
        (name, run)
    });
    // This flow has a cluster of its own, which takes the time of the processors.
    let upgrade: Run = Box::new(|_| Box::pin(upgrade::upgrade_and_downgrade_lose_no_request()));
    let upgrade = ("upgrade_and_downgrade_lose_no_request".to_owned(), upgrade);
    let named = |(name, flow): (&str, Flow)| (name.to_owned(), Box::new(flow) as Run);
    let exclusive = exclusive.into_iter().map(named).chain([upgrade]).chain(restarted);
    let exclusive = exclusive.map(|(name, run)| Entry { name, run, is_exclusive: true });
    let concurrent = concurrent.into_iter().map(named).map(|(name, run)| Entry { name, run, is_exclusive: false });
    concurrent.chain(exclusive).collect()
}

fn main() -> ExitCode {
    let arguments = Arguments { test_threads: Some(MAX_CONCURRENT), ..Arguments::from_args() };
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
    let cluster = match runtime.block_on(TestCluster::start()) {
        Ok(cluster) => Arc::new(cluster),
        Err(error) => return fail(&error),
    };
    let lock = Arc::new(RwLock::new(()));
    let trials = entries().into_iter().map(|Entry { name, run, is_exclusive }| {
        let (runtime, cluster, lock) = (Arc::clone(&runtime), Arc::clone(&cluster), Arc::clone(&lock));
        Trial::test(name.clone(), move || {
            let result = runtime.block_on(async {
                let _exclusive = if is_exclusive { Some(lock.write().await) } else { None };
                let _concurrent = if is_exclusive { None } else { Some(lock.read().await) };
                let begin = Instant::now();
                // An earlier flow may have failed and left another number of replicas.
                cluster.restore().await?;
                let result = run(&cluster).await;
                // `.ci/times` reads this line.
                eprintln!("flow {name} took {:.1} s", begin.elapsed().as_secs_f64());
                result
            });
            result.map_err(|error: anyhow::Error| format!("{error:?}").into())
        })
    });
    let conclusion = libtest_mimic::run(&arguments, trials.collect());
    if conclusion.has_failed() {
        cluster.print_log_folder();
    }
    conclusion.exit_code()
}

fn fail(error: &anyhow::Error) -> ExitCode {
    let _ = writeln!(std::io::stderr(), "{error:?}");
    ExitCode::FAILURE
}
