//! Modules from a registry, for a server over a folder: a module is fetched once, pinned with its generation, and cached across
//! restarts.

use anyhow::{Result, ensure};
use proviso_e2e::{Access, Registry};
use serde_json::{Value, json};

use crate::support::{Folder, Server, pod, policy, wapc};

/// Returns a module that denies every request with this message.
fn denying(words: &str) -> Vec<u8> {
    wapc::answering(&json!({"accepted": false, "message": words}))
}

fn from(registry: &Registry, rest: &str) -> Value {
    json!({"program": {"wasm": {"module": format!("registry://{}/{rest}", registry.address())}}})
}

/// Writes the file of sources for the registry, and returns the flags for it.
fn sources(folder: &Folder, registry: &Registry) -> Vec<String> {
    let path = folder.root().join("sources.yaml");
    std::fs::write(&path, format!("insecureSources: ['{}']", registry.address())).unwrap();
    let secrets = folder.root().join("pull-secrets");
    let flags = ["--sources", path.to_str().unwrap(), "--pull-secrets", secrets.to_str().unwrap()];
    flags.map(ToOwned::to_owned).to_vec()
}

async fn start(folder: Folder, registry: &Registry) -> Server {
    let state = folder.state();
    let sources = sources(&folder, registry);
    let mut arguments: Vec<&str> = sources.iter().map(String::as_str).collect();
    arguments.extend(["--state-dir", state.to_str().unwrap()]);
    Server::start(folder, &arguments).await
}

async fn message(server: &Server) -> String {
    server.post("/validate/cluster.a", pod("u", "x").to_string()).await.message()
}

#[tokio::test]
async fn a_generation_keeps_its_module_when_the_tag_moves() -> Result<()> {
    let mut registry = Registry::start("pinned-without-a-cluster", Access::default()).await?;
    registry.push("a", "v1", Registry::MODULE, &denying("one")).await?;
    let folder = Folder::new();
    folder.write("a.json", policy("a", &from(&registry, "a:v1")));
    let server = start(folder, &registry).await;
    ensure!(message(&server).await == "one", "{}", server.details().await);

    registry.push("a", "v1", Registry::MODULE, &denying("two")).await?;
    let server = start(server.stop().await, &registry).await;
    ensure!(message(&server).await == "one", "generation 1 has another module");
    ensure!(server.details().await.contains("cluster.a generation 1 live"));

    // A changed manifest is a new generation, which resolves the tag again.
    let mut changed = from(&registry, "a:v1");
    changed["settings"] = json!({"changed": true});
    server.folder.write("a.json", policy("a", &changed));
    server.until_details("cluster.a generation 2 live").await;
    ensure!(message(&server).await == "two");

    registry.process().kill();
    let server = start(server.stop().await, &registry).await;
    ensure!(message(&server).await == "two", "{}", server.details().await);
    server.folder.write("b.json", policy("b", &from(&registry, "a:v1")));
    server.until_details("cannot be reached").await;
    registry.process().restart()?;
    server.until_details("[+] cluster.b generation 1 live").await;
    Ok(())
}

#[tokio::test]
async fn members_of_a_group_are_pulled_with_their_own_secrets() -> Result<()> {
    let registry = Registry::start("group-from-a-registry", Access { password: true, ..Access::default() }).await?;
    registry.push("a", "v1", Registry::MODULE, &denying("one")).await?;
    let folder = Folder::new();
    let mut member = from(&registry, "a:v1");
    member["program"]["wasm"]["imagePullSecrets"] = json!([{"name": "pull"}]);
    let group = json!({"program": {"group": {"members": {"one": member}, "expression": "one()", "message": "no"}}});
    folder.write("a.json", policy("a", &group));
    let server = start(folder, &registry).await;
    let error = "PullError: spec.program.group.members.one.program.wasm.imagePullSecrets: names the Secret \"pull\"";
    server.until_details(error).await;
    let secret = server.folder.root().join("pull-secrets/pull");
    std::fs::create_dir_all(&secret)?;
    let (host, user, password) = (registry.address(), Registry::USER, Registry::PASSWORD);
    let auths = json!({"auths": {host: {"username": user, "password": password}}});
    std::fs::write(secret.join(".dockerconfigjson"), auths.to_string())?;
    server.until_details("[+] cluster.a generation 1 live").await;
    ensure!(message(&server).await == "no");
    Ok(())
}

#[tokio::test]
async fn invalid_module_references_are_refused_with_their_field() {
    let folder = Folder::new();
    let server = Server::start(folder, &[]).await;
    let wasm = |fields: Value| json!({"program": {"wasm": fields}});
    for (spec, wanted) in [
        (
            wasm(json!({"module": "registry://a/B:v1"})),
            "PullError: spec.program.wasm.module: \"registry://a/B:v1\" does not name",
        ),
        (wasm(json!({"module": "https://169.254.169.254/a.wasm"})), "from link-local addresses"),
        (
            wasm(json!({"module": "registry://a/b:v1", "imagePullSecrets": [{"name": "s"}]})),
            "spec.program.wasm.imagePullSecrets: names the Secret \"s\", but this policy server has no pull secrets",
        ),
        (
            wasm(json!({"module": "file:///a.wasm", "imagePullSecrets": [{"name": "s"}]})),
            "Unsupported: spec.program.wasm.imagePullSecrets",
        ),
    ] {
        server.folder.write("a.json", policy("a", &spec));
        server.until_details(wanted).await;
    }
}
