//! The choice of the service provider, and the constraints of the choice.

use regex::{Regex, RegexBuilder};
use serde::Serialize;

use super::limits::{MAX_PATTERN_BYTES, MAX_PROVIDER_BYTES, MAX_PROVIDER_PATTERNS, MAX_PROVIDERS};
use super::path::shorten;
use super::result::ResultError;

/// The service providers that policies allow.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct ProviderConstraints {
    /// The allowed names; `None` for all.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub allow_list: Option<Vec<String>>,
    /// Regular expressions. Each one must match a part of the name.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub patterns: Vec<String>,
}

impl ProviderConstraints {
    /// Returns true if the constraints allow each provider.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.allow_list.is_none() && self.patterns.is_empty()
    }
}

/// The service provider as chosen and constrained by the policies so far.
#[derive(Clone, Debug, Default)]
pub struct Provider {
    value: Option<String>,
    constraints: ProviderConstraints,
    /// The position in the trail of the policy that chose the provider; `None` if the value is the caller's.
    chosen_by: Option<usize>,
    /// The position of the policy that narrowed the allow-list last.
    allowed_by: usize,
    patterns: Vec<(Regex, usize)>,
}

/// A choice or constraint that contradicts an earlier one.
#[derive(Debug)]
pub(super) struct ProviderClash {
    /// The position of the other policy in the trail.
    pub holder: usize,
    pub reason: String,
}

/// The reason why the provider fields of a result are not applied.
#[derive(Debug)]
pub(super) enum ProviderError {
    Invalid(ResultError),
    Clash(ProviderClash),
}

impl Provider {
    /// Returns the provider that the caller wants. It is checked after the last policy, because a policy may choose another one.
    #[must_use]
    pub fn of_caller(value: Option<String>) -> Self {
        Self { value, ..Self::default() }
    }

    /// Returns the chosen provider; `None` if neither the caller nor a policy has chosen one.
    #[must_use]
    pub fn value(&self) -> Option<&str> {
        self.value.as_deref()
    }

    /// Returns the intersection of the allow-lists, and the patterns of all policies.
    #[must_use]
    pub fn constraints(&self) -> &ProviderConstraints {
        &self.constraints
    }

    /// Adds the constraints of the policy at `position` of the trail, applies its choice, and checks the provider that is chosen
    /// then, even if an earlier policy chose it.
    pub(super) fn apply(
        &mut self,
        position: usize,
        choice: Option<&str>,
        constraints: &ProviderConstraints,
    ) -> Result<(), ProviderError> {
        self.narrow(position, constraints)?;
        if let Some(choice) = choice {
            if choice.len() > MAX_PROVIDER_BYTES {
                let message = format!("has {} bytes, but may have at most {MAX_PROVIDER_BYTES}", choice.len());
                return Err(ProviderError::Invalid(ResultError::new("selected_provider", message)));
            }
            self.value = Some(choice.to_owned());
            self.chosen_by = Some(position);
        }
        if choice.is_some() || !constraints.is_empty() { self.check(position) } else { Ok(()) }
    }

    fn narrow(&mut self, position: usize, constraints: &ProviderConstraints) -> Result<(), ProviderError> {
        if let Some(names) = &constraints.allow_list {
            if names.len() > MAX_PROVIDERS {
                let message = format!("has {} names, but may have at most {MAX_PROVIDERS}", names.len());
                return Err(ProviderError::Invalid(ResultError::new(
                    "service_provider_constraints.allow_list",
                    message,
                )));
            }
            let narrowed = match &self.constraints.allow_list {
                None => names.clone(),
                Some(allowed) => {
                    let names: std::collections::HashSet<_> = names.iter().collect();
                    allowed.iter().filter(|name| names.contains(name)).cloned().collect()
                }
            };
            if narrowed.is_empty() {
                let holder = self.allowed_by;
                let reason = "no service provider is in both allow-lists".to_owned();
                return Err(ProviderError::Clash(ProviderClash { holder, reason }));
            }
            if self.constraints.allow_list.as_ref() != Some(&narrowed) {
                self.allowed_by = position;
                self.constraints.allow_list = Some(narrowed);
            }
        }
        for (index, pattern) in constraints.patterns.iter().enumerate() {
            if self.constraints.patterns.contains(pattern) {
                continue;
            }
            let invalid = |message: String| {
                let field = format!("service_provider_constraints.patterns[{index}]");
                ProviderError::Invalid(ResultError::new(field, message))
            };
            if self.patterns.len() >= MAX_PROVIDER_PATTERNS {
                return Err(invalid(format!("exceeds the limit of {MAX_PROVIDER_PATTERNS} patterns for a request")));
            }
            let compiled =
                RegexBuilder::new(pattern).size_limit(MAX_PATTERN_BYTES).dfa_size_limit(MAX_PATTERN_BYTES).build();
            let compiled = compiled
                .map_err(|error| invalid(format!("is not a regular expression: {}", shorten(&error.to_string()))))?;
            self.patterns.push((compiled, position));
            self.constraints.patterns.push(pattern.clone());
        }
        Ok(())
    }

    /// Removes the choice.
    pub(super) fn remove(&mut self) {
        (self.value, self.chosen_by) = (None, None);
    }

    /// Checks the provider that the caller wants, after the last policy. Returns the position of the policy that forbids it, and the
    /// reason; `None` if no policy does, or if a policy chose the provider.
    pub(super) fn caller_violation(&self) -> Option<(usize, String)> {
        if self.chosen_by.is_some() { None } else { self.violation() }
    }

    /// Checks the chosen provider after the policy at `position` chose it or constrained the choice.
    fn check(&self, position: usize) -> Result<(), ProviderError> {
        let Some((chosen_by, (constrained_by, reason))) = self.chosen_by.zip(self.violation()) else {
            return Ok(());
        };
        // A policy that contradicts an earlier choice conflicts with the policy that chose; otherwise with the one that constrained.
        let holder = if constrained_by == position { chosen_by } else { constrained_by };
        Err(ProviderError::Clash(ProviderClash { holder, reason }))
    }

    /// Returns the position of a policy that forbids the provider, and the reason.
    fn violation(&self) -> Option<(usize, String)> {
        let value = self.value.as_ref()?;
        let is_allowed = self.constraints.allow_list.as_ref().is_none_or(|allowed| allowed.contains(value));
        let (constrained_by, problem) = if is_allowed {
            let (pattern, holder) = self.patterns.iter().find(|(pattern, _)| !pattern.is_match(value))?;
            (*holder, format!("does not match the pattern {:?}", shorten(pattern.as_str())))
        } else {
            (self.allowed_by, "is not in the allow-list".to_owned())
        };
        Some((constrained_by, format!("the service provider {:?} {problem}", shorten(value))))
    }
}
