//! The errors of actions on experiments.

use proviso_core::PolicyId;

/// The error of an action on an experiment.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ExperimentError {
    #[error(
        "{experiment} was not {}: this cluster does not serve actions.proviso.dev/v1alpha1{}",
        done(action), because(cause.as_ref())
    )]
    NoActions { experiment: PolicyId, action: &'static str, cause: Option<String> },
    #[error("{experiment} was not {}: {cause}", done(action))]
    Changed { experiment: PolicyId, action: &'static str, cause: String },
    #[error("{experiment} was not {}: {cause}", done(action))]
    Refused { experiment: PolicyId, action: &'static str, cause: String },
    #[error("{what} has changed: its etag is {is}, not {wanted}")]
    Etag { experiment: PolicyId, what: PolicyId, is: String, wanted: String },
    #[error("{experiment} is an experiment of {policy}, which does not exist")]
    NoPolicy { experiment: PolicyId, policy: PolicyId },
    #[error("{object} is being deleted")]
    Deleted { object: PolicyId },
}

fn done(action: &str) -> &'static str {
    match action {
        "start" => "started",
        "stop" => "stopped",
        "delete" => "deleted",
        _ => "committed",
    }
}

fn because(cause: Option<&String>) -> String {
    cause.map_or_else(String::new, |cause| format!(" now: {cause}"))
}

impl ExperimentError {
    /// Returns advice for the user; `None` if the message of the error has it.
    #[must_use]
    pub fn remedy(&self, program: &str) -> Option<String> {
        Some(match self {
            Self::NoActions { experiment, action, .. } => {
                let api = "The operator serves this API, unless the chart's `operator.aggregatedApi` is false: `kubectl get \
                           apiservice v1alpha1.actions.proviso.dev` shows its status.";
                format!("{api} {}", without_actions(experiment, action, program))
            }
            Self::Changed { experiment, .. } | Self::Etag { experiment, .. } => {
                format!("See the current differences: {program} experiment diff {experiment}.")
            }
            Self::NoPolicy { experiment, .. } => {
                format!("Create the policy, or delete the experiment: {program} experiment delete {experiment}.")
            }
            Self::Refused { .. } | Self::Deleted { .. } => return None,
        })
    }
}

/// Returns advice on how to do the same with kubectl, without the API.
fn without_actions(experiment: &PolicyId, action: &str, program: &str) -> String {
    let object = match experiment.namespace() {
        Some(namespace) => format!("policyexperiment {} -n {namespace}", experiment.name()),
        None => format!("clusterpolicyexperiment {}", experiment.name()),
    };
    let patch = |auto_start: bool| {
        format!("kubectl patch {object} --type merge -p '{{\"spec\":{{\"autoStart\":{auto_start}}}}}'")
    };
    match action {
        "start" => format!("Without it, `autoStart: true` in the experiment's spec starts it: {}", patch(true)),
        "stop" => format!(
            "Without it, `autoStart: false` stops an experiment that the operator started: {}; to stop any other \
             experiment, delete it: {program} experiment delete {experiment}",
            patch(false)
        ),
        _ => "Without it, put the experiment's spec.policy into the policy's spec, apply the policy, and delete the \
              experiment."
            .to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn without_the_actions_api_the_remedy_names_kubectl() {
        let experiment = PolicyId::namespaced("team", "stricter").unwrap();
        let error = |action, cause| ExperimentError::NoActions { experiment: experiment.clone(), action, cause };
        let start = error("start", None);
        let wanted = "ns.team.stricter was not started: this cluster does not serve actions.proviso.dev/v1alpha1";
        assert_eq!(start.to_string(), wanted);
        let patch = "kubectl patch policyexperiment stricter -n team --type merge -p '{\"spec\":{\"autoStart\":true}}'";
        assert!(start.remedy("proviso").unwrap().ends_with(patch), "{start:?}");
        let stop = error("stop", Some("service unavailable".to_owned()));
        assert!(stop.to_string().ends_with("v1alpha1 now: service unavailable"), "{stop}");
        assert!(stop.remedy("proviso").unwrap().contains("proviso experiment delete ns.team.stricter"), "{stop:?}");
        assert!(error("commit", None).remedy("proviso").unwrap().contains("apply the policy, and delete"));
    }
}
