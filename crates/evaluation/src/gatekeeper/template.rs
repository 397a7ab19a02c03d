//! A `ConstraintTemplate`: the program, and the schema of its parameters.

use proviso_crds::validation::FieldError;
use proviso_crds::{Cel, CelValidation, CelVariable};
use serde::Deserialize;
use serde_json::Value;

use crate::documents::{group, typed};

/// The API group of templates.
pub const TEMPLATES_GROUP: &str = "templates.gatekeeper.sh";
/// The only target that Gatekeeper has.
const TARGET: &str = "admission.k8s.gatekeeper.sh";
/// The supported values of `code[].engine`.
const REGO: &str = "Rego";
const CEL: &str = "K8sNativeValidation";

/// A `ConstraintTemplate`.
#[derive(Clone, Debug, PartialEq)]
pub struct Template {
    /// `metadata.name`.
    pub name: String,
    /// The kind of its constraints.
    pub kind: String,
    /// The schema of `spec.parameters`; null if the template has none.
    pub schema: Value,
    pub code: Code,
    /// The operations that the template covers; `None` for CREATE and UPDATE.
    pub operations: Option<Vec<String>>,
    /// The annotation `metadata.gatekeeper.sh/requires-sync-data`: the objects that the program reads from `data.inventory`.
    pub sync_data: Option<String>,
}

/// The program of a template. If a template has Rego and CEL, the Rego is used: only Rego can read `data.inventory`, and old
/// versions of Gatekeeper support only Rego.
#[derive(Clone, Debug, PartialEq)]
pub enum Code {
    Rego { source: String, libs: Vec<String> },
    Cel(Cel),
}

#[derive(Deserialize)]
struct Spec {
    crd: Crd,
    targets: Vec<Target>,
}

#[derive(Deserialize)]
struct Crd {
    spec: CrdSpec,
}

#[derive(Deserialize)]
struct CrdSpec {
    names: Names,
    validation: Option<Validation>,
}

#[derive(Deserialize)]
struct Names {
    kind: String,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Validation {
    #[serde(rename = "openAPIV3Schema", default)]
    schema: Value,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Target {
    #[serde(rename = "target")]
    name: String,
    rego: Option<String>,
    #[serde(default)]
    libs: Vec<String>,
    #[serde(default)]
    code: Vec<Source>,
    operations: Option<Vec<String>>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Source {
    engine: String,
    #[serde(default)]
    source: Value,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct RegoSource {
    rego: String,
    #[serde(default)]
    libs: Vec<String>,
    /// The Rego version, `v0` or `v1`. The engine detects the version from the source.
    #[serde(rename = "version")]
    _version: Option<String>,
}

/// The CEL source of a template, with fields of a `ValidatingAdmissionPolicy`. Gatekeeper defines the variables `anyObject` and
/// `params`.
#[derive(Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct CelSource {
    #[serde(default)]
    validations: Vec<CelValidation>,
    #[serde(default)]
    variables: Vec<CelVariable>,
    #[serde(default)]
    match_conditions: Vec<Value>,
    failure_policy: Option<String>,
    /// True if Gatekeeper also creates a `ValidatingAdmissionPolicy`; ignored.
    #[serde(rename = "generateVAP")]
    _generate: Option<bool>,
}

impl Template {
    /// Returns true if the document is a template of any version.
    #[must_use]
    pub fn is(document: &Value) -> bool {
        document["kind"] == "ConstraintTemplate" && group(document) == TEMPLATES_GROUP
    }

    /// Reads a template.
    ///
    /// # Errors
    /// Returns an error if a field is missing, unknown or invalid, or the template has no code in Rego or CEL.
    pub fn read(document: &Value) -> Result<Self, FieldError> {
        let spec: Spec = typed("spec", &document["spec"])?;
        let count = spec.targets.len();
        let [target] = <[Target; 1]>::try_from(spec.targets)
            .map_err(|_| FieldError::new("spec.targets", format!("has {count} elements: there must be exactly one")))?;
        if target.name != TARGET {
            return Err(FieldError::new(
                "spec.targets[0].target",
                format!("is {:?}: only {TARGET} is known", target.name),
            ));
        }
        let annotation = &document["metadata"]["annotations"]["metadata.gatekeeper.sh/requires-sync-data"];
        Ok(Self {
            name: document["metadata"]["name"].as_str().unwrap_or_default().to_owned(),
            kind: spec.crd.spec.names.kind,
            schema: spec.crd.spec.validation.map_or(Value::Null, |validation| validation.schema),
            operations: target.operations.clone(),
            code: code(target)?,
            sync_data: annotation.as_str().map(ToOwned::to_owned),
        })
    }
}

fn code(target: Target) -> Result<Code, FieldError> {
    let at = "spec.targets[0]";
    if let Some(source) = target.rego {
        return Ok(Code::Rego { source, libs: target.libs });
    }
    let position = |engine: &str| target.code.iter().position(|source| source.engine == engine);
    if let Some(index) = position(REGO) {
        let field = format!("{at}.code[{index}].source");
        let RegoSource { rego, libs, .. } = typed(&field, &target.code[index].source)?;
        return Ok(Code::Rego { source: rego, libs });
    }
    if let Some(index) = position(CEL) {
        let field = format!("{at}.code[{index}].source");
        return cel(&field, typed(&field, &target.code[index].source)?).map(Code::Cel);
    }
    Err(match target.code.first() {
        Some(source) => FieldError::new(
            format!("{at}.code[0].engine"),
            format!("is {:?}: only {REGO} and {CEL} are known", source.engine),
        ),
        None => FieldError::new(at, "has neither `rego` nor `code`: there is no program"),
    })
}

fn cel(at: &str, source: CelSource) -> Result<Cel, FieldError> {
    if !source.match_conditions.is_empty() {
        let message = "is not supported in a template: write the conditions into the validations";
        return Err(FieldError::new(format!("{at}.matchConditions"), message));
    }
    if source.failure_policy.as_deref().is_some_and(|it| it != "Fail") {
        let message = "only Fail is supported: an expression that fails is a denial here";
        return Err(FieldError::new(format!("{at}.failurePolicy"), message));
    }
    let variable = |name: &str, expression: &str| CelVariable { name: name.into(), expression: expression.into() };
    let given =
        [variable("anyObject", "request.operation == 'DELETE' ? oldObject : object"), variable("params", "params")];
    Ok(Cel {
        variables: given.into_iter().chain(source.variables).collect(),
        validations: source.validations,
        ..Cel::default()
    })
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;
    use serde_json::json;

    pub fn template(target: &Value) -> Value {
        let mut target = target.clone();
        target["target"] = TARGET.into();
        json!({
            "apiVersion": "templates.gatekeeper.sh/v1", "kind": "ConstraintTemplate", "metadata": {"name": "labels"},
            "spec": {
                "crd": {"spec": {"names": {"kind": "Labels"}, "validation": {"openAPIV3Schema": {
                    "type": "object",
                    "properties": {"labels": {"type": "array", "items": {"type": "string"}, "default": ["owner"]}},
                }}}},
                "targets": [target],
            },
        })
    }

    fn code(target: &Value) -> Result<Code, String> {
        Template::read(&template(target)).map(|it| it.code).map_err(|error| error.to_string())
    }

    fn rego(source: &str, libs: &[&str]) -> Code {
        Code::Rego { source: source.into(), libs: libs.iter().map(|it| (*it).to_owned()).collect() }
    }

    #[test]
    fn rego_is_a_field_of_the_target_or_of_its_code() {
        assert_eq!(
            code(&json!({"rego": "package a", "libs": ["package lib.a"]})),
            Ok(rego("package a", &["package lib.a"]))
        );
        let cel = json!({"engine": "K8sNativeValidation", "source": {"validations": [{"expression": "true"}]}});
        let source = json!({"version": "v1", "rego": "package b", "libs": ["package lib.b"]});
        let both = json!({"code": [cel, {"engine": "Rego", "source": source}]});
        assert_eq!(code(&both), Ok(rego("package b", &["package lib.b"])));
    }

    #[test]
    fn cel_has_the_variables_of_gatekeeper() {
        let source = json!({"variables": [{"name": "a", "expression": "variables.params"}], "validations": [{"expression": "x"}]});
        let Ok(Code::Cel(cel)) = code(&json!({"code": [{"engine": "K8sNativeValidation", "source": source}]})) else {
            panic!("no CEL")
        };
        let names: Vec<_> = cel.variables.iter().map(|it| it.name.as_str()).collect();
        assert_eq!((names, cel.validations.len()), (vec!["anyObject", "params", "a"], 1));
    }

    #[test]
    fn an_unsupported_template_is_refused_with_its_field() {
        let cel = |source: Value| json!({"code": [{"engine": "K8sNativeValidation", "source": source}]});
        for (target, wanted) in [
            (json!({}), "spec.targets[0]: has neither"),
            (json!({"code": [{"engine": "Lua"}]}), "spec.targets[0].code[0].engine: is \"Lua\""),
            (
                json!({"code": [{"engine": "Rego", "source": {}}]}),
                "spec.targets[0].code[0].source: missing field `rego`",
            ),
            (cel(json!({"matchConditions": [{}]})), "spec.targets[0].code[0].source.matchConditions"),
            (cel(json!({"failurePolicy": "Ignore"})), "spec.targets[0].code[0].source.failurePolicy"),
            (cel(json!({"mutations": []})), "spec.targets[0].code[0].source.mutations"),
        ] {
            let error = code(&target).unwrap_err();
            assert!(error.starts_with(wanted), "{error}");
        }
    }
}
