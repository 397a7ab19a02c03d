//! The difference between an experiment and its policy.

use crate::changes::diff;
use crate::error::Error;
use crate::objects::{ExperimentObject, PolicyObject};
use crate::render;

/// Renders the changes that a commit would make.
///
/// # Errors
/// When a spec cannot be written as YAML.
pub(super) fn difference(experiment: &ExperimentObject, policy: &PolicyObject) -> Result<String, Error> {
    let new = format!("{} (experiment)", experiment.id);
    let difference = diff((&policy.name_of(policy.generation), &policy.spec), (&new, &experiment.spec))?;
    Ok(if difference.is_empty() {
        format!("No differences: {} has the spec of {}.\n", experiment.id, policy.id)
    } else {
        render::coloured(&difference)
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::objects::tests::{active, experiment, policy};
    use serde_json::Value;

    #[test]
    fn a_difference_is_from_the_newest_policy_to_the_experiment() {
        let (mut experiment, policy) = (experiment(1, &Value::Null), policy(2, &active(2)));
        let text = difference(&experiment, &policy).unwrap();
        let text = anstream::adapter::strip_str(&text).to_string();
        let heads = "--- ns.team.labels generation 2 (live, newest)\n+++ ns.team.stricter (experiment)\n";
        assert!(text.starts_with(heads) && text.ends_with("-  label: owner\n+  label: team\n"), "{text}");
        experiment.spec = policy.spec.clone();
        let same = "No differences: ns.team.stricter has the spec of ns.team.labels.\n";
        assert_eq!(difference(&experiment, &policy).unwrap(), same);
    }
}
