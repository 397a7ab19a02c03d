//! The difference between the outcomes of two chains: with the live policy, and with a candidate in its place.

use std::collections::BTreeSet;

use serde::Serialize;
use serde_json::Value;

use super::outcome::Outcome;
use super::path::{FieldPath, shorten};
use super::provider::ProviderConstraints;

/// The maximum number of fields that a list names. The rest is counted.
const MAX_FIELDS: usize = 20;

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
    /// The fields of the payload that differ, if both outcomes allow the request.
    pub payload: FieldList,
    /// Both service providers, if both outcomes allow the request, with different providers.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub provider: Option<Pair<Option<String>>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub provider_constraints: Option<Pair<ProviderConstraints>>,
    /// The fields whose merged constraints differ, if both outcomes allow the request.
    pub constraints: Vec<ConstraintDivergence>,
}

/// The first fields that differ.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct FieldList {
    /// At most 20 fields. A long path is shortened.
    pub fields: Vec<String>,
    /// The number of the other fields.
    pub omitted: usize,
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

impl FieldList {
    pub(super) fn new(fields: impl IntoIterator<Item = String>) -> Self {
        let mut list = Self::default();
        fields.into_iter().for_each(|field| list.add(|| field));
        list
    }

    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.fields.is_empty()
    }

    /// Returns the list of the fields whose values differ. Only the paths that the list names are built: the paths of all fields can be
    /// many times larger than the payloads.
    fn between(live: &Value, experiment: &Value) -> Self {
        let mut list = Self::default();
        list.collect(live, experiment, &mut Vec::new());
        list
    }

    fn collect<'a>(&mut self, live: &'a Value, experiment: &'a Value, at: &mut Vec<&'a str>) {
        let (Value::Object(live), Value::Object(experiment)) = (live, experiment) else {
            if live != experiment {
                self.add(|| path(at));
            }
            return;
        };
        let keys: BTreeSet<&String> = live.keys().chain(experiment.keys()).collect();
        for key in keys {
            at.push(key);
            match (live.get(key), experiment.get(key)) {
                (Some(live), Some(experiment)) => self.collect(live, experiment, at),
                _ => self.add(|| path(at)),
            }
            at.pop();
        }
    }

    fn add(&mut self, field: impl FnOnce() -> String) {
        if self.fields.len() < MAX_FIELDS {
            self.fields.push(field());
        } else {
            self.omitted += 1;
        }
    }
}

/// Returns the path with these keys for people.
fn path(keys: &[&str]) -> String {
    let keys: Vec<_> = keys.iter().map(|key| shorten(key)).collect();
    shorten(&FieldPath::from_keys(&keys).to_string())
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
                payload: FieldList::between(&live.payload, &experiment.payload),
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
