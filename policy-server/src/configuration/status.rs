//! The facts of the status of a subscription that only the folder knows. `proviso_delivery::status` computes the status.

use jiff::Timestamp;
use proviso_core::configuration::Resolution;
use proviso_core::{Failure, PolicyId};
use proviso_crds::conditions::Conditions as _;
use proviso_crds::{ConditionState, ConditionType, PolicySubscriptionStatus, reasons};
use proviso_delivery::status::canary_warnings;
use proviso_programs::templates::RenderError;

/// The failures of a resolution, and the reasons why selectors select nothing.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Findings {
    pub failures: Vec<Failure>,
    pub warnings: Vec<Failure>,
}

impl Findings {
    /// Returns the findings of a resolution. `hidden` are the policies that the component keeps, because a document of the folder that
    /// cannot be read may have them.
    #[must_use]
    pub fn new(resolution: &Resolution, bodies: &[(PolicyId, RenderError)], hidden: &[PolicyId]) -> Self {
        let bodies = bodies.iter().map(|(id, error)| Failure::new(error.reason(), format!("the policy {id}: {error}")));
        let hidden = hidden.first().map(|id| {
            let message = format!(
                "{} policies such as {id} may be in a document of the folder that cannot be read: repair the document, see /readyz?verbose",
                hidden.len()
            );
            Failure::new(reasons::POLICY_UNREADABLE, message)
        });
        Self {
            failures: resolution.failures().chain(bodies).chain(hidden).collect(),
            warnings: resolution.warnings().chain(canary_warnings(resolution)).collect(),
        }
    }
}

/// Returns the status of a subscription that has no deliveries, for this reason.
#[must_use]
pub fn undelivered(before: &PolicySubscriptionStatus, failure: &Failure) -> PolicySubscriptionStatus {
    let state = ConditionState::from(failure.clone());
    let condition = state.into_condition(ConditionType::Delivered, &before.conditions, None, Timestamp::now());
    PolicySubscriptionStatus { conditions: vec![condition], ..before.clone() }
}

/// Returns true if the component has acknowledged every policy that it should have.
#[must_use]
pub fn is_delivered(status: &PolicySubscriptionStatus) -> bool {
    status.conditions.is_true(ConditionType::Delivered)
}

#[cfg(test)]
mod tests {
    use proviso_core::configuration::{Catalog, CompiledSubscription, Subscription, resolve};

    use super::*;

    #[test]
    fn policies_that_an_unreadable_document_may_have_are_a_failure() {
        let subscription = CompiledSubscription::new(&Subscription::default());
        let resolution = resolve(&subscription, &Catalog::default());
        assert_eq!(Findings::new(&resolution, &[], &[]), Findings::default());
        let hidden = Findings::new(&resolution, &[], &["cluster.a".parse().unwrap()]);
        let [failure] = &hidden.failures[..] else { panic!("{hidden:?}") };
        assert!(failure.reason == reasons::POLICY_UNREADABLE && failure.message.contains("cluster.a"), "{failure:?}");
    }
}
