//! Recorded reviews of a real API server, with fixed values in place of uids, times and other values that differ in each run.

use std::collections::BTreeSet;

use regex::{Captures, Regex};
use serde_json::Value;

use super::example;

/// The recordings of one run. Equal values stay equal: an object has the same uid in all recordings.
#[derive(Default)]
pub struct Recorder {
    seen: Vec<String>,
}

impl Recorder {
    /// Compares the shape of a review with the recording of this name. If recording is on, writes the recording instead.
    pub fn check(&mut self, name: &str, review: &[u8]) {
        let file = format!("examples/reviews/{name}.json");
        let text = self.normalize(&indent(review));
        if proviso_recorded::record(&file, &text) {
            return;
        }
        let recorded = std::fs::read(example(&format!("reviews/{name}.json"))).unwrap();
        let recorded: Value = serde_json::from_slice(&recorded).unwrap();
        let (recorded, now) = (shape(&recorded), shape(&text.parse().unwrap()));
        let gone: Vec<_> = recorded.difference(&now).collect();
        let new: Vec<_> = now.difference(&recorded).collect();
        assert!(
            gone.is_empty() && new.is_empty(),
            "the review differs from {file}: missing members {gone:#?}, new members {new:#?}. {}",
            proviso_recorded::HINT
        );
    }

    /// Replaces the values that Kubernetes generates randomly or from the clock.
    fn normalize(&mut self, review: &str) -> String {
        let uid = Regex::new("[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}").unwrap();
        let text = uid.replace_all(review, |found: &Captures| {
            let number = self.number(&found[0]);
            format!("5f0c8a3e-0000-4000-8000-{number:012}")
        });
        let version = Regex::new(r#""resourceVersion": "([0-9]+)""#).unwrap();
        let text = version.replace_all(&text, |found: &Captures| {
            let number = self.number(&format!("version {}", &found[1]));
            format!(r#""resourceVersion": "{}""#, 1000 + number)
        });
        let time = Regex::new(r"20[0-9]{2}-[0-9]{2}-[0-9]{2}T[0-9:]{8}(\.[0-9]+)?Z").unwrap();
        let text = time.replace_all(&text, "2026-11-20T09:14:07Z");
        let volume = Regex::new("kube-api-access-[a-z0-9]{5}").unwrap();
        let text = volume.replace_all(&text, "kube-api-access-7tqxz");
        let credential = Regex::new("X509SHA256=[0-9a-f]{64}").unwrap();
        let digest = "0c1b2a394857667584a3b2c1d0e0f1e2d3c4b5a69788796a5b4c3d2e1f00112a";
        credential.replace_all(&text, format!("X509SHA256={digest}")).into_owned()
    }

    fn number(&mut self, name: &str) -> usize {
        self.seen.iter().position(|seen| seen == name).unwrap_or_else(|| {
            self.seen.push(name.to_owned());
            self.seen.len() - 1
        }) + 1
    }
}

/// Indents JSON and keeps the order of its members.
fn indent(json: &[u8]) -> String {
    let mut out = Vec::new();
    let mut serializer = serde_json::Serializer::pretty(&mut out);
    serde_transcode::transcode(&mut serde_json::Deserializer::from_slice(json), &mut serializer).unwrap();
    out.push(b'\n');
    String::from_utf8(out).unwrap()
}

/// Returns the paths of all members with the types of their values, except the members that controllers change during a test.
fn shape(value: &Value) -> BTreeSet<String> {
    fn add(path: &str, value: &Value, paths: &mut BTreeSet<String>) {
        match value {
            Value::Object(members) => {
                for (key, value) in
                    members.iter().filter(|(key, _)| !["status", "managedFields"].contains(&key.as_str()))
                {
                    add(&format!("{path}.{key}"), value, paths);
                }
            }
            Value::Array(items) => items.iter().for_each(|item| add(&format!("{path}[]"), item, paths)),
            Value::Null => drop(paths.insert(format!("{path} is null"))),
            Value::Bool(_) => drop(paths.insert(format!("{path} is a boolean"))),
            Value::Number(_) => drop(paths.insert(format!("{path} is a number"))),
            Value::String(_) => drop(paths.insert(format!("{path} is a string"))),
        }
    }
    let mut paths = BTreeSet::new();
    add("", value, &mut paths);
    paths
}
