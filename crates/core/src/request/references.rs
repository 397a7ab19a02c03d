//! Checks the references of a JSON Schema before it is compiled: each one must resolve within the schema, must not refer to itself,
//! and must not make the validation take exponential time.

use std::ptr;

use referencing::{Draft, Resolver, Retrieve, SPECIFICATIONS, Uri, uri};
use serde_json::Value;

use super::fragment::FragmentError;
use super::limits::{MAX_EXPANSION, count_values};
use super::path::shorten;

/// The base URI of a schema without `$id`: the one that jsonschema uses.
const BASE: &str = "json-schema:///";

/// A retriever that fetches nothing.
#[derive(Debug)]
pub(super) struct NoRetrieval;

impl Retrieve for NoRetrieval {
    fn retrieve(&self, uri: &Uri<String>) -> Result<Value, Box<dyn std::error::Error + Send + Sync>> {
        Err(format!("{uri} is outside of the schema, and schemas are not fetched").into())
    }
}

/// The keywords that make a validator evaluate the subschemas for the same value again.
const UNEVALUATED: [&str; 2] = ["unevaluatedProperties", "unevaluatedItems"];
/// The factor by which such a keyword multiplies the time of the subschemas. Measured with jsonschema 0.60: 3.
const UNEVALUATED_FACTOR: u64 = 4;

/// Returns true if the schema has a reference, or a member of this name that is not a reference.
pub(super) fn has_references(schema: &Value) -> bool {
    has_key(schema, &["$ref", "$dynamicRef"])
}

fn has_key(schema: &Value, wanted: &[&str]) -> bool {
    match schema {
        Value::Array(items) => items.iter().any(|item| has_key(item, wanted)),
        Value::Object(members) => {
            members.iter().any(|(key, value)| wanted.contains(&key.as_str()) || has_key(value, wanted))
        }
        _ => false,
    }
}

/// Checks the references of a schema, and returns the number of values that it has after each reference is replaced by its target.
/// A recursive reference, such as that of a tree, counts once.
pub(super) fn check(schema: &Value) -> Result<u64, FragmentError> {
    if !has_references(schema) && !has_key(schema, &UNEVALUATED) {
        return Ok(count_values(schema));
    }
    let registry = SPECIFICATIONS.add(BASE, schema).map_err(|error| unresolved(&error))?;
    let registry =
        registry.retriever(NoRetrieval).draft(Draft::Draft202012).prepare().map_err(|error| unresolved(&error))?;
    let base = uri::from_str(BASE).map_err(|error| unresolved(&error))?;
    let mut expansion = Expansion { weight: 0, factor: 1, frames: Vec::new() };
    expansion.enter(schema, &registry.resolver(base), None)?;
    Ok(expansion.weight)
}

fn unresolved(error: &referencing::Error) -> FragmentError {
    FragmentError::Reference(shorten(&error.to_string()))
}

/// The part of a value that a subschema applies to. The pointer names the schema that has the keyword.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Descent<'a> {
    Property(&'a str, *const Value),
    PatternProperties(*const Value),
    AdditionalProperties(*const Value),
    UnevaluatedProperties,
    PropertyName,
    PrefixItem(usize),
    Items(*const Value),
    OtherItems,
    /// The value itself.
    Same,
}

impl Descent<'_> {
    /// Returns true if both subschemas may apply to the same part of a value.
    fn overlaps(self, other: Self) -> bool {
        use Descent::{
            AdditionalProperties, Items, OtherItems, PatternProperties, PrefixItem, Property, PropertyName, Same,
        };
        let is_item = |descent| matches!(descent, PrefixItem(_) | Items(_) | OtherItems);
        match (self, other) {
            (Same, _) | (_, Same) => true,
            (PropertyName, other) | (other, PropertyName) => other == PropertyName,
            (Property(a, _), Property(b, _)) => a == b,
            (PrefixItem(a), PrefixItem(b)) => a == b,
            (AdditionalProperties(a), Property(_, b) | PatternProperties(b))
            | (Property(_, b) | PatternProperties(b), AdditionalProperties(a)) => !ptr::eq(a, b),
            (a, b) => is_item(a) == is_item(b),
        }
    }
}

/// The schemas on the way from the root schema to the current one.
struct Expansion<'r> {
    weight: u64,
    /// The number of times that the current schema is evaluated for the same value.
    factor: u64,
    frames: Vec<Frame<'r>>,
}

struct Frame<'r> {
    schema: &'r Value,
    /// The step from the schema before; `None` if both apply to the same value.
    descent: Option<Descent<'r>>,
    /// The first steps of the ways from this schema back to itself or to a schema before it.
    cycles: Vec<Descent<'r>>,
}

impl<'r> Expansion<'r> {
    /// Enters a subschema. Its `$id`, if there is one, resolves against the schema that has it.
    fn enter(
        &mut self,
        schema: &'r Value,
        resolver: &Resolver<'r>,
        descent: Option<Descent<'r>>,
    ) -> Result<(), FragmentError> {
        let resource = Draft::Draft202012.create_resource_ref(schema);
        let resolver = resolver.in_subresource(resource).map_err(|error| unresolved(&error))?;
        self.enter_resolved(schema, &resolver, descent)
    }

    /// Enters a schema whose `$id` is the base of the resolver already, such as the target of a reference.
    fn enter_resolved(
        &mut self,
        schema: &'r Value,
        resolver: &Resolver<'r>,
        descent: Option<Descent<'r>>,
    ) -> Result<(), FragmentError> {
        self.weight = self.weight.saturating_add(self.factor);
        if self.weight > MAX_EXPANSION {
            return Err(FragmentError::Expansion);
        }
        let Value::Object(members) = schema else {
            return Ok(());
        };
        if let Some(target) = self.frames.iter().position(|frame| ptr::eq(frame.schema, schema)) {
            return self.close_cycle(target, descent);
        }
        let is_unevaluated = UNEVALUATED.iter().any(|keyword| members.contains_key(*keyword));
        let outer = self.factor;
        self.factor = outer.saturating_mul(if is_unevaluated { UNEVALUATED_FACTOR } else { 1 });
        self.frames.push(Frame { schema, descent, cycles: Vec::new() });
        for (keyword, value) in members {
            self.enter_keyword(schema, keyword, value, resolver)?;
        }
        self.frames.pop();
        self.factor = outer;
        Ok(())
    }

    fn enter_keyword(
        &mut self,
        schema: &'r Value,
        keyword: &str,
        value: &'r Value,
        resolver: &Resolver<'r>,
    ) -> Result<(), FragmentError> {
        let owner = ptr::from_ref(schema);
        match (keyword, value) {
            ("$ref" | "$dynamicRef", Value::String(reference)) => {
                let (target, resolver) = resolve(resolver, reference, keyword == "$dynamicRef")?;
                self.enter_resolved(target, &resolver, None)
            }
            ("allOf" | "anyOf" | "oneOf", Value::Array(schemas)) => {
                schemas.iter().try_for_each(|schema| self.enter(schema, resolver, None))
            }
            ("not" | "if" | "then" | "else", schema) => self.enter(schema, resolver, None),
            ("dependentSchemas", Value::Object(schemas)) => {
                schemas.values().try_for_each(|schema| self.enter(schema, resolver, None))
            }
            ("properties", Value::Object(schemas)) => schemas
                .iter()
                .try_for_each(|(key, schema)| self.enter(schema, resolver, Some(Descent::Property(key, owner)))),
            ("patternProperties", Value::Object(schemas)) => schemas
                .values()
                .try_for_each(|schema| self.enter(schema, resolver, Some(Descent::PatternProperties(owner)))),
            ("prefixItems", Value::Array(schemas)) => schemas
                .iter()
                .enumerate()
                .try_for_each(|(index, schema)| self.enter(schema, resolver, Some(Descent::PrefixItem(index)))),
            ("additionalProperties", schema) => {
                self.enter(schema, resolver, Some(Descent::AdditionalProperties(owner)))
            }
            ("unevaluatedProperties", schema) => self.enter(schema, resolver, Some(Descent::UnevaluatedProperties)),
            ("propertyNames", schema) => self.enter(schema, resolver, Some(Descent::PropertyName)),
            ("items", schema) => self.enter(schema, resolver, Some(Descent::Items(owner))),
            ("contains" | "unevaluatedItems", schema) => self.enter(schema, resolver, Some(Descent::OtherItems)),
            // Schemas that apply only where a reference names them.
            ("$defs" | "definitions", _) => Ok(()),
            (_, value) => {
                self.weight = self.weight.saturating_add(self.factor.saturating_mul(count_values(value)));
                Ok(())
            }
        }
    }

    /// Records a reference to a schema that contains it, and refuses one that the validation cannot follow in linear time.
    fn close_cycle(&mut self, target: usize, last: Option<Descent<'r>>) -> Result<(), FragmentError> {
        let mut first = last;
        let mut firsts = Vec::new();
        for position in (target..self.frames.len()).rev() {
            firsts.push((position, first.unwrap_or(Descent::Same)));
            if position > target {
                first = self.frames[position].descent.or(first);
            }
        }
        if first.is_none() {
            return Err(FragmentError::Cycle);
        }
        for (position, first) in firsts {
            let cycles = &mut self.frames[position].cycles;
            if cycles.iter().any(|other| other.overlaps(first)) {
                return Err(FragmentError::Recursion);
            }
            cycles.push(first);
        }
        Ok(())
    }
}

/// Resolves a reference. A dynamic one refers to the outermost schema in scope that has the same dynamic anchor.
fn resolve<'r>(
    resolver: &Resolver<'r>,
    reference: &str,
    is_dynamic: bool,
) -> Result<(&'r Value, Resolver<'r>), FragmentError> {
    let found = resolver.lookup(reference).map_err(|error| unresolved(&error))?;
    let mut target = (found.contents(), found.resolver().clone());
    let anchor = reference.rsplit_once('#').map_or("", |(_, fragment)| fragment);
    let has_anchor = |schema: &Value| schema["$dynamicAnchor"].as_str() == Some(anchor);
    if is_dynamic && has_anchor(target.0) {
        for scope in &resolver.dynamic_scope() {
            if let Ok(outer) = resolver.lookup(&format!("{scope}#{anchor}"))
                && has_anchor(outer.contents())
            {
                target = (outer.contents(), outer.resolver().clone());
            }
        }
    }
    Ok(target)
}
