//! Merges the constraints of several policies on one field. The merged schema is what later policies and the caller see; the values
//! are validated with each constraint separately, so that a merge cannot loosen a constraint. See ADR 30.

use std::collections::BTreeMap;

use serde_json::{Map, Value, json};

use super::path::shorten;
use super::references;

/// The merged constraints of one field.
#[derive(Clone, Debug, Default)]
pub(super) struct Merged {
    /// The constraint, if there is only one. It is shown as its policy wrote it.
    only: Option<Value>,
    keywords: Map<String, Value>,
    /// The position in the trail of the policy that set the value of a keyword.
    holders: BTreeMap<String, usize>,
    /// The constraints that cannot be expressed in `keywords`. All of them hold.
    all_of: Vec<Value>,
}

/// A keyword that contradicts the constraint of an earlier policy.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Clash {
    /// The position of the earlier policy in the trail.
    pub holder: usize,
    pub reason: String,
}

/// The rule of a keyword that both constraints have.
#[derive(Clone, Copy)]
enum Rule {
    /// The value may only grow.
    Lower,
    /// The value may only shrink.
    Upper,
    Const,
    Enum,
    Type,
    MultipleOf,
    UniqueItems,
    Required,
    Pattern,
    /// The keyword says nothing about values. The first value stays.
    Annotation,
}

/// Pairs of a lower and an upper bound, and whether both may be equal.
const BOUNDS: [(&str, &str, bool); 7] = [
    ("minimum", "maximum", true),
    ("minimum", "exclusiveMaximum", false),
    ("exclusiveMinimum", "maximum", false),
    ("exclusiveMinimum", "exclusiveMaximum", false),
    ("minLength", "maxLength", true),
    ("minItems", "maxItems", true),
    ("minProperties", "maxProperties", true),
];

/// Returns the rule of a keyword; `None` for a keyword whose meaning may depend on other keywords of its schema, or is unknown.
fn rule(keyword: &str) -> Option<Rule> {
    Some(match keyword {
        "minimum" | "exclusiveMinimum" | "minLength" | "minItems" | "minProperties" => Rule::Lower,
        "maximum" | "exclusiveMaximum" | "maxLength" | "maxItems" | "maxProperties" => Rule::Upper,
        "const" => Rule::Const,
        "enum" => Rule::Enum,
        "type" => Rule::Type,
        "multipleOf" => Rule::MultipleOf,
        "uniqueItems" => Rule::UniqueItems,
        "required" => Rule::Required,
        "pattern" => Rule::Pattern,
        "title" | "description" | "default" | "examples" | "deprecated" | "readOnly" | "writeOnly" | "$comment"
        | "$schema" => Rule::Annotation,
        _ => return None,
    })
}

impl Merged {
    /// Adds the constraint of the policy at position `holder`.
    ///
    /// # Errors
    /// Returns the clash if the constraint is looser than an earlier one, or if no value can satisfy both.
    pub fn add(&mut self, schema: &Value, holder: usize) -> Result<(), Clash> {
        let is_first = self.only.is_none() && self.keywords.is_empty() && self.all_of.is_empty();
        self.only = is_first.then(|| schema.clone());
        let Value::Object(members) = schema else {
            if *schema == Value::Bool(false) {
                self.all_of.push(schema.clone());
            }
            return Ok(());
        };
        for (keyword, value) in members {
            if let Some(rule) = rule(keyword) {
                self.add_keyword(rule, keyword, value, holder)?;
            }
        }
        self.check_bounds(holder)?;
        self.add_other_keywords(schema, members);
        Ok(())
    }

    /// Returns the schema that all values of the field must satisfy.
    pub fn schema(&self) -> Value {
        if let Some(only) = &self.only {
            return only.clone();
        }
        let mut schema = self.keywords.clone();
        if !self.all_of.is_empty() {
            schema.insert("allOf".to_owned(), self.all_of.clone().into());
        }
        Value::Object(schema)
    }

    fn add_keyword(&mut self, rule: Rule, keyword: &str, value: &Value, holder: usize) -> Result<(), Clash> {
        let Some(existing) = self.keywords.get(keyword) else {
            self.set(keyword, value.clone(), holder);
            return Ok(());
        };
        if equals(existing, value) {
            return Ok(());
        }
        let held_by = self.holders.get(keyword).copied().unwrap_or(holder);
        let clash = |problem: &str| {
            let [existing, value] = [existing, value].map(|value| shorten(&value.to_string()));
            Err(Clash { holder: held_by, reason: format!("{keyword} {value} {problem} {keyword} {existing}") })
        };
        let merged = match rule {
            Rule::Lower if number(value) < number(existing) => return clash("would loosen"),
            Rule::Upper if number(value) > number(existing) => return clash("would loosen"),
            Rule::UniqueItems if *existing == Value::Bool(true) => return clash("would loosen"),
            Rule::Lower | Rule::Upper | Rule::UniqueItems => value.clone(),
            Rule::Const => return clash("contradicts"),
            Rule::Enum => match intersect(existing, value) {
                common if common.is_empty() => return clash("has no value in common with"),
                common => Value::Array(common),
            },
            Rule::Type => match intersect_types(existing, value) {
                common if common.is_empty() => return clash("has no type in common with"),
                common if common.len() == 1 => common[0].into(),
                common => common.into(),
            },
            Rule::MultipleOf if is_multiple(value, existing) => value.clone(),
            Rule::MultipleOf => return clash("is not a multiple of"),
            Rule::Required => union(existing, value),
            Rule::Pattern => {
                push_new(&mut self.all_of, json!({ keyword: value }));
                return Ok(());
            }
            Rule::Annotation => return Ok(()),
        };
        if !equals(existing, &merged) {
            self.set(keyword, merged, holder);
        }
        Ok(())
    }

    fn set(&mut self, keyword: &str, value: Value, holder: usize) {
        self.keywords.insert(keyword.to_owned(), value);
        self.holders.insert(keyword.to_owned(), holder);
    }

    /// Checks that some number, length or size is within the bounds of different policies.
    fn check_bounds(&self, holder: usize) -> Result<(), Clash> {
        for (lower, upper, may_be_equal) in BOUNDS {
            let (Some(minimum), Some(maximum)) = (self.keywords.get(lower), self.keywords.get(upper)) else {
                continue;
            };
            let is_empty = number(minimum) > number(maximum) || (!may_be_equal && equals(minimum, maximum));
            let other =
                [lower, upper].into_iter().filter_map(|keyword| self.holders.get(keyword)).find(|it| **it != holder);
            if let (true, Some(other)) = (is_empty, other) {
                let reason = format!("no value satisfies {lower} {minimum} and {upper} {maximum}");
                return Err(Clash { holder: *other, reason });
            }
        }
        Ok(())
    }

    /// Adds the keywords without a rule as one schema, because their meaning depends on each other.
    fn add_other_keywords(&mut self, schema: &Value, members: &Map<String, Value>) {
        let others: Map<_, _> = members
            .iter()
            .filter(|(key, _)| rule(key).is_none())
            .map(|(key, value)| (key.clone(), value.clone()))
            .collect();
        if others.is_empty() {
            return;
        }
        if !references::has_references(schema) {
            push_new(&mut self.all_of, Value::Object(others));
            return;
        }
        // A reference resolves against the schema that has the `$id`, also after the schema becomes a part of another one.
        let mut identified = members.clone();
        let id = format!("urn:proviso:constraint:{}", self.all_of.len());
        identified.entry("$id").or_insert_with(|| id.into());
        push_new(&mut self.all_of, Value::Object(identified));
    }
}

/// Returns true if each value that satisfies `schema` is known to satisfy `other`.
pub(super) fn implies(schema: &Value, other: &Value) -> bool {
    if schema == other {
        return true;
    }
    let (Value::Object(schema), Value::Object(other)) = (schema, other) else {
        return *other == Value::Bool(true);
    };
    other.iter().all(|(keyword, looser)| match (rule(keyword), schema.get(keyword)) {
        (Some(Rule::Annotation), _) => true,
        (Some(_), Some(stricter)) if stricter == looser => true,
        (Some(Rule::Lower), Some(stricter)) => exact(looser) <= exact(stricter) && exact(looser).is_some(),
        (Some(Rule::Upper), Some(stricter)) => exact(stricter) <= exact(looser) && exact(stricter).is_some(),
        (Some(Rule::Required), Some(stricter)) => items(looser).iter().all(|name| items(stricter).contains(name)),
        _ => false,
    })
}

/// Returns a number that a floating-point number represents exactly.
fn exact(value: &Value) -> Option<f64> {
    const MAX_EXACT: f64 = 9e15;
    value.as_f64().filter(|number| number.abs() <= MAX_EXACT)
}

fn push_new(schemas: &mut Vec<Value>, schema: Value) {
    if !schemas.contains(&schema) {
        schemas.push(schema);
    }
}

/// Compares two values as JSON Schema does: 1 and 1.0 are equal.
pub(super) fn equals(a: &Value, b: &Value) -> bool {
    match (a, b) {
        (Value::Number(a), Value::Number(b)) if a.is_f64() == b.is_f64() => a == b,
        (Value::Number(_), Value::Number(_)) => number(a) == number(b),
        (Value::Array(a), Value::Array(b)) => a.len() == b.len() && a.iter().zip(b).all(|(a, b)| equals(a, b)),
        (Value::Object(a), Value::Object(b)) => {
            a.len() == b.len() && a.iter().all(|(key, value)| b.get(key).is_some_and(|other| equals(value, other)))
        }
        _ => a == b,
    }
}

/// Returns a number for comparisons. The schema was checked: the value of each bound is a number.
fn number(value: &Value) -> Option<f64> {
    value.as_f64()
}

fn items(value: &Value) -> &[Value] {
    value.as_array().map_or(std::slice::from_ref(value), Vec::as_slice)
}

fn intersect(existing: &Value, value: &Value) -> Vec<Value> {
    // Texts are most of the options: looking them up keeps the intersection of long lists linear.
    let texts: std::collections::HashSet<&str> = items(value).iter().filter_map(Value::as_str).collect();
    let others: Vec<_> = items(value).iter().filter(|option| !option.is_string()).collect();
    let is_common = |option: &&Value| match option.as_str() {
        Some(text) => texts.contains(text),
        None => others.iter().any(|other| equals(option, other)),
    };
    items(existing).iter().filter(is_common).cloned().collect()
}

fn intersect_types<'a>(existing: &'a Value, value: &'a Value) -> Vec<&'a str> {
    let names = |value: &'a Value| items(value).iter().filter_map(Value::as_str);
    let has = |value: &'a Value, wanted: &str| names(value).any(|name| name == wanted);
    // An integer is a number.
    let narrowed = names(value).filter(|name| has(existing, name) || (*name == "integer" && has(existing, "number")));
    let kept = names(existing).filter(|name| *name == "integer" && has(value, "number") && !has(value, "integer"));
    narrowed.chain(kept).collect()
}

fn is_multiple(value: &Value, of: &Value) -> bool {
    match (value.as_u64(), of.as_u64()) {
        (Some(value), Some(of)) => of != 0 && value % of == 0,
        _ => match (value.as_f64(), of.as_f64()) {
            (Some(value), Some(of)) => {
                let quotient = value / of;
                (quotient - quotient.round()).abs() < f64::EPSILON * quotient.abs().max(1.0)
            }
            _ => false,
        },
    }
}

fn union(existing: &Value, value: &Value) -> Value {
    let mut names = items(existing).to_vec();
    names.extend(items(value).iter().filter(|name| !items(existing).contains(name)).cloned());
    Value::Array(names)
}
