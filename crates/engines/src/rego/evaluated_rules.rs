//! The rules that Proviso evaluates for a dialect, and the meaning of their values.

use super::inspect::Package;
use super::names::RuleKind;
use crate::CompileError;

/// The conventions that a policy follows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Dialect {
    /// Gatekeeper's constraint templates. The rule `violation` is a set of objects with a `msg`. The policy reads the request
    /// in `input.review`, and the settings in `input.parameters`.
    Gatekeeper,
    /// OPA's admission policies. The rules `deny` and `warn` are sets, or one rule is a complete `AdmissionReview`. The policy
    /// reads the request in `input.request`.
    Admission,
    /// Policies about requests to services. The rule `result` or `main` is the result of the policy, which reads a part of the
    /// chain as its input.
    Request,
}

/// The rule of a request policy as the ADR of the DCM project has it, `data.dcm.policy.<id>.result`.
const ADR_RULE: &str = "result";
const ADR_PACKAGE: [&str; 2] = ["dcm", "policy"];
/// The rule of a request policy as the published API of the DCM project has it, in any package.
const PUBLISHED_RULE: &str = "main";

/// The rules that decide, in the order in which they are evaluated.
#[derive(Debug)]
pub(super) struct EvaluatedRules {
    dialect: Dialect,
    entrypoints: Vec<Entrypoint>,
}

/// One rule that is evaluated for each request.
#[derive(Debug)]
pub(super) struct Entrypoint {
    /// The path of the rule, such as `data.package.rule`.
    rule: String,
    pub(super) form: ResultForm,
}

/// The meaning of a rule's value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ResultForm {
    /// A set of objects with a `msg`, one for each violation.
    Violations,
    /// A set of messages or of objects with a `msg`. Each element denies the request.
    Denials,
    /// A set of messages or of objects with a `msg`. Each element is a warning.
    Warnings,
    /// A complete response, or a set of denials.
    Decision,
    /// The result of a request policy.
    Request,
}

impl Entrypoint {
    pub(super) fn rule(&self) -> &str {
        &self.rule
    }
}

impl EvaluatedRules {
    pub(super) fn new(dialect: Dialect, entrypoint: Option<&str>, package: &Package<'_>) -> Result<Self, CompileError> {
        let has = |rule: &str| matches!(package.rules.get(rule), Some(RuleKind::Value | RuleKind::Scalar));
        let evaluated = |rule: &str, form| Entrypoint { rule: format!("data.{}.{rule}", package.path.join(".")), form };
        let entrypoints = match (dialect, entrypoint) {
            (Dialect::Request, Some(rule)) => {
                if ![ADR_RULE, PUBLISHED_RULE].contains(&rule) {
                    return Err(CompileError::Invalid(format!(
                        "the entrypoint {rule} is neither {ADR_RULE} nor {PUBLISHED_RULE}"
                    )));
                }
                // A rule that does not exist is undefined, as in OPA.
                has(rule).then(|| evaluated(rule, ResultForm::Request)).into_iter().collect()
            }
            (_, Some(entrypoint)) => {
                let rule = rule_of(entrypoint, package).filter(|rule| has(rule)).ok_or_else(|| {
                    CompileError::Invalid(format!(
                        "the entrypoint {entrypoint} is not a rule of package {}",
                        package.path.join(".")
                    ))
                })?;
                let form = match dialect {
                    Dialect::Gatekeeper => ResultForm::Violations,
                    Dialect::Admission | Dialect::Request => ResultForm::Decision,
                };
                vec![evaluated(rule, form)]
            }
            (Dialect::Gatekeeper, None) if has("violation") => vec![evaluated("violation", ResultForm::Violations)],
            (Dialect::Gatekeeper, None) => {
                return Err(CompileError::Invalid(format!(
                    "package {} has no rule violation: the policy could never deny",
                    package.path.join(".")
                )));
            }
            (Dialect::Request, None) => {
                let of_adr = package.path.starts_with(&ADR_PACKAGE) && has(ADR_RULE);
                let rule = if has(PUBLISHED_RULE) && !of_adr { PUBLISHED_RULE } else { ADR_RULE };
                if !has(rule) {
                    return Err(CompileError::Invalid(format!(
                        "package {} has neither the rule {ADR_RULE} nor {PUBLISHED_RULE}: the policy would have no result",
                        package.path.join(".")
                    )));
                }
                vec![evaluated(rule, ResultForm::Request)]
            }
            (Dialect::Admission, None) => {
                let decision = ["main", "response"].into_iter().find(|rule| has(rule));
                let lists = [("deny", ResultForm::Denials), ("warn", ResultForm::Warnings)];
                match decision {
                    Some(rule) if has("deny") => {
                        return Err(CompileError::Invalid(format!(
                            "package {} has both {rule} and deny: name the one that decides as entrypoint",
                            package.path.join(".")
                        )));
                    }
                    Some(rule) => vec![evaluated(rule, ResultForm::Decision)],
                    None => lists.iter().filter(|(rule, _)| has(rule)).map(|(rule, to)| evaluated(rule, *to)).collect(),
                }
            }
        };
        if entrypoints.is_empty() && dialect != Dialect::Request {
            return Err(CompileError::Invalid(format!(
                "package {} has none of the rules deny, warn, main and response: the policy could never deny",
                package.path.join(".")
            )));
        }
        for entrypoint in &entrypoints {
            let name = entrypoint.rule.rsplit('.').next().unwrap_or_default();
            let is_set = !matches!(entrypoint.form, ResultForm::Decision | ResultForm::Request);
            if is_set && package.rules.get(name) == Some(&RuleKind::Scalar) {
                return Err(CompileError::Invalid(format!(
                    "rule {name} is one value, not a set of messages: write {name}[msg] {{ … }}, or {name} contains \
                     msg if {{ … }}"
                )));
            }
        }
        Ok(Self { dialect, entrypoints })
    }

    pub(super) fn dialect(&self) -> Dialect {
        self.dialect
    }

    pub(super) fn entrypoints(&self) -> &[Entrypoint] {
        &self.entrypoints
    }

    /// Returns true if the policy is written for the published API of the DCM project, and reads the input of that API.
    pub(super) fn is_published(&self) -> bool {
        self.entrypoints.iter().any(|entrypoint| entrypoint.rule.ends_with(&format!(".{PUBLISHED_RULE}")))
    }
}

/// Returns the name of the rule that an entrypoint refers to. `data.a.b`, `a.b`, `data/a/b` and `a/b` all refer to the rule
/// `b` of package `a`. `None` if the entrypoint is in another package.
fn rule_of<'a>(entrypoint: &'a str, package: &Package<'_>) -> Option<&'a str> {
    let mut names: Vec<&str> = entrypoint.split(['/', '.']).collect();
    if names.first() == Some(&"data") {
        names.remove(0);
    }
    let (path, rules) = names.split_at_checked(package.path.len())?;
    match rules {
        [rule] if path == package.path => Some(rule),
        _ => None,
    }
}
