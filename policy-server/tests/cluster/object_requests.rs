//! Request policies that decide about Kubernetes objects: the service catalogue of the examples with a real API server, and replicas
//! that know the tenants of namespaces.

use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use kube::Api;
use kube::api::{Patch, PatchParams};
use proviso_e2e::pki::Authority;
use proviso_e2e::{Cluster, ControlPlane, Kubectl, Temporary, Webhook, manifests, until};
use serde_json::{Value, json};

use crate::support::cluster::{TestEnv, namespaced, revision};
use crate::support::{Answer, Folder, Server, WAIT_TIMEOUT, example, pod};

const CATALOGUE: &str = "service-catalog";
const TIMEOUT: Duration = Duration::from_mins(1);

/// A control plane with the kind of the catalogue, and a policy server as its webhook.
struct Catalogue {
    // The fields are dropped in this order.
    _webhook: Temporary,
    server: Server,
    admin: Kubectl,
    _plane: ControlPlane,
}

impl Catalogue {
    /// Starts a control plane of this name, and the policy server of the example.
    async fn start(name: &str) -> Result<Self> {
        let folder = Folder::new();
        for entry in std::fs::read_dir(example(CATALOGUE).join("policies"))? {
            let path = entry?.path();
            folder.write(path.file_name().and_then(|name| name.to_str()).unwrap(), std::fs::read_to_string(&path)?);
        }
        let plane = ControlPlane::start(name).await?;
        let cluster = Cluster::of(&plane).await?;
        manifests::apply_crds(&cluster.client()?, &example(CATALOGUE)).await?;
        let admin = cluster.kubectl()?;
        for namespace in ["team-blue", "team-green"] {
            admin.run(&["create", "namespace", namespace]).await?;
        }
        let authority = Authority::new("webhook", &plane.folder().path().join("pki"))?;
        let identity = authority.server("policy-server", &["127.0.0.1"])?;
        let (certificate, key) = (identity.certificate.to_str().unwrap(), identity.key.to_str().unwrap());
        let server =
            Server::start(folder, &["--listen", "127.0.0.1:0", "--tls-cert", certificate, "--tls-key", key]).await;
        let webhook = Webhook {
            name: "service-requests".to_owned(),
            client: json!({"url": format!("https://{}/validate/cluster.service-requests", server.listen)}),
            authority: authority.pem(),
            mutating: true,
            rules: json!([{
                "apiGroups": ["catalog.example.com"], "apiVersions": ["v1"], "operations": ["CREATE", "UPDATE"],
                "resources": ["servicerequests"],
            }]),
            failure_policy: "Fail",
            namespace_selector: json!({}),
            object_selector: json!({}),
        };
        let webhook = webhook.register(&cluster).await?;
        let catalogue = Self { _webhook: webhook, server, admin, _plane: plane };
        until("the webhook to be called", TIMEOUT, async || {
            refused(&catalogue.admin, &["apply", "--dry-run=server", "-f", &file("large")], "`spec.cpu`").await
        })
        .await?;
        Ok(catalogue)
    }

    fn user(&self, name: &str) -> Kubectl {
        self.admin.by(name, &["system:masters"])
    }

    /// Returns the spec of an object.
    async fn spec(&self, namespace: &str, name: &str) -> Result<Value> {
        let object = self.admin.run(&["-n", namespace, "get", "servicerequest", name, "-o", "json"]).await?;
        Ok(serde_json::from_str::<Value>(&object)?["spec"].clone())
    }
}

/// Returns the file of an object of the example.
fn file(name: &str) -> String {
    example(CATALOGUE).join("objects").join(format!("{name}.yaml")).display().to_string()
}

async fn refused(kubectl: &Kubectl, arguments: &[&str], words: &str) -> Result<()> {
    let error = kubectl.run(arguments).await.err().with_context(|| format!("{arguments:?} was accepted"))?;
    ensure!(format!("{error:#}").contains(words), "{words}: {error:#}");
    Ok(())
}

#[tokio::test]
async fn the_chain_decides_about_objects_of_a_real_api_server() -> Result<()> {
    let catalogue = Catalogue::start("catalogue-decisions").await?;
    let (ana, ben) = (catalogue.user("ana"), catalogue.user("ben"));
    ben.run(&["apply", "-f", &file("web")]).await?;
    let expected = json!({
        "serviceType": "vm", "image": "debian-13", "cpu": 2, "memoryGib": 8, "costCenter": "cc-100", "providerName": "east-1",
    });
    ensure!(catalogue.spec("team-blue", "web").await? == expected);
    // The same manifest again changes nothing.
    ben.run(&["apply", "-f", &file("web")]).await?;
    ensure!(catalogue.spec("team-blue", "web").await? == expected);

    let denial = "the field `spec.cpu` violates the constraint of policy ns.team-blue.vm-defaults (generation 1): 12 is greater than \
                  the maximum of 8";
    refused(&ben, &["apply", "-f", &file("large")], denial).await?;
    let patch =
        |patch: &'static str| ["-n", "team-blue", "patch", "servicerequest", "web", "--type=merge", "-p", patch];
    refused(&ben, &patch(r#"{"spec": {"costCenter": "cc-200"}}"#), "the field `spec.costCenter`").await?;
    refused(&ben, &patch(r#"{"spec": {"providerName": "north-1"}}"#), "the field `spec.providerName`").await?;
    refused(&ben, &patch(r#"{"spec": {"image": null}}"#), "a virtual machine needs an image").await?;
    ben.run(&patch(r#"{"spec": {"providerName": "west-1"}}"#)).await?;
    ben.run(&patch(r#"{"spec": {"cpu": 4}}"#)).await?;
    let spec = catalogue.spec("team-blue", "web").await?;
    ensure!(spec["cpu"] == 4 && spec["providerName"] == "west-1", "{spec}");

    // The user is the one whom the API server has authenticated.
    let delete = ["-n", "team-blue", "delete", "servicerequest", "small"];
    for (user, cpu) in [(&ana, 1), (&ben, 4)] {
        user.run(&["apply", "-f", &file("small")]).await?;
        let spec = catalogue.spec("team-blue", "small").await?;
        ensure!(spec["cpu"] == cpu, "{spec}");
        ben.run(&delete).await?;
    }

    // The policies of the tenant `blue` do not bind another namespace, and the global ones do.
    let green = std::fs::read_to_string(file("large"))?.replace("team-blue", "team-green");
    let large = catalogue.server.folder.root().join("green.yaml");
    std::fs::write(&large, &green)?;
    let large = large.to_str().unwrap();
    ben.run(&["apply", "-f", large]).await?;
    let spec = catalogue.spec("team-green", "large").await?;
    ensure!(spec["cpu"] == 12 && spec["costCenter"] == "cc-100" && spec.get("providerName").is_none(), "{spec}");
    std::fs::write(large, green.replace("cpu: 12", "cpu: 32"))?;
    refused(&ben, &["apply", "-f", large], "policy cluster.vm-limits (generation 1)").await
}

#[tokio::test]
async fn objects_that_a_newer_policy_forbids_can_be_maintained_and_deleted() -> Result<()> {
    let catalogue = Catalogue::start("catalogue-maintenance").await?;
    catalogue.admin.run(&["apply", "-f", &file("web")]).await?;
    let in_namespace = |arguments: &[&'static str]| [&["-n", "team-blue"], arguments].concat();
    let patch = |patch: &'static str| in_namespace(&["patch", "servicerequest", "web", "--type=merge", "-p", patch]);
    catalogue.admin.run(&patch(r#"{"metadata": {"finalizers": ["example.com/service"]}}"#)).await?;
    let source =
        "package closed\nimport rego.v1\nresult := {\"reject\": true, \"reason\": \"the catalogue is closed\"}";
    let closed = json!({
        "apiVersion": "proviso.dev/v1alpha1", "kind": "ClusterPolicy", "metadata": {"name": "closed"},
        "spec": {"request": {"priority": 1}, "program": {"rego": {"dialect": "Request", "source": source}}},
    });
    catalogue.server.folder.write("closed.json", closed.to_string());
    let small = file("small");
    let dry_run = ["apply", "--dry-run=server", "-f", small.as_str()];
    until("the new policy", TIMEOUT, async || {
        refused(&catalogue.admin, &dry_run, "policy cluster.closed (generation 1) rejects the request").await
    })
    .await?;
    refused(&catalogue.admin, &patch(r#"{"spec": {"cpu": 4}}"#), "the catalogue is closed").await?;
    refused(&catalogue.admin, &patch(r#"{"metadata": {"labels": {"stage": "test"}}}"#), "the catalogue is closed")
        .await?;
    // The operator of the catalogue writes the status, and removes its finalizer.
    let status = [&patch(r#"{"status": {"ready": true}}"#)[..], &["--subresource=status"]].concat();
    catalogue.admin.run(&status).await?;
    catalogue.admin.run(&in_namespace(&["delete", "servicerequest", "web", "--wait=false"])).await?;
    catalogue.admin.run(&patch(r#"{"metadata": {"finalizers": null}}"#)).await?;
    until("the deletion", TIMEOUT, async || {
        refused(&catalogue.admin, &in_namespace(&["get", "servicerequest", "web"]), "NotFound").await
    })
    .await
}

/// Returns the revision of a request policy that limits `replicas`.
fn limit(name: &str, priority: u32, maximum: u32) -> Value {
    let result = format!("{{'constraints': {{'replicas': {{'maximum': {maximum}}}}}}}");
    let mut revision = revision(name, 1, &json!({}));
    revision["spec"]["data"] = json!({"request": {"priority": priority}, "program": {"cel": {"result": result}}});
    revision
}

#[tokio::test]
async fn a_replica_knows_the_tenant_by_the_label_of_the_namespace() -> Result<()> {
    let env = TestEnv::start("object-requests").await?;
    let rule =
        json!({"operations": ["CREATE", "UPDATE"], "apiGroups": ["*"], "apiVersions": ["*"], "resources": ["*"]});
    let binding = json!({"program": {"requests": {}}, "admission": {"rules": [rule], "mutating": true}});
    let tenant = namespaced(limit("tenant", 1, 4));
    for revision in [revision("bind", 1, &binding), limit("global", 1, 8), tenant] {
        env.create(&revision).await?;
        env.set_condition(revision["metadata"]["name"].as_str().unwrap(), "Live", "True").await?;
    }
    let server = env.replica("pod-1").await?;
    let create = async |namespace: &str, replicas: u32| -> Answer {
        let mut review = pod("u", "x");
        review["request"]["namespace"] = namespace.into();
        review["request"]["object"]["spec"] = json!({"replicas": replicas});
        server.post("/validate/cluster.bind/1", review.to_string()).await
    };
    // The namespace of the test is its own tenant, and not that of the policy.
    until("the policies", WAIT_TIMEOUT, async || {
        let answer = create(&env.namespace, 9).await;
        ensure!(answer.message().contains("the constraint of policy cluster.global"), "{}", answer.text);
        Ok(())
    })
    .await?;
    until("the policy of the tenant", WAIT_TIMEOUT, async || {
        let answer = create("default", 6).await;
        ensure!(answer.message().contains("the constraint of policy ns.default.tenant"), "{}", answer.text);
        Ok(())
    })
    .await?;
    let answer = create(&env.namespace, 6).await;
    ensure!(answer.is_allowed(), "{}", answer.text);
    let label = Patch::Merge(json!({"metadata": {"labels": {"proviso.dev/tenant": "default"}}}));
    let namespaces = Api::<k8s_openapi::api::core::v1::Namespace>::all(env.plane.client().await?);
    namespaces.patch(&env.namespace, &PatchParams::default(), &label).await?;
    until("the label", WAIT_TIMEOUT, async || {
        let answer = create(&env.namespace, 6).await;
        ensure!(answer.message().contains("the constraint of policy ns.default.tenant"), "{}", answer.text);
        Ok(())
    })
    .await?;
    // The tenant of a namespace that the replica does not know yet could have policies that bind the request.
    let answer = create("not-known-yet", 1).await;
    ensure!(!answer.is_allowed() && answer.message().contains("not-known-yet are not known yet"), "{}", answer.text);
    Ok(())
}
