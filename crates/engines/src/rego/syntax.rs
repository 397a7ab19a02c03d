//! Helpers for regorus' syntax trees: the parts of expressions, the names in references, the positions in messages.

use regorus::Value;
use regorus::unstable::{Expr, Literal, LiteralStmt, Query, Rule, RuleHead, Span};

/// The name of the main module of a policy. Messages omit it.
pub(super) const MAIN: &str = "policy.rego";

/// Returns a message with the position of a span before it.
pub(super) fn at(span: &Span, message: &str) -> String {
    let position = format!("line {}, column {}: {message}", span.line, span.col);
    match span.source.file().as_str() {
        MAIN => position,
        library => format!("{library}, {position}"),
    }
}

/// A part of an expression, a statement or a rule.
pub(super) enum Part<'a> {
    Expression(&'a Expr),
    Query(&'a Query),
}

/// Returns the direct parts of an expression.
pub(super) fn parts(expression: &Expr) -> Vec<Part<'_>> {
    match expression {
        Expr::Array { items, .. } | Expr::Set { items, .. } => {
            items.iter().map(|item| Part::Expression(item)).collect()
        }
        Expr::Object { fields, .. } => {
            fields.iter().flat_map(|(_, key, value)| [Part::Expression(key), Part::Expression(value)]).collect()
        }
        Expr::ArrayCompr { term, query, .. } | Expr::SetCompr { term, query, .. } => {
            vec![Part::Expression(term), Part::Query(query)]
        }
        Expr::ObjectCompr { key, value, query, .. } => {
            vec![Part::Expression(key), Part::Expression(value), Part::Query(query)]
        }
        Expr::Call { fcn, params, .. } => {
            let mut parts = vec![Part::Expression(fcn)];
            parts.extend(params.iter().map(|parameter| Part::Expression(parameter)));
            parts
        }
        Expr::UnaryExpr { expr, .. } => vec![Part::Expression(expr)],
        Expr::RefDot { refr, .. } => vec![Part::Expression(refr)],
        Expr::RefBrack { refr, index, .. } => vec![Part::Expression(refr), Part::Expression(index)],
        Expr::BinExpr { lhs, rhs, .. }
        | Expr::BoolExpr { lhs, rhs, .. }
        | Expr::ArithExpr { lhs, rhs, .. }
        | Expr::AssignExpr { lhs, rhs, .. } => vec![Part::Expression(lhs), Part::Expression(rhs)],
        Expr::Membership { key, value, collection, .. } => {
            key.iter().chain([value, collection]).map(|part| Part::Expression(part)).collect()
        }
        _ => Vec::new(),
    }
}

/// Returns the direct parts of a statement.
pub(super) fn statement_parts(statement: &LiteralStmt) -> Vec<Part<'_>> {
    let mut parts = match &statement.literal {
        Literal::SomeVars { .. } => Vec::new(),
        Literal::SomeIn { key, value, collection, .. } => {
            key.iter().chain([value, collection]).map(|part| Part::Expression(part)).collect()
        }
        Literal::Expr { expr, .. } | Literal::NotExpr { expr, .. } => vec![Part::Expression(expr)],
        Literal::Every { domain, query, .. } => vec![Part::Expression(domain), Part::Query(query)],
    };
    parts.extend(modifier_parts(statement));
    parts
}

/// Returns the targets and the values of the `with` modifiers of a statement.
pub(super) fn modifier_parts(statement: &LiteralStmt) -> impl Iterator<Item = Part<'_>> {
    let modifiers = statement.with_mods.iter();
    modifiers.flat_map(|modifier| [Part::Expression(&modifier.refr), Part::Expression(&modifier.r#as)])
}

/// Returns the direct parts of a rule, without the reference that names it.
pub(super) fn rule_parts(rule: &Rule) -> Vec<Part<'_>> {
    match rule {
        Rule::Default { value, .. } => vec![Part::Expression(value)],
        Rule::Spec { head, bodies, .. } => {
            let mut parts = Vec::new();
            let assign = match head {
                RuleHead::Compr { assign, .. } => assign,
                RuleHead::Set { key, .. } => {
                    parts.extend(key.iter().map(|key| Part::Expression(key)));
                    &None
                }
                RuleHead::Func { args, assign, .. } => {
                    parts.extend(args.iter().map(|argument| Part::Expression(argument)));
                    assign
                }
            };
            parts.extend(assign.iter().map(|assign| Part::Expression(&assign.value)));
            for body in bodies {
                parts.extend(body.assign.iter().map(|assign| Part::Expression(&assign.value)));
                parts.push(Part::Query(&body.query));
            }
            parts
        }
    }
}

/// Returns the reference that names a rule.
pub(super) fn name_of(rule: &Rule) -> &Expr {
    match rule {
        Rule::Default { refr, .. } => refr,
        Rule::Spec { head, .. } => match head {
            RuleHead::Compr { refr, .. } | RuleHead::Set { refr, .. } | RuleHead::Func { refr, .. } => refr,
        },
    }
}

/// Returns the names of a reference from its root to the first part that is not constant: `input`, `a`, `b` for
/// `input.a["b"][x].c`. The list is empty if the expression is not a reference.
pub(super) fn path(expression: &Expr) -> Vec<&str> {
    let mut backwards = Vec::new();
    let mut reference = expression;
    loop {
        match reference {
            Expr::Var { span, .. } => {
                backwards.push(Some(span.text()));
                break;
            }
            Expr::RefDot { refr, field, .. } => {
                backwards.push(Some(field.0.text()));
                reference = refr;
            }
            Expr::RefBrack { refr, index, .. } => {
                backwards.push(match index.as_ref() {
                    Expr::String { value: Value::String(text), .. } => Some(text.as_ref()),
                    _ => None,
                });
                reference = refr;
            }
            _ => return Vec::new(),
        }
    }
    backwards.into_iter().rev().map_while(|name| name).collect()
}

/// Returns the text of a path as Rego has it: `dcm.policy["3f2c-1"].result`. Keys that are no names are in brackets.
pub(super) fn to_text(path: &[&str]) -> String {
    let is_name = |key: &str| {
        key.starts_with(|first: char| first.is_ascii_alphabetic() || first == '_')
            && key.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'_')
    };
    let mut text = String::new();
    for key in path {
        match (is_name(key), text.is_empty()) {
            (true, true) => text.push_str(key),
            (true, false) => text.extend([".", key]),
            (false, _) => text.extend(["[", &serde_json::Value::from(*key).to_string(), "]"]),
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::to_text;

    #[test]
    fn keys_that_are_no_names_are_in_brackets() {
        for (path, text) in [
            (&["a", "b_2"][..], "a.b_2"),
            (&["dcm", "policy", "3f2c-1", "result"], r#"dcm.policy["3f2c-1"].result"#),
            (&["a", "b.c"], r#"a["b.c"]"#),
            (&["a", "\"]", ""], r#"a["\"]"][""]"#),
            (&["a", "é"], r#"a["é"]"#),
        ] {
            assert_eq!(to_text(path), text);
        }
    }
}
