//! The body of a policy as components get it, in the shape of ONAP's Policy API (`getConfig`), with its digest.

use std::fmt;
use std::str::FromStr;
use std::sync::Arc;

use serde::Deserialize;
use serde_json::{Value, json};
use sha2::{Digest as _, Sha256};

use super::delta::Entry;
use super::policy::{Candidate, ConfigurationPolicy, Version};
use super::text::canonical;
use crate::failure::Reason;
use crate::policy_id::PolicyId;

/// The maximum size of a policy body as compact JSON, in bytes: 512 kB, the limit of a value in Consul.
pub const MAX_BODY: usize = 512 * 1024;
/// The maximum depth of nested objects and lists in the content of a policy.
pub const MAX_DEPTH: usize = 64;

/// The SHA-256 of a policy body as compact JSON.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Digest([u8; 32]);

/// The error of a text that is not a digest.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("a digest is `sha256:` and 64 hexadecimal digits, not {0:?}")]
pub struct DigestError(String);

/// A policy body with its version. A clone is small: the components of a policy share the body.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Item(Arc<Inner>);

#[derive(Debug, PartialEq, Eq)]
struct Inner {
    version: Version,
    is_confidential: bool,
    body: Arc<str>,
    digest: Digest,
}

/// The error of a body that cannot be delivered. The last delivered body of the policy stays.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum BodyError {
    #[error(
        "the body of the policy {policy} has {size} bytes as JSON, at most {MAX_BODY} (512 KiB) are allowed: make `spec.configuration.content` smaller, or split it over several policies"
    )]
    TooLarge { policy: PolicyId, size: usize },
    #[error(
        "`spec.configuration.content` of the policy {policy} is nested more than {MAX_DEPTH} levels deep: nest its objects and lists less"
    )]
    TooDeep { policy: PolicyId },
}

/// The error of a stored text that is no policy body, for example after an edit by hand.
#[derive(Debug, thiserror::Error)]
pub enum StoredBodyError {
    #[error("the stored policy body is no JSON object with `policyVersion`: {0}")]
    Json(#[from] serde_json::Error),
    #[error("`policyVersion` of the stored policy body is {0:?}, which is no generation")]
    Version(String),
}

impl BodyError {
    #[must_use]
    pub fn reason(&self) -> Reason {
        match self {
            Self::TooLarge { .. } => Reason::new("BodyTooLarge"),
            Self::TooDeep { .. } => Reason::INVALID,
        }
    }
}

impl Item {
    /// Returns the body of a policy with this content, which is the member `config` of the body.
    ///
    /// # Errors
    /// Returns [`BodyError::TooDeep`] if the content is nested more than [`MAX_DEPTH`] levels deep, and [`BodyError::TooLarge`] if
    /// the body has more than [`MAX_BODY`] bytes.
    pub fn new(policy: &ConfigurationPolicy, content: &Value) -> Result<Self, BodyError> {
        let config = canonical(content, MAX_DEPTH).ok_or_else(|| BodyError::TooDeep { policy: policy.id.clone() })?;
        let version = &policy.version;
        let mut head = json!({
            "matchingConditions": policy.matching_conditions(),
            "policyConfigMessage": "Config Retrieved! ",
            "policyConfigStatus": "CONFIG_RETRIEVED",
            "policyName": policy_name(&policy.id, version),
            "policyVersion": version.generation.to_string(),
            "property": null,
            "responseAttributes": {},
            "type": "JSON",
        });
        if let Some(candidate) = &version.candidate {
            head["experiment"] = json!({"generation": candidate.generation, "name": candidate.experiment});
        }
        let head = canonical(&head, MAX_DEPTH).ok_or_else(|| BodyError::TooDeep { policy: policy.id.clone() })?;
        let body = format!("{{\"config\":{config},{}", &head[1..]);
        if body.len() > MAX_BODY {
            return Err(BodyError::TooLarge { policy: policy.id.clone(), size: body.len() });
        }
        Ok(Self::from_text(version.clone(), policy.is_confidential, body.into()))
    }

    /// Returns the item of a stored body. The version is read from the body.
    ///
    /// # Errors
    /// Returns [`StoredBodyError`] if the text is no policy body.
    pub fn read(text: &str, is_confidential: bool) -> Result<Self, StoredBodyError> {
        #[derive(Deserialize)]
        struct Head {
            #[serde(rename = "policyVersion")]
            version: String,
            experiment: Option<Experiment>,
        }
        #[derive(Deserialize)]
        struct Experiment {
            name: String,
            generation: i64,
        }
        let head: Head = serde_json::from_str(text)?;
        let generation = head.version.parse().map_err(|_| StoredBodyError::Version(head.version.clone()))?;
        let candidate =
            head.experiment.map(|Experiment { name, generation }| Candidate { experiment: name, generation });
        Ok(Self::from_text(Version { generation, candidate }, is_confidential, text.into()))
    }

    fn from_text(version: Version, is_confidential: bool, body: Arc<str>) -> Self {
        let digest = Digest::of(&body);
        Self(Arc::new(Inner { version, is_confidential, body, digest }))
    }

    #[must_use]
    pub fn version(&self) -> &Version {
        &self.0.version
    }

    /// Returns true if the body is stored in a Secret, and never part of a notification.
    #[must_use]
    pub fn is_confidential(&self) -> bool {
        self.0.is_confidential
    }

    /// Returns the body as compact JSON with sorted keys.
    #[must_use]
    pub fn body(&self) -> &Arc<str> {
        &self.0.body
    }

    /// Returns the version and the digest, by which two bodies of a policy are compared.
    #[must_use]
    pub fn entry(&self) -> Entry {
        Entry { version: self.0.version.clone(), digest: self.0.digest }
    }
}

/// Returns the `policyName` of a body: the policy id, the version and an extension. ONAP's clients cut the last two off to get the id.
fn policy_name(id: &PolicyId, version: &Version) -> String {
    format!("{id}.{}.xml", version.generation)
}

/// Returns the JSON that stands for a body whose content is not sent: the body is confidential, is larger than a message, or is not
/// known any more. The component reads the body from its `ConfigMap` or Secret, or by the REST API.
#[must_use]
pub fn reference(id: &PolicyId, version: &Version) -> Arc<str> {
    // An id and a number need no escapes in JSON.
    let name = policy_name(id, version);
    format!(r#"{{"configOmitted":true,"policyName":"{name}","policyVersion":"{}"}}"#, version.generation).into()
}

impl Digest {
    /// Returns the digest of this text.
    #[must_use]
    pub fn of(text: &str) -> Self {
        Self(Sha256::digest(text.as_bytes()).into())
    }
}

impl fmt::Display for Digest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("sha256:")?;
        self.0.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

impl fmt::Debug for Digest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl FromStr for Digest {
    type Err = DigestError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let error = || DigestError(text.chars().take(100).collect());
        let digits = text.strip_prefix("sha256:").filter(|digits| digits.len() == 64).ok_or_else(error)?;
        if !digits.bytes().all(|digit| matches!(digit, b'0'..=b'9' | b'a'..=b'f')) {
            return Err(error());
        }
        let mut bytes = [0; 32];
        for (index, byte) in bytes.iter_mut().enumerate() {
            *byte = u8::from_str_radix(&digits[2 * index..2 * index + 2], 16).map_err(|_| error())?;
        }
        Ok(Self(bytes))
    }
}

#[cfg(test)]
mod tests;
