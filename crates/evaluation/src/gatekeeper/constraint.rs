//! A Gatekeeper constraint: the parameters of a template, and the objects that the constraint covers.

use proviso_crds::validation::FieldError;
use serde_json::{Map, Value};

use super::matches::Matches;
use super::schema;
use super::template::Template;
use crate::documents::{group, typed};

/// The API group of constraints.
pub const CONSTRAINTS_GROUP: &str = "constraints.gatekeeper.sh";
/// The enforcement point of tests (`gator verify`).
const ENFORCEMENT_POINT: &str = "gator.gatekeeper.sh";

/// A constraint of a template.
#[derive(Clone, Debug)]
pub struct Constraint {
    /// `metadata.name`.
    pub name: String,
    /// `spec.parameters`, with the defaults of the template.
    pub parameters: Map<String, Value>,
    pub matches: Matches,
    pub action: Action,
}

/// The effect of a violation (`enforcementAction`).
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Action {
    Deny,
    DryRun,
    Warn,
    /// A different effect at each enforcement point.
    Scoped {
        /// True if the constraint is enforced in tests.
        is_tested: bool,
    },
}

/// The error of an invalid constraint.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ConstraintError {
    /// The schema of the template, or of all constraints, rejects the constraint.
    #[error("{0}")]
    Schema(FieldError),
    #[error("{0}")]
    Other(FieldError),
}

impl Constraint {
    /// Returns true if the document is a constraint of any template.
    #[must_use]
    pub fn is(document: &Value) -> bool {
        group(document) == CONSTRAINTS_GROUP
    }

    /// Reads a constraint of this template, and fills in the defaults of its parameters.
    ///
    /// # Errors
    /// Returns an error if the constraint is of another template, or its parameters, `match` or `enforcementAction` are invalid.
    pub fn read(document: &Value, template: &Template) -> Result<Self, ConstraintError> {
        let kind = document["kind"].as_str().unwrap_or_default();
        if kind != template.kind {
            let message = format!("is {kind:?}, and the template is for {:?}", template.kind);
            return Err(ConstraintError::Other(FieldError::new("kind", message)));
        }
        let spec = &document["spec"];
        let mut parameters = match &spec["parameters"] {
            Value::Null => Value::Object(Map::new()),
            parameters => parameters.clone(),
        };
        schema::fill_defaults(&template.schema, &mut parameters);
        let Value::Object(parameters) = parameters else {
            return Err(ConstraintError::Schema(FieldError::new("spec.parameters", "is not an object")));
        };
        schema::check(&template.schema, &parameters).map_err(ConstraintError::Schema)?;
        let matches = match &spec["match"] {
            Value::Null => Matches::default(),
            matches => typed("spec.match", matches).map_err(ConstraintError::Schema)?,
        };
        matches.check().map_err(ConstraintError::Schema)?;
        Ok(Self {
            name: document["metadata"]["name"].as_str().unwrap_or_default().to_owned(),
            parameters,
            matches,
            action: action(spec).map_err(ConstraintError::Other)?,
        })
    }

    /// Returns true if tests enforce the constraint.
    #[must_use]
    pub fn is_tested(&self) -> bool {
        !matches!(self.action, Action::Scoped { is_tested: false })
    }
}

fn action(spec: &Value) -> Result<Action, FieldError> {
    Ok(match spec["enforcementAction"].as_str() {
        None | Some("" | "deny") => Action::Deny,
        Some("dryrun") => Action::DryRun,
        Some("warn") => Action::Warn,
        Some("scoped") => {
            let scopes = spec["scopedEnforcementActions"].as_array().into_iter().flatten();
            let points = scopes.flat_map(|scope| scope["enforcementPoints"].as_array().into_iter().flatten());
            let is_tested = points.into_iter().any(|point| point["name"] == "*" || point["name"] == ENFORCEMENT_POINT);
            Action::Scoped { is_tested }
        }
        Some(other) => {
            let message = format!("is {other:?}, but must be one of deny, dryrun, warn and scoped");
            return Err(FieldError::new("spec.enforcementAction", message));
        }
    })
}

#[cfg(test)]
mod tests {
    use super::super::template::tests::template;
    use super::*;
    use serde_json::json;

    fn read(spec: &Value) -> Result<Constraint, ConstraintError> {
        let template = Template::read(&template(&json!({"rego": "package a"}))).unwrap();
        let constraint = json!({
            "apiVersion": "constraints.gatekeeper.sh/v1beta1", "kind": "Labels", "metadata": {"name": "owners"}, "spec": spec,
        });
        assert!(Constraint::is(&constraint));
        Constraint::read(&constraint, &template)
    }

    #[test]
    fn a_constraint_has_the_defaults_of_its_template() {
        assert_eq!(read(&json!({})).unwrap().parameters, *json!({"labels": ["owner"]}).as_object().unwrap());
        let given = read(&json!({"parameters": {"labels": ["team"]}, "enforcementAction": "dryrun"})).unwrap();
        assert_eq!((given.name.as_str(), &given.parameters["labels"]), ("owners", &json!(["team"])));
        assert_eq!(given.action, Action::DryRun);
    }

    #[test]
    fn errors_of_the_schema_differ_from_other_errors() {
        let is_schema = |spec: Value| matches!(read(&spec), Err(ConstraintError::Schema(_)));
        assert!(is_schema(json!({"parameters": {"labels": [1]}})));
        assert!(is_schema(json!({"match": {"kind": []}})), "`match` has no field `kind`");
        assert!(is_schema(json!({"match": {"labelSelector": {"matchExpressions": [{"key": "a", "operator": "Is"}]}}})));
        assert!(matches!(read(&json!({"enforcementAction": "shout"})), Err(ConstraintError::Other(_))));
    }

    #[test]
    fn a_scoped_constraint_may_exclude_tests() {
        for (point, wanted) in [("*", true), ("gator.gatekeeper.sh", true), ("audit.gatekeeper.sh", false)] {
            let scopes = json!([{"action": "deny", "enforcementPoints": [{"name": point}]}]);
            let spec = json!({"enforcementAction": "scoped", "scopedEnforcementActions": scopes});
            assert_eq!(read(&spec).unwrap().is_tested(), wanted, "{point}");
        }
    }
}
