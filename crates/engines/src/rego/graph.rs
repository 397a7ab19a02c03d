//! Which rule needs which. Rego has no recursion, but regorus finds out only when its stack overflows, which
//! would end the process: cycles are refused here, and so are chains of rules that need too much stack.

use std::collections::{BTreeMap, BTreeSet};

/// The heaviest chain of rules. A unit of weight takes up to 1.4 KiB of stack (measured, development build);
/// a thread has 2 MiB.
const MAX_WEIGHT: usize = 800;

/// A rule, by all definitions that share its name.
#[derive(Debug, Default)]
pub(super) struct Node<'a> {
    /// How much stack an evaluation of the rule takes by itself: statements and expressions are recursive.
    pub weight: usize,
    pub needs: BTreeSet<&'a str>,
}

/// Why the rules of a package cannot be evaluated.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Fault<'a> {
    /// The rule needs itself.
    Recursive(&'a str),
    /// The rule, with all that it needs, is too heavy.
    Heavy(&'a str),
}

/// Looks for rules that need themselves, or too much stack.
pub(super) fn check<'a>(nodes: &BTreeMap<&'a str, Node<'a>>) -> Result<(), Fault<'a>> {
    let mut waiting: BTreeMap<&str, usize> = BTreeMap::new();
    let mut needed_by: BTreeMap<&str, Vec<&'a str>> = BTreeMap::new();
    for (&name, node) in nodes {
        let needs = node.needs.iter().filter(|need| nodes.contains_key(*need));
        for need in needs.clone() {
            needed_by.entry(need).or_default().push(name);
        }
        waiting.insert(name, needs.count());
    }
    // Rules are weighed once everything they need is: no recursion here either.
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
            return Err(Fault::Heavy(nodes.get_key_value(name).map_or("", |(name, _)| *name)));
        }
    }
    // What still waits is on a cycle, or needs what is on one: walking along needs ends on the cycle.
    let mut seen = BTreeSet::new();
    let mut next = waiting.keys().next().and_then(|name| nodes.get_key_value(name)).map(|(name, _)| *name);
    while let Some(name) = next {
        if !seen.insert(name) {
            return Err(Fault::Recursive(name));
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
    fn cycles_are_found_wherever_they_are() {
        for (edges, expected) in [
            (nodes(&[("a", 1, &["b", "c"]), ("b", 1, &["c"]), ("c", 1, &["input"])]), Ok(())),
            (nodes(&[("a", 1, &["a"])]), Err(Fault::Recursive("a"))),
            (nodes(&[("a", 1, &["b"]), ("b", 1, &["c"]), ("c", 1, &["b"])]), Err(Fault::Recursive("b"))),
        ] {
            assert_eq!(check(&edges), expected);
        }
    }

    #[test]
    fn weight_adds_up_along_a_chain_and_not_across() {
        let half = MAX_WEIGHT / 2;
        assert_eq!(check(&nodes(&[("a", half, &["b"]), ("b", half, &[])])), Ok(()));
        assert_eq!(check(&nodes(&[("a", half, &["b"]), ("b", half + 1, &[])])), Err(Fault::Heavy("a")));
        assert_eq!(check(&nodes(&[("a", 0, &["b", "c"]), ("b", MAX_WEIGHT, &[]), ("c", MAX_WEIGHT, &[])])), Ok(()));
    }
}
