//! The status of a PolicySubscription. It has the record of the deliveries, which survives a restart of the operator.

use std::collections::{BTreeMap, BTreeSet};

use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition, Time};
use proviso_core::PolicyId;
use proviso_core::configuration::{Change, Entries, Entry, Record, Rejection};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// The maximum number of changes in `pending`.
pub const MAX_PENDING: usize = 100;
/// The maximum length of a message of a component in the status, in bytes. The rest is cut off.
const MAX_REJECTION: usize = 1024;
/// The maximum size of all messages of a component in the status, in bytes. A component that rejects 2,000 policies would otherwise exceed
/// the size of an object.
const MAX_REJECTIONS: usize = 256 * 1024;

/// The status of a PolicySubscription.
#[derive(Clone, Debug, Default, PartialEq, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct PolicySubscriptionStatus {
    /// The `metadata.generation` that the conditions are about.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub observed_generation: Option<i64>,
    /// `Resolved`: every selector works. `Delivered`: the component has acknowledged every policy that it should have.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(extend("x-kubernetes-list-type" = "map", "x-kubernetes-list-map-keys" = ["type"]))]
    pub conditions: Vec<Condition>,
    /// The policies that the component has acknowledged, by id.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 6000), extend("x-kubernetes-list-type" = "atomic"))]
    pub policies: Vec<DeliveredPolicy>,
    /// The ids of the policies whose state in the component is not known, because an update of them was sent without a known result.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(extend("x-kubernetes-list-type" = "atomic"))]
    pub unconfirmed: Vec<String>,
    /// The changes that the component has rejected. They are not sent again until the policy changes, or until a resend.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(extend("x-kubernetes-list-type" = "atomic"))]
    pub rejected: Vec<RejectedChange>,
    /// The first 100 changes that the component does not have yet, by the id of the policy. A rejected change is one of them.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = MAX_PENDING), extend("x-kubernetes-list-type" = "atomic"))]
    pub pending: Vec<PendingChange>,
    /// The last update of the component.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub last_update: Option<LastUpdate>,
    /// The number of acknowledged policies and of policies that the component should have, as `3/4`, for a column of `kubectl get`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub summary: Option<String>,
    /// The value of the annotation `proviso.dev/resend` of the last resend that has begun.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 64))]
    pub observed_resend: Option<String>,
}

/// A policy that the component has acknowledged.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize, Serialize, JsonSchema)]
pub struct DeliveredPolicy {
    /// The id of the policy.
    pub id: String,
    /// The generation of the policy. For the candidate of an experiment: `<generation>/<experiment>/<generation of the experiment>`.
    pub version: String,
    /// The digest of the body: `sha256:` and 64 hexadecimal digits.
    pub digest: String,
}

/// A change that the component does not have yet.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize, Serialize, JsonSchema)]
pub struct PendingChange {
    /// The id of the policy.
    pub id: String,
    /// The version that the component should have, in the form of `policies[].version`. Absent if it should not have the policy.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub version: Option<String>,
}

/// A change that the component has rejected.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize, Serialize, JsonSchema)]
pub struct RejectedChange {
    /// The id of the policy.
    pub id: String,
    /// The version of the rejected body. Absent if the component rejected the removal of the policy.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub version: Option<String>,
    /// The digest of the rejected body. Absent if the component rejected the removal of the policy.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub digest: Option<String>,
    /// The answer of the component: at most 1 KiB.
    pub message: String,
}

/// An update of a component.
#[derive(Clone, Debug, PartialEq, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct LastUpdate {
    /// The UUID of the update, which is also in the key `event` of the ConfigMap.
    pub id: String,
    /// The time at which the operator began the update.
    pub time: Time,
    /// The result of the update. Absent while the update is in flight.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub result: Option<UpdateResult>,
    /// The error of an update that was not acknowledged.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub message: Option<String>,
}

/// The result of an update.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, Serialize, JsonSchema)]
pub enum UpdateResult {
    /// The component has the policies of the update.
    Acknowledged,
    /// The component keeps the policies that it had.
    Rejected,
    /// The result is not known: the update is sent again.
    Failed,
}

impl DeliveredPolicy {
    fn entry(&self) -> Option<(PolicyId, Entry)> {
        let entry = Entry { version: self.version.parse().ok()?, digest: self.digest.parse().ok()? };
        Some((self.id.parse().ok()?, entry))
    }
}

impl RejectedChange {
    fn rejection(&self) -> Option<(PolicyId, Rejection)> {
        let change = match (&self.version, &self.digest) {
            (Some(version), Some(digest)) => {
                Change::To(Entry { version: version.parse().ok()?, digest: digest.parse().ok()? })
            }
            (None, None) => Change::Removal,
            _ => return None,
        };
        Some((self.id.parse().ok()?, Rejection { change, message: self.message.clone() }))
    }
}

impl PolicySubscriptionStatus {
    /// Returns the record of the deliveries. An entry that is not readable, for example after an edit by hand, is left out: the policy is
    /// then sent again.
    #[must_use]
    pub fn record(&self) -> Record {
        let acknowledged: Entries = self.policies.iter().filter_map(DeliveredPolicy::entry).collect();
        let unconfirmed: BTreeSet<PolicyId> = self.unconfirmed.iter().filter_map(|id| id.parse().ok()).collect();
        let mut rejected: BTreeMap<PolicyId, Vec<Rejection>> = BTreeMap::new();
        for (id, rejection) in self.rejected.iter().filter_map(RejectedChange::rejection) {
            rejected.entry(id).or_default().push(rejection);
        }
        Record { acknowledged, unconfirmed, rejected }
    }

    /// Returns this status with another record of the deliveries.
    #[must_use]
    pub fn with_record(self, record: &Record) -> Self {
        let policies = record.acknowledged.iter().map(|(id, entry)| DeliveredPolicy {
            id: id.to_string(),
            version: entry.version.to_string(),
            digest: entry.digest.to_string(),
        });
        let count = record.rejected.values().map(Vec::len).sum::<usize>();
        let longest = MAX_REJECTION.min(MAX_REJECTIONS / count.max(1));
        let rejected = record.rejected.iter().flat_map(|(id, rejections)| {
            rejections.iter().map(move |Rejection { change, message }| {
                let entry = match change {
                    Change::To(entry) => Some(entry),
                    Change::Removal => None,
                };
                RejectedChange {
                    id: id.to_string(),
                    version: entry.map(|entry| entry.version.to_string()),
                    digest: entry.map(|entry| entry.digest.to_string()),
                    message: message[..message.floor_char_boundary(longest)].to_owned(),
                }
            })
        });
        Self {
            policies: policies.collect(),
            unconfirmed: record.unconfirmed.iter().map(ToString::to_string).collect(),
            rejected: rejected.collect(),
            ..self
        }
    }
}

#[cfg(test)]
mod tests {
    use proviso_core::configuration::{Candidate, Digest, Version};

    use super::*;

    fn id(name: &str) -> PolicyId {
        format!("cluster.{name}").parse().unwrap()
    }

    fn entry(text: &str) -> Entry {
        Entry { version: Version::of(3), digest: Digest::of(text) }
    }

    #[test]
    fn a_record_round_trips_through_the_status() {
        let candidate = Candidate { experiment: "more-memory".to_owned(), generation: 2 };
        let of_candidate =
            Entry { version: Version { generation: 3, candidate: Some(candidate) }, digest: Digest::of("c") };
        let rejection = |change| Rejection { change, message: "exit code 3".to_owned() };
        let record = Record {
            acknowledged: [(id("a"), entry("a")), (id("b"), of_candidate)].into(),
            unconfirmed: [id("b"), id("c")].into(),
            rejected: [
                (id("a"), vec![rejection(Change::To(entry("new"))), rejection(Change::To(entry("a")))]),
                (id("d"), vec![rejection(Change::Removal)]),
            ]
            .into(),
        };
        let status = PolicySubscriptionStatus::default().with_record(&record);
        assert_eq!(status.record(), record);
        let json = serde_json::to_value(&status).unwrap();
        assert_eq!(serde_json::from_value::<PolicySubscriptionStatus>(json).unwrap(), status);
        // An unreadable entry is left out, and the others stay.
        let mut edited = status;
        edited.policies[0].digest = "x".to_owned();
        assert_eq!(edited.record().acknowledged.into_keys().collect::<Vec<_>>(), [id("b")]);
    }

    #[test]
    fn long_messages_of_components_are_cut() {
        let rejection = Rejection { change: Change::Removal, message: "ä".repeat(MAX_REJECTION) };
        let record = Record { rejected: [(id("a"), vec![rejection])].into(), ..Record::default() };
        let status = PolicySubscriptionStatus::default().with_record(&record);
        assert_eq!(status.rejected[0].message.len(), MAX_REJECTION);
        let rejection = |number| {
            let rejection = Rejection { change: Change::Removal, message: "x".repeat(MAX_REJECTION) };
            (id(&format!("p{number}")), vec![rejection])
        };
        let record = Record { rejected: (0..2000).map(rejection).collect(), ..Record::default() };
        let status = PolicySubscriptionStatus::default().with_record(&record);
        assert!(serde_json::to_vec(&status).unwrap().len() < 512 * 1024);
        assert_eq!(status.record().rejected.len(), 2000);
    }
}
