//! The dependencies between rules. Rego forbids recursion, but regorus detects it only by a stack overflow, which would end
//! the process. This module refuses cycles, and chains of rules that need too much stack.

use std::collections::{BTreeMap, BTreeSet};

/// The largest weight of a chain of rules. A unit of weight takes up to 1.4 KiB of stack (measured in a development build).
/// The stack of a thread has 2 MiB.
const MAX_WEIGHT: usize = 800;

/// A rule: all definitions that share its name.
#[derive(Debug, Default)]
pub(super) struct Node<'a> {
    /// The stack that an evaluation of the rule takes, without the rules that it needs. The evaluation of statements and
    /// expressions is recursive.
    pub weight: usize,
    pub needs: BTreeSet<&'a str>,
}

/// The reason why the rules of a package cannot be evaluated.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum GraphError<'a> {
    /// The rule needs itself.
    Recursive(&'a str),
    /// The weight of the rule, together with the rules that it needs, is above the limit.
    TooHeavy(&'a str),
}

/// Refuses rules that need themselves, or too much stack.
pub(super) fn check<'a>(nodes: &BTreeMap<&'a str, Node<'a>>) -> Result<(), GraphError<'a>> {
    let mut waiting: BTreeMap<&str, usize> = BTreeMap::new();
    let mut needed_by: BTreeMap<&str, Vec<&'a str>> = BTreeMap::new();
    for (&name, node) in nodes {
        let needs = node.needs.iter().filter(|need| nodes.contains_key(*need));
        for need in needs.clone() {
            needed_by.entry(need).or_default().push(name);
        }
        waiting.insert(name, needs.count());
    }
    // A rule is weighed after all rules that it needs. The loop is not recursive, so that a long chain cannot overflow the
    // stack here.
    let mut ready: Vec<&str> = waiting.iter().filter(|(_, needs)| **needs == 0).map(|(name, _)| *name).collect();
    let mut heaviest_need: BTreeMap<&str, usize> = BTreeMap::new();
    while let Some(name) = ready.pop() {
        waiting.remove(name);
        let weight = nodes[name].weight.saturating_add(heaviest_need.get(name).copied().unwrap_or(0));
        for dependent in needed_by.get(name).into_iter().flatten() {
            if weight > MAX_WEIGHT {
                break;
            }
            let heaviest = heaviest_need.entry(dependent).or_default();
            *heaviest = weight.max(*heaviest);
            if let Some(needs) = waiting.get_mut(dependent) {
                *needs -= 1;
                if *needs == 0 {
                    ready.push(dependent);
                }
            }
        }
        if weight > MAX_WEIGHT {
            return Err(GraphError::TooHeavy(nodes.get_key_value(name).map_or("", |(name, _)| *name)));
        }
    }
    // Each rule that still waits is on a cycle, or needs a rule on a cycle. Following the needs ends on the cycle.
    let mut seen = BTreeSet::new();
    let mut next = waiting.keys().next().and_then(|name| nodes.get_key_value(name)).map(|(name, _)| *name);
    while let Some(name) = next {
        if !seen.insert(name) {
            return Err(GraphError::Recursive(name));
        }
        next = nodes[name].needs.iter().copied().find(|need| waiting.contains_key(need));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn nodes<'a>(edges: &[(&'a str, usize, &[&'a str])]) -> BTreeMap<&'a str, Node<'a>> {
        edges
            .iter()
            .map(|(name, weight, needs)| (*name, Node { weight: *weight, needs: needs.iter().copied().collect() }))
            .collect()
    }

    #[test]
    fn cycles_are_found_below_the_first_rule_too() {
        for (edges, expected) in [
            (nodes(&[("a", 1, &["b", "c"]), ("b", 1, &["c"]), ("c", 1, &["input"])]), Ok(())),
            (nodes(&[("a", 1, &["a"])]), Err(GraphError::Recursive("a"))),
            (nodes(&[("a", 1, &["b"]), ("b", 1, &["c"]), ("c", 1, &["b"])]), Err(GraphError::Recursive("b"))),
        ] {
            assert_eq!(check(&edges), expected);
        }
    }

    #[test]
    fn weight_is_summed_along_a_chain_but_not_over_siblings() {
        let half = MAX_WEIGHT / 2;
        assert_eq!(check(&nodes(&[("a", half, &["b"]), ("b", half, &[])])), Ok(()));
        assert_eq!(check(&nodes(&[("a", half, &["b"]), ("b", half + 1, &[])])), Err(GraphError::TooHeavy("a")));
        assert_eq!(check(&nodes(&[("a", 0, &["b", "c"]), ("b", MAX_WEIGHT, &[]), ("c", MAX_WEIGHT, &[])])), Ok(()));
    }
}
