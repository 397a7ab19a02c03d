//! The specs of the policies. Each spec names its marker and its verdict in `spec.settings`, so that a generation can be read from
//! the cluster, and answers with its marker.

use proviso_e2e::torture::history::Verdict;
use proviso_e2e::torture::module;
use proviso_e2e::torture::plan::{Program, Spec};
use serde_json::{Value, json};

/// The label of the `ConfigMap`s that a policy matches. Its value is the name of the policy.
pub const LABEL: &str = "torture";
/// The annotation with the marker of the spec that has allowed the `ConfigMap`.
pub const MARKER: &str = "torture-marker";
/// The tag of every module.
pub const TAG: &str = "v1";

/// Returns the name of a policy.
pub fn policy_name(policy: u64) -> String {
    format!("torture-{policy}")
}

/// Returns the name of the experiment of a policy.
pub fn experiment_name(policy: &str) -> String {
    format!("{policy}-next")
}

/// Returns the repository and the content of the module of a spec; `None` if the registry needs no module for it.
pub fn module_of(spec: Spec) -> Option<(String, Vec<u8>)> {
    let marker = spec.marker();
    let content = match spec.program {
        Program::WasmDenies => module::denying(&marker),
        Program::RefusedSettings => module::refusing_settings("no settings are right"),
        Program::BrokenModule => format!("{marker} is no module").into_bytes(),
        _ => return None,
    };
    Some((repository(&marker), content))
}

fn repository(marker: &str) -> String {
    format!("modules/{marker}")
}

/// Returns the spec of a policy. `registry` is the address of the registry for replicas.
pub fn policy_spec(policy: &str, spec: Spec, registry: &str) -> Value {
    let marker = spec.marker();
    let deny = json!({"cel": {"validations": [{"expression": "false", "message": marker}]}});
    let rule = json!({"operations": ["CREATE"], "apiGroups": [""], "apiVersions": ["v1"], "resources": ["configmaps"]});
    let mark = format!("Object{{metadata: Object.metadata{{annotations: {{'{MARKER}': '{marker}'}}}}}}");
    let program = match spec.program {
        Program::CelDenies | Program::MutatingCelDenies => deny,
        Program::RegoDenies => {
            let source = format!("package torture\ndeny contains {marker:?} if {{ true }}");
            json!({"rego": {"dialect": "Admission", "source": source}})
        }
        Program::CelAllows => json!({"cel": {"validations": []}}),
        Program::CelAllowsMarked => {
            json!({"cel": {"mutations": [{"patchType": "ApplyConfiguration", "expression": mark}]}})
        }
        Program::SyntaxError => json!({"cel": {"validations": [{"expression": "object.metadata.("}]}}),
        Program::WasmDenies | Program::MissingModule | Program::BrokenModule | Program::RefusedSettings => {
            json!({"wasm": {"module": format!("registry://{registry}/{}:{TAG}", repository(&marker))}})
        }
    };
    json!({
        "program": program,
        "settings": {"marker": marker, "verdict": spec.program.verdict().as_str()},
        // Long time limits, so that a busy machine does not look like a fault.
        "timeoutEvalSeconds": 10,
        "admission": {
            "rules": [rule],
            "objectSelector": {"matchLabels": {LABEL: policy}},
            "timeoutSeconds": 15,
            "mutating": matches!(spec.program, Program::MutatingCelDenies | Program::CelAllowsMarked),
        },
    })
}

/// Returns the marker and the verdict of a spec in the cluster; `None` if it is not a spec of this run.
pub fn parse(spec: &Value) -> Option<(String, Verdict)> {
    let settings = &spec["settings"];
    let verdict = settings["verdict"].as_str().and_then(Verdict::parse)?;
    Some((settings["marker"].as_str()?.to_owned(), verdict))
}
