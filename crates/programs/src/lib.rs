//! Compiles the programs in the specs of policies: Rego, CEL, the expressions of groups, and the templates of configuration policies.
//! Admission and serving share this compiler. Wasm modules are not part of a spec: only the policy server fetches and compiles them.

mod conditions;
pub mod templates;

use proviso_crds::validation::FieldError;
use proviso_crds::{Cel, CelMutationType, PolicySpec, Program, Rego, RegoDialect};
#[cfg(feature = "wasm")]
use proviso_crds::{Wasm, WasmMode};
#[cfg(feature = "wasm")]
use proviso_engines::wasm;
use proviso_engines::{CompileError, cel, group, rego};
use serde_json::{Map, Value};

pub use conditions::Conditions;

/// Compiles a Rego program.
///
/// # Errors
/// The errors of [`rego::Program::compile_with`].
pub fn compile_rego(spec: &Rego, settings: &Map<String, Value>) -> Result<rego::Program, CompileError> {
    let dialect = match spec.dialect {
        RegoDialect::Gatekeeper => rego::Dialect::Gatekeeper,
        RegoDialect::Admission => rego::Dialect::Admission,
        RegoDialect::Request => rego::Dialect::Request,
    };
    let settings = Value::Object(settings.clone());
    rego::Program::compile_with(&spec.source, &spec.libs, dialect, spec.entrypoint.as_deref(), &settings)
}

/// Compiles a CEL program. `settings` are its parameters.
///
/// # Errors
/// The errors of [`cel::Program::compile`].
pub fn compile_cel(spec: &Cel, settings: &Map<String, Value>) -> Result<cel::Program, CompileError> {
    cel::Program::compile(cel_source(spec), &Value::Object(settings.clone()))
}

fn cel_source(spec: &Cel) -> cel::Source {
    let variables = spec
        .variables
        .iter()
        .map(|variable| cel::Variable { name: variable.name.clone(), expression: variable.expression.clone() });
    let validations = spec.validations.iter().map(|validation| cel::Validation {
        expression: validation.expression.clone(),
        message: validation.message.clone(),
        message_expression: validation.message_expression.clone(),
        reason: validation.reason.clone(),
    });
    let audit_annotations = spec.audit_annotations.iter().map(|annotation| cel::AuditAnnotation {
        key: annotation.key.clone(),
        value_expression: annotation.value_expression.clone(),
    });
    let mutations = spec.mutations.iter().map(|mutation| cel::Mutation {
        patch_type: match mutation.patch_type {
            CelMutationType::ApplyConfiguration => cel::PatchType::ApplyConfiguration,
            CelMutationType::JsonPatch => cel::PatchType::JsonPatch,
        },
        expression: mutation.expression.clone(),
    });
    cel::Source {
        variables: variables.collect(),
        validations: validations.collect(),
        audit_annotations: audit_annotations.collect(),
        mutations: mutations.collect(),
        result: spec.result.clone(),
    }
}

/// Returns the calling convention that the spec sets for its module; `None` if the spec sets none.
#[cfg(feature = "wasm")]
#[must_use]
pub fn execution_mode(spec: &Wasm) -> Option<wasm::ExecutionMode> {
    spec.mode.map(|mode| match mode {
        WasmMode::Wapc => wasm::ExecutionMode::KubewardenWapc,
        WasmMode::Opa => wasm::ExecutionMode::Opa,
        WasmMode::Gatekeeper => wasm::ExecutionMode::Gatekeeper,
        WasmMode::Wasi => wasm::ExecutionMode::Wasi,
    })
}

/// Returns the use of snapshots that the spec sets for its module.
#[cfg(feature = "wasm")]
#[must_use]
pub fn snapshot_mode(spec: &Wasm) -> wasm::SnapshotMode {
    match spec.snapshot {
        None | Some(true) => wasm::SnapshotMode::Automatic,
        Some(false) => wasm::SnapshotMode::Never,
    }
}

/// Returns the compile errors of the programs in a spec, with their fields. Wasm modules are not checked. Compiling can take
/// seconds. `at` is the path of the spec in its object, such as `spec`.
#[must_use]
pub fn check(at: &str, spec: &PolicySpec) -> Vec<FieldError> {
    let mut errors = Errors::default();
    errors.program(&format!("{at}.program"), &spec.program, &spec.settings);
    errors.0
}

#[derive(Default)]
struct Errors(Vec<FieldError>);

impl Errors {
    fn add(&mut self, field: impl Into<String>, message: impl Into<String>) {
        self.0.push(FieldError { field: field.into(), message: message.into() });
    }

    fn program(&mut self, at: &str, program: &Program, settings: &Map<String, Value>) {
        let (field, result) = match program {
            // The policy server fetches modules, and the request policies are policies of their own.
            Program::None | Program::Wasm(_) | Program::Requests(_) => return,
            Program::Rego(spec) => (format!("{at}.rego.source"), compile_rego(spec, settings).map(drop)),
            Program::Cel(spec) => (format!("{at}.cel"), compile_cel(spec, settings).map(drop)),
            Program::Group(spec) => {
                for (name, member) in &spec.members {
                    self.program(&format!("{at}.group.members.{name}.program"), &member.program, &member.settings);
                }
                let result = group::check(&spec.expression, |name| spec.members.contains_key(name));
                (format!("{at}.group.expression"), result)
            }
        };
        if let Err(error) = result {
            self.add(field, error.to_string());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn spec(program: &Value) -> PolicySpec {
        serde_json::from_value(json!({"program": program, "admission": {"rules": []}})).unwrap()
    }

    fn fields(program: &Value) -> Vec<String> {
        check("spec", &spec(program)).into_iter().map(|error| error.field).collect()
    }

    #[test]
    fn compile_errors_name_their_field() {
        let cel = |expression: &str| json!({"cel": {"validations": [{"expression": expression}]}});
        let rego = |source: &str| json!({"rego": {"source": source, "dialect": "Gatekeeper"}});
        let with_library = |library: &str| {
            let source = "package a\nimport data.lib.b\nviolation[{\"msg\": \"no\"}] { b.f(input.review) }";
            json!({"rego": {"source": source, "dialect": "Gatekeeper", "libs": [library]}})
        };
        let group = |program: &Value, expression: &str| json!({"group": {"members": {"a": {"program": program}}, "expression": expression, "message": "no"}});
        let good = "package a\nviolation[{\"msg\": msg}] { msg := \"no\" }";
        for (program, wanted) in [
            (cel("object.metadata.name == 'a'"), vec![]),
            (cel("object.metadata.("), vec!["spec.program.cel"]),
            (rego(good), vec![]),
            (rego("package a\nviolation["), vec!["spec.program.rego.source"]),
            (with_library("package lib.b\nf(x) { x }"), vec![]),
            (with_library("package lib.b\nf(x) {"), vec!["spec.program.rego.source"]),
            (json!({"wasm": {"module": "registry://a/b"}}), vec![]),
            (json!({"wasm": {"module": "registry://a/b", "mode": "opa"}}), vec![]),
            (group(&cel("true"), "a()"), vec![]),
            (group(&cel("true"), "b()"), vec!["spec.program.group.expression"]),
            (group(&cel("("), "a()"), vec!["spec.program.group.members.a.program.cel"]),
        ] {
            assert_eq!(fields(&program), wanted, "{program}");
        }
    }

    #[test]
    fn all_expressions_of_a_cel_program_are_compiled() {
        let object = "Object{metadata: Object.metadata{labels: {'a': variables.a}}}";
        let cel = |variable: &str, message: &str, annotation: &str, mutation: &str| {
            json!({"cel": {
                "variables": [{"name": "a", "expression": variable}],
                "validations": [{"expression": "variables.a == 'b'", "messageExpression": message}],
                "auditAnnotations": [{"key": "a", "valueExpression": annotation}],
                "mutations": [{"patchType": "ApplyConfiguration", "expression": mutation}],
            }})
        };
        assert!(fields(&cel("'b'", "'b'", "'b'", object)).is_empty());
        for wrong in [cel("(", "''", "''", object), cel("''", "(", "''", object), cel("''", "''", "(", object)] {
            assert_eq!(fields(&wrong), ["spec.program.cel"], "{wrong}");
        }
        assert_eq!(fields(&cel("''", "''", "''", "(")), ["spec.program.cel"]);
    }
}
