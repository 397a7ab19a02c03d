//! The warning about a time limit that the policy server shortens.

use proviso_crds::PolicyServerSpec;
use serde_json::Value;

/// The default of `evaluation.timeoutSeconds`, in seconds.
const DEFAULT_TIMEOUT: u32 = 2;

/// Returns a warning if the policy server of this name gives a policy in a namespace less time than its spec wants.
pub(super) fn warning(name: &str, server: &PolicyServerSpec, spec: &Value) -> Option<String> {
    let wanted = spec["timeoutEvalSeconds"].as_u64()?;
    let evaluation = &server.evaluation;
    let limit = evaluation.namespaced_timeout_seconds.or(evaluation.timeout_seconds).unwrap_or(DEFAULT_TIMEOUT);
    (wanted > limit.into()).then(|| {
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
            (json!({}), json!(2), false),
            (json!({}), json!(3), true),
            (json!({}), json!(null), false),
            (json!({"timeoutSeconds": 5}), json!(5), false),
            (json!({"timeoutSeconds": 5, "namespacedTimeoutSeconds": 3}), json!(4), true),
            (json!({"namespacedTimeoutSeconds": 10}), json!(10), false),
        ] {
            let server = serde_json::from_value(json!({"evaluation": evaluation})).unwrap();
            let warning = warning("default", &server, &json!({"timeoutEvalSeconds": wanted}));
            assert_eq!(warning.is_some(), is_warned, "{evaluation} {wanted}");
        }
    }
}
