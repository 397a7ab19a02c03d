//! Generates the list of differences between Proviso's Rego and OPA, `docs/reference/rego-ledger.md`, from its cases.

use std::fmt::Write as _;
use std::time::Duration;

use proviso_engines::Deadline;
use proviso_engines::rego::Query;
use serde::Deserialize;
use serde_json::Value;

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Entry {
    /// The title: the construct whose behaviour differs.
    what: String,
    /// The rules of a package `p`. The test evaluates the rule `r`.
    rules: String,
    #[serde(default)]
    version: Version,
    input: Option<Value>,
    /// The answer of OPA 1.22, recorded when the case was written.
    opa: String,
    /// The behaviour of Proviso.
    proviso: Behaviour,
    /// The construct to use instead.
    instead: Option<String>,
}

#[derive(Clone, Copy, Default, Deserialize)]
enum Version {
    #[default]
    V0,
    V1,
}

#[derive(Clone, Copy, Debug, Deserialize, PartialEq, Eq, PartialOrd, Ord)]
#[serde(rename_all = "lowercase")]
enum Behaviour {
    /// Proviso refuses to compile the policy.
    Refused,
    /// The evaluation fails, which denies the request.
    Denied,
    /// Proviso accepts a policy that OPA refuses to compile.
    Looser,
    /// Proviso has another answer than OPA.
    Different,
    /// Proviso has the same answer as OPA, and regorus without Proviso's changes has another answer.
    Same,
}

impl Behaviour {
    fn title(self) -> &'static str {
        match self {
            Self::Refused => "Refused when the policy is loaded",
            Self::Denied => "Denied, because the evaluation ends with an error",
            Self::Looser => "Accepted, although OPA refuses to compile the policy",
            Self::Different => "Different result",
            Self::Same => "Same result, where regorus by itself differs",
        }
    }
}

const UNDEFINED: &str = "undefined";

impl Entry {
    /// Returns the behaviour of Proviso and its answer or error.
    fn evaluate(&self) -> (Behaviour, String) {
        let import = if matches!(self.version, Version::V1) { "import rego.v1\n" } else { "" };
        let module = format!("package p\n{import}{}", self.rules);
        let query = match Query::compile(&[module], None, "data.p.r") {
            Ok(query) => query,
            Err(error) => return (Behaviour::Refused, last_line(&error.to_string())),
        };
        match query.evaluate(self.input.as_ref(), Deadline::after(Duration::from_secs(30))) {
            Err(error) => (Behaviour::Denied, last_line(&error.to_string())),
            Ok(answers) => {
                let answer = answers.first().map_or_else(|| UNDEFINED.to_owned(), Value::to_string);
                let behaviour = match self.opa.as_str() {
                    opa if opa == answer => Behaviour::Same,
                    opa if opa.starts_with("error") => Behaviour::Looser,
                    _ => Behaviour::Different,
                };
                (behaviour, answer)
            }
        }
    }
}

/// Returns the last line of an error: regorus writes an excerpt of the source before its message.
fn last_line(message: &str) -> String {
    message.lines().last().unwrap_or_default().trim().replace('|', "\\|")
}

fn ledger(entries: &[Entry]) -> String {
    let mut text = String::from(include_str!("../cases/ledger.md"));
    let order = [Behaviour::Different, Behaviour::Looser, Behaviour::Denied, Behaviour::Refused, Behaviour::Same];
    for behaviour in order {
        let rows: Vec<&Entry> = entries.iter().filter(|entry| entry.proviso == behaviour).collect();
        _ = write!(text, "\n## {} ({})\n", behaviour.title(), rows.len());
        for entry in rows {
            let (_, answer) = entry.evaluate();
            _ = write!(text, "\n**{}**\n\n```rego\n{}\n```\n\n", entry.what, entry.rules.trim_end());
            let input = entry.input.as_ref().map(|input| format!(" with the input `{input}`")).unwrap_or_default();
            _ = writeln!(text, "Result of `r`{input}: OPA `{}`, Proviso `{answer}`.", entry.opa);
            if let Some(instead) = &entry.instead {
                _ = writeln!(text, "Instead: {instead}");
            }
        }
    }
    text
}

#[test]
fn the_recorded_list_of_rego_differences_is_current() {
    let entries: Vec<Entry> = serde_yaml::from_str(include_str!("../cases/ledger.yaml")).unwrap();
    assert!(entries.len() > 30, "{} entries", entries.len());
    let mut wrong = String::new();
    for entry in &entries {
        let (behaviour, answer) = entry.evaluate();
        if behaviour != entry.proviso {
            _ = writeln!(wrong, "{}: {behaviour:?}: {answer}", entry.what);
        }
    }
    assert!(wrong.is_empty(), "{wrong}");
    proviso_recorded::check("docs/reference/rego-ledger.md", &ledger(&entries));
}
