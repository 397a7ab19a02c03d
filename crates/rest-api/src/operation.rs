//! Long-running operations (AIP-151). The id of an operation encodes its target, so that its state can be computed from the
//! store. Operations are not stored, and so survive a restart.

use std::str::FromStr;

use base64::Engine as _;
use base64::prelude::BASE64_URL_SAFE_NO_PAD;
use proviso_core::PolicyId;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use crate::error::Error;
use crate::names::ExperimentName;

/// The effect of a method that returns an operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, Serialize)]
pub enum Effect {
    #[serde(rename = "c")]
    Create,
    #[serde(rename = "u")]
    Update,
    #[serde(rename = "d")]
    Delete,
    #[serde(rename = "s")]
    StartPreview,
    #[serde(rename = "p")]
    StopPreview,
    #[serde(rename = "m")]
    Commit,
}

impl Effect {
    fn as_str(self) -> &'static str {
        match self {
            Self::Create => "Create",
            Self::Update => "Update",
            Self::Delete => "Delete",
            Self::StartPreview => "StartPreview",
            Self::StopPreview => "StopPreview",
            Self::Commit => "Commit",
        }
    }
}

/// The state of an operation.
#[derive(Clone, Debug, PartialEq)]
pub enum Progress {
    /// The operation waits for the named event.
    Running(String),
    Done,
    Failed(Error),
}

/// The effect that an operation waits for, and its target.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AwaitedEffect {
    pub effect: Effect,
    pub policy: PolicyId,
    /// The name of the experiment. `None` means that the operation is about the policy.
    pub experiment: Option<String>,
    /// The uid of the awaited object: the policy for an operation about the policy and for [`Effect::Commit`], else the
    /// experiment.
    pub uid: String,
    /// The version of the awaited object after the effect ([`Meta::version`](crate::Meta::version)).
    pub version: String,
}

/// The wire format of an operation id.
#[derive(Deserialize, Serialize)]
struct Encoded(Effect, String, Option<String>, String, String);

impl AwaitedEffect {
    /// Returns the name of the experiment that the operation is about. `None` means that it is about the policy.
    #[must_use]
    pub fn experiment(&self) -> Option<ExperimentName> {
        let name = self.experiment.clone()?;
        Some(ExperimentName { policy: self.policy.clone(), name })
    }

    /// Returns the name of the resource that the operation is about.
    #[must_use]
    pub fn target(&self) -> String {
        self.experiment().map_or_else(|| format!("policies/{}", self.policy), |experiment| experiment.to_string())
    }

    /// Returns the id of the operation.
    #[must_use]
    pub fn id(&self) -> String {
        let encoded = Encoded(
            self.effect,
            self.policy.to_string(),
            self.experiment.clone(),
            self.uid.clone(),
            self.version.clone(),
        );
        // Serializing does not fail: the tuple has only strings.
        BASE64_URL_SAFE_NO_PAD.encode(serde_json::to_vec(&encoded).unwrap_or_default())
    }

    /// Returns the operation with this progress. `response` is the resource of a successful operation; `None` means that
    /// the method returns no resource, or that the resource no longer exists.
    #[must_use]
    pub(crate) fn operation(&self, progress: &Progress, response: Option<Value>) -> Value {
        let kind = if self.experiment.is_some() { "PolicyExperiment" } else { "Policy" };
        let metadata = format!("type.googleapis.com/proviso.v1.{}{kind}Metadata", self.effect.as_str());
        let mut operation = json!({
            "name": format!("operations/{}", self.id()),
            "metadata": {"@type": metadata, "target": self.target()},
            "done": !matches!(progress, Progress::Running(_)),
        });
        match progress {
            Progress::Running(message) => operation["metadata"]["waitsFor"] = json!(message),
            Progress::Done => operation["response"] = self.response(kind, response),
            Progress::Failed(error) => operation["error"] = error.to_status(),
        }
        operation
    }

    fn response(&self, kind: &str, resource: Option<Value>) -> Value {
        let deletes_policy = self.effect == Effect::Delete && self.experiment.is_none();
        if self.effect == Effect::Commit || deletes_policy {
            return json!({"@type": "type.googleapis.com/google.protobuf.Empty", "value": {}});
        }
        // A deleted experiment is no longer stored, so only its names and its uid are known.
        let deleted =
            || json!({"name": self.target(), "uid": self.uid, "policy": {"name": format!("policies/{}", self.policy)}});
        let mut response = resource.unwrap_or_else(deleted);
        response["@type"] = json!(format!("type.googleapis.com/proviso.v1.{kind}"));
        response
    }
}

impl FromStr for AwaitedEffect {
    type Err = Error;

    fn from_str(id: &str) -> Result<Self, Self::Err> {
        let decoded = BASE64_URL_SAFE_NO_PAD.decode(id).ok();
        let encoded = decoded.and_then(|json| serde_json::from_slice(&json).ok());
        let unknown = || Error::not_found(&format!("operations/{}", id.chars().take(100).collect::<String>()));
        let Encoded(effect, policy, experiment, uid, version) = encoded.ok_or_else(unknown)?;
        let experiment_is_named = match effect {
            Effect::StartPreview | Effect::StopPreview | Effect::Commit => experiment.is_some(),
            Effect::Create | Effect::Update | Effect::Delete => true,
        };
        let is_name = |name: &String| proviso_core::policy_id::check_name(name).is_ok();
        if !experiment_is_named || !experiment.as_ref().is_none_or(is_name) {
            return Err(unknown());
        }
        Ok(Self { effect, policy: policy.parse().map_err(|_| unknown())?, experiment, uid, version })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::error::Code;
    use proptest::prelude::*;

    fn awaited(effect: Effect, experiment: Option<&str>) -> AwaitedEffect {
        AwaitedEffect {
            effect,
            policy: "cluster.a".parse().unwrap(),
            experiment: experiment.map(ToOwned::to_owned),
            uid: "u".into(),
            version: "3".into(),
        }
    }

    #[test]
    fn an_operation_id_decodes_to_the_same_operation() {
        for awaited in [awaited(Effect::Create, None), awaited(Effect::Commit, Some("e"))] {
            assert_eq!(awaited.id().parse(), Ok(awaited));
        }
        // A commit without an experiment is not valid.
        assert_eq!(awaited(Effect::Commit, None).id().parse::<AwaitedEffect>().unwrap_err().code, Code::NotFound);
    }

    #[test]
    fn each_effect_has_the_response_and_metadata_type_that_aip_236_names() {
        for (effect, response) in [
            (Effect::Create, "proviso.v1.PolicyExperiment"),
            (Effect::Update, "proviso.v1.PolicyExperiment"),
            (Effect::Delete, "proviso.v1.PolicyExperiment"),
            (Effect::StartPreview, "proviso.v1.PolicyExperiment"),
            (Effect::StopPreview, "proviso.v1.PolicyExperiment"),
            (Effect::Commit, "google.protobuf.Empty"),
        ] {
            let operation = awaited(effect, Some("e")).operation(&Progress::Done, None);
            assert_eq!(operation["response"]["@type"], format!("type.googleapis.com/{response}"));
            let metadata = format!("type.googleapis.com/proviso.v1.{}PolicyExperimentMetadata", effect.as_str());
            assert_eq!(operation["metadata"]["@type"], metadata);
            assert_eq!(operation["done"], true);
        }
        let failed = Progress::Failed(Error::not_found("x"));
        let operation = awaited(Effect::Create, None).operation(&failed, None);
        assert_eq!((&operation["error"]["code"], operation.get("response")), (&json!(5), None));
    }

    proptest! {
        #[test]
        fn decoding_an_operation_id_never_panics(id in ".{0,80}", json in ".{0,80}") {
            let _ = id.parse::<AwaitedEffect>();
            let _ = BASE64_URL_SAFE_NO_PAD.encode(json).parse::<AwaitedEffect>();
        }
    }
}
