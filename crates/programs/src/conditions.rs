//! `matchConditions`: CEL that leaves requests out. API servers look at a live policy's before they ask about it; over a
//! folder nobody has, and an experiment's are not the live policy's.

use k8s_openapi::api::admissionregistration::v1::MatchCondition;
use proviso_core::Review;
use proviso_engines::{CompileError, Deadline, EvaluationError, cel};
use serde_json::{Map, Value};

/// The conditions of a policy, at least one.
#[derive(Debug)]
pub struct Conditions {
    /// By their names.
    programs: Vec<(String, cel::Program)>,
}

impl Conditions {
    /// None where there are no conditions.
    ///
    /// # Errors
    /// The place of the one that does not compile, and why.
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

    /// The name of one that is false, if one is: then the others do not matter, as in Kubernetes.
    ///
    /// # Errors
    /// When none is, and one comes to no decision: its name, and why.
    pub async fn leave_out(
        &self,
        review: &Review,
        deadline: Deadline,
    ) -> Result<Option<&str>, (&str, EvaluationError)> {
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

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;
    use std::time::Duration;

    #[tokio::test]
    async fn one_that_is_false_leaves_the_request_out_whatever_the_others_are() {
        let request = json!({"uid": "u", "name": "web", "object": {"metadata": {"name": "web"}}});
        let review = Review::admission(json!({"request": request}).to_string().into()).unwrap();
        let (holds, fails, broken) = ("request.name == 'web'", "request.name == 'db'", "object.spec.replicas > 1");
        for (expressions, wanted) in [
            (vec![holds], Some(false)),
            (vec![holds, fails], Some(true)),
            (vec![broken, fails], Some(true)),
            (vec![holds, broken], None),
        ] {
            let condition = |it: &&str| MatchCondition { name: "a".into(), expression: (*it).to_owned() };
            let conditions: Vec<_> = expressions.iter().map(condition).collect();
            let conditions = Conditions::compile(&conditions).unwrap().unwrap();
            let found = conditions.leave_out(&review, Deadline::after(Duration::from_secs(10))).await;
            assert_eq!(found.map(|by| by.is_some()).ok(), wanted, "{expressions:?}");
        }
        assert!(Conditions::compile(&[]).unwrap().is_none());
        let wrong = MatchCondition { name: "a".into(), expression: "object.".into() };
        assert_eq!(Conditions::compile(&[wrong]).unwrap_err().0, 0);
    }
}
