//! The flows of one policy.

use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;
use std::sync::atomic::{AtomicU8, Ordering};
use std::time::{Duration, SystemTime};

use anyhow::{Context as _, Result, bail, ensure};
use k8s_openapi::api::events::v1::Event;
use kube::api::{Api, ListParams, LogParams};
use kube::{Resource as _, ResourceExt as _};
use proviso_crds::{ClusterPolicy, ConditionStatus, Mode, Policy};
use proviso_e2e::{Registry, until};
use rustix::process::{Signal, kill_process};
use serde_json::{Value, json};
use sha2::{Digest as _, Sha256};

use crate::stage::{NAMESPACE, PATIENCE, REPLICAS, Stage, about, deny};

pub async fn first_policy(stage: &Stage) -> Result<()> {
    let generation = stage.write("first", &deny("first", "one")).await?;
    let took = stage.until_live("first", generation).await?;
    eprintln!("from apply to live, nothing to fetch: {:.2} s", took.as_secs_f64());
    stage.until_denied("first", "one").await?;
    ensure!(stage.ask("nobody").await?.is_none(), "a request that no policy is about is let through");

    let policy = stage.policies().get("first").await?;
    let status = policy.status.clone().context("no status")?;
    let replicas = status.replicas.context("no replicas")?;
    ensure!(replicas.summary == format!("{REPLICAS}/{REPLICAS}"), "{replicas:?}");
    for condition in &status.conditions {
        ensure!(condition.status == "True", "{condition:?}");
    }
    let [revision] = &stage.revisions_of("first").await?[..] else { bail!("not one revision") };
    let said = revision.status.clone().context("no status of the revision")?;
    ensure!(
        said.replicas.len() == REPLICAS && said.replicas.iter().all(|it| it.ready == ConditionStatus::True),
        "{said:#?}"
    );
    ensure!(events(stage, &policy).await?.iter().any(|event| event.contains("Live: generation 1 answers requests")));
    stage.delete("first").await
}

pub async fn update(stage: &Stage) -> Result<()> {
    let first = stage.write("update", &deny("update", "one")).await?;
    stage.until_live("update", first).await?;
    stage.until_denied("update", "one").await?;
    let second = stage.write("update", &deny("update", "two")).await?;
    stage.until_live("update", second).await?;
    stage.until_denied("update", "two").await?;
    let webhook = stage.webhook("update").await?.context("no webhook")?;
    let path = webhook["clientConfig"]["service"]["path"].as_str().unwrap_or_default();
    ensure!(path == format!("/validate/cluster.update/{second}"), "{path}");
    // Both are loaded until API servers have had the time to learn of it.
    let enabled = stage.revisions_of("update").await?.iter().filter(|revision| revision.spec.enabled).count();
    ensure!(enabled == 2, "{enabled} are enabled");
    stage.delete("update").await
}

pub async fn update_that_fails_at_each_step_and_recovers(stage: &Stage) -> Result<()> {
    let repository = format!("{}/modules/example", stage.node.registry_in_pods());
    let module = example("trusted-registries")?;
    let good = format!("sha256:{}", hexadecimal(&Sha256::digest(&module)));
    stage.node.push("modules/example", "good", Registry::MODULE, &module).await?;
    stage.node.push("modules/example", "garbage", Registry::MODULE, b"\0asm\x01\0\0\0 no module").await?;
    let wasm = |tag: &str, more: Value| {
        let mut wasm = json!({"module": format!("registry://{repository}:{tag}")});
        wasm.as_object_mut().into_iter().for_each(|it| it.extend(more.as_object().cloned().unwrap_or_default()));
        about("fails", &json!({"wasm": wasm}))
    };
    let with_settings = |settings: Value| {
        let mut spec = wasm("good", json!({}));
        spec["settings"] = settings;
        spec
    };
    let settings = json!({"registries": ["registry.example.com"]});
    let live = stage.write("fails", &with_settings(settings.clone())).await?;
    let took = stage.until_live("fails", live).await?;
    eprintln!("from apply to live, fetched from the registry: {:.2} s", took.as_secs_f64());

    let other = format!("sha256:{}", "0".repeat(64));
    for (spec, reason) in [
        (wasm("missing", json!({})), "PullError"),
        (wasm("good", json!({"digest": other})), "VerificationError"),
        (wasm("garbage", json!({})), "CompileError"),
        (with_settings(json!({"registries": ["https://registry.example.com"]})), "SettingsInvalid"),
    ] {
        let generation = stage.write("fails", &spec).await?;
        let why = stage.until_condition("fails", "Initialized", "False", reason).await?;
        let status = stage.policies().get("fails").await?.status.context("no status")?;
        ensure!(status.live_generation == Some(live), "{reason}: {live} does not go on: {status:#?}");
        let policy = stage.policies().get("fails").await?;
        let wanted = format!("{reason}: generation {generation}: {why}");
        until(&wanted, PATIENCE, async || {
            let events = events(stage, &policy).await?;
            ensure!(events.contains(&wanted), "{events:#?}");
            Ok(())
        })
        .await?;
    }
    // The same module with other settings: nothing is fetched or compiled again.
    let mut spec = with_settings(settings);
    spec["admission"]["message"] = "said by the policy".into();
    let recovered = stage.write("fails", &spec).await?;
    let took = stage.until_live("fails", recovered).await?;
    eprintln!("from apply to live, module cached: {:.2} s", took.as_secs_f64());
    let revision = stage.revisions_of("fails").await?.pop().context("no revision")?;
    let modules = revision.status.context("no status")?.modules;
    ensure!(modules.iter().any(|module| module.digest == good), "{modules:?}");
    stage.delete("fails").await
}

pub async fn cached_modules_that_nobody_needs_are_collected(stage: &Stage) -> Result<()> {
    stage.node.push("modules/kept", "v1", Registry::MODULE, &example("trusted-registries")?).await?;
    let module = format!("registry://{}/modules/kept:v1", stage.node.registry_in_pods());
    let mut spec = about("kept", &json!({"wasm": {"module": module}}));
    spec["settings"] = json!({"registries": ["registry.example.com"]});
    let generation = stage.write("kept", &spec).await?;
    stage.until_live("kept", generation).await?;
    // One that a revision has and one that none has, both older than any that may be on its way.
    let [used, unused] = [hexadecimal(&Sha256::digest(example("trusted-registries")?)), "0".repeat(64)]
        .map(|digest| stage.cache.join("modules").join(format!("{digest}.wasm")));
    std::fs::write(&unused, "")?;
    let long_ago = SystemTime::now() - Duration::from_hours(2);
    for module in [&used, &unused] {
        std::fs::File::options().write(true).open(module)?.set_modified(long_ago)?;
    }
    until("the end of the unused one", PATIENCE, async || {
        ensure!(!unused.exists(), "it is still there");
        Ok(())
    })
    .await?;
    ensure!(used.exists(), "one that is needed went with it");
    stage.delete("kept").await
}

/// The module with a section that no other has: what another flow left in the cache is not this one.
fn unlike_others(mut module: Vec<u8>) -> Vec<u8> {
    static MADE: AtomicU8 = AtomicU8::new(0);
    // A custom section: its kind, its length, the length of its name, the name.
    module.extend([0, 2, 1, b'a' + MADE.fetch_add(1, Ordering::Relaxed)]);
    module
}

pub async fn update_while_the_cache_fails(stage: &Stage) -> Result<()> {
    for tag in ["one", "two"] {
        stage.node.push("modules/another", tag, Registry::MODULE, &unlike_others(example("safe-defaults")?)).await?;
    }
    let module = |tag: &str| {
        let module = format!("registry://{}/modules/another:{tag}", stage.node.registry_in_pods());
        let mut spec = about("cache", &json!({"wasm": {"module": module}}));
        spec["admission"]["mutating"] = true.into();
        spec
    };
    // The first module makes the folders.
    let first = stage.write("cache", &module("one")).await?;
    stage.until_live("cache", first).await?;
    let folders = ["modules", "compiled"].map(|name| stage.cache.join(name));
    let allow = |mode: u32| -> Result<()> {
        let permissions = std::fs::Permissions::from_mode(mode);
        folders.iter().try_for_each(|folder| Ok(std::fs::set_permissions(folder, permissions.clone())?))
    };
    allow(0o555)?;
    let second = stage.write("cache", &module("two")).await?;
    // Each replica compiles it for itself, and says why.
    let live = stage.until_live("cache", second).await;
    allow(0o755)?;
    live?;
    let pods = stage.replicas_of("default").await?;
    let mut complaints = 0;
    for pod in &pods {
        let log = stage.pods().logs(&pod.name_any(), &LogParams::default()).await?;
        complaints += usize::from(log.lines().any(|line| line.contains("CacheError")));
    }
    ensure!(complaints > 0, "nobody says that the cache fails");
    stage.delete("cache").await
}

pub async fn update_while_a_replica_hangs(stage: &Stage) -> Result<()> {
    let first = stage.write("hangs", &deny("hangs", "one")).await?;
    stage.until_live("hangs", first).await?;
    let leader = stage.leader().await?;
    let pods = stage.replicas_of("default").await?;
    let other = pods.iter().map(kube::ResourceExt::name_any).find(|name| *name != leader).context("no other")?;
    let process = stage.process(&other).await?;
    kill_process(process, Signal::STOP)?;
    let second = stage.write("hangs", &deny("hangs", "two")).await?;
    // As long as it counts as Ready, it is waited for.
    until("all the others to serve it", PATIENCE, async || {
        let status = stage.policies().get("hangs").await?.status.context("no status")?;
        let ready = status.conditions.iter().find(|condition| condition.type_ == "Ready").context("no condition")?;
        ensure!(ready.status == "False" && ready.reason == "Loading", "{ready:?}");
        let replicas = status.replicas.context("no replicas")?;
        ensure!(replicas.summary == format!("{}/{REPLICAS}", REPLICAS - 1), "{replicas:?}");
        Ok(())
    })
    .await?;
    stage.until_live("hangs", second).await?;
    let counted = stage.policies().get("hangs").await?.status.and_then(|status| status.replicas);
    ensure!(counted.is_some_and(|it| it.total < u32::try_from(REPLICAS).unwrap_or_default()), "it is still waited for");
    // Kubernetes may have started it again already.
    let _ = kill_process(process, Signal::CONT);
    stage.until_served("default", REPLICAS).await?;
    stage.until_denied("hangs", "two").await?;
    stage.delete("hangs").await
}

pub async fn two_updates_in_quick_succession(stage: &Stage) -> Result<()> {
    let first = stage.write("quick", &deny("quick", "1")).await?;
    stage.until_live("quick", first).await?;
    stage.until_denied("quick", "1").await?;
    stage.write("quick", &deny("quick", "2")).await?;
    let last = stage.write("quick", &deny("quick", "3")).await?;
    until("the last one to decide", PATIENCE, async || {
        let answer = stage.ask("quick").await?;
        let answer = answer.as_deref();
        ensure!(matches!(answer, Some("1" | "2" | "3")), "nothing but generations may answer: {answer:?}");
        ensure!(answer == Some("3"), "{answer:?}");
        Ok(())
    })
    .await?;
    stage.until_live("quick", last).await?;
    stage.delete("quick").await
}

pub async fn rollback_to_any_kept_revision(stage: &Stage) -> Result<()> {
    for message in ["one", "two", "three"] {
        let generation = stage.write("back", &deny("back", message)).await?;
        stage.until_live("back", generation).await?;
    }
    for (generation, message) in [(1, "one"), (2, "two")] {
        let asked = std::time::Instant::now();
        stage.roll_back("back", generation).await?;
        stage.until_denied("back", message).await?;
        eprintln!("from the annotation to the first denial by the old spec: {:.2} s", asked.elapsed().as_secs_f64());
    }
    let policy = stage.policies().get("back").await?;
    ensure!(policy.metadata.generation == Some(5), "each is a new generation: {:?}", policy.metadata.generation);
    ensure!(policy.annotations().get("proviso.dev/rollback-to").is_none());
    // The module of a rollback is loaded already, and so is the revision's.
    ensure!(stage.revisions_of("back").await?.len() == 5);
    stage.delete("back").await
}

pub async fn rollback_from_the_command_line(stage: &Stage) -> Result<()> {
    for message in ["one", "two"] {
        let generation = stage.write("typed", &deny("typed", message)).await?;
        stage.until_live("typed", generation).await?;
    }
    let listed = stage.proviso(&["revisions", "list", "clusterpolicy/typed"]).await?;
    ensure!(listed.lines().count() >= 3, "{listed}");
    let difference = stage.proviso(&["revisions", "diff", "clusterpolicy/typed", "1", "2"]).await?;
    ensure!(difference.contains("one") && difference.contains("two"), "{difference}");
    stage.proviso(&["rollback", "clusterpolicy/typed"]).await?;
    stage.until_denied("typed", "one").await?;
    let status = stage.proviso(&["status", "clusterpolicy/typed"]).await?;
    for pod in stage.replicas_of("default").await? {
        ensure!(status.contains(&pod.name_any()), "{status}");
    }
    stage.delete("typed").await
}

pub async fn history_is_limited_and_collected(stage: &Stage) -> Result<()> {
    let mut last = 0;
    for message in ["one", "two", "three", "four"] {
        let mut spec = deny("history", message);
        spec["revisionHistoryLimit"] = 1.into();
        last = stage.write("history", &spec).await?;
        stage.until_live("history", last).await?;
    }
    let kept = async || {
        let revisions = stage.revisions_of("history").await?;
        let kept = revisions.iter().map(|it| (it.spec.policy_ref.generation, it.spec.enabled));
        Ok::<Vec<_>, anyhow::Error>(kept.collect())
    };
    ensure!(kept().await?.contains(&(last - 1, true)), "the one before the last was not given its time");
    until("the live one and one more", PATIENCE, async || {
        let kept = kept().await?;
        ensure!(kept == [(last - 1, false), (last, true)], "{kept:?}");
        Ok(())
    })
    .await?;
    stage.until_denied("history", "four").await?;
    stage.delete("history").await
}

pub async fn disable_and_delete(stage: &Stage) -> Result<()> {
    let first = stage.write("disable", &deny("disable", "no")).await?;
    stage.until_live("disable", first).await?;
    let mut spec = deny("disable", "no");
    spec["enabled"] = false.into();
    stage.write("disable", &spec).await?;
    until("nobody to be denied", PATIENCE, async || {
        ensure!(stage.ask("disable").await?.is_none());
        Ok(())
    })
    .await?;
    ensure!(stage.webhook("disable").await?.is_none());
    ensure!(stage.revisions_of("disable").await?.len() == 2, "its history is kept");
    let third = stage.write("disable", &deny("disable", "again")).await?;
    stage.until_live("disable", third).await?;
    stage.until_denied("disable", "again").await?;
    stage.delete("disable").await
}

pub async fn validating_becomes_mutating_and_back(stage: &Stage) -> Result<()> {
    for mutating in [false, true, false] {
        let message = format!("mutating: {mutating}");
        let mut spec = deny("kind", &message);
        spec["admission"]["mutating"] = mutating.into();
        let generation = stage.write("kind", &spec).await?;
        stage.until_live("kind", generation).await?;
        stage.until_denied("kind", &message).await?;
        let wanted = if mutating { "MutatingWebhookConfiguration" } else { "ValidatingWebhookConfiguration" };
        until("one webhook", PATIENCE, async || {
            let found = stage.webhooks("kind").await?;
            ensure!(found == [wanted], "{found:?}");
            Ok(())
        })
        .await?;
    }
    stage.delete("kind").await
}

pub async fn mode_message_and_conditions_are_carried_over(stage: &Stage) -> Result<()> {
    let mut spec = deny("carried", "the program's own");
    spec["admission"]["message"] = "said by the policy".into();
    spec["admission"]["matchConditions"] =
        json!([{"name": "not-exempt", "expression": "!('exempt' in object.metadata.labels)"}]);
    spec["admission"]["failurePolicy"] = "Ignore".into();
    spec["admission"]["timeoutSeconds"] = 7.into();
    let first = stage.write("carried", &spec).await?;
    stage.until_live("carried", first).await?;
    stage.until_denied("carried", "said by the policy").await?;
    ensure!(stage.asker("carried").labelled("exempt").ask().await?.is_none(), "its conditions do not hold");
    let webhook = stage.webhook("carried").await?.context("no webhook")?;
    ensure!(webhook["failurePolicy"] == "Ignore" && webhook["timeoutSeconds"] == 7, "{webhook:#}");

    let mut wrong = spec.clone();
    wrong["admission"]["matchConditions"][0]["expression"] = "object.nothing(".into();
    let refused = stage.write("carried", &wrong).await.err().context("a condition that cannot be was taken")?;
    ensure!(refused.to_string().contains("matchConditions[1].expression"), "{refused}");

    spec["admission"]["mode"] = "Monitor".into();
    let second = stage.write("carried", &spec).await?;
    stage.until_live("carried", second).await?;
    until("denials not to bite", PATIENCE, async || {
        ensure!(stage.ask("carried").await?.is_none());
        Ok(())
    })
    .await?;
    let status = stage.policies().get("carried").await?.status.context("no status")?;
    ensure!(status.mode == Some(Mode::Monitor), "{status:?}");
    stage.delete("carried").await
}

pub async fn a_namespaced_owner_can_debug(stage: &Stage) -> Result<()> {
    let namespace = json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "team"}});
    stage.apply(&namespace).await?;
    let role = json!({
        "apiVersion": "rbac.authorization.k8s.io/v1", "kind": "Role", "metadata": {"name": "owner", "namespace": "team"},
        "rules": [
            {"apiGroups": ["proviso.dev"], "resources": ["policies"], "verbs": ["*"]},
            // `kubectl describe` reads them.
            {"apiGroups": [""], "resources": ["events"], "verbs": ["list"]},
        ],
    });
    let binding = json!({
        "apiVersion": "rbac.authorization.k8s.io/v1", "kind": "RoleBinding", "metadata": {"name": "owner", "namespace": "team"},
        "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "Role", "name": "owner"},
        "subjects": [{"kind": "User", "name": "owner"}],
    });
    stage.apply(&role).await?;
    stage.apply(&binding).await?;
    let owner = stage.kubectl.by("owner", &[]);
    let write = async |spec: &Value| {
        let policy = json!({
            "apiVersion": "proviso.dev/v1alpha1", "kind": "Policy",
            "metadata": {"name": "mine", "namespace": "team"}, "spec": spec,
        });
        let file = stage.node.control_plane().folder().path().join("mine.json");
        std::fs::write(&file, policy.to_string())?;
        owner.run(&["apply", "-f", file.to_str().context("its path")?]).await
    };
    write(&deny("mine", "mine")).await?;
    let policies = Api::<Policy>::namespaced(stage.client.clone(), "team");
    until("it to be live", PATIENCE, async || {
        let status = policies.get("mine").await?.status.context("no status")?;
        ensure!(status.live_generation == Some(1), "{status:?}");
        Ok(())
    })
    .await?;

    // What cannot compile is refused at once, with the place.
    let typo = about("mine", &json!({"cel": {"validations": [{"expression": "object.metadata.("}]}}));
    let refused = write(&typo).await.err().context("a typo was taken")?.to_string();
    ensure!(refused.contains("spec.program.cel"), "{refused}");
    // Nor may it reach beyond its namespace.
    let mut secrets = deny("mine", "mine");
    secrets["admission"]["rules"][0]["resources"] = json!(["secrets"]);
    let refused = write(&secrets).await.err().context("Secrets were taken")?.to_string();
    ensure!(refused.contains("spec.admission.rules[0].resources"), "{refused}");

    let mut elsewhere = deny("mine", "mine");
    elsewhere["policyServer"] = "nowhere".into();
    let file = stage.node.control_plane().folder().path().join("mine.json");
    let policy = json!({
        "apiVersion": "proviso.dev/v1alpha1", "kind": "Policy",
        "metadata": {"name": "elsewhere", "namespace": "team"}, "spec": elsewhere,
    });
    std::fs::write(&file, policy.to_string())?;
    let arguments = ["create", "--warnings-as-errors", "--dry-run=server", "-f", file.to_str().context("its path")?];
    let warned = owner.run(&arguments).await.err().context("nobody warned")?.to_string();
    ensure!(warned.contains("there is no PolicyServer nowhere"), "{warned}");

    let missing = json!({"wasm": {"module": format!("registry://{}/modules/none:1", stage.node.registry_in_pods())}});
    write(&about("mine", &missing)).await?;
    until("the owner to know why", PATIENCE, async || {
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

/// The Events of a policy: reason and note.
async fn events(stage: &Stage, policy: &ClusterPolicy) -> Result<Vec<String>> {
    let uid = policy.object_ref(&()).uid.unwrap_or_default();
    let events = Api::<Event>::all(stage.client.clone()).list(&ListParams::default()).await?;
    let ours =
        events.items.into_iter().filter(|it| it.regarding.as_ref().is_some_and(|it| it.uid.as_ref() == Some(&uid)));
    Ok(ours.map(|it| format!("{}: {}", it.reason.unwrap_or_default(), it.note.unwrap_or_default())).collect())
}

fn hexadecimal(bytes: &[u8]) -> String {
    bytes.iter().fold(String::new(), |text, byte| format!("{text}{byte:02x}"))
}

/// A module that is committed with its source.
fn example(name: &str) -> Result<Vec<u8>> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../examples/policies");
    let path = folder.join(name).join(format!("{name}.wasm"));
    std::fs::read(&path).with_context(|| path.display().to_string())
}
