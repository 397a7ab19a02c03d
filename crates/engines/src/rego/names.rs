//! Resolves the names in a set of modules. Each rule has one path in `data`. Modules write it relative to their package and
//! their imports.

use std::collections::BTreeMap;

use regorus::unstable::{Expr, Module, Ref, Rule, RuleHead};

use super::syntax::{name_of, path, to_text};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum RuleKind {
    /// A function with this number of arguments.
    Function(usize),
    Value,
    /// A rule whose value is always `true` or another scalar, never a set or a list.
    Scalar,
}

/// A rule: all definitions that share its name.
#[derive(Debug)]
pub(super) struct RuleInfo {
    pub kind: RuleKind,
    /// The path below `data`, such as `a.b.rule`.
    pub name: String,
}

/// The rules of all modules, by their paths below `data`.
#[derive(Debug, Default)]
pub(super) struct Names<'a> {
    rules: BTreeMap<Vec<&'a str>, RuleInfo>,
    packages: Vec<Vec<&'a str>>,
}

/// The package and the imports of a module, which its references are relative to.
#[derive(Debug)]
pub(super) struct Scope<'a> {
    pub package: Vec<&'a str>,
    imports: BTreeMap<&'a str, Vec<&'a str>>,
}

impl<'a> Names<'a> {
    pub(super) fn of(modules: &'a [Ref<Module>]) -> Self {
        let mut names = Self::default();
        for module in modules {
            let package = path(&module.package.refr);
            for rule in &module.policy {
                let Some(name) = path(name_of(rule)).first().copied() else { continue };
                let kind = kind_of(rule);
                let data_path: Vec<&str> = package.iter().copied().chain([name]).collect();
                let joined = to_text(&data_path);
                // A scalar definition may be only the default of a rule that has other values.
                let known = names.rules.entry(data_path).or_insert(RuleInfo { kind, name: joined });
                known.kind = known.kind.joined(kind);
            }
            names.packages.push(package);
        }
        names
    }

    /// Returns the rules of a package, by their short names.
    pub(super) fn of_package(&self, package: &[&str]) -> BTreeMap<&'a str, RuleKind> {
        let inside = |data_path: &Vec<&'a str>| data_path.len() == package.len() + 1 && data_path.starts_with(package);
        let rules = self.rules.iter().filter(|(data_path, _)| inside(data_path));
        rules.filter_map(|(data_path, known)| Some((*data_path.last()?, known.kind))).collect()
    }

    pub(super) fn rule(&self, data_path: &[&'a str]) -> Option<&RuleInfo> {
        self.rules.get(data_path)
    }

    /// Returns the rules that the value at a path consists of: the rule at the path or above it, otherwise all rules below it.
    pub(super) fn rules_of_value<'n>(&'n self, data_path: &[&'a str]) -> Vec<&'n RuleInfo> {
        let above = (1..=data_path.len()).find_map(|length| self.rules.get(&data_path[..length]));
        if let Some(known) = above {
            return vec![known];
        }
        let from = self.rules.range(data_path.to_vec()..);
        from.take_while(|(rule, _)| rule.starts_with(data_path)).map(|(_, known)| known).collect()
    }

    /// Returns true if a path is a package, or inside of one.
    pub(super) fn is_known(&self, data_path: &[&str]) -> bool {
        self.packages.iter().any(|package| data_path.starts_with(package))
    }

    /// Returns true if a package begins with this path.
    pub(super) fn is_package_prefix(&self, data_path: &[&str]) -> bool {
        !data_path.is_empty() && self.packages.iter().any(|package| package.starts_with(data_path))
    }
}

impl<'a> Scope<'a> {
    pub(super) fn of(module: &'a Module) -> Self {
        let mut imports = BTreeMap::new();
        for import in &module.imports {
            let data_path = path(&import.refr);
            let alias = import.r#as.as_ref().map_or_else(|| data_path.last().copied(), |alias| Some(alias.text()));
            imports.extend(alias.map(|alias| (alias, data_path)));
        }
        Self { package: path(&module.package.refr), imports }
    }

    /// Returns the path below `data` that a reference names; `None` if the reference is not part of `data`.
    pub(super) fn resolve(&self, names: &Names<'a>, reference: &[&'a str]) -> Option<Vec<&'a str>> {
        let (first, rest) = reference.split_first()?;
        if *first == "data" {
            return Some(rest.to_vec());
        }
        let own: Vec<&str> = self.package.iter().copied().chain([*first]).collect();
        if names.rule(&own).is_some() {
            return Some(own.into_iter().chain(rest.iter().copied()).collect());
        }
        match self.imports.get(first)?.split_first()? {
            (&"data", data_path) => Some(data_path.iter().chain(rest).copied().collect()),
            _ => None,
        }
    }
}

impl RuleKind {
    fn joined(self, other: Self) -> Self {
        if self == Self::Scalar { other } else { self }
    }
}

fn kind_of(rule: &Rule) -> RuleKind {
    match rule {
        Rule::Spec { head: RuleHead::Func { args, .. }, .. } => RuleKind::Function(args.len()),
        Rule::Default { args, .. } if !args.is_empty() => RuleKind::Function(args.len()),
        Rule::Default { value, .. } if is_scalar(value) => RuleKind::Scalar,
        // A rule with a name of several parts defines an object.
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
