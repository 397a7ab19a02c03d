//! The requests of guests: JSON in `snake_case`, as Kubewarden's SDKs write it. An unknown field of a newer SDK is refused if
//! ignoring it could change the meaning of the request.

use std::collections::{BTreeMap, BTreeSet};

use k8s_openapi::api::authorization::v1::{NonResourceAttributes, ResourceAttributes, SubjectAccessReviewSpec};
use serde::Deserialize;
use serde::de::DeserializeOwned;

use crate::error::HostCallError;
use crate::kind::Kind;

/// The request of `kubernetes/list_resources_by_namespace`, and of `kubernetes/list_resources_all` without a namespace.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct ListRequest {
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

/// The request of `kubernetes/get_resource`.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct GetRequest {
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

/// The request of `kubernetes/can_i`.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct CanIRequest {
    pub subject_access_review: AccessReview,
    #[serde(default)]
    pub disable_cache: bool,
}

/// A `SubjectAccessReview`: a user, and either resource attributes or non-resource attributes.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct AccessReview {
    #[serde(default)]
    pub user: String,
    #[serde(default)]
    pub groups: Option<Vec<String>>,
    #[serde(default)]
    pub uid: Option<String>,
    /// Extra attributes of the user, which authorizers may use.
    #[serde(default)]
    pub extra: Option<BTreeMap<String, Vec<String>>>,
    #[serde(default)]
    pub resource_attributes: Option<Attributes>,
    /// The attributes of a URL that is not a resource, such as `/healthz`.
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

/// The request of `crypto/v1/is_certificate_trusted`.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct CertificateTrustRequest {
    pub cert: Certificate,
    #[serde(default)]
    pub cert_chain: Option<Vec<Certificate>>,
    /// The time at which the certificates must be valid (RFC 3339). Empty means now.
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

/// Parses the request of a guest.
pub(crate) fn read<T: DeserializeOwned>(call: &str, payload: &[u8]) -> Result<T, HostCallError> {
    serde_json::from_slice(payload)
        .map_err(|error| HostCallError::Request { call: call.to_owned(), error: error.to_string() })
}

impl ListRequest {
    pub(crate) fn kind(&self) -> Kind {
        Kind::new(&self.api_version, &self.kind)
    }
}

impl GetRequest {
    pub(crate) fn kind(&self) -> Kind {
        Kind::new(&self.api_version, &self.kind)
    }
}

impl From<AccessReview> for SubjectAccessReviewSpec {
    fn from(review: AccessReview) -> Self {
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
