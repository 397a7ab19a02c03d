//! The ledger of how our Rego differs from OPA, `docs/guide/rego-ledger.md`, is what its cases make.

use std::fmt::Write as _;
use std::time::Duration;

use proviso_engines::Deadline;
use proviso_engines::rego::Query;
use serde::Deserialize;
use serde_json::Value;

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Entry {
    /// What differs, as a sentence.
    what: String,
    /// The rules of a package `p`; its rule `r` is asked for.
    rules: String,
    #[serde(default)]
    version: Version,
    input: Option<Value>,
    /// OPA's answer, asked of OPA 1.22 when the case was written.
    opa: String,
    /// What Proviso does.
    proviso: Does,
    /// What to write instead.
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
enum Does {
    /// Refuses the policy when it is compiled.
    Refused,
    /// Ends the evaluation with an error: a denial.
    Denied,
    /// Accepts what OPA refuses to compile.
    Looser,
    /// Answers otherwise.
    Different,
    /// Answers as OPA does, where regorus by itself does not.
    Same,
}

impl Does {
    fn title(self) -> &'static str {
        match self {
            Self::Refused => "Refused when the policy is loaded",
            Self::Denied => "A denial: the evaluation ends with an error",
            Self::Looser => "Accepted, where OPA refuses to compile",
            Self::Different => "Answered otherwise",
            Self::Same => "The same, where the interpreter by itself differs",
        }
    }
}

const UNDEFINED: &str = "undefined";

impl Entry {
    fn ours(&self) -> (Does, String) {
        let import = if matches!(self.version, Version::V1) { "import rego.v1\n" } else { "" };
        let module = format!("package p\n{import}{}", self.rules);
        let query = match Query::compile(&[module], None, "data.p.r") {
            Ok(query) => query,
            Err(error) => return (Does::Refused, last_line(&error.to_string())),
        };
        match query.evaluate(self.input.as_ref(), Deadline::after(Duration::from_secs(30))) {
            Err(error) => (Does::Denied, last_line(&error.to_string())),
            Ok(answers) => {
                let answer = answers.first().map_or_else(|| UNDEFINED.to_owned(), Value::to_string);
                let does = match self.opa.as_str() {
                    opa if opa == answer => Does::Same,
                    opa if opa.starts_with("error") => Does::Looser,
                    _ => Does::Different,
                };
                (does, answer)
            }
        }
    }
}

/// regorus shows the place in the source before it says what is wrong.
fn last_line(message: &str) -> String {
    message.lines().last().unwrap_or_default().trim().replace('|', "\\|")
}

fn ledger(entries: &[Entry]) -> String {
    let mut text = String::from(include_str!("../cases/ledger.md"));
    for does in [Does::Different, Does::Looser, Does::Denied, Does::Refused, Does::Same] {
        let rows: Vec<&Entry> = entries.iter().filter(|entry| entry.proviso == does).collect();
        _ = write!(text, "\n## {} ({})\n", does.title(), rows.len());
        for entry in rows {
            let (_, ours) = entry.ours();
            _ = write!(text, "\n**{}**\n\n```rego\n{}\n```\n\n", entry.what, entry.rules.trim_end());
            let input = entry.input.as_ref().map(|input| format!("with the input `{input}`, ")).unwrap_or_default();
            _ = writeln!(text, "`r` {input}by OPA: `{}`; by Proviso: `{ours}`.", entry.opa);
            if let Some(instead) = &entry.instead {
                _ = writeln!(text, "Instead: {instead}");
            }
        }
    }
    text
}

#[test]
fn the_ledger_is_what_its_cases_make() {
    let entries: Vec<Entry> = serde_yaml::from_str(include_str!("../cases/ledger.yaml")).unwrap();
    assert!(entries.len() > 30, "{} entries", entries.len());
    let mut wrong = String::new();
    for entry in &entries {
        let (does, ours) = entry.ours();
        if does != entry.proviso {
            _ = writeln!(wrong, "{}: {does:?}: {ours}", entry.what);
        }
    }
    assert!(wrong.is_empty(), "{wrong}");
    proviso_recorded::check("docs/guide/rego-ledger.md", &ledger(&entries));
}
