//! What a dialect asks of a policy: which rules are evaluated, and what they mean.

use super::inspect::Package;
use super::names::RuleKind;
use crate::CompileError;

/// The conventions that a policy follows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Dialect {
    /// Gatekeeper's constraint templates: a set `violation` of objects with a `msg`, over `input.review`
    /// (the request) and `input.parameters` (the settings).
    Gatekeeper,
    /// OPA's admission policies: sets `deny` and `warn`, or a whole `AdmissionReview`, over `input.request`.
    Admission,
}

/// The rules that decide, in the order in which they are evaluated.
#[derive(Debug)]
pub(super) struct Contract {
    dialect: Dialect,
    asks: Vec<Ask>,
}

/// One rule that is evaluated.
#[derive(Debug)]
pub(super) struct Ask {
    /// As `data.package.rule`.
    rule: String,
    pub(super) meaning: Meaning,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Meaning {
    /// Objects with a `msg`, one for each violation.
    Violations,
    /// Messages, or objects with a `msg`: each denies.
    Denials,
    /// The same, but they only warn.
    Warnings,
    /// A whole answer, or denials.
    Decision,
}

impl Ask {
    pub(super) fn rule(&self) -> &str {
        &self.rule
    }
}

impl Contract {
    pub(super) fn new(dialect: Dialect, entrypoint: Option<&str>, package: &Package<'_>) -> Result<Self, CompileError> {
        let has = |rule: &str| matches!(package.rules.get(rule), Some(RuleKind::Value | RuleKind::Scalar));
        let ask = |rule: &str, meaning| Ask { rule: format!("data.{}.{rule}", package.path.join(".")), meaning };
        let asks = match (dialect, entrypoint) {
            (_, Some(entrypoint)) => {
                let rule = rule_of(entrypoint, package).filter(|rule| has(rule)).ok_or_else(|| {
                    CompileError::Invalid(format!(
                        "the entrypoint {entrypoint} is no rule of package {}",
                        package.path.join(".")
                    ))
                })?;
                let meaning = if dialect == Dialect::Gatekeeper { Meaning::Violations } else { Meaning::Decision };
                vec![ask(rule, meaning)]
            }
            (Dialect::Gatekeeper, None) if has("violation") => vec![ask("violation", Meaning::Violations)],
            (Dialect::Gatekeeper, None) => {
                return Err(CompileError::Invalid(format!(
                    "package {} has no rule violation: the policy could never deny",
                    package.path.join(".")
                )));
            }
            (Dialect::Admission, None) => {
                let decision = ["main", "response"].into_iter().find(|rule| has(rule));
                let lists = [("deny", Meaning::Denials), ("warn", Meaning::Warnings)];
                match decision {
                    Some(rule) if has("deny") => {
                        return Err(CompileError::Invalid(format!(
                            "package {} has both {rule} and deny: name the one that decides as entrypoint",
                            package.path.join(".")
                        )));
                    }
                    Some(rule) => vec![ask(rule, Meaning::Decision)],
                    None => lists.iter().filter(|(rule, _)| has(rule)).map(|(rule, to)| ask(rule, *to)).collect(),
                }
            }
        };
        if asks.is_empty() {
            return Err(CompileError::Invalid(format!(
                "package {} has none of the rules deny, warn, main and response: the policy could never deny",
                package.path.join(".")
            )));
        }
        for ask in &asks {
            let name = ask.rule.rsplit('.').next().unwrap_or_default();
            if ask.meaning != Meaning::Decision && package.rules.get(name) == Some(&RuleKind::Scalar) {
                return Err(CompileError::Invalid(format!(
                    "rule {name} is one value, not a set of messages: write {name}[msg] {{ … }}, or {name} contains \
                     msg if {{ … }}"
                )));
            }
        }
        Ok(Self { dialect, asks })
    }

    pub(super) fn dialect(&self) -> Dialect {
        self.dialect
    }

    pub(super) fn asks(&self) -> &[Ask] {
        &self.asks
    }
}

/// The rule that an entrypoint names: `data.a.b`, `a.b`, `data/a/b` and `a/b` are `b` of package `a`.
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
