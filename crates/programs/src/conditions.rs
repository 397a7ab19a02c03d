//! `matchConditions`: CEL conditions that exclude requests. The API server evaluates those of the webhook of a live policy. The
//! policy server evaluates those of experiments, as far as it can, and those of policies from a folder, which have no webhook.

use k8s_openapi::api::admissionregistration::v1::MatchCondition;
use proviso_core::Review;
use proviso_engines::{CompileError, Deadline, EvaluationError, cel};
use serde_json::{Map, Value};

/// The match conditions of a policy: at least one.
#[derive(Debug)]
pub struct Conditions {
    /// The names and the programs of the conditions.
    programs: Vec<(String, cel::Program)>,
}

impl Conditions {
    /// Compiles conditions. Returns `None` if there are none.
    ///
    /// # Errors
    /// The index of the first condition that does not compile, and the reason.
    pub fn compile(conditions: &[MatchCondition]) -> Result<Option<Self>, (usize, CompileError)> {
        if conditions.is_empty() {
            return Ok(None);
        }
        let programs = conditions.iter().enumerate().map(|(index, condition)| {
            let program = compile(&condition.expression).map_err(|error| (index, error))?;
            Ok((condition.name.clone(), program))
        });
        Ok(Some(Self { programs: programs.collect::<Result<_, _>>()? }))
    }

    /// Compiles the conditions that a policy server can evaluate: see [`Self::can_evaluate`]. Returns `None` if there are none.
    #[must_use]
    pub fn evaluable(conditions: &[MatchCondition]) -> Option<Self> {
        let programs: Vec<_> = conditions.iter().filter_map(|it| Some((it.name.clone(), evaluable(it)?))).collect();
        (!programs.is_empty()).then_some(Self { programs })
    }

    /// Returns true if a policy server can evaluate the condition. Only the API server can evaluate a condition that reads
    /// `authorizer`, or a condition that does not compile here.
    #[must_use]
    pub fn can_evaluate(condition: &MatchCondition) -> bool {
        evaluable(condition).is_some()
    }

    /// Returns the name of a condition that is false; `None` if all are true. As in Kubernetes, a condition that is false
    /// excludes the request even if others fail.
    ///
    /// # Errors
    /// The name of a condition whose evaluation failed, and the reason, if no condition is false.
    pub async fn excludes(&self, review: &Review, deadline: Deadline) -> Result<Option<&str>, (&str, EvaluationError)> {
        let mut failed = None;
        for (name, program) in &self.programs {
            match program.evaluate(review, deadline).await {
                Ok(verdict) if !verdict.allowed => return Ok(Some(name)),
                Ok(_) => {}
                Err(error) => failed = Some((name.as_str(), error)),
            }
        }
        failed.map_or(Ok(None), Err)
    }
}

fn compile(expression: &str) -> Result<cel::Program, CompileError> {
    let validation = cel::Validation { expression: expression.to_owned(), ..cel::Validation::default() };
    cel::Program::compile(vec![validation], &Value::Object(Map::new()))
}

/// Returns the program of a condition that a policy server can evaluate.
fn evaluable(condition: &MatchCondition) -> Option<cel::Program> {
    compile(&condition.expression).ok().filter(|program| !program.reads_authorizer())
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;
    use std::time::Duration;

    #[tokio::test]
    async fn a_false_condition_excludes_the_request_even_if_others_fail() {
        let request = json!({"uid": "u", "name": "web", "object": {"metadata": {"name": "web"}}});
        let review = Review::admission(json!({"request": request}).to_string().into()).unwrap();
        let (holds, fails, broken) = ("request.name == 'web'", "request.name == 'db'", "object.spec.replicas > 1");
        for (expressions, is_excluded) in [
            (vec![holds], Some(false)),
            (vec![holds, fails], Some(true)),
            (vec![broken, fails], Some(true)),
            (vec![holds, broken], None),
        ] {
            let condition = |it: &&str| MatchCondition { name: "a".into(), expression: (*it).to_owned() };
            let conditions: Vec<_> = expressions.iter().map(condition).collect();
            let conditions = Conditions::compile(&conditions).unwrap().unwrap();
            let found = conditions.excludes(&review, Deadline::after(Duration::from_secs(10))).await;
            assert_eq!(found.map(|name| name.is_some()).ok(), is_excluded, "{expressions:?}");
        }
        assert!(Conditions::compile(&[]).unwrap().is_none());
        let wrong = MatchCondition { name: "a".into(), expression: "object.".into() };
        assert_eq!(Conditions::compile(&[wrong]).unwrap_err().0, 0);
    }

    #[test]
    fn a_condition_that_only_the_api_server_can_evaluate_is_left_to_it() {
        let condition = |expression: &str| MatchCondition { name: expression.into(), expression: expression.into() };
        let conditions: Vec<_> = [
            "request.name == 'web'",
            "authorizer.group('').resource('pods').check('create').allowed()",
            "request.name == 'authorizer'",
            "object.nothing(",
        ]
        .map(condition)
        .into();
        let can_evaluate: Vec<_> = conditions.iter().map(Conditions::can_evaluate).collect();
        assert_eq!(can_evaluate, [true, false, true, false]);
        assert_eq!(Conditions::evaluable(&conditions).unwrap().programs.len(), 2);
        assert!(Conditions::evaluable(&conditions[1..2]).is_none());
    }
}
