//! Configuration policies and subscriptions over a folder: files, commands and requests for components, with the real program.

mod api;
mod failures;
mod lifecycle;
mod notifications;

use std::path::PathBuf;

use serde_json::{Value, json};

use crate::support::{Folder, Server, manifest};

/// A component with a script, which rejects, or does not finish, messages with certain words.
const SCRIPT: &str = r#"
printf '%s %s\n' "$1" "$2" >> "$ROOT/messages"
case "$2" in
  *reject-me*) echo 'not enough memory' >&2; exit 3 ;;
  *hang-me*) while test -e "$ROOT/hang"; do sleep 0.1; done ;;
esac
"#;

/// A server with a folder for components, and the component `meter`.
struct Components {
    server: Server,
}

/// Returns a folder with the script of the component.
fn folder() -> Folder {
    let folder = Folder::new();
    let script = format!("ROOT='{}'\n{SCRIPT}", folder.root().display());
    std::fs::write(folder.root().join("reconfigure.sh"), script).unwrap();
    folder
}

/// Returns the manifest of a configuration policy of the cluster with this content.
fn policy(name: &str, content: &Value) -> String {
    policy_with(name, content, &json!({}))
}

/// Returns the manifest of a configuration policy with these further members of its section.
fn policy_with(name: &str, content: &Value, members: &Value) -> String {
    let mut configuration = json!({"configName": name, "owner": "DCAE", "content": content});
    configuration.as_object_mut().unwrap().extend(members.as_object().unwrap().clone());
    configuration.as_object_mut().unwrap().retain(|_, value| !value.is_null());
    manifest("ClusterPolicy", name, &json!({ "configuration": configuration }))
}

/// Returns the spec of a subscription of the component `meter` with its script.
fn subscription(folder: &Folder, policies: &Value) -> Value {
    json!({
        "scn": "meter",
        "policies": policies,
        "delivery": {"configMap": "meter", "notify": {"exec": {
            "command": ["sh", folder.root().join("reconfigure.sh")],
        }}},
    })
}

/// Writes the manifest of the subscription `meter`.
fn subscribe(folder: &Folder, policies: &Value) {
    folder.write("meter.json", manifest("PolicySubscription", "meter", &subscription(folder, policies)));
}

impl Components {
    async fn start(folder: Folder) -> Self {
        Self::start_with(folder, &[]).await
    }

    async fn start_with(folder: Folder, arguments: &[&str]) -> Self {
        let (components, state) = (folder.root().join("components"), folder.state());
        let paths = [components.to_str().unwrap().to_owned(), state.to_str().unwrap().to_owned()];
        let all = [&["--deliver-to", &paths[0], "--state-dir", &paths[1]], arguments].concat();
        Self { server: Server::start(folder, &all).await }
    }

    fn path(&self, path: &str) -> PathBuf {
        self.server.folder.root().join("components").join(path)
    }

    fn read(&self, path: &str) -> Option<String> {
        std::fs::read_to_string(self.path(path)).ok()
    }

    /// Returns the member `config` of a stored body of the component `meter`.
    fn config(&self, policy: &str) -> Value {
        let text = self.read(&format!("meter/items/{policy}")).unwrap_or_default();
        serde_json::from_str::<Value>(&text).map(|body| body["config"].clone()).unwrap_or_default()
    }

    /// Returns the status in the record of a component.
    fn status(&self, scn: &str) -> Value {
        let text = self.read(&format!("{scn}/record.json")).unwrap_or_default();
        serde_json::from_str::<Value>(&text).map(|record| record["status"].clone()).unwrap_or_default()
    }

    /// Returns the status, reason and message of the condition of a component.
    fn condition(&self, scn: &str, type_: &str) -> [String; 3] {
        let status = self.status(scn);
        let conditions = status["conditions"].as_array().cloned().unwrap_or_default();
        let found = conditions.into_iter().find(|condition| condition["type"] == type_).unwrap_or_default();
        ["status", "reason", "message"].map(|key| found[key].as_str().unwrap_or_default().to_owned())
    }

    /// Waits until the condition `Delivered` of the component `meter` has this reason, and returns its message.
    async fn until_delivered(&self, reason: &str) -> String {
        let what = format!("Delivered: {reason}");
        self.server.until(&what, async || self.condition("meter", "Delivered")[1] == reason).await;
        self.condition("meter", "Delivered")[2].clone()
    }

    /// Waits until the component has acknowledged this many of its policies, and all of them.
    async fn until_acknowledged(&self, count: usize) {
        let summary = json!(format!("{count}/{count}"));
        // The record names the policies of an update before the files are written.
        let is_done = async || {
            let status = self.status("meter");
            status["summary"] == summary
                && status["unconfirmed"].is_null()
                && status["lastUpdate"]["result"] == "Acknowledged"
                && self.condition("meter", "Delivered")[0] == "True"
        };
        self.server.until(&format!("{count} acknowledged policies"), is_done).await;
    }

    /// Returns the messages that the script has got.
    fn messages(&self) -> Vec<Value> {
        let text = std::fs::read_to_string(self.server.folder.root().join("messages")).unwrap_or_default();
        // The script may be writing the last line.
        let complete = text.rfind('\n').map_or("", |end| &text[..end]);
        let messages = complete.lines().map(|line| line.strip_prefix("policies ").unwrap());
        messages.map(|json| serde_json::from_str(json).unwrap()).collect()
    }

    /// Returns the ids of the updated and of the removed policies in the last message, without `cluster.`.
    fn last_changes(&self) -> [Vec<String>; 2] {
        let message = self.messages().pop().unwrap_or_default();
        let names = |list: &Value| -> Vec<String> {
            let names = list.as_array().into_iter().flatten().map(|body| body["policyName"].as_str().unwrap());
            // `cluster.<name>.<version>.xml`
            names.map(|name| name.split('.').nth(1).unwrap().to_owned()).collect()
        };
        [names(&message["updated_policies"]), names(&message["removed_policies"])]
    }

    fn items(&self) -> Vec<String> {
        let entries = std::fs::read_dir(self.path("meter/items")).into_iter().flatten();
        let mut names: Vec<_> = entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
        names.sort();
        names
    }
}

fn changes(updated: &[&str], removed: &[&str]) -> [Vec<String>; 2] {
    [updated, removed].map(|list| list.iter().map(|name| (*name).to_owned()).collect())
}
