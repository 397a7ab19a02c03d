//! Groups: several policies, each a function without arguments in a boolean expression. A member is
//! evaluated when the expression needs it, and only once.

mod expression;

use std::collections::BTreeMap;
use std::sync::Arc;

use proviso_core::verdict::Cause;
use proviso_core::{Review, Verdict};

use crate::{CompileError, Deadline, EvaluationError, SettingsError};
use expression::Expression;

/// What a member is told that wants to change a request.
const MAY_NOT_MUTATE: &str = "the policy changed the request, but a member of a group may not";

/// Policies and the expression that decides by them.
#[derive(Clone, Debug)]
pub struct Program {
    members: BTreeMap<String, Arc<crate::Program>>,
    expression: Expression,
    message: String,
}

/// What evaluated members said.
#[derive(Default)]
struct Said {
    verdicts: BTreeMap<String, bool>,
    causes: Vec<Cause>,
    warnings: Vec<String>,
}

/// Whether an expression can decide over these members: see [`Program::new`].
///
/// # Errors
/// When it does not parse, contains anything else, or names a member that is not there.
pub fn check(expression: &str, is_member: impl Fn(&str) -> bool) -> Result<(), CompileError> {
    Expression::parse(expression, is_member).map(drop)
}

impl Program {
    /// Joins members with an expression of `member()`, `true`, `false`, `&&`, `||`, `!`, `==`, `!=` and
    /// parentheses. `message` is what a rejection says. Members that the expression does not name are allowed.
    ///
    /// # Errors
    /// When the expression does not parse, contains anything else, or names a member that is not there; when
    /// a member is a group.
    pub fn new(
        members: BTreeMap<String, Arc<crate::Program>>,
        expression: &str,
        message: String,
    ) -> Result<Self, CompileError> {
        if let Some((name, _)) = members.iter().find(|(_, member)| matches!(***member, crate::Program::Group(_))) {
            return Err(CompileError::Invalid(format!("member {name} is a group: groups do not nest")));
        }
        let expression = Expression::parse(expression, |name| members.contains_key(name))?;
        Ok(Self { members, expression, message })
    }

    /// Decides on a review. A member accepts when it allows without changing the request.
    ///
    /// # Errors
    /// When a member that is needed comes to no decision; the error names it.
    pub async fn evaluate(&self, review: &Review, deadline: Deadline) -> Result<Verdict, EvaluationError> {
        let mut said = Said::default();
        let allowed = self.value(&self.expression, review, deadline, &mut said).await?;
        Ok(Verdict {
            allowed,
            message: (!allowed).then(|| self.message.clone()),
            causes: if allowed { Vec::new() } else { said.causes },
            warnings: said.warnings,
            ..Verdict::default()
        })
    }

    /// Asks each member whether it accepts its settings.
    ///
    /// # Errors
    /// When a member refuses them, or comes to no answer; the error names it.
    pub async fn validate_settings(&self, deadline: Deadline) -> Result<(), SettingsError> {
        for (name, member) in &self.members {
            Box::pin(member.validate_settings(deadline)).await.map_err(|error| match error {
                SettingsError::Refused(why) => SettingsError::Refused(format!("member {name}: {why}")),
                SettingsError::Unanswered(error) => SettingsError::Unanswered(of_member(name, error)),
            })?;
        }
        Ok(())
    }

    async fn value(
        &self,
        expression: &Expression,
        review: &Review,
        deadline: Deadline,
        said: &mut Said,
    ) -> Result<bool, EvaluationError> {
        // Boxed: it calls itself. The depth of expressions is bounded.
        let mut part = async |part| Box::pin(self.value(part, review, deadline, said)).await;
        match expression {
            Expression::Constant(value) => Ok(*value),
            Expression::Not(inner) => Ok(!part(inner).await?),
            Expression::And(left, right) => Ok(part(left).await? && part(right).await?),
            Expression::Or(left, right) => Ok(part(left).await? || part(right).await?),
            Expression::Equal(left, right) => Ok(part(left).await? == part(right).await?),
            Expression::Member(name) => self.member(name, review, deadline, said).await,
        }
    }

    async fn member(
        &self,
        name: &str,
        review: &Review,
        deadline: Deadline,
        said: &mut Said,
    ) -> Result<bool, EvaluationError> {
        if let Some(accepted) = said.verdicts.get(name) {
            return Ok(*accepted);
        }
        let Some(member) = self.members.get(name) else {
            return Err(EvaluationError::Failed(format!("the group has no member {name}")));
        };
        let verdict = member.evaluate(review, deadline).await.map_err(|error| of_member(name, error))?;
        let mutates = verdict.allowed && verdict.patch.is_some();
        let accepted = verdict.allowed && !mutates;
        if !accepted {
            let message = if mutates { MAY_NOT_MUTATE.to_owned() } else { verdict.message.unwrap_or_default() };
            said.causes.push(Cause { field: Some(format!("spec.policies.{name}")), message });
        }
        said.warnings.extend(verdict.warnings);
        said.verdicts.insert(name.to_owned(), accepted);
        Ok(accepted)
    }
}

/// A member's error, under the member's name.
fn of_member(name: &str, error: EvaluationError) -> EvaluationError {
    match error {
        EvaluationError::Failed(why) => EvaluationError::Failed(format!("member {name}: {why}")),
        EvaluationError::InvalidAnswer(why) => EvaluationError::InvalidAnswer(format!("member {name}: {why}")),
        // These have one text each, which dashboards look for; and they are the whole group's.
        EvaluationError::DeadlineExceeded | EvaluationError::Overloaded => error,
    }
}
