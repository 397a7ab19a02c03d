//! The warning about a time limit that the policy server shortens.

use proviso_crds::PolicyServerSpec;

/// The default of `evaluation.timeoutSeconds`, in seconds.
const DEFAULT_TIMEOUT: u32 = 2;

/// Returns a warning if the policy server of this name gives a policy in a namespace less time than its spec wants.
/// `wanted` is its `timeoutEvalSeconds`.
pub(super) fn warning(name: &str, server: &PolicyServerSpec, wanted: Option<u32>) -> Option<String> {
    let wanted = wanted?;
    let evaluation = &server.evaluation;
    let limit = evaluation.namespaced_timeout_seconds.or(evaluation.timeout_seconds).unwrap_or(DEFAULT_TIMEOUT);
    (wanted > limit).then(|| {
        format!(
            "spec.timeoutEvalSeconds: is {wanted}, but the PolicyServer {name} gives policies in namespaces at most {limit} \
             seconds (spec.evaluation.namespacedTimeoutSeconds): evaluations end after {limit} seconds"
        )
    })
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_time_limit_above_that_of_the_server_is_warned_about() {
        for (evaluation, wanted, is_warned) in [
            (json!({}), Some(2), false),
            (json!({}), Some(3), true),
            (json!({}), None, false),
            (json!({"timeoutSeconds": 5}), Some(5), false),
            (json!({"timeoutSeconds": 5, "namespacedTimeoutSeconds": 3}), Some(4), true),
            (json!({"namespacedTimeoutSeconds": 10}), Some(10), false),
        ] {
            let server = serde_json::from_value(json!({"evaluation": evaluation})).unwrap();
            let warning = warning("default", &server, wanted);
            assert_eq!(warning.is_some(), is_warned, "{evaluation} {wanted:?}");
        }
    }
}
