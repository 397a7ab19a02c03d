//! What a module's rules are, and whether all that they use is there. regorus finds missing functions only
//! when it calls them, and takes data that is not there for undefined: both are refused before they can
//! lose a violation.

use std::collections::BTreeMap;

use regorus::unstable::{Expr, Module, Ref, Rule, RuleHead, Span};

use super::builtins::{self, guards};
use super::graph::{self, Fault, Node};
use super::syntax::{Part, at, name_of, parts, path, rule_parts, statement_parts};
use crate::CompileError;

/// What the interpreter spends on the evaluation of any rule, in units of weight.
const RULE: usize = 4;
/// What it spends on a comprehension or `every`.
const QUERY: usize = 2;

/// A module's package and the names of its rules.
#[derive(Debug)]
pub(super) struct Package<'a> {
    pub path: Vec<&'a str>,
    pub rules: BTreeMap<&'a str, RuleKind>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum RuleKind {
    /// With the number of its arguments.
    Function(usize),
    Value,
    /// Only ever true, or another scalar: no set or list.
    Scalar,
}

/// Reads a module's rules and checks what they use.
pub(super) fn inspect(module: &Module) -> Result<Package<'_>, CompileError> {
    for import in &module.imports {
        if path(&import.refr).first() == Some(&"data") {
            let message = "imports from data are not available: a policy is one module";
            return Err(CompileError::Unsupported(at(&import.span, message)));
        }
    }
    let mut rules = BTreeMap::new();
    for rule in &module.policy {
        if let Some(name) = path(name_of(rule)).first() {
            let kind = kind_of(rule);
            // One definition with a value makes the rule one: the others may be its default.
            rules.entry(*name).and_modify(|known: &mut RuleKind| *known = known.joined(kind)).or_insert(kind);
        }
    }
    let package = Package { path: path(&module.package.refr), rules };
    let mut nodes: BTreeMap<&str, Node<'_>> = BTreeMap::new();
    for rule in &module.policy {
        let (weight, needs) = Inspection::new(&package).rule(rule)?;
        if let Some(name) = path(name_of(rule)).first() {
            let node = nodes.entry(name).or_default();
            node.weight = node.weight.max(weight);
            node.needs.extend(&needs);
        }
    }
    graph::check(&nodes).map_err(|fault| {
        let (name, message) = match fault {
            Fault::Recursive(name) => (name, "needs itself (a local variable with a rule's name counts as that rule)"),
            Fault::Heavy(name) => (name, "is too long, together with the rules that it needs; split it"),
        };
        let rule = module.policy.iter().find(|rule| path(name_of(rule)).first() == Some(&name));
        let message = format!("rule {name} {message}");
        CompileError::Unsupported(rule.map_or_else(|| message.clone(), |rule| at(rule.span(), &message)))
    })?;
    Ok(package)
}

fn kind_of(rule: &Rule) -> RuleKind {
    match rule {
        Rule::Spec { head: RuleHead::Func { args, .. }, .. } => RuleKind::Function(args.len()),
        Rule::Default { args, .. } if !args.is_empty() => RuleKind::Function(args.len()),
        Rule::Default { value, .. } if is_scalar(value) => RuleKind::Scalar,
        // A longer name makes an object.
        Rule::Spec { head: RuleHead::Compr { refr, assign, .. }, bodies, .. } if path(refr).len() == 1 => {
            let mut assigned = assign.iter().chain(bodies.iter().filter_map(|body| body.assign.as_ref()));
            if assigned.all(|assign| is_scalar(&assign.value)) { RuleKind::Scalar } else { RuleKind::Value }
        }
        _ => RuleKind::Value,
    }
}

fn is_scalar(value: &Expr) -> bool {
    matches!(
        value,
        Expr::Bool { .. } | Expr::Null { .. } | Expr::Number { .. } | Expr::String { .. } | Expr::RawString { .. }
    )
}

impl RuleKind {
    fn joined(self, other: Self) -> Self {
        if self == Self::Scalar { other } else { self }
    }
}

struct Inspection<'a, 'p> {
    package: &'p Package<'a>,
    needs: Vec<&'a str>,
    /// The arguments of a function: each hides a rule of the same name.
    arguments: Vec<&'a str>,
    open: Vec<(Part<'a>, usize)>,
}

impl<'a, 'p> Inspection<'a, 'p> {
    fn new(package: &'p Package<'a>) -> Self {
        Self { package, needs: Vec::new(), arguments: Vec::new(), open: Vec::new() }
    }

    /// The rule's weight, and the rules that it needs.
    fn rule(mut self, rule: &'a Rule) -> Result<(usize, Vec<&'a str>), CompileError> {
        let mut weight = RULE;
        let mut deepest = 0;
        if let Rule::Spec { head: RuleHead::Func { args, .. }, .. } = rule {
            let names = args.iter().filter_map(|argument| match argument.as_ref() {
                Expr::Var { span, .. } => Some(span.text()),
                _ => None,
            });
            self.arguments.extend(names);
        }
        self.push(rule_parts(rule), 0);
        // Not recursive: a tree may be deep before its weight is known.
        while let Some((part, depth)) = self.open.pop() {
            deepest = deepest.max(depth);
            match part {
                Part::Expression(expression) => self.expression(expression, depth)?,
                Part::Query(query) => {
                    weight += QUERY + query.stmts.len();
                    for statement in &query.stmts {
                        self.push(statement_parts(statement), depth + 1);
                    }
                }
            }
        }
        Ok((weight + deepest, self.needs))
    }

    fn push(&mut self, parts: Vec<Part<'a>>, depth: usize) {
        self.open.extend(parts.into_iter().map(|part| (part, depth)));
    }

    fn expression(&mut self, expression: &'a Expr, depth: usize) -> Result<(), CompileError> {
        match expression {
            Expr::Call { span, fcn, params, .. } => {
                self.call(span, &path(fcn), params.len())?;
                check_pattern(span, &path(fcn), params)?;
                self.open.extend(params.iter().map(|parameter| (Part::Expression(parameter), depth + 1)));
                return Ok(());
            }
            Expr::Var { span, .. } => self.reference(span, &[span.text()])?,
            Expr::RefDot { span, .. } | Expr::RefBrack { span, .. } => {
                let names = path(expression);
                if names.first() == Some(&"data") {
                    self.reference(span, &names)?;
                    self.push_indexes(expression, depth);
                    return Ok(());
                }
            }
            _ => {}
        }
        self.push(parts(expression), depth + 1);
        Ok(())
    }

    /// The expressions in the brackets of a reference, without what it starts from.
    fn push_indexes(&mut self, mut reference: &'a Expr, depth: usize) {
        loop {
            match reference {
                Expr::RefDot { refr, .. } => reference = refr,
                Expr::RefBrack { refr, index, .. } => {
                    self.open.push((Part::Expression(index), depth + 1));
                    reference = refr;
                }
                _ => return,
            }
        }
    }

    fn reference(&mut self, span: &Span, names: &[&'a str]) -> Result<(), CompileError> {
        if names.first() != Some(&"data") {
            let is_rule = |name: &&&str| self.package.rules.contains_key(**name) && !self.arguments.contains(name);
            self.needs.extend(names.first().filter(is_rule));
            return Ok(());
        }
        if let Some([rule, ..]) = names[1..].strip_prefix(self.package.path.as_slice()) {
            self.needs.push(rule);
            return Ok(());
        }
        let message = if names.get(1) == Some(&"inventory") {
            "data.inventory is not available: policies that look at other objects are not supported yet".to_owned()
        } else {
            format!("{} is not available: a policy sees no data but the rules of its package", names.join("."))
        };
        Err(CompileError::Unsupported(at(span, &message)))
    }

    fn call(&mut self, span: &Span, names: &[&'a str], given: usize) -> Result<(), CompileError> {
        let name = names.join(".");
        let local = match names {
            [name] => Some(*name),
            ["data", names @ ..] => match names.strip_prefix(self.package.path.as_slice()) {
                Some([name]) => Some(*name),
                _ => None,
            },
            _ => None,
        };
        let rule = local.and_then(|name| Some((name, *self.package.rules.get(name)?)));
        let wanted = match rule {
            Some((name, RuleKind::Function(arguments))) => {
                self.needs.push(name);
                arguments
            }
            Some((name, RuleKind::Value | RuleKind::Scalar)) => {
                return Err(CompileError::Invalid(at(span, &format!("{name} is a rule, not a function"))));
            }
            None if name == "print" => return Ok(()),
            None => {
                let Some(arguments) = builtins::arity(&name) else {
                    let message = format!("there is no function {name} in the policy, nor a builtin of this name yet");
                    return Err(CompileError::Unsupported(at(span, &message)));
                };
                arguments
            }
        };
        // One more is an output: `f(x, y)` means `y = f(x)`.
        if given == wanted || given == wanted + 1 {
            return Ok(());
        }
        Err(CompileError::Invalid(at(span, &format!("{name} takes {wanted} arguments, not {given}"))))
    }
}

/// A regular expression that is written out is checked before it can deny every request.
fn check_pattern(span: &Span, names: &[&str], parameters: &[Ref<Expr>]) -> Result<(), CompileError> {
    let pattern = guards::pattern_of(&names.join(".")).and_then(|place| parameters.get(place));
    let Some(Expr::String { value, .. } | Expr::RawString { value, .. }) = pattern.map(AsRef::as_ref) else {
        return Ok(());
    };
    guards::pattern_is_valid(Some(value)).map_err(|why| CompileError::Invalid(at(span, &why)))
}
