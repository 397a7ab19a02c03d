//! A `Constraint`: a template with parameters, and the objects that it is about.

use proviso_crds::validation::FieldError;
use serde_json::{Map, Value};

use super::matches::Matches;
use super::schema;
use super::template::Template;
use crate::documents::{group, typed};

/// The name by which a constraint says that it is for tests, too.
const ENFORCEMENT_POINT: &str = "gator.gatekeeper.sh";

/// What a constraint says.
#[derive(Clone, Debug)]
pub struct Constraint {
    pub name: String,
    pub parameters: Map<String, Value>,
    pub matches: Matches,
    pub action: Action,
}

/// What a violation leads to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Action {
    Deny,
    DryRun,
    Warn,
    /// Something else at each point of enforcement.
    Scoped {
        /// Whether a test is such a point.
        is_tested: bool,
    },
}

/// A constraint that is none of its template.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ConstraintError {
    /// The template's schema does not allow it.
    #[error("{0}")]
    Schema(FieldError),
    #[error("{0}")]
    Other(FieldError),
}

impl Constraint {
    /// Whether the document is a constraint, of any template.
    #[must_use]
    pub fn is(document: &Value) -> bool {
        group(document) == super::CONSTRAINTS
    }

    /// Reads a constraint of this template, with the defaults of its parameters.
    ///
    /// # Errors
    /// When it is of another template, or its parameters or its `match` are not as they should be.
    pub fn read(document: &Value, template: &Template) -> Result<Self, ConstraintError> {
        let wrong = |field: &str, message: String| FieldError { field: field.to_owned(), message };
        let kind = document["kind"].as_str().unwrap_or_default();
        if kind != template.kind {
            let message = format!("is {kind:?}, and the template is for {:?}", template.kind);
            return Err(ConstraintError::Other(wrong("kind", message)));
        }
        let spec = &document["spec"];
        let mut parameters = match &spec["parameters"] {
            Value::Null => Value::Object(Map::new()),
            parameters => parameters.clone(),
        };
        schema::fill_defaults(&template.schema, &mut parameters);
        let Value::Object(parameters) = parameters else {
            return Err(ConstraintError::Schema(wrong("spec.parameters", "is no object".into())));
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

    /// Whether a test asks it.
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
            let message = format!("is {other:?}, none of deny, dryrun, warn and scoped");
            return Err(FieldError { field: "spec.enforcementAction".into(), message });
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
    fn what_the_schema_does_not_allow_is_told_from_other_mistakes() {
        let is_schema = |spec: Value| matches!(read(&spec), Err(ConstraintError::Schema(_)));
        assert!(is_schema(json!({"parameters": {"labels": [1]}})));
        assert!(is_schema(json!({"match": {"kind": []}})), "no such field");
        assert!(is_schema(json!({"match": {"labelSelector": {"matchExpressions": [{"key": "a", "operator": "Is"}]}}})));
        assert!(matches!(read(&json!({"enforcementAction": "shout"})), Err(ConstraintError::Other(_))));
    }

    #[test]
    fn a_scoped_constraint_says_whether_it_is_tested() {
        for (point, wanted) in [("*", true), ("gator.gatekeeper.sh", true), ("audit.gatekeeper.sh", false)] {
            let scopes = json!([{"action": "deny", "enforcementPoints": [{"name": point}]}]);
            let spec = json!({"enforcementAction": "scoped", "scopedEnforcementActions": scopes});
            assert_eq!(read(&spec).unwrap().is_tested(), wanted, "{point}");
        }
    }
}
