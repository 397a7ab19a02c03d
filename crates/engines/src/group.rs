//! Groups of policies. A group has a boolean expression in which each member is a function without arguments. A member is
//! evaluated at most once, when the expression needs it.

mod expression;

use std::collections::BTreeMap;
use std::sync::Arc;

use proviso_core::request::{Chain, PolicyResult};
use proviso_core::verdict::Cause;
use proviso_core::{Review, Verdict};

use crate::{CompileError, Deadline, EvaluationError, SettingsError, request};
use expression::Expression;
use serde_json::Value;

/// The message for a member that mutates the request.
const MAY_NOT_MUTATE: &str = "the policy changed the request, but a member of a group may not";
/// The message for a member whose result is more than a rejection or an acceptance.
const MAY_ONLY_REJECT: &str =
    "the policy patched or constrained the request, or chose a provider, but a member of a group may only reject";

/// The subject of the decision of a group and its members.
#[derive(Clone, Copy)]
enum Subject<'a> {
    Review(&'a Review),
    /// The next policy of a chain.
    Chain(&'a Chain),
}

/// A compiled group: the members, and the expression over their verdicts.
#[derive(Clone, Debug)]
pub struct Program {
    members: BTreeMap<String, Arc<crate::Program>>,
    expression: Expression,
    message: String,
}

/// The results of the members that have been evaluated.
#[derive(Default)]
struct MemberResults {
    /// True for each member that accepted the request.
    accepted: BTreeMap<String, bool>,
    causes: Vec<Cause>,
    warnings: Vec<String>,
}

/// Checks the expression of a group: see [`Program::new`].
///
/// # Errors
/// [`CompileError::Invalid`] if the expression does not parse, has other operators, names an unknown member, or no member.
/// [`CompileError::Unsupported`] if the expression is too large.
pub fn check(expression: &str, is_member: impl Fn(&str) -> bool) -> Result<(), CompileError> {
    Expression::parse(expression, is_member).map(drop)
}

impl Program {
    /// Creates a group. The expression consists of `member()`, `true`, `false`, `&&`, `||`, `!`, `==`, `!=` and parentheses.
    /// `message` is the message of a denial. The expression need not name all members.
    ///
    /// # Errors
    /// The errors of [`check`], and [`CompileError::Invalid`] if a member is a group.
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

    /// Evaluates the group for a review. A member accepts a request if it allows the request and does not mutate it.
    ///
    /// # Errors
    /// The error of the first member whose evaluation fails, with the name of the member.
    pub async fn evaluate(&self, review: &Review, deadline: Deadline) -> Result<Verdict, EvaluationError> {
        let mut results = MemberResults::default();
        let allowed = self.value(&self.expression, Subject::Review(review), deadline, &mut results).await?;
        Ok(Verdict {
            allowed,
            message: (!allowed).then(|| self.message.clone()),
            causes: if allowed { Vec::new() } else { results.causes },
            warnings: results.warnings,
            ..Verdict::default()
        })
    }

    /// Evaluates the group for the next policy of a chain. A member accepts the request if it does not reject it. A member whose result
    /// has another effect does not accept the request.
    ///
    /// # Errors
    /// The errors of [`Self::evaluate`].
    pub async fn evaluate_request(&self, chain: &Chain, deadline: Deadline) -> Result<Option<Value>, EvaluationError> {
        let mut results = MemberResults::default();
        if self.value(&self.expression, Subject::Chain(chain), deadline, &mut results).await? {
            return Ok(Some(request::acceptance()));
        }
        let causes = results.causes.into_iter().filter(|cause| !cause.message.is_empty()).map(|cause| cause.message);
        let reason: Vec<_> = std::iter::once(self.message.clone()).chain(causes).collect();
        Ok(Some(request::rejection(Some(&reason.join("; ")))))
    }

    /// Validates the settings of each member.
    ///
    /// # Errors
    /// The error of the first member that refuses its settings or does not answer, with the name of the member.
    pub async fn validate_settings(&self, deadline: Deadline) -> Result<(), SettingsError> {
        for (name, member) in &self.members {
            Box::pin(member.validate_settings(deadline)).await.map_err(|error| match error {
                SettingsError::Refused(why) => SettingsError::Refused(format!("member {name}: {why}")),
                SettingsError::EvaluationFailed(error) => {
                    SettingsError::EvaluationFailed(with_member_name(name, error))
                }
            })?;
        }
        Ok(())
    }

    async fn value(
        &self,
        expression: &Expression,
        subject: Subject<'_>,
        deadline: Deadline,
        results: &mut MemberResults,
    ) -> Result<bool, EvaluationError> {
        // A recursive future must be boxed. The depth of expressions is bounded.
        let mut part = async |part| Box::pin(self.value(part, subject, deadline, results)).await;
        match expression {
            Expression::Constant(value) => Ok(*value),
            Expression::Not(inner) => Ok(!part(inner).await?),
            Expression::And(left, right) => Ok(part(left).await? && part(right).await?),
            Expression::Or(left, right) => Ok(part(left).await? || part(right).await?),
            Expression::Equal(left, right) => Ok(part(left).await? == part(right).await?),
            Expression::Member(name) => self.member(name, subject, deadline, results).await,
        }
    }

    async fn member(
        &self,
        name: &str,
        subject: Subject<'_>,
        deadline: Deadline,
        results: &mut MemberResults,
    ) -> Result<bool, EvaluationError> {
        if let Some(accepted) = results.accepted.get(name) {
            return Ok(*accepted);
        }
        let Some(member) = self.members.get(name) else {
            return Err(EvaluationError::Failed(format!("the group has no member {name}")));
        };
        let objection = match subject {
            Subject::Review(review) => {
                let verdict = member.evaluate(review, deadline).await.map_err(|error| with_member_name(name, error))?;
                results.warnings.extend(verdict.warnings);
                let mutates = verdict.allowed && verdict.patch.is_some();
                if verdict.allowed {
                    mutates.then(|| MAY_NOT_MUTATE.to_owned())
                } else {
                    Some(verdict.message.unwrap_or_default())
                }
            }
            Subject::Chain(chain) => {
                let result = member.evaluate_request(chain, deadline).await;
                objection(result.map_err(|error| with_member_name(name, error))?)
                    .map_err(|error| with_member_name(name, error))?
            }
        };
        let accepted = objection.is_none();
        if let Some(message) = objection {
            results.causes.push(Cause { field: Some(format!("spec.policies.{name}")), message });
        }
        results.accepted.insert(name.to_owned(), accepted);
        Ok(accepted)
    }
}

/// Returns the reason why the result of a member does not accept the request; `None` if it does.
fn objection(result: Option<Value>) -> Result<Option<String>, EvaluationError> {
    let Some(result) = result else { return Ok(None) };
    let result = PolicyResult::parse(result).map_err(|error| EvaluationError::InvalidAnswer(error.to_string()))?;
    if let Some(reason) = result.rejection {
        return Ok(Some(reason));
    }
    let has_effect = result != PolicyResult::default();
    Ok(has_effect.then(|| MAY_ONLY_REJECT.to_owned()))
}

/// Adds the name of the member to the message of an error.
fn with_member_name(name: &str, error: EvaluationError) -> EvaluationError {
    match error {
        EvaluationError::Failed(why) => EvaluationError::Failed(format!("member {name}: {why}")),
        EvaluationError::InvalidAnswer(why) => EvaluationError::InvalidAnswer(format!("member {name}: {why}")),
        // Dashboards search for the exact texts of these errors, and they concern the whole group.
        EvaluationError::DeadlineExceeded | EvaluationError::Overloaded(_) => error,
    }
}
