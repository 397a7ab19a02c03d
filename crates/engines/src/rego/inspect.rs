//! Collects the rules of a set of modules, and checks that the functions and the data that they use exist. regorus reports a
//! missing function only when it calls it, and treats missing data as undefined. Both could lose a violation, so that both are
//! refused here.

mod checks;

use std::collections::BTreeMap;

use regorus::unstable::{Expr, LiteralStmt, Module, Ref, Rule, RuleHead, Span};

use super::builtins;
use super::graph::{self, GraphError, Node};
use super::names::{Names, RuleKind, Scope};
use super::syntax::{Part, at, name_of, parts, path, rule_parts, statement_parts, to_text};
use crate::CompileError;
use checks::{KEY_IN_MESSAGE, calls_function, check_keywords, check_minus, check_pattern, missing_function_message};

/// The weight of the evaluation of any rule: the stack that the interpreter takes.
const RULE_WEIGHT: usize = 4;
/// The weight of a body, a comprehension or `every`.
const QUERY_WEIGHT: usize = 2;
/// The name of the document in `data` that holds the objects of the cluster.
pub(super) const INVENTORY: &str = "inventory";

/// The builtins whose result does not depend on their arguments alone.
const VARYING: &[&str] = &["opa.runtime", "rand.intn", "time.now_ns", "uuid.rfc4122"];

/// The documents in `data` that modules may read in addition to their rules.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Documents {
    None,
    /// `data.inventory`.
    Inventory,
    /// Any document, for queries.
    Any,
}

/// The package of the first module, with its rules.
#[derive(Debug)]
pub(super) struct Package<'a> {
    pub path: Vec<&'a str>,
    pub rules: BTreeMap<&'a str, RuleKind>,
    /// True if any of the modules reads `data.inventory`.
    pub uses_inventory: bool,
    /// The error of the first use of a function that reads a clock, random numbers or the process; `None` if there is none.
    pub varies: Option<String>,
}

/// Collects the rules of the modules, and checks the functions and the data that they use.
pub(super) fn inspect(modules: &[Ref<Module>], documents: Documents) -> Result<Package<'_>, CompileError> {
    let names = Names::of(modules);
    let mut nodes: BTreeMap<&str, Node<'_>> = BTreeMap::new();
    let mut places: BTreeMap<&str, &Span> = BTreeMap::new();
    let mut uses_inventory = false;
    let mut varies = None;
    for module in modules {
        let scope = Scope::of(module);
        for import in &module.imports {
            check_keywords(&import.span, &path(&import.refr))?;
            if let Some(data_path) = path(&import.refr).strip_prefix(&["data"])
                && !names.is_package_prefix(data_path)
            {
                check_document(&names, documents, &import.span, data_path)?;
            }
        }
        for rule in &module.policy {
            let mut inspection = Inspection::new(&names, &scope, documents);
            let weight = inspection.rule(rule)?;
            uses_inventory |= inspection.uses_inventory;
            varies = varies.or(inspection.varies);
            let Some(name) = path(name_of(rule)).first().copied() else { continue };
            let data_path: Vec<&str> = scope.package.iter().copied().chain([name]).collect();
            if let Some(known) = names.rule(&data_path) {
                places.entry(&known.name).or_insert(rule.span());
                let node = nodes.entry(&known.name).or_default();
                node.weight = node.weight.max(weight);
                node.needs.extend(&inspection.needs);
            }
        }
    }
    graph::check(&nodes).map_err(|error| {
        let (name, message) = match error {
            GraphError::Recursive(name) => {
                (name, "needs itself (a local variable with a rule's name counts as that rule)")
            }
            GraphError::TooHeavy(name) => (name, "is too long, together with the rules that it needs; split it"),
        };
        let message = format!("rule {name} {message}");
        CompileError::Unsupported(places.get(name).map_or_else(|| message.clone(), |span| at(span, &message)))
    })?;
    let path = modules.first().map(|module| path(&module.package.refr)).unwrap_or_default();
    let rules = names.of_package(&path);
    Ok(Package { path, rules, uses_inventory, varies })
}

/// Refuses a reference to data that does not exist.
fn check_document(
    names: &Names<'_>,
    documents: Documents,
    span: &Span,
    data_path: &[&str],
) -> Result<(), CompileError> {
    let is_inventory = data_path.first() == Some(&INVENTORY);
    let is_there = match documents {
        Documents::Any => true,
        Documents::Inventory if is_inventory => true,
        Documents::Inventory | Documents::None => names.is_known(data_path),
    };
    if is_there {
        return Ok(());
    }
    let message = if is_inventory {
        "data.inventory is not available: only policies of the dialect Gatekeeper have it".to_owned()
    } else {
        let data_path: Vec<&str> = std::iter::once("data").chain(data_path.iter().copied()).collect();
        format!(
            "{} is not available: a policy sees no data but the rules of its modules, and data.inventory",
            to_text(&data_path)
        )
    };
    Err(CompileError::Unsupported(at(span, &message)))
}

struct Inspection<'a, 'n, 's> {
    names: &'n Names<'a>,
    scope: &'s Scope<'a>,
    documents: Documents,
    needs: Vec<&'n str>,
    uses_inventory: bool,
    varies: Option<String>,
    /// The arguments of the inspected function: each hides a rule of the same name.
    arguments: Vec<&'a str>,
    /// The parts of the rule that are not inspected yet, with their depth.
    pending: Vec<(Part<'a>, usize)>,
    deepest: usize,
}

impl<'a, 'n, 's> Inspection<'a, 'n, 's> {
    fn new(names: &'n Names<'a>, scope: &'s Scope<'a>, documents: Documents) -> Self {
        let (needs, arguments, pending) = Default::default();
        Self { names, scope, documents, needs, uses_inventory: false, varies: None, arguments, pending, deepest: 0 }
    }

    /// Inspects a rule. Returns its weight.
    fn rule(&mut self, rule: &'a Rule) -> Result<usize, CompileError> {
        let mut weight = RULE_WEIGHT;
        if let Rule::Spec { head: RuleHead::Func { args, .. }, .. } = rule {
            let names = args.iter().filter_map(|argument| match argument.as_ref() {
                Expr::Var { span, .. } => Some(span.text()),
                _ => None,
            });
            self.arguments.extend(names);
        }
        self.push(rule_parts(rule), 0);
        // Not recursive: the tree may be too deep, and its weight is known only at the end.
        while let Some((part, depth)) = self.pending.pop() {
            self.deepest = self.deepest.max(depth);
            match part {
                Part::Expression(expression) => self.expression(expression, depth)?,
                Part::Query(query) => {
                    weight += QUERY_WEIGHT + query.stmts.len();
                    for statement in &query.stmts {
                        self.check_replacements(statement)?;
                        self.push(statement_parts(statement), depth + 1);
                    }
                }
            }
        }
        Ok(weight + self.deepest)
    }

    /// Refuses a `with` that replaces a function which the statement itself does not call. regorus replaces the function only in
    /// the calls of the statement: a rule that was evaluated before keeps its value.
    fn check_replacements(&self, statement: &LiteralStmt) -> Result<(), CompileError> {
        for modifier in &statement.with_mods {
            let target = path(&modifier.refr);
            let data_path = self.scope.resolve(self.names, &target);
            let is_function = match data_path.as_ref().and_then(|data_path| self.names.rule(data_path)) {
                Some(known) => matches!(known.kind, RuleKind::Function(_)),
                None => data_path.is_none() && target.first() != Some(&"input"),
            };
            if is_function && !calls_function(statement, &target) {
                let message = format!(
                    "`with` replaces the function {} in other rules than this one: that is not supported",
                    target.join(".")
                );
                return Err(CompileError::Unsupported(at(&modifier.span, &message)));
            }
        }
        Ok(())
    }

    fn push(&mut self, parts: Vec<Part<'a>>, depth: usize) {
        self.pending.extend(parts.into_iter().map(|part| (part, depth)));
    }

    fn expression(&mut self, expression: &'a Expr, depth: usize) -> Result<(), CompileError> {
        match expression {
            Expr::Call { fcn, params, .. } => {
                self.call(fcn.span(), &path(fcn), params.len())?;
                check_pattern(fcn.span(), &path(fcn), params)?;
                self.pending.extend(params.iter().map(|parameter| (Part::Expression(parameter), depth + 1)));
                return Ok(());
            }
            Expr::UnaryExpr { span, expr, .. } => check_minus(span, expr)?,
            Expr::Membership { span, key: Some(_), .. } => {
                return Err(CompileError::Unsupported(at(span, KEY_IN_MESSAGE)));
            }
            Expr::Var { span, .. } => self.reference(span, &[span.text()])?,
            Expr::RefDot { span, .. } | Expr::RefBrack { span, .. } => {
                let names = path(expression);
                if !names.is_empty() {
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

    /// Queues the expressions in the brackets of a reference, without the name that it starts with.
    fn push_indexes(&mut self, mut reference: &'a Expr, mut depth: usize) {
        loop {
            depth += 1;
            reference = match reference {
                Expr::RefDot { refr, .. } => refr,
                Expr::RefBrack { refr, index, .. } => {
                    self.pending.push((Part::Expression(index), depth));
                    refr
                }
                _ => break,
            };
        }
        // Each part of a reference is a level of its tree.
        self.deepest = self.deepest.max(depth);
    }

    fn reference(&mut self, span: &Span, reference: &[&'a str]) -> Result<(), CompileError> {
        if reference.first().is_some_and(|first| self.arguments.contains(first)) {
            return Ok(());
        }
        let Some(data_path) = self.scope.resolve(self.names, reference) else {
            // `with f as time.now_ns` refers to a function without a call.
            self.record_varying(span, &reference.join("."));
            return Ok(());
        };
        check_document(self.names, self.documents, span, &data_path)?;
        self.uses_inventory |= data_path.first() == Some(&INVENTORY);
        self.needs.extend(self.names.rules_of_value(&data_path).into_iter().map(|known| known.name.as_str()));
        Ok(())
    }

    fn record_varying(&mut self, span: &Span, name: &str) {
        if self.varies.is_none() && VARYING.contains(&name) {
            let message = format!("{name} has another result in each evaluation, and templates may not use it");
            self.varies = Some(at(span, &message));
        }
    }

    fn call(&mut self, span: &Span, names: &[&'a str], given: usize) -> Result<(), CompileError> {
        let name = names.join(".");
        let data_path = self.scope.resolve(self.names, names);
        let known = data_path.as_ref().and_then(|data_path| self.names.rule(data_path));
        let wanted = match known.map(|known| (known.kind, &known.name)) {
            Some((RuleKind::Function(arguments), data_path)) => {
                self.needs.push(data_path);
                arguments
            }
            Some((RuleKind::Value | RuleKind::Scalar, _)) => {
                return Err(CompileError::Invalid(at(span, &format!("{name} is a rule, not a function"))));
            }
            None if name == "print" => return Ok(()),
            None => {
                self.record_varying(span, &name);
                builtins::arity(&name)
                    .ok_or_else(|| CompileError::Unsupported(at(span, &missing_function_message(&name))))?
            }
        };
        // One more argument is an output: `f(x, y)` means `y = f(x)`.
        if given == wanted || given == wanted + 1 {
            return Ok(());
        }
        Err(CompileError::Invalid(at(span, &format!("{name} takes {wanted} arguments, not {given}"))))
    }
}
