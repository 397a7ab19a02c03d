//! A constraint: a JSON Schema (draft 2020-12) of one field, compiled within limits. A schema cannot fetch anything, and a pattern
//! matches in linear time.

use jsonschema::{Draft, PatternOptions, ValidationError, Validator};
use serde_json::Value;

use super::limits::{MAX_PATTERN_BYTES, MAX_PATTERNS_BYTES, PATTERN_BYTES};
use super::path::shorten;
use super::references;

/// The draft of all constraints.
const DRAFT: &str = "https://json-schema.org/draft/2020-12/schema";
/// The part of [`MAX_PATTERN_BYTES`] that one unit of cost stands for, in bytes.
const PATTERN_BYTES_PER_COST: usize = 128;

/// The reason why a constraint cannot be used.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum FragmentError {
    #[error("is not a JSON Schema: {0}")]
    Schema(String),
    #[error("has the $schema {0:?}, but only draft 2020-12 is supported: {DRAFT}")]
    Draft(String),
    #[error(
        "has a pattern that cannot be used: {0}. Look-around and back-references are not supported, and a compiled pattern may have at most {MAX_PATTERN_BYTES} bytes"
    )]
    Pattern(String),
    #[error("exceeds the limit of {MAX_PATTERNS_BYTES} bytes for compiled patterns")]
    Patterns,
    #[error("has a reference that does not resolve: {0}. Only references within the schema are supported")]
    Reference(String),
    #[error("has a cyclic reference: a $ref that leads back to itself for the same value")]
    Cycle,
    #[error("has a recursive reference that would apply the same schema more than once to the same part of a value")]
    Recursion,
    #[error("is too large after each $ref is replaced by its target")]
    Expansion,
}

/// A compiled constraint.
#[derive(Clone, Debug)]
pub(crate) struct Fragment {
    pub schema: Value,
    validator: Validator,
    /// The number of values in the schema after the expansion of its references, with a share for each pattern.
    weight: u64,
    /// The limit of the memory of its compiled patterns, in bytes.
    pub pattern_bytes: usize,
}

/// The memory that compiled patterns may still use, in bytes.
#[derive(Clone, Debug)]
pub(super) struct PatternBudget(usize);

impl Default for PatternBudget {
    fn default() -> Self {
        Self(MAX_PATTERNS_BYTES)
    }
}

#[cfg(test)]
impl Fragment {
    /// Returns a constraint that validates as this one does, and has another schema.
    pub fn with_schema(&self, schema: Value) -> Self {
        Self { schema, ..self.clone() }
    }
}

impl PatternBudget {
    /// Takes the memory of the patterns of a constraint from the budget.
    pub fn spend(&mut self, fragment: &Fragment) -> Result<(), FragmentError> {
        self.0 = self.0.checked_sub(fragment.pattern_bytes).ok_or(FragmentError::Patterns)?;
        Ok(())
    }
}

/// A value that does not satisfy a constraint.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Violation {
    /// The JSON Pointer of the value within the constrained field.
    pub pointer: String,
    pub message: String,
}

impl Fragment {
    /// Compiles a constraint.
    pub fn compile(schema: Value) -> Result<Self, FragmentError> {
        if let Some(draft) = schema.get("$schema").and_then(Value::as_str)
            && draft.trim_end_matches('#') != DRAFT
        {
            return Err(FragmentError::Draft(shorten(draft)));
        }
        let values = references::check(&schema)?;
        let (validator, pattern_bytes) = build_within_limits(&schema)?;
        // A reference may apply each pattern as often as there are values.
        let pattern_cost = (pattern_bytes / PATTERN_BYTES_PER_COST) as u64;
        let times = if references::has_references(&schema) { values } else { 1 };
        let weight = values.saturating_add(pattern_cost.saturating_mul(times));
        Ok(Self { schema, validator, weight, pattern_bytes })
    }

    /// Returns the cost of validating a value that has this number of values: an upper bound of the number of comparisons.
    pub fn cost(&self, values: u64) -> u64 {
        self.weight.saturating_mul(values)
    }

    /// Validates a value.
    pub fn check(&self, value: &Value) -> Result<(), Violation> {
        if self.validator.is_valid(value) {
            return Ok(());
        }
        let error = self.validator.validate(value).err();
        Err(Violation {
            pointer: error.as_ref().map(|error| error.instance_path().as_str().to_owned()).unwrap_or_default(),
            message: error.map_or_else(|| "the value is not valid".to_owned(), |error| shorten(&error.to_string())),
        })
    }

    /// Returns the violations of a value that does not satisfy the constraint: the first `limit` ones. They have no values.
    pub fn masked_violations(&self, value: &Value, limit: usize) -> Vec<String> {
        let text = |error: ValidationError<'_>| {
            let pointer = error.instance_path().as_str();
            let pointer = if pointer.is_empty() { "(content)" } else { pointer };
            format!("{}: {}", shorten(pointer), shorten(&error.masked().to_string()))
        };
        if limit == 1 {
            return self.validator.validate(value).err().map(text).into_iter().collect();
        }
        self.validator.iter_errors(value).take(limit).map(text).collect()
    }

    /// Returns true if the value satisfies the constraint.
    pub fn is_valid(&self, value: &Value) -> bool {
        self.validator.is_valid(value)
    }
}

/// Compiles a schema, and returns the limit of the memory of its patterns, in bytes.
fn build_within_limits(schema: &Value) -> Result<(Validator, usize), FragmentError> {
    let patterns = count_patterns(schema);
    let mut refused = FragmentError::Patterns;
    for limit in PATTERN_BYTES {
        // Checked before the patterns use the memory.
        let pattern_bytes = patterns.saturating_mul(limit);
        if pattern_bytes > MAX_PATTERNS_BYTES {
            return Err(FragmentError::Patterns);
        }
        match build(schema, limit) {
            Err(error @ FragmentError::Pattern(_)) => refused = error,
            result => return result.map(|validator| (validator, pattern_bytes)),
        }
    }
    Err(refused)
}

fn build(schema: &Value, pattern_bytes: usize) -> Result<Validator, FragmentError> {
    let patterns = PatternOptions::regex().size_limit(pattern_bytes).dfa_size_limit(pattern_bytes);
    let options = jsonschema::options().with_draft(Draft::Draft202012).with_retriever(references::NoRetrieval);
    options.with_pattern_options(patterns).build(schema).map_err(|error| {
        let text = shorten(&error.to_string());
        let at = error.schema_path().as_str();
        match error.kind().keyword() {
            // The value of the keyword is a string, so it is the pattern that cannot be compiled.
            "format" | "pattern" if error.instance().is_string() => FragmentError::Pattern(text),
            "$ref" => FragmentError::Reference(text),
            _ => FragmentError::Schema(format!("{text} (at {:?} of the meta-schema)", shorten(at))),
        }
    })
}

/// Returns the number of patterns in a schema, and of members that look like patterns.
fn count_patterns(schema: &Value) -> usize {
    match schema {
        Value::Array(items) => items.iter().map(count_patterns).sum(),
        Value::Object(members) => members
            .iter()
            .map(|(key, value)| match (key.as_str(), value) {
                ("pattern", Value::String(_)) => 1,
                ("patternProperties", Value::Object(schemas)) => schemas.len() + count_patterns(value),
                _ => count_patterns(value),
            })
            .sum(),
        _ => 0,
    }
}
