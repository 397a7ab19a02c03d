//! The difference between the outcomes of two chains: with the live policy, and with a candidate in its place.

use json_patch::Patch;
use serde::Serialize;
use serde_json::Value;

use super::outcome::Outcome;
use super::provider::ProviderConstraints;

/// The difference between the outcome of an experiment and the live outcome of the same request. The default is no difference.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct RequestDivergence {
    /// Both statuses, if they differ.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub status: Option<Pair<&'static str>>,
    /// Both messages, if both outcomes refuse the request, with different messages.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub message: Option<Pair<Option<String>>>,
    /// The JSON Patch (RFC 6902) from the live payload to that of the experiment, if both outcomes allow the request.
    pub payload: Patch,
    /// Both service providers, if both outcomes allow the request, with different providers.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub provider: Option<Pair<Option<String>>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub provider_constraints: Option<Pair<ProviderConstraints>>,
    /// The fields whose merged constraints differ, if both outcomes allow the request.
    pub constraints: Vec<ConstraintDivergence>,
}

/// A value of the live outcome, and the one of the experiment.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Pair<T> {
    pub live: T,
    pub experiment: T,
}

/// The difference between the merged constraints of a field.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct ConstraintDivergence {
    pub field: String,
    /// The constraint; `None` if the field has none.
    #[serde(flatten)]
    pub constraint: Pair<Option<Value>>,
}

impl<T: PartialEq> Pair<T> {
    fn if_different(live: T, experiment: T) -> Option<Self> {
        (live != experiment).then_some(Self { live, experiment })
    }
}

impl RequestDivergence {
    /// Compares the outcome of an experiment with the live outcome of the same request. Payload, provider and constraints have an
    /// effect only if the request is allowed, so they are compared only then.
    #[must_use]
    pub fn between(live: &Outcome, experiment: &Outcome) -> Self {
        let status = Pair::if_different(live.decision.status(), experiment.decision.status());
        match (live.decision.is_allowed(), experiment.decision.is_allowed()) {
            (true, true) => Self {
                status,
                message: None,
                payload: json_patch::diff(&live.payload, &experiment.payload),
                provider: Pair::if_different(live.provider.clone(), experiment.provider.clone()),
                provider_constraints: Pair::if_different(
                    live.provider_constraints.clone(),
                    experiment.provider_constraints.clone(),
                ),
                constraints: differing_constraints(live, experiment),
            },
            (false, false) => {
                let message = Pair::if_different(live.decision.message(), experiment.decision.message());
                Self { status, message, ..Self::default() }
            }
            _ => Self { status, ..Self::default() },
        }
    }

    /// Returns true if the outcomes have the same effect.
    #[must_use]
    pub fn is_same(&self) -> bool {
        *self == Self::default()
    }
}

fn differing_constraints(live: &Outcome, experiment: &Outcome) -> Vec<ConstraintDivergence> {
    let only_experiment = experiment.constraints.keys().filter(|field| !live.constraints.contains_key(*field));
    let fields = live.constraints.keys().chain(only_experiment);
    let differing = fields.filter_map(|field| {
        let of = |outcome: &Outcome| outcome.constraints.get(field).cloned();
        let constraint = Pair::if_different(of(live), of(experiment))?;
        Some(ConstraintDivergence { field: field.clone(), constraint })
    });
    differing.collect()
}
