//! The flows of one policy.

use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;
use std::sync::atomic::{AtomicU8, Ordering};
use std::time::{Duration, SystemTime};

use anyhow::{Context as _, Result, bail, ensure};
use k8s_openapi::api::events::v1::Event;
use kube::api::{Api, ListParams, LogParams};
use kube::{Resource as _, ResourceExt as _};
use proviso_core::caller_token::split_token;
use proviso_crds::{ClusterPolicy, ConditionStatus, Mode, Policy};
use proviso_e2e::{Registry, until};
use rustix::process::{Signal, kill_process};
use serde_json::{Value, json};
use sha2::{Digest as _, Sha256};

use crate::test_cluster::{NAMESPACE, REPLICAS, TestCluster, WAIT_TIMEOUT, deny, policy_spec};

pub async fn first_policy(cluster: &TestCluster) -> Result<()> {
    let generation = cluster.write("first", &deny("first", "one")).await?;
    let took = cluster.until_live("first", generation).await?;
    eprintln!("time from apply to live, without a module: {:.2} s", took.as_secs_f64());
    cluster.until_denied("first", "one").await?;
    ensure!(cluster.denial("no-policy").await?.is_none(), "a request that no policy matches is allowed");

    let policy = cluster.policies().get("first").await?;
    let status = policy.status.clone().context("no status")?;
    let replicas = status.replicas.context("no replicas")?;
    ensure!(replicas.summary == format!("{REPLICAS}/{REPLICAS}"), "{replicas:?}");
    for condition in &status.conditions {
        ensure!(condition.status == "True", "{condition:?}");
    }
    let [revision] = &cluster.revisions_of("first").await?[..] else { bail!("not one revision") };
    let status = revision.status.clone().context("no status of the revision")?;
    ensure!(
        status.replicas.len() == REPLICAS && status.replicas.iter().all(|it| it.ready == ConditionStatus::True),
        "{status:#?}"
    );
    ensure!(events(cluster, &policy).await?.iter().any(|event| event.contains("Live: generation 1 answers requests")));
    cluster.delete("first").await
}

pub async fn update(cluster: &TestCluster) -> Result<()> {
    let first = cluster.write("update", &deny("update", "one")).await?;
    cluster.until_live("update", first).await?;
    cluster.until_denied("update", "one").await?;
    let second = cluster.write("update", &deny("update", "two")).await?;
    cluster.until_live("update", second).await?;
    cluster.until_denied("update", "two").await?;
    let webhook = cluster.webhook("update").await?.context("no webhook")?;
    let path = webhook["clientConfig"]["service"]["path"].as_str().unwrap_or_default();
    let (token, endpoint) = split_token(path);
    ensure!(token.is_some() && endpoint == format!("/validate/cluster.update/{second}"), "{endpoint}");
    // Both revisions stay loaded for a time, until all API servers use the new webhook.
    let enabled = cluster.revisions_of("update").await?.iter().filter(|revision| revision.spec.enabled).count();
    ensure!(enabled == 2, "{enabled} revisions are enabled");
    cluster.delete("update").await
}

pub async fn update_that_fails_at_each_step_and_recovers(cluster: &TestCluster) -> Result<()> {
    let repository = format!("{}/modules/example", cluster.node.registry_in_pods());
    let module = example("trusted-registries")?;
    let good = format!("sha256:{}", hexadecimal(&Sha256::digest(&module)));
    cluster.node.push("modules/example", "good", Registry::MODULE, &module).await?;
    cluster.node.push("modules/example", "garbage", Registry::MODULE, b"\0asm\x01\0\0\0 no module").await?;
    let wasm = |tag: &str, more: Value| {
        let mut wasm = json!({"module": format!("registry://{repository}:{tag}")});
        wasm.as_object_mut().into_iter().for_each(|it| it.extend(more.as_object().cloned().unwrap_or_default()));
        policy_spec("fails", &json!({"wasm": wasm}))
    };
    let with_settings = |settings: Value| {
        let mut spec = wasm("good", json!({}));
        spec["settings"] = settings;
        spec
    };
    let settings = json!({"registries": ["registry.example.com"]});
    let live = cluster.write("fails", &with_settings(settings.clone())).await?;
    let took = cluster.until_live("fails", live).await?;
    eprintln!("time from apply to live, module fetched from the registry: {:.2} s", took.as_secs_f64());

    let other = format!("sha256:{}", "0".repeat(64));
    for (spec, reason) in [
        (wasm("missing", json!({})), "PullError"),
        (wasm("good", json!({"digest": other})), "VerificationError"),
        (wasm("garbage", json!({})), "CompileError"),
        (with_settings(json!({"registries": ["https://registry.example.com"]})), "SettingsInvalid"),
    ] {
        let generation = cluster.write("fails", &spec).await?;
        let message = cluster.until_condition("fails", "Initialized", "False", reason).await?;
        let status = cluster.policies().get("fails").await?.status.context("no status")?;
        ensure!(status.live_generation == Some(live), "{reason}: generation {live} is not live: {status:#?}");
        let policy = cluster.policies().get("fails").await?;
        let wanted = format!("{reason}: generation {generation}: {message}");
        until(&wanted, WAIT_TIMEOUT, async || {
            let events = events(cluster, &policy).await?;
            ensure!(events.contains(&wanted), "{events:#?}");
            Ok(())
        })
        .await?;
    }
    // The module is in the cache, so it is not fetched or compiled again.
    let mut spec = with_settings(settings);
    spec["admission"]["message"] = "said by the policy".into();
    let recovered = cluster.write("fails", &spec).await?;
    let took = cluster.until_live("fails", recovered).await?;
    eprintln!("time from apply to live, module in the cache: {:.2} s", took.as_secs_f64());
    let revision = cluster.revisions_of("fails").await?.pop().context("no revision")?;
    let modules = revision.status.context("no status")?.modules;
    ensure!(modules.iter().any(|module| module.digest == good), "{modules:?}");
    cluster.delete("fails").await
}

pub async fn unused_modules_in_the_cache_are_collected(cluster: &TestCluster) -> Result<()> {
    cluster.node.push("modules/kept", "v1", Registry::MODULE, &example("trusted-registries")?).await?;
    let module = format!("registry://{}/modules/kept:v1", cluster.node.registry_in_pods());
    let mut spec = policy_spec("kept", &json!({"wasm": {"module": module}}));
    spec["settings"] = json!({"registries": ["registry.example.com"]});
    let generation = cluster.write("kept", &spec).await?;
    cluster.until_live("kept", generation).await?;
    // A module that a revision uses, and an unused module. Both are old, because new modules are not collected.
    let [used, unused] = [hexadecimal(&Sha256::digest(example("trusted-registries")?)), "0".repeat(64)]
        .map(|digest| cluster.cache.join("modules").join(format!("{digest}.wasm")));
    std::fs::write(&unused, "")?;
    let long_ago = SystemTime::now() - Duration::from_hours(2);
    for module in [&used, &unused] {
        std::fs::File::options().write(true).open(module)?.set_modified(long_ago)?;
    }
    until("the collection of the unused module", WAIT_TIMEOUT, async || {
        ensure!(!unused.exists(), "the module still exists");
        Ok(())
    })
    .await?;
    ensure!(used.exists(), "the used module was collected");
    cluster.delete("kept").await
}

/// Adds a unique section to a module, so that the module is not in the cache already.
fn make_unique(mut module: Vec<u8>) -> Vec<u8> {
    static COUNT: AtomicU8 = AtomicU8::new(0);
    // The bytes of a custom section: its kind, its length, the length of its name, the name.
    module.extend([0, 2, 1, b'a' + COUNT.fetch_add(1, Ordering::Relaxed)]);
    module
}

pub async fn update_while_the_cache_fails(cluster: &TestCluster) -> Result<()> {
    for tag in ["one", "two"] {
        cluster.node.push("modules/another", tag, Registry::MODULE, &make_unique(example("safe-defaults")?)).await?;
    }
    let module = |tag: &str| {
        let module = format!("registry://{}/modules/another:{tag}", cluster.node.registry_in_pods());
        let mut spec = policy_spec("cache", &json!({"wasm": {"module": module}}));
        spec["admission"]["mutating"] = true.into();
        spec
    };
    // The first module creates the folders of the cache.
    let first = cluster.write("cache", &module("one")).await?;
    cluster.until_live("cache", first).await?;
    let folders = ["modules", "compiled"].map(|name| cluster.cache.join(name));
    let allow = |mode: u32| -> Result<()> {
        let permissions = std::fs::Permissions::from_mode(mode);
        folders.iter().try_for_each(|folder| Ok(std::fs::set_permissions(folder, permissions.clone())?))
    };
    allow(0o555)?;
    let second = cluster.write("cache", &module("two")).await?;
    // Each replica compiles the module itself, and logs the reason.
    let live = cluster.until_live("cache", second).await;
    allow(0o755)?;
    live?;
    let pods = cluster.replicas_of("default").await?;
    let mut errors = 0;
    for pod in &pods {
        let log = cluster.pods().logs(&pod.name_any(), &LogParams::default()).await?;
        errors += usize::from(log.lines().any(|line| line.contains("CacheError")));
    }
    ensure!(errors > 0, "no replica logs that the cache fails");
    cluster.delete("cache").await
}

pub async fn update_while_a_replica_hangs(cluster: &TestCluster) -> Result<()> {
    let first = cluster.write("hangs", &deny("hangs", "one")).await?;
    cluster.until_live("hangs", first).await?;
    let leader = cluster.leader().await?;
    let pods = cluster.replicas_of("default").await?;
    let other = pods.iter().map(kube::ResourceExt::name_any).find(|name| *name != leader).context("no other")?;
    let process = cluster.process(&other).await?;
    kill_process(process, Signal::STOP)?;
    let second = cluster.write("hangs", &deny("hangs", "two")).await?;
    // The rollout waits for the frozen replica while its pod is Ready.
    until("all other replicas to serve the generation", WAIT_TIMEOUT, async || {
        let status = cluster.policies().get("hangs").await?.status.context("no status")?;
        let ready = status.conditions.iter().find(|condition| condition.type_ == "Ready").context("no condition")?;
        ensure!(ready.status == "False" && ready.reason == "Loading", "{ready:?}");
        let replicas = status.replicas.context("no replicas")?;
        ensure!(replicas.summary == format!("{}/{REPLICAS}", REPLICAS - 1), "{replicas:?}");
        Ok(())
    })
    .await?;
    cluster.until_live("hangs", second).await?;
    let counted = cluster.policies().get("hangs").await?.status.and_then(|status| status.replicas);
    ensure!(
        counted.is_some_and(|it| it.total < u32::try_from(REPLICAS).unwrap_or_default()),
        "the frozen replica still counts"
    );
    // Kubernetes may have restarted the container already.
    let _ = kill_process(process, Signal::CONT);
    cluster.until_served("default", REPLICAS).await?;
    cluster.until_denied("hangs", "two").await?;
    cluster.delete("hangs").await
}

pub async fn two_updates_in_quick_succession(cluster: &TestCluster) -> Result<()> {
    let first = cluster.write("quick", &deny("quick", "1")).await?;
    cluster.until_live("quick", first).await?;
    cluster.until_denied("quick", "1").await?;
    cluster.write("quick", &deny("quick", "2")).await?;
    let last = cluster.write("quick", &deny("quick", "3")).await?;
    until("the last generation to answer", WAIT_TIMEOUT, async || {
        let answer = cluster.denial("quick").await?;
        let answer = answer.as_deref();
        ensure!(matches!(answer, Some("1" | "2" | "3")), "another message than those of the generations: {answer:?}");
        ensure!(answer == Some("3"), "{answer:?}");
        Ok(())
    })
    .await?;
    cluster.until_live("quick", last).await?;
    cluster.delete("quick").await
}

pub async fn rollback_to_any_kept_revision(cluster: &TestCluster) -> Result<()> {
    for message in ["one", "two", "three"] {
        let generation = cluster.write("back", &deny("back", message)).await?;
        cluster.until_live("back", generation).await?;
    }
    for (generation, message) in [(1, "one"), (2, "two")] {
        let begin = std::time::Instant::now();
        cluster.roll_back("back", generation).await?;
        cluster.until_denied("back", message).await?;
        eprintln!(
            "time from the annotation to the first denial by the old spec: {:.2} s",
            begin.elapsed().as_secs_f64()
        );
    }
    let policy = cluster.policies().get("back").await?;
    ensure!(
        policy.metadata.generation == Some(5),
        "each rollback is a new generation: {:?}",
        policy.metadata.generation
    );
    ensure!(policy.annotations().get("proviso.dev/rollback-to").is_none());
    // Each generation has a revision.
    ensure!(cluster.revisions_of("back").await?.len() == 5);
    cluster.delete("back").await
}

pub async fn rollback_from_the_command_line(cluster: &TestCluster) -> Result<()> {
    for message in ["one", "two"] {
        let generation = cluster.write("typed", &deny("typed", message)).await?;
        cluster.until_live("typed", generation).await?;
    }
    let listed = cluster.proviso(&["revisions", "list", "clusterpolicy/typed"]).await?;
    ensure!(listed.lines().count() >= 3, "{listed}");
    let difference = cluster.proviso(&["revisions", "diff", "clusterpolicy/typed", "1", "2"]).await?;
    ensure!(difference.contains("one") && difference.contains("two"), "{difference}");
    cluster.proviso(&["rollback", "clusterpolicy/typed"]).await?;
    cluster.until_denied("typed", "one").await?;
    let status = cluster.proviso(&["status", "clusterpolicy/typed"]).await?;
    for pod in cluster.replicas_of("default").await? {
        ensure!(status.contains(&pod.name_any()), "{status}");
    }
    cluster.delete("typed").await
}

pub async fn history_is_limited_and_collected(cluster: &TestCluster) -> Result<()> {
    let mut last = 0;
    for message in ["one", "two", "three", "four"] {
        let mut spec = deny("history", message);
        spec["revisionHistoryLimit"] = 1.into();
        last = cluster.write("history", &spec).await?;
        cluster.until_live("history", last).await?;
    }
    let kept = async || {
        let revisions = cluster.revisions_of("history").await?;
        let kept = revisions.iter().map(|it| (it.spec.policy_ref.generation, it.spec.enabled));
        Ok::<Vec<_>, anyhow::Error>(kept.collect())
    };
    ensure!(kept().await?.contains(&(last - 1, true)), "the generation before the last was retired too early");
    until("only the live revision and one more", WAIT_TIMEOUT, async || {
        let kept = kept().await?;
        ensure!(kept == [(last - 1, false), (last, true)], "{kept:?}");
        Ok(())
    })
    .await?;
    cluster.until_denied("history", "four").await?;
    cluster.delete("history").await
}

pub async fn disable_and_delete(cluster: &TestCluster) -> Result<()> {
    let first = cluster.write("disable", &deny("disable", "no")).await?;
    cluster.until_live("disable", first).await?;
    let mut spec = deny("disable", "no");
    spec["enabled"] = false.into();
    cluster.write("disable", &spec).await?;
    until("requests to be allowed", WAIT_TIMEOUT, async || {
        ensure!(cluster.denial("disable").await?.is_none());
        Ok(())
    })
    .await?;
    ensure!(cluster.webhook("disable").await?.is_none());
    ensure!(cluster.revisions_of("disable").await?.len() == 2, "the revisions are kept");
    let third = cluster.write("disable", &deny("disable", "again")).await?;
    cluster.until_live("disable", third).await?;
    cluster.until_denied("disable", "again").await?;
    cluster.delete("disable").await
}

pub async fn validating_becomes_mutating_and_back(cluster: &TestCluster) -> Result<()> {
    for mutating in [false, true, false] {
        let message = format!("mutating: {mutating}");
        let mut spec = deny("kind", &message);
        spec["admission"]["mutating"] = mutating.into();
        let generation = cluster.write("kind", &spec).await?;
        cluster.until_live("kind", generation).await?;
        cluster.until_denied("kind", &message).await?;
        let wanted = if mutating { "MutatingWebhookConfiguration" } else { "ValidatingWebhookConfiguration" };
        until("one webhook", WAIT_TIMEOUT, async || {
            let found = cluster.webhooks("kind").await?;
            ensure!(found == [wanted], "{found:?}");
            Ok(())
        })
        .await?;
    }
    cluster.delete("kind").await
}

pub async fn mode_message_and_match_conditions_are_applied(cluster: &TestCluster) -> Result<()> {
    let mut spec = deny("carried", "the program's own");
    spec["admission"]["message"] = "said by the policy".into();
    spec["admission"]["matchConditions"] =
        json!([{"name": "not-exempt", "expression": "!('exempt' in object.metadata.labels)"}]);
    spec["admission"]["failurePolicy"] = "Ignore".into();
    spec["admission"]["timeoutSeconds"] = 7.into();
    let first = cluster.write("carried", &spec).await?;
    cluster.until_live("carried", first).await?;
    cluster.until_denied("carried", "said by the policy").await?;
    ensure!(cluster.requester("carried").labelled("exempt").dry_run().await?.is_none(), "a match condition is false");
    let webhook = cluster.webhook("carried").await?.context("no webhook")?;
    ensure!(webhook["failurePolicy"] == "Ignore" && webhook["timeoutSeconds"] == 7, "{webhook:#}");

    let mut wrong = spec.clone();
    wrong["admission"]["matchConditions"][0]["expression"] = "object.nothing(".into();
    let refused = cluster.write("carried", &wrong).await.err().context("an invalid match condition was accepted")?;
    ensure!(refused.to_string().contains("matchConditions[1].expression"), "{refused}");

    spec["admission"]["mode"] = "Monitor".into();
    let second = cluster.write("carried", &spec).await?;
    cluster.until_live("carried", second).await?;
    until("the mode Monitor to allow requests", WAIT_TIMEOUT, async || {
        ensure!(cluster.denial("carried").await?.is_none());
        Ok(())
    })
    .await?;
    let status = cluster.policies().get("carried").await?.status.context("no status")?;
    ensure!(status.mode == Some(Mode::Monitor), "{status:?}");
    cluster.delete("carried").await
}

pub async fn a_namespaced_owner_can_debug(cluster: &TestCluster) -> Result<()> {
    let namespace = json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "team"}});
    cluster.apply(&namespace).await?;
    let role = json!({
        "apiVersion": "rbac.authorization.k8s.io/v1", "kind": "Role", "metadata": {"name": "owner", "namespace": "team"},
        "rules": [
            {"apiGroups": ["proviso.dev"], "resources": ["policies"], "verbs": ["*"]},
            // `kubectl describe` reads Events.
            {"apiGroups": [""], "resources": ["events"], "verbs": ["list"]},
        ],
    });
    let binding = json!({
        "apiVersion": "rbac.authorization.k8s.io/v1", "kind": "RoleBinding", "metadata": {"name": "owner", "namespace": "team"},
        "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "Role", "name": "owner"},
        "subjects": [{"kind": "User", "name": "owner"}],
    });
    cluster.apply(&role).await?;
    cluster.apply(&binding).await?;
    let owner = cluster.kubectl.by("owner", &[]);
    owner.until_permitted("create", "policies.proviso.dev", "team").await?;
    let write = async |spec: &Value| {
        let policy = json!({
            "apiVersion": "proviso.dev/v1alpha1", "kind": "Policy",
            "metadata": {"name": "mine", "namespace": "team"}, "spec": spec,
        });
        let file = cluster.node.control_plane().folder().path().join("mine.json");
        std::fs::write(&file, policy.to_string())?;
        owner.run(&["apply", "-f", file.to_str().context("its path")?]).await
    };
    write(&deny("mine", "mine")).await?;
    let policies = Api::<Policy>::namespaced(cluster.client.clone(), "team");
    until("the policy to be live", WAIT_TIMEOUT, async || {
        let status = policies.get("mine").await?.status.context("no status")?;
        ensure!(status.live_generation == Some(1), "{status:?}");
        Ok(())
    })
    .await?;

    // A policy that does not compile is refused at once, with the field.
    let typo = policy_spec("mine", &json!({"cel": {"validations": [{"expression": "object.metadata.("}]}}));
    let refused = write(&typo).await.err().context("an invalid expression was accepted")?.to_string();
    ensure!(refused.contains("spec.program.cel"), "{refused}");
    // A policy for Secrets is refused.
    let mut secrets = deny("mine", "mine");
    secrets["admission"]["rules"][0]["resources"] = json!(["secrets"]);
    let refused = write(&secrets).await.err().context("a policy for Secrets was accepted")?.to_string();
    ensure!(refused.contains("spec.admission.rules[0].resources"), "{refused}");

    let mut elsewhere = deny("mine", "mine");
    elsewhere["policyServer"] = "nowhere".into();
    let file = cluster.node.control_plane().folder().path().join("mine.json");
    let policy = json!({
        "apiVersion": "proviso.dev/v1alpha1", "kind": "Policy",
        "metadata": {"name": "elsewhere", "namespace": "team"}, "spec": elsewhere,
    });
    std::fs::write(&file, policy.to_string())?;
    let arguments = ["create", "--warnings-as-errors", "--dry-run=server", "-f", file.to_str().context("its path")?];
    let warned = owner.run(&arguments).await.err().context("there was no warning")?.to_string();
    ensure!(warned.contains("there is no PolicyServer nowhere"), "{warned}");

    let missing = json!({"wasm": {"module": format!("registry://{}/modules/none:1", cluster.node.registry_in_pods())}});
    write(&policy_spec("mine", &missing)).await?;
    until("the owner to see the problem", WAIT_TIMEOUT, async || {
        let described = owner.run(&["-n", "team", "describe", "policies.proviso.dev", "mine"]).await?;
        let words = described.split_whitespace().collect::<Vec<_>>().join(" ");
        for wanted in [
            "Live Generation: 1",
            "Reason: PullError",
            "not yet; generation 1 goes on answering",
            "Summary: 0/3",
            "Normal Live",
            "Warning PullError",
        ] {
            ensure!(words.contains(wanted), "no {wanted:?} in\n{described}");
        }
        Ok(())
    })
    .await?;
    let hidden = owner.run(&["-n", NAMESPACE, "get", "policyrevisions"]).await;
    ensure!(hidden.is_err_and(|error| error.to_string().contains("Forbidden")), "the owner sees revisions");
    owner.run(&["-n", "team", "delete", "policies.proviso.dev", "mine"]).await?;
    Ok(())
}

/// Returns the Events of a policy, as `REASON: NOTE`.
async fn events(cluster: &TestCluster, policy: &ClusterPolicy) -> Result<Vec<String>> {
    let uid = policy.object_ref(&()).uid.unwrap_or_default();
    let events = Api::<Event>::all(cluster.client.clone()).list(&ListParams::default()).await?;
    let ours =
        events.items.into_iter().filter(|it| it.regarding.as_ref().is_some_and(|it| it.uid.as_ref() == Some(&uid)));
    Ok(ours.map(|it| format!("{}: {}", it.reason.unwrap_or_default(), it.note.unwrap_or_default())).collect())
}

fn hexadecimal(bytes: &[u8]) -> String {
    bytes.iter().fold(String::new(), |text, byte| format!("{text}{byte:02x}"))
}

/// Reads the module of an example policy.
fn example(name: &str) -> Result<Vec<u8>> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../examples/policies");
    let path = folder.join(name).join(format!("{name}.wasm"));
    std::fs::read(&path).with_context(|| path.display().to_string())
}
