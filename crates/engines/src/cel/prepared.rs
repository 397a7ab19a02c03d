//! A whole program, made ready: what its parts are, and what they need.

use cel::common::ast::Expr;
use cel::common::value::Val;
use proviso_core::names;

use super::check::{Known, Purpose};
use super::expression::{Expression, within};
use super::json;
use super::source::{AuditAnnotation, Mutation, PatchType, Source, Validation, Variable};
use crate::CompileError;

/// As many as Kubernetes takes (`auditAnnotations`).
const MAX_ANNOTATIONS: usize = 20;

pub(super) struct Prepared {
    pub variables: Vec<Definition>,
    pub conditions: Vec<Condition>,
    pub annotations: Vec<Annotation>,
    pub mutations: Vec<Change>,
    pub params: Box<dyn Val>,
    /// Whether any of them reads `namespaceObject`.
    pub needs_namespace: bool,
}

pub(super) struct Definition {
    pub name: String,
    pub expression: Expression,
}

pub(super) struct Condition {
    pub expression: Expression,
    pub message: String,
    pub message_expression: Option<Expression>,
    pub reason: &'static str,
    pub code: u16,
}

pub(super) struct Annotation {
    pub key: String,
    pub expression: Expression,
}

pub(super) struct Change {
    pub patch_type: PatchType,
    pub expression: Expression,
}

impl Prepared {
    pub(super) fn compile(source: Source, params: &serde_json::Value) -> Result<Self, CompileError> {
        let Source { variables, validations, audit_annotations, mutations } = source;
        // Variables are shared: they may make objects where something may.
        let purpose = if mutations.is_empty() { Purpose::Value } else { Purpose::Change };
        let mut known = Known::new();
        let variables = variables.into_iter().map(|variable| define(&variable, purpose, &mut known));
        let variables = variables.collect::<Result<Vec<_>, _>>()?;
        let conditions = validations.into_iter().map(|validation| Condition::compile(validation, &known));
        let conditions = conditions.collect::<Result<Vec<_>, _>>()?;
        let annotations = annotate(&audit_annotations, &known)?;
        let mutations = mutations.into_iter().map(|Mutation { patch_type, expression }| {
            let expression = Expression::compile(&expression, Purpose::Change, &known);
            Ok(Change { patch_type, expression: expression.map_err(|error| within("mutations", error))? })
        });
        let mutations = mutations.collect::<Result<Vec<_>, _>>()?;
        let params = json::from_value(params)
            .map_err(|error| CompileError::Invalid(format!("the parameters are not valid: {error}")))?;
        let needs_namespace = conditions
            .iter()
            .flat_map(|condition| [Some(&condition.expression), condition.message_expression.as_ref()])
            .flatten()
            .chain(annotations.iter().map(|annotation| &annotation.expression))
            .chain(mutations.iter().map(|change| &change.expression))
            .any(|expression| expression.needs.namespace);
        Ok(Self { variables, conditions, annotations, mutations, params, needs_namespace })
    }

    /// Whether nothing is asked at all.
    pub(super) fn is_empty(&self) -> bool {
        self.conditions.is_empty() && self.annotations.is_empty() && self.mutations.is_empty()
    }
}

fn define(variable: &Variable, purpose: Purpose, known: &mut Known) -> Result<Definition, CompileError> {
    let name = &variable.name;
    let what = format!("variables[{name}]");
    let is_name = name.starts_with(|first: char| first.is_ascii_alphabetic() || first == '_')
        && name.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'_');
    if !is_name {
        return Err(CompileError::Invalid(format!("{what}: the name must be one of CEL: letters, digits and _")));
    }
    let expression = Expression::compile(&variable.expression, purpose, known).map_err(|error| within(&what, error))?;
    let is_type = match &expression.tree.expr {
        Expr::Call(call) => call.func_name == "type",
        _ => false,
    };
    if is_type {
        return Err(CompileError::Unsupported(format!("{what}: a type cannot be kept in a variable")));
    }
    if known.insert(name.clone(), expression.needs).is_some() {
        return Err(CompileError::Invalid(format!("{what}: the name is there twice")));
    }
    Ok(Definition { name: name.clone(), expression })
}

fn annotate(annotations: &[AuditAnnotation], known: &Known) -> Result<Vec<Annotation>, CompileError> {
    if annotations.len() > MAX_ANNOTATIONS {
        let message = format!("auditAnnotations: there are {}, at most {MAX_ANNOTATIONS} may be", annotations.len());
        return Err(CompileError::Invalid(message));
    }
    let mut prepared: Vec<Annotation> = Vec::new();
    for AuditAnnotation { key, value_expression } in annotations {
        let what = format!("auditAnnotations[{key}]");
        if !names::is_name(key) {
            let message = format!(
                "{what}: a key has at most 63 letters, digits, '-', '_' and '.', and starts and ends with a letter or digit"
            );
            return Err(CompileError::Invalid(message));
        }
        if prepared.iter().any(|annotation| annotation.key == *key) {
            return Err(CompileError::Invalid(format!("{what}: the key is there twice")));
        }
        let expression = Expression::compile(value_expression, Purpose::Value, known);
        prepared.push(Annotation { key: key.clone(), expression: expression.map_err(|error| within(&what, error))? });
    }
    Ok(prepared)
}

impl Condition {
    fn compile(validation: Validation, known: &Known) -> Result<Self, CompileError> {
        let expression = Expression::compile(&validation.expression, Purpose::Condition, known)?;
        let (reason, code) = match validation.reason.as_deref() {
            Some("Unauthorized") => ("Unauthorized", 401),
            Some("Forbidden") => ("Forbidden", 403),
            Some("RequestEntityTooLarge") => ("RequestEntityTooLarge", 413),
            Some("Invalid") | None => ("Invalid", 422),
            Some(other) => {
                let message = format!(
                    "expression {:?}: the reason is {other:?}, not Unauthorized, Forbidden, Invalid or RequestEntityTooLarge",
                    expression.text
                );
                return Err(CompileError::Invalid(message));
            }
        };
        let message = validation
            .message
            .filter(|message| !message.is_empty())
            .unwrap_or_else(|| format!("failed expression: {}", expression.text));
        let message_expression = validation
            .message_expression
            .map(|source| Expression::compile(&source, Purpose::Value, known))
            .transpose()
            .map_err(|error| within("messageExpression", error))?;
        Ok(Self { expression, message, message_expression, reason, code })
    }
}
