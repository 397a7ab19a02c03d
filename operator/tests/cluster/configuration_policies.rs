//! Policies that configure components, with a real API server and without a policy server: their lifecycle, and the checks of the
//! admission webhook.

use std::path::PathBuf;

use anyhow::{Context as _, Result, ensure};
use kube::Api;
use kube::api::{DeleteParams, ListParams, Patch, PatchParams};
use proviso_crds::{ClusterPolicy, PolicyPhase, PolicyRevision, PolicyStatus};
use proviso_e2e::{Kubectl, until};
use serde_json::{Value, json};

use crate::admission::in_time;
use crate::test_cluster::{TIMEOUT, TestCluster};

const NAME: &str = "memory";

/// The configuration of the policy, with this CEL template of its content.
fn template(cel: &str) -> Value {
    json!({"configName": "memory", "template": {"cel": cel}, "schema": {"required": ["limit"]}})
}

struct Policies<'a>(&'a TestCluster);

impl Policies<'_> {
    fn api(&self) -> Api<ClusterPolicy> {
        Api::all(self.0.client.clone())
    }

    /// Creates or updates the policy. Returns its generation.
    async fn apply(&self, configuration: &Value, enabled: bool) -> Result<i64> {
        let policy = json!({
            "apiVersion": "proviso.dev/v1alpha1", "kind": "ClusterPolicy", "metadata": {"name": NAME},
            "spec": {"configuration": configuration, "enabled": enabled},
        });
        let written = self.api().patch(NAME, &PatchParams::apply("owner").force(), &Patch::Apply(policy)).await?;
        written.metadata.generation.context("its generation")
    }

    /// Waits until the status about this generation has this phase and this live generation. Returns the status.
    async fn until(&self, generation: i64, phase: PolicyPhase, live: Option<i64>) -> Result<PolicyStatus> {
        until(&format!("generation {generation}: {phase:?}, live {live:?}"), 2 * TIMEOUT, async || {
            let status = self.api().get(NAME).await?.status.context("no status")?;
            let is_current = status.conditions.iter().any(|it| it.observed_generation == Some(generation));
            ensure!(is_current && status.phase == Some(phase) && status.live_generation == live, "{status:#?}");
            Ok(status)
        })
        .await
    }

    /// Returns the status of the condition `Live` of the revision of a generation; empty if it has none.
    async fn mark(&self, generation: i64) -> Result<String> {
        let revision = self.0.api::<PolicyRevision>().get(&format!("cluster.{NAME}-{generation}")).await?;
        let conditions = revision.status.unwrap_or_default().conditions;
        Ok(conditions.into_iter().find(|it| it.type_ == "Live").map(|it| it.status).unwrap_or_default())
    }
}

#[tokio::test]
async fn the_newest_valid_generation_is_live_without_a_policy_server() -> Result<()> {
    let mut cluster = TestCluster::start("configuration-policies").await?;
    cluster.start_operator(&[])?;
    let policies = Policies(&cluster);
    let first = template("{'limit': component.labels.size()}");
    ensure!(policies.apply(&first, true).await? == 1, "the first generation");
    let status = policies.until(1, PolicyPhase::Active, Some(1)).await?;
    ensure!(status.replicas.is_none() && status.mode.is_none(), "{status:#?}");

    // A template that does not compile, and content that does not match the schema: the last good generation stays live.
    let fixed = json!({"configName": "memory", "content": {"min": 1}, "schema": {"required": ["limit"]}});
    for (wrong, field) in
        [(template("{'limit': "), "spec.configuration.template.cel"), (fixed, "spec.configuration.content")]
    {
        let generation = policies.apply(&wrong, true).await?;
        let status = policies.until(generation, PolicyPhase::Failed, Some(1)).await?;
        let initialized = status.conditions.iter().find(|it| it.type_ == "Initialized").context("Initialized")?;
        ensure!(initialized.status == "False" && initialized.message.starts_with(field), "{initialized:?}");
        ensure!(policies.mark(1).await? == "True" && policies.mark(generation).await?.is_empty(), "{generation}");
    }
    let fourth = policies.apply(&template("{'limit': 4}"), true).await?;
    policies.until(fourth, PolicyPhase::Active, Some(fourth)).await?;
    ensure!(policies.mark(1).await? == "False" && policies.mark(fourth).await? == "True", "the marks");

    // A rollback is a new generation with the older template.
    let patch = json!({"metadata": {"annotations": {"proviso.dev/rollback-to": "1"}}});
    policies.api().patch(NAME, &PatchParams::default(), &Patch::Merge(patch)).await?;
    let rolled_back = fourth + 1;
    policies.until(rolled_back, PolicyPhase::Active, Some(rolled_back)).await?;
    let spec = policies.api().get(NAME).await?.spec.0;
    ensure!(serde_json::to_value(spec.configuration)?["template"] == first["template"], "the template");

    // An operator that restarts changes nothing.
    cluster.operators.clear();
    cluster.start_operator(&[])?;
    let policies = Policies(&cluster);
    cluster.calls_when_idle().await?;
    policies.until(rolled_back, PolicyPhase::Active, Some(rolled_back)).await?;

    let disabled = policies.apply(&first, false).await?;
    policies.until(disabled, PolicyPhase::Disabled, None).await?;
    ensure!(policies.mark(rolled_back).await? == "False", "a disabled policy is not live");
    let enabled = policies.apply(&first, true).await?;
    policies.until(enabled, PolicyPhase::Active, Some(enabled)).await?;

    policies.api().delete(NAME, &DeleteParams::default()).await?;
    until("the policy to be deleted", 2 * TIMEOUT, async || {
        let revisions = cluster.api::<PolicyRevision>().list(&ListParams::default()).await?.items;
        ensure!(policies.api().get_opt(NAME).await?.is_none() && revisions.is_empty(), "{} revisions", revisions.len());
        Ok(())
    })
    .await
}

#[tokio::test]
async fn the_enforcement_point_of_a_policy_does_not_change() -> Result<()> {
    let cluster = TestCluster::start("configuration-point").await?;
    let policies = Policies(&cluster);
    policies.apply(&template("{'limit': 1}"), true).await?;
    let request =
        json!({"configuration": null, "request": {}, "program": {"cel": {"validations": [{"expression": "true"}]}}});
    let patch = Patch::Merge(json!({"spec": request}));
    let refused = policies.api().patch(NAME, &PatchParams::default(), &patch).await;
    let error = refused.map(drop).expect_err("the section is replaced").to_string();
    ensure!(error.contains("`configuration` cannot be added or removed"), "{error}");
    let two_sources = json!({"configName": "memory", "content": {}, "template": {"cel": "{}"}});
    let error = policies.apply(&two_sources, true).await.expect_err("two sources of the content").to_string();
    ensure!(error.contains("needs exactly one of `content` and `template`"), "{error}");
    Ok(())
}

/// A cluster whose API server asks the webhook of the operator, and the files of objects.
struct Webhook {
    cluster: TestCluster,
}

impl Webhook {
    fn file(&self, object: &Value) -> Result<PathBuf> {
        let file = self.cluster.plane.folder().path().join("object.json");
        std::fs::write(&file, object.to_string())?;
        Ok(file)
    }

    /// Runs kubectl with a file. Returns the error; empty if there is none.
    async fn refusal(&self, kubectl: &Kubectl, arguments: &[&str], object: &Value) -> Result<String> {
        let file = self.file(object)?;
        let file = file.to_str().context("the path of a file")?;
        let run = kubectl.run(&[arguments, &["--validate=false", "--filename", file]].concat()).await;
        Ok(run.err().map(|error| error.to_string()).unwrap_or_default())
    }

    async fn expect(&self, kubectl: &Kubectl, arguments: &[&str], object: &Value, words: &[&str]) -> Result<()> {
        let refusal = in_time(TIMEOUT, async || self.refusal(kubectl, arguments, object).await).await?;
        let is_expected = words.iter().all(|words| refusal.contains(words)) && refusal.is_empty() == words.is_empty();
        ensure!(is_expected, "{object}: {words:?}: {refusal}");
        Ok(())
    }
}

fn subscription(fields: &Value) -> Value {
    let mut object = json!({
        "apiVersion": "proviso.dev/v1alpha1", "kind": "PolicySubscription",
        "metadata": {"namespace": "team", "name": "collector"},
        "spec": {
            "scn": "collector", "policies": [{"id": "cluster.memory"}], "delivery": {"configMap": "collector-policies"},
        },
    });
    let spec = object["spec"].as_object_mut().unwrap();
    spec.extend(fields.as_object().unwrap().clone());
    spec.retain(|_, value| !value.is_null());
    object
}

#[tokio::test]
async fn the_webhook_refuses_what_cannot_work_and_what_the_author_may_not_do() -> Result<()> {
    let mut cluster = TestCluster::start("configuration-admission").await?;
    cluster.start_reachable_operator(&["--aggregated-api", "false"]).await?;
    let admin = cluster.kubectl.clone();
    admin.run(&["create", "namespace", "team"]).await?;
    let webhook = Webhook { cluster };
    let (create, replace) = (["create", "--dry-run=server"], ["replace"]);
    let elsewhere = subscription(&json!({"policies": [{"id": "ns.other.memory"}]}));
    until("the webhook", TIMEOUT, async || webhook.expect(&admin, &create, &elsewhere, &["spec.policies[0].id"]).await)
        .await?;

    // Policies.
    let policy = |kind: &str, configuration: &Value| {
        json!({
            "apiVersion": "proviso.dev/v1alpha1", "kind": kind, "metadata": {"name": "memory", "namespace": "team"},
            "spec": {"configuration": configuration, "policyServer": "missing"},
        })
    };
    let with = |fields: Value| {
        let mut configuration = json!({"configName": "memory", "content": {"limit": 1}});
        configuration.as_object_mut().unwrap().extend(fields.as_object().unwrap().clone());
        configuration
    };
    for (kind, configuration, words) in [
        // No PolicyServer of this name exists, and no policy server is needed.
        ("Policy", with(json!({})), vec![]),
        ("ClusterPolicy", with(json!({"confidential": true})), vec!["spec.configuration.namespaces"]),
        ("ClusterPolicy", with(json!({"confidential": true, "namespaces": ["team"]})), vec![]),
        ("Policy", with(json!({"namespaces": ["other"]})), vec!["spec.configuration.namespaces"]),
        ("Policy", with(json!({"schema": {"required": ["min"]}})), vec!["spec.configuration.content"]),
        ("Policy", template("{"), vec!["spec.configuration.template.cel"]),
    ] {
        let mut object = policy(kind, &configuration);
        if kind == "ClusterPolicy" {
            object["metadata"] = json!({"name": "memory"});
        }
        webhook.expect(&admin, &create, &object, &words).await?;
    }

    // Subscriptions. Ann may create subscriptions, ConfigMaps and Secrets, Eve no Secrets, and Bob subscriptions only.
    let role = |name: &str, verbs: &str, resources: &str| {
        [
            "create".to_owned(),
            "role".to_owned(),
            name.to_owned(),
            format!("--verb={verbs}"),
            format!("--resource={resources}"),
        ]
    };
    let grant = async |user: &str, name: &str, verbs: &str, resources: &str| -> Result<()> {
        let arguments = role(name, verbs, resources);
        let arguments: Vec<_> = arguments.iter().map(String::as_str).chain(["--namespace=team"]).collect();
        admin.run(&arguments).await?;
        let (role, user) = (format!("--role={name}"), format!("--user={user}"));
        admin.run(&["create", "rolebinding", name, &role, &user, "--namespace=team"]).await?;
        Ok(())
    };
    let subscriptions = "policysubscriptions.proviso.dev";
    grant("ann", "ann-subscriptions", "get,create,update,patch", subscriptions).await?;
    grant("ann", "ann-stored", "create,update", "configmaps,secrets").await?;
    grant("eve", "eve-subscriptions", "get,create,update,patch", subscriptions).await?;
    grant("eve", "eve-configmaps", "create,update", "configmaps").await?;
    grant("bob", "bob-subscriptions", "get,create,update,patch", subscriptions).await?;
    let by = |user: &str| admin.by(user, &["system:authenticated"]);
    let (ann, bob, eve) = (by("ann"), by("bob"), by("eve"));
    let exec = subscription(&json!({
        "component": {"kind": "Deployment", "name": "collector"}, "scn": null,
        "delivery": {"configMap": "collector-policies", "notify": {"exec": {"command": ["/reconfigure.sh"]}}},
    }));
    let broken = subscription(&json!({"policies": [{"filter": {"nameRegex": "((a{100}){100}){100}"}}]}));
    for (kubectl, object, words) in [
        (&ann, subscription(&json!({})), vec![]),
        (
            &bob,
            subscription(&json!({})),
            vec!["spec.delivery.configMap", "\"bob\" cannot create resource \"configmaps\""],
        ),
        (&eve, subscription(&json!({})), vec!["spec.delivery.configMap", "\"eve\" cannot create resource \"secrets\""]),
        (&ann, exec.clone(), vec!["spec.delivery.notify.exec", "\"ann\" cannot create resource \"pods/exec\""]),
        (&ann, broken, vec!["spec.policies[0].filter.nameRegex"]),
        (
            &ann,
            subscription(&json!({"canaryFor": [{"policy": "ns.other.memory", "experiment": "e"}]})),
            vec!["spec.canaryFor[0].policy"],
        ),
    ] {
        // The API server learns of a new role after a moment.
        until("the answer of the webhook", TIMEOUT, async || webhook.expect(kubectl, &create, &object, &words).await)
            .await?;
    }
    grant("ann", "ann-exec", "create", "pods/exec").await?;
    until("the permission of Ann", TIMEOUT, async || webhook.expect(&ann, &create, &exec, &[]).await).await?;
    webhook.expect(&ann, &["create"], &subscription(&json!({})), &[]).await?;

    // Bob may change the metadata of the subscription, and not its spec.
    bob.run(&["annotate", "policysubscription", "collector", "proviso.dev/resend=1", "--namespace=team"]).await?;
    let changed = subscription(&json!({"policies": [{"id": "cluster.other"}]}));
    webhook.expect(&bob, &replace, &changed, &["\"bob\" cannot create resource \"configmaps\""]).await?;
    webhook.expect(&ann, &replace, &changed, &[]).await?;

    // Another subscription for the same ConfigMap is admitted with a warning: the controller decides which one has it.
    let mut second = subscription(&json!({"scn": "other"}));
    second["metadata"]["name"] = "second".into();
    webhook.expect(&ann, &["create"], &second, &[]).await
}
