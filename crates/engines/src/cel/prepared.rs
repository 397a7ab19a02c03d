//! A compiled program: its expressions, and their requirements.

use cel::common::ast::Expr;
use cel::common::value::Val;
use proviso_core::names;

use super::check::{KnownVariables, Purpose};
use super::expression::{Expression, with_context};
use super::json;
use super::source::{AuditAnnotation, Mutation, PatchType, Source, Validation, Variable};
use crate::CompileError;

/// The largest number of audit annotations, as in Kubernetes (`auditAnnotations`).
const MAX_ANNOTATIONS: usize = 20;

pub(super) struct Prepared {
    pub variables: Vec<Definition>,
    pub conditions: Vec<Condition>,
    pub annotations: Vec<Annotation>,
    pub mutations: Vec<Change>,
    /// The result of a request policy.
    pub result: Option<Expression>,
    pub params: Box<dyn Val>,
    /// True if any of the expressions reads `namespaceObject`.
    pub needs_namespace: bool,
    /// True if any of the expressions reads `authorizer`.
    pub needs_authorizer: bool,
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
        let Source { variables, validations, audit_annotations, mutations, result } = source;
        // Mutations and validations share the variables: if there are mutations, variables may construct objects too.
        let purpose = if mutations.is_empty() { Purpose::Value } else { Purpose::Mutation };
        let mut known = KnownVariables::new();
        let variables = variables.into_iter().map(|variable| define(&variable, purpose, &mut known));
        let variables = variables.collect::<Result<Vec<_>, _>>()?;
        let conditions = validations.into_iter().map(|validation| Condition::compile(validation, &known));
        let conditions = conditions.collect::<Result<Vec<_>, _>>()?;
        let annotations = annotate(&audit_annotations, &known)?;
        let mutations = mutations.into_iter().map(|Mutation { patch_type, expression }| {
            let expression = Expression::compile(&expression, Purpose::Mutation, &known);
            Ok(Change { patch_type, expression: expression.map_err(|error| with_context("mutations", error))? })
        });
        let mutations = mutations.collect::<Result<Vec<_>, _>>()?;
        let result = result.map(|source| Expression::compile(&source, Purpose::Value, &known)).transpose();
        let result = result.map_err(|error| with_context("result", error))?;
        let params = json::from_value(params)
            .map_err(|error| CompileError::Invalid(format!("the parameters are not valid: {error}")))?;
        let needs: Vec<_> = conditions
            .iter()
            .flat_map(|condition| [Some(&condition.expression), condition.message_expression.as_ref()])
            .flatten()
            .chain(annotations.iter().map(|annotation| &annotation.expression))
            .chain(mutations.iter().map(|change| &change.expression))
            .chain(&result)
            .map(|expression| expression.needs)
            .collect();
        let needs_namespace = needs.iter().any(|needs| needs.namespace);
        let needs_authorizer = needs.iter().any(|needs| needs.authorizer);
        Ok(Self { variables, conditions, annotations, mutations, result, params, needs_namespace, needs_authorizer })
    }

    /// Returns true if the program has no conditions, annotations or mutations.
    pub(super) fn is_empty(&self) -> bool {
        self.conditions.is_empty() && self.annotations.is_empty() && self.mutations.is_empty()
    }
}

fn define(variable: &Variable, purpose: Purpose, known: &mut KnownVariables) -> Result<Definition, CompileError> {
    let name = &variable.name;
    let subject = format!("variables[{name}]");
    let is_name = name.starts_with(|first: char| first.is_ascii_alphabetic() || first == '_')
        && name.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'_');
    if !is_name {
        let message =
            format!("{subject}: the name must consist of letters, digits and '_', and must not start with a digit");
        return Err(CompileError::Invalid(message));
    }
    let expression =
        Expression::compile(&variable.expression, purpose, known).map_err(|error| with_context(&subject, error))?;
    let is_type = match &expression.tree.expr {
        Expr::Call(call) => call.func_name == "type",
        _ => false,
    };
    if is_type {
        return Err(CompileError::Unsupported(format!("{subject}: the value of a variable cannot be a type")));
    }
    if known.insert(name.clone(), expression.needs).is_some() {
        return Err(CompileError::Invalid(format!("{subject}: the name is used twice")));
    }
    Ok(Definition { name: name.clone(), expression })
}

fn annotate(annotations: &[AuditAnnotation], known: &KnownVariables) -> Result<Vec<Annotation>, CompileError> {
    if annotations.len() > MAX_ANNOTATIONS {
        let message = format!(
            "auditAnnotations: there are {} annotations; at most {MAX_ANNOTATIONS} are allowed",
            annotations.len()
        );
        return Err(CompileError::Invalid(message));
    }
    let mut prepared: Vec<Annotation> = Vec::new();
    for AuditAnnotation { key, value_expression } in annotations {
        let subject = format!("auditAnnotations[{key}]");
        if !names::is_name(key) {
            let message = format!(
                "{subject}: a key has at most 63 letters, digits, '-', '_' and '.', and starts and ends with a letter or digit"
            );
            return Err(CompileError::Invalid(message));
        }
        if prepared.iter().any(|annotation| annotation.key == *key) {
            return Err(CompileError::Invalid(format!("{subject}: the key is used twice")));
        }
        let expression = Expression::compile(value_expression, Purpose::Value, known);
        let expression = expression.map_err(|error| with_context(&subject, error))?;
        prepared.push(Annotation { key: key.clone(), expression });
    }
    Ok(prepared)
}

impl Condition {
    fn compile(validation: Validation, known: &KnownVariables) -> Result<Self, CompileError> {
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
            .map_err(|error| with_context("messageExpression", error))?;
        Ok(Self { expression, message, message_expression, reason, code })
    }
}
