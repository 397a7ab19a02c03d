//! What guests send: JSON in `snake_case`, as Kubewarden's SDKs write it. Fields of newer SDKs are refused where to ignore one
//! would be to answer another question.

use std::collections::{BTreeMap, BTreeSet};

use k8s_openapi::api::authorization::v1::{NonResourceAttributes, ResourceAttributes, SubjectAccessReviewSpec};
use serde::Deserialize;
use serde::de::DeserializeOwned;

use crate::error::AskError;
use crate::kind::Kind;

/// `kubernetes/list_resources_by_namespace` and `kubernetes/list_resources_all`, the latter without a namespace.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct List {
    pub api_version: String,
    pub kind: String,
    #[serde(default)]
    pub namespace: Option<String>,
    #[serde(default)]
    pub label_selector: Option<String>,
    #[serde(default)]
    pub field_selector: Option<String>,
    #[serde(default)]
    pub field_masks: Option<BTreeSet<String>>,
}

/// `kubernetes/get_resource`.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Get {
    pub api_version: String,
    pub kind: String,
    pub name: String,
    #[serde(default)]
    pub namespace: Option<String>,
    #[serde(default)]
    pub disable_cache: bool,
    #[serde(default)]
    pub field_masks: Option<BTreeSet<String>>,
}

/// `kubernetes/can_i`.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct CanI {
    pub subject_access_review: Review,
    #[serde(default)]
    pub disable_cache: bool,
}

/// Who, and what: exactly one of the two kinds of attributes.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Review {
    #[serde(default)]
    pub user: String,
    #[serde(default)]
    pub groups: Option<Vec<String>>,
    #[serde(default)]
    pub uid: Option<String>,
    /// What authorizers may narrow by.
    #[serde(default)]
    pub extra: Option<BTreeMap<String, Vec<String>>>,
    #[serde(default)]
    pub resource_attributes: Option<Attributes>,
    /// Of URLs that are of no resource, such as `/healthz`.
    #[serde(default)]
    pub non_resource_attributes: Option<PathAttributes>,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Attributes {
    #[serde(default)]
    pub group: Option<String>,
    #[serde(default)]
    pub name: Option<String>,
    #[serde(default)]
    pub namespace: Option<String>,
    #[serde(default)]
    pub resource: String,
    #[serde(default)]
    pub subresource: Option<String>,
    #[serde(default)]
    pub verb: String,
    #[serde(default)]
    pub version: Option<String>,
}

#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct PathAttributes {
    pub path: String,
    pub verb: String,
}

/// `crypto/v1/is_certificate_trusted`.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct CertificateTrust {
    pub cert: Certificate,
    #[serde(default)]
    pub cert_chain: Option<Vec<Certificate>>,
    /// RFC 3339; empty is none.
    #[serde(default)]
    pub not_after: Option<String>,
}

#[derive(Debug, Deserialize)]
pub(crate) struct Certificate {
    pub encoding: Encoding,
    pub data: Vec<u8>,
}

#[derive(Clone, Copy, Debug, Deserialize)]
pub(crate) enum Encoding {
    #[serde(alias = "PEM", alias = "pem")]
    Pem,
    #[serde(alias = "DER", alias = "der")]
    Der,
}

/// Reads what a guest sent.
pub(crate) fn read<T: DeserializeOwned>(call: &str, payload: &[u8]) -> Result<T, AskError> {
    serde_json::from_slice(payload)
        .map_err(|error| AskError::Request { call: call.to_owned(), error: error.to_string() })
}

impl List {
    pub(crate) fn kind(&self) -> Kind {
        Kind::new(&self.api_version, &self.kind)
    }
}

impl Get {
    pub(crate) fn kind(&self) -> Kind {
        Kind::new(&self.api_version, &self.kind)
    }
}

impl From<Review> for SubjectAccessReviewSpec {
    fn from(review: Review) -> Self {
        let resource_attributes = review.resource_attributes.map(|it| ResourceAttributes {
            group: it.group,
            name: it.name,
            namespace: it.namespace,
            resource: Some(it.resource),
            subresource: it.subresource,
            verb: Some(it.verb),
            version: it.version,
            ..ResourceAttributes::default()
        });
        let non_resource_attributes =
            review.non_resource_attributes.map(|it| NonResourceAttributes { path: Some(it.path), verb: Some(it.verb) });
        Self {
            user: Some(review.user),
            groups: review.groups,
            uid: review.uid,
            extra: review.extra,
            resource_attributes,
            non_resource_attributes,
        }
    }
}
