//! Gatekeeper's suites: templates, constraints, and objects that violate them or do not.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use proviso_core::{Review, Verdict};
use proviso_engines::Deadline;
use proviso_engines::host::{Fixed, Objects, Resource};
use proviso_engines::rego::{Dialect, Program};
use serde::Deserialize;
use serde_json::{Value, json};

use super::Outcome;

const TIME: Duration = Duration::from_secs(30);

#[derive(Deserialize)]
struct Suite {
    tests: Vec<Test>,
}

#[derive(Deserialize)]
struct Test {
    name: String,
    template: String,
    constraint: String,
    #[serde(default)]
    cases: Vec<Case>,
}

#[derive(Deserialize)]
struct Case {
    name: String,
    object: String,
    #[serde(default)]
    inventory: Vec<String>,
    #[serde(default)]
    assertions: Vec<Assertion>,
}

#[derive(Deserialize)]
struct Assertion {
    /// `yes`, `no`, or how many.
    violations: Option<Value>,
    /// A regular expression; here, only a part of the message.
    message: Option<String>,
}

/// Runs a suite, each case as one.
pub fn run(file: &Path, text: &str, add: &mut impl FnMut(String, Outcome)) -> Result<(), String> {
    let suite: Suite = serde_yaml::from_str(text).map_err(|error| format!("{}: {error}", file.display()))?;
    let folder = file.parent().unwrap_or(Path::new(""));
    for test in &suite.tests {
        let template = read(&folder.join(&test.template))?;
        let constraint = read(&folder.join(&test.constraint))?;
        let program = compile(&template, &constraint["spec"]["parameters"]);
        for case in &test.cases {
            let name = format!("{}/{}", test.name, case.name);
            let outcome = match &program {
                Err(error) => Outcome::Refused(error.clone()),
                Ok(compiled) => case.outcome(folder, compiled, &constraint)?,
            };
            add(name, outcome);
        }
    }
    Ok(())
}

struct Compiled {
    source: String,
    libraries: Vec<String>,
    parameters: Value,
}

/// The template's Rego with the constraint's parameters, once it has compiled.
fn compile(template: &Value, parameters: &Value) -> Result<Compiled, String> {
    let target = &template["spec"]["targets"][0];
    let code = target["code"].as_array().into_iter().flatten();
    let rego = code.filter(|code| code["engine"] == "Rego").map(|code| &code["source"]).next().unwrap_or(target);
    let source = rego["rego"].as_str().ok_or("the template has no Rego")?.to_owned();
    let libraries = rego["libs"].as_array().into_iter().flatten();
    let libraries = libraries.filter_map(|library| library.as_str().map(str::to_owned)).collect();
    let parameters = if parameters.is_null() { json!({}) } else { parameters.clone() };
    let compiled = Compiled { source, libraries, parameters };
    compiled.program().map(|_| compiled).map_err(|error| error.to_string())
}

impl Compiled {
    fn program(&self) -> Result<Program, proviso_engines::CompileError> {
        Program::compile_with(&self.source, &self.libraries, Dialect::Gatekeeper, None, &self.parameters)
    }
}

impl Case {
    fn outcome(&self, folder: &Path, compiled: &Compiled, constraint: &Value) -> Result<Outcome, String> {
        let object = read(&folder.join(&self.object))?;
        let mut objects = Vec::new();
        for file in &self.inventory {
            objects.extend(read_all(&folder.join(file))?);
        }
        let program = compiled.program().map_err(|error| error.to_string())?;
        let program = program.with_host(Arc::new(Fixed(Arc::new(inventory(objects)))));
        let request = request(object);
        let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build().map_err(|e| e.to_string())?;
        let verdict = if matches(constraint, &request) {
            let body = Bytes::from(json!({"request": request}).to_string());
            let review = Review::admission(body).map_err(|error| error.to_string())?;
            runtime.block_on(program.evaluate(&review, Deadline::after(TIME)))
        } else {
            Ok(Verdict::allow())
        };
        Ok(match verdict {
            Err(error) => Outcome::Denied(error.to_string()),
            Ok(verdict) if self.assertions.iter().all(|assertion| assertion.holds(&verdict)) => Outcome::Passed,
            Ok(verdict) => Outcome::Different(format!("allowed: {}, {:?}", verdict.allowed, verdict.message)),
        })
    }
}

impl Assertion {
    fn holds(&self, verdict: &Verdict) -> bool {
        let messages: Vec<&str> = match verdict.causes.as_slice() {
            [] => verdict.message.iter().map(String::as_str).collect(),
            causes => causes.iter().map(|cause| cause.message.as_str()).collect(),
        };
        let fitting = |message: &&&str| self.message.as_ref().is_none_or(|part| message.contains(part.as_str()));
        let count = messages.iter().filter(fitting).count() as u64;
        match &self.violations {
            Some(Value::Number(number)) => number.as_u64() == Some(count),
            Some(Value::Bool(false)) => count == 0,
            Some(Value::String(text)) if text == "no" => count == 0,
            _ => count > 0,
        }
    }
}

fn read_all(file: &Path) -> Result<Vec<Value>, String> {
    let text = std::fs::read_to_string(file).map_err(|error| format!("{}: {error}", file.display()))?;
    let documents = serde_yaml::Deserializer::from_str(&text).map(Value::deserialize);
    let documents: Result<Vec<Value>, _> = documents.collect();
    Ok(documents
        .map_err(|error| format!("{}: {error}", file.display()))?
        .into_iter()
        .filter(Value::is_object)
        .collect())
}

fn read(file: &Path) -> Result<Value, String> {
    read_all(file)?.into_iter().next().ok_or_else(|| format!("{} is empty", file.display()))
}

fn group_and_version(object: &Value) -> (&str, &str) {
    let api_version = object["apiVersion"].as_str().unwrap_or_default();
    api_version.split_once('/').unwrap_or(("", api_version))
}

/// The request that brings an object, if the file does not have it itself.
fn request(object: Value) -> Value {
    let (object, mut request) = match object["kind"].as_str() {
        Some("AdmissionReview") => (object["request"]["object"].clone(), object["request"].clone()),
        _ => (object, json!({"operation": "CREATE"})),
    };
    let shown = if object.is_null() { request["oldObject"].clone() } else { object.clone() };
    let (group, version) = group_and_version(&shown);
    let kind = json!({"group": group, "version": version, "kind": shown["kind"]});
    let members = [
        ("uid", json!("case")),
        ("kind", kind),
        ("resource", json!({"group": group, "version": version, "resource": "objects"})),
        ("name", shown["metadata"]["name"].clone()),
        ("namespace", shown["metadata"]["namespace"].clone()),
        ("object", object),
    ];
    for (name, value) in members {
        if request[name].is_null() && !value.is_null() {
            request[name] = value;
        }
    }
    request
}

/// Whether the constraint is about the object's kind; a suite says little else.
fn matches(constraint: &Value, request: &Value) -> bool {
    let Some(kinds) = constraint["spec"]["match"]["kinds"].as_array() else { return true };
    let among = |list: &Value, wanted: &Value| {
        list.as_array().is_none_or(|list| list.iter().any(|item| item == "*" || item == wanted))
    };
    kinds.iter().any(|kinds| {
        among(&kinds["apiGroups"], &request["kind"]["group"]) && among(&kinds["kinds"], &request["kind"]["kind"])
    })
}

fn inventory(objects: Vec<Value>) -> Objects {
    let resource = |object: Value| Resource {
        api_version: object["apiVersion"].as_str().unwrap_or_default().to_owned(),
        kind: object["kind"].as_str().unwrap_or_default().to_owned(),
        plural: String::new(),
        is_namespaced: !object["metadata"]["namespace"].is_null(),
        objects: vec![Arc::new(object)],
    };
    Objects { resources: objects.into_iter().map(resource).collect() }
}
