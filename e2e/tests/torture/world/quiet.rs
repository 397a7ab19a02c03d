//! The end of a run, after all faults: the cluster must reach the right state, count each previewed request once, and leave no
//! object when the policies are deleted.

use std::collections::BTreeSet;
use std::time::Duration;

use anyhow::{Result, ensure};
use kube::ResourceExt as _;
use kube::api::{Api, DeleteParams, DynamicObject, ListParams};
use proviso_crds::ConditionType;
use proviso_crds::names::{EXPERIMENT_LABEL, POLICY_LABEL};
use proviso_e2e::torture::checker::{FinalPolicy, Invariant, Violation, check_final};
use proviso_e2e::torture::plan::{POLICIES, Program, Spec};
use proviso_e2e::{until, until_with};
use serde_json::Value;

use super::World;
use crate::clients::request;
use crate::kubelet::ask;
use crate::objects::generations_of;
use crate::observer::look_at_generations;
use crate::specs::{experiment_name, policy_name};

/// The time limit of reaching a state. It includes the leases of killed leaders, and the backoff of failed preparations.
const SETTLE_TIMEOUT: Duration = Duration::from_mins(5);
/// The time limit of a look at the whole state.
const LOOK_TIMEOUT: Duration = Duration::from_secs(30);
/// The number of requests for the check of previews.
const REQUESTS: u64 = 20;
/// The numbers of the specs that end the run. The plan has smaller ones.
const LAST_SPECS: u64 = 1_000_000;
const LAST_EXPERIMENTS: u64 = 2_000_000;

impl World {
    /// Checks the state after quiet, without and with a new edit of each policy, and then the previews and the deletion. Records
    /// violations.
    pub async fn quiet(&mut self) -> Result<()> {
        self.recorder.note("quiet: all faults have ended");
        self.until_control_plane_works().await?;
        self.settle("the newest good generations").await;
        for policy in 0..POLICIES {
            let spec = Spec { number: LAST_SPECS + policy, program: Program::CelDenies };
            self.write(&policy_name(policy), spec).await?;
        }
        self.settle("the last generations").await;
        if let Some(clients) = self.clients.take() {
            clients.finish().await;
        }
        for policy in 0..POLICIES {
            self.check_preview(policy).await?;
        }
        self.delete_everything().await?;
        self.find_panics()
    }

    /// Waits until the state is right. Records the violations if it does not become right.
    async fn settle(&mut self, what: &str) {
        let begin = self.recorder.now();
        let settled = until_with(what, SETTLE_TIMEOUT, LOOK_TIMEOUT, async || {
            let violations = self.violations_of_state().await?;
            let texts: Vec<_> = violations.iter().map(|violation| violation.text.as_str()).collect();
            ensure!(texts.is_empty(), "{}", texts.join("; "));
            Ok(())
        });
        let Err(error) = settled.await else {
            let seconds = self.recorder.now().saturating_sub(begin).as_secs_f64();
            self.recorder.note(format!("{what}: right after {seconds:.1} s"));
            return;
        };
        let at = self.recorder.now();
        let unknown = |error: anyhow::Error| {
            let text = format!("the state cannot be read: {error:#}");
            vec![Violation { at, invariant: Invariant::NewestGoodGenerationIsLive, text }]
        };
        self.recorder.note(format!("{what}: {error:#}"));
        let violations = self.violations_of_state().await.unwrap_or_else(unknown);
        self.violations.extend(violations);
    }

    /// Returns the faults of the present state of the cluster.
    async fn violations_of_state(&self) -> Result<Vec<Violation>> {
        look_at_generations(&self.objects, &self.recorder).await?;
        let configurations = self.objects.webhook_configurations().await?;
        let (ready, others) = self.kubelet.replicas();
        let mut details = Vec::new();
        for (name, client) in ready {
            details.push((name, ask(&client, "/readyz?verbose").await?));
        }
        let mut policies = Vec::new();
        for name in (0..POLICIES).map(policy_name) {
            let policy = self.objects.policies.get(&name).await?;
            let live = generations_of(&name, &configurations).into_iter().max();
            let loaded = format!("[+] cluster.{name}-{} loaded", live.unwrap_or_default());
            let missing =
                details.iter().filter(|(_, text)| !text.lines().any(|line| line == loaded)).map(|(name, _)| name);
            policies.push(FinalPolicy {
                newest: policy.metadata.generation.unwrap_or_default(),
                live,
                reported: policy.data["status"]["liveGeneration"].as_i64(),
                missing_on: missing.chain(&others).cloned().collect(),
                name,
            });
        }
        let at = self.recorder.now();
        let mut violations = self.recorder.with(|history| check_final(at, &policies, history));
        let orphans = self.orphans(&configurations).await?.into_iter();
        violations.extend(orphans.map(|text| Violation { at, invariant: Invariant::NothingIsOrphaned, text }));
        Ok(violations)
    }

    /// Returns the revisions and webhook configurations whose policy or experiment does not exist.
    async fn orphans(&self, configurations: &[DynamicObject]) -> Result<Vec<String>> {
        let policies = uids(&self.objects.policies).await?;
        let experiments = uids(&self.objects.experiments).await?;
        let mut orphans = Vec::new();
        for revision in self.objects.revisions.list(&ListParams::default()).await? {
            let spec = &revision.data["spec"];
            let has_policy = has(&policies, &spec["policyRef"]["uid"]);
            let is_candidate = spec["role"] == "Candidate";
            if !has_policy || (is_candidate && !has(&experiments, &spec["experimentRef"]["uid"])) {
                orphans.push(format!("PolicyRevision {}", revision.name_any()));
            }
        }
        for configuration in configurations {
            let owners = [(POLICY_LABEL, &policies), (EXPERIMENT_LABEL, &experiments)];
            let is_orphan = owners
                .iter()
                .any(|(label, known)| configuration.labels().get(*label).is_some_and(|uid| !known.contains(uid)));
            if is_orphan {
                orphans.push(format!("webhook configuration {}", configuration.name_any()));
            }
        }
        Ok(orphans)
    }

    /// Previews a spec for a number of requests, of which each must be counted once.
    async fn check_preview(&mut self, policy: u64) -> Result<()> {
        let name = policy_name(policy);
        let experiments = self.objects.experiments.clone();
        let experiment = experiment_name(&name);
        if experiments.get_opt(&experiment).await?.is_some() {
            self.delete_experiment(&name).await?;
        }
        until_gone("the end of the experiment", &experiments, &experiment).await?;
        until("the end of the switch", SETTLE_TIMEOUT, async || {
            // Both webhooks evaluate a request while a policy turns from validating to mutating, or back.
            let webhooks = generations_of(&name, &self.objects.webhook_configurations().await?);
            ensure!(webhooks.len() == 1, "{webhooks:?}");
            Ok(())
        })
        .await?;
        let spec = Spec { number: LAST_EXPERIMENTS + policy, program: Program::CelDenies };
        self.start_experiment(&name, spec).await?;
        until("the preview", SETTLE_TIMEOUT, async || {
            let status = experiments.get(&experiment).await?.data["status"].clone();
            let mut conditions = status["conditions"].as_array().into_iter().flatten();
            let is_previewing =
                conditions.any(|it| it["type"] == ConditionType::Previewing.as_str() && it["status"] == "True");
            ensure!(is_previewing, "{status:#}");
            Ok(())
        })
        .await?;
        for _ in 0..REQUESTS {
            request(&name, &self.objects.requests, false, &self.recorder).await;
        }
        // A missing count is a violation, which `record_preview` records at the end.
        let counted = until("the counts of the preview", SETTLE_TIMEOUT, async || {
            let divergence = experiments.get(&experiment).await?.data["status"]["divergence"].clone();
            let counts = ["evaluated", "dropped"].iter().filter_map(|name| divergence[*name].as_u64());
            ensure!(counts.sum::<u64>() >= REQUESTS, "{divergence}");
            Ok(())
        });
        if let Err(error) = counted.await {
            self.recorder.note(format!("{experiment}: {error:#}"));
        }
        let counted = self.record_preview(&name, &experiments.get(&experiment).await?, true);
        self.recorder.note(format!("{experiment}: {counted} of {REQUESTS} requests are counted"));
        Ok(())
    }

    /// Deletes the experiments and the policies. Records a violation for each object that is left.
    async fn delete_everything(&mut self) -> Result<()> {
        for name in (0..POLICIES).map(policy_name) {
            self.objects.experiments.delete(&experiment_name(&name), &DeleteParams::default()).await?;
            self.objects.policies.delete(&name, &DeleteParams::default()).await?;
        }
        let deleted = until("the deletion of all objects", SETTLE_TIMEOUT, async || {
            let left = self.left().await?;
            ensure!(left.is_empty(), "{}", left.join(", "));
            Ok(())
        });
        if let Err(error) = deleted.await {
            let at = self.recorder.now();
            let text = format!("{error:#}");
            self.violations.push(Violation { at, invariant: Invariant::NothingIsOrphaned, text });
        }
        Ok(())
    }

    /// Returns the objects of policies and experiments.
    async fn left(&self) -> Result<Vec<String>> {
        let configurations = self.objects.webhook_configurations().await?;
        let mut left = self.orphans(&configurations).await?;
        for api in [&self.objects.policies, &self.objects.experiments, &self.objects.revisions] {
            let names = api.list(&ListParams::default()).await?.into_iter().map(|object| object.name_any());
            left.extend(names);
        }
        Ok(left)
    }

    /// Records a violation for each process whose log has a panic. A panic of a task does not end its process.
    fn find_panics(&mut self) -> Result<()> {
        let at = self.recorder.now();
        for entry in std::fs::read_dir(self.plane.folder().path().join("logs"))? {
            let path = entry?.path();
            let log = String::from_utf8_lossy(&std::fs::read(&path)?).into_owned();
            if let Some(line) = log.lines().find(|line| line.contains("panicked at")) {
                let text = format!("{}: {line}", path.display());
                self.violations.push(Violation { at, invariant: Invariant::ProcessesDoNotCrash, text });
            }
        }
        Ok(())
    }
}

async fn uids(api: &Api<DynamicObject>) -> Result<BTreeSet<String>> {
    Ok(api.list(&ListParams::default()).await?.into_iter().filter_map(|object| object.metadata.uid).collect())
}

fn has(uids: &BTreeSet<String>, uid: &Value) -> bool {
    uid.as_str().is_some_and(|uid| uids.contains(uid))
}

async fn until_gone(what: &str, api: &Api<DynamicObject>, name: &str) -> Result<()> {
    until(what, SETTLE_TIMEOUT, async || {
        ensure!(api.get_opt(name).await?.is_none(), "it still exists");
        Ok(())
    })
    .await
}
