//! The API server as the front proxy of an aggregated API. It names the caller in headers, which count only on a
//! connection with its client certificate. A `ConfigMap` of every cluster has the CA and the names of the headers:
//! see "Configure the Aggregation Layer" in the Kubernetes documentation.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use arc_swap::ArcSwapOption;
use axum::http::{HeaderMap, HeaderName};
use futures_util::StreamExt as _;
use jiff::Timestamp;
use k8s_openapi::api::core::v1::ConfigMap;
use kube::runtime::{WatchStreamExt as _, watcher};
use kube::{Api, Client};
use percent_encoding::percent_decode_str;
use proviso_rest_api::Caller;
use rustls_pki_types::pem::PemObject as _;
use rustls_pki_types::{CertificateDer, UnixTime};
use webpki::{ALL_VERIFICATION_ALGS, EndEntityCert, KeyUsage, anchor_from_trusted_cert};

use crate::objects::watch_config;

/// The namespace of the ConfigMap.
const NAMESPACE: &str = "kube-system";
const NAME: &str = "extension-apiserver-authentication";

/// The key of the certificate authorities of front proxies.
const CLIENT_CA: &str = "requestheader-client-ca-file";

/// The error of a ConfigMap that cannot be used.
#[derive(Debug, thiserror::Error)]
enum FrontProxyError {
    #[error("ConfigMap {NAMESPACE}/{NAME}: {0} is missing: check the flags --requestheader-… of the API server")]
    Missing(&'static str),
    #[error("ConfigMap {NAMESPACE}/{NAME}: {key} is not a list of texts in JSON: {error}")]
    Unreadable { key: &'static str, error: serde_json::Error },
    #[error("ConfigMap {NAMESPACE}/{NAME}: {CLIENT_CA} is not valid PEM: {0}")]
    Certificate(rustls_pki_types::pem::Error),
}

/// The current front proxy; `None` until the ConfigMap has been read, or if the cluster has none.
#[derive(Debug, Default)]
pub(crate) struct FrontProxies(ArcSwapOption<FrontProxy>);

/// The client certificates of the API server, and the headers in which it names the caller.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct FrontProxy {
    client_cas: Vec<CertificateDer<'static>>,
    /// The accepted common names. An explicitly empty list accepts every name, as in Kubernetes.
    allowed_names: Vec<String>,
    user_headers: Vec<String>,
    uid_headers: Vec<String>,
    group_headers: Vec<String>,
    extra_prefixes: Vec<String>,
}

impl FrontProxies {
    pub(crate) fn current(&self) -> Option<Arc<FrontProxy>> {
        self.0.load_full()
    }

    /// Watches the ConfigMap. Never returns.
    pub(crate) async fn follow(&self, client: Client) {
        let maps = Api::<ConfigMap>::namespaced(client, NAMESPACE);
        let only = watch_config().fields(&format!("metadata.name={NAME}"));
        let mut changes = Box::pin(watcher(maps, only).default_backoff());
        while let Some(event) = changes.next().await {
            match event {
                Ok(watcher::Event::Apply(map) | watcher::Event::InitApply(map)) => {
                    let proxy = FrontProxy::read(&map).inspect_err(|error| {
                        tracing::error!(%error, "no request of the API server is accepted as that of another user");
                    });
                    // A list that cannot be read must not be taken for a list that accepts every name.
                    self.0.store(proxy.ok().flatten().map(Arc::new));
                }
                Ok(watcher::Event::Delete(_)) => self.0.store(None),
                Ok(watcher::Event::Init | watcher::Event::InitDone) => {}
                // The last known configuration stays in force: a CA that has been withdrawn is trusted until the
                // watch works again.
                Err(error) => tracing::warn!(%error, "cannot watch the ConfigMap extension-apiserver-authentication"),
            }
        }
    }
}

impl FrontProxy {
    /// Reads the ConfigMap; `None` if the cluster has no front proxy.
    ///
    /// # Errors
    /// Returns an error if a list cannot be read, or if the names or the headers of users are missing.
    fn read(map: &ConfigMap) -> Result<Option<Self>, FrontProxyError> {
        let Some(data) = &map.data else { return Ok(None) };
        let list = |key: &'static str| -> Result<Option<Vec<String>>, FrontProxyError> {
            let Some(text) = data.get(key) else { return Ok(None) };
            // An API server without the flag writes `null`.
            let list = serde_json::from_str::<Option<Vec<String>>>(text);
            list.map(|list| Some(list.unwrap_or_default())).map_err(|error| FrontProxyError::Unreadable { key, error })
        };
        let required = |key: &'static str| list(key)?.ok_or(FrontProxyError::Missing(key));
        let Some(client_cas) = data.get(CLIENT_CA) else { return Ok(None) };
        let client_cas = CertificateDer::pem_slice_iter(client_cas.as_bytes()).collect::<Result<Vec<_>, _>>();
        Ok(Some(Self {
            client_cas: client_cas.map_err(FrontProxyError::Certificate)?,
            allowed_names: required("requestheader-allowed-names")?,
            user_headers: required("requestheader-username-headers")?,
            uid_headers: list("requestheader-uid-headers")?.unwrap_or_default(),
            group_headers: list("requestheader-group-headers")?.unwrap_or_default(),
            extra_prefixes: list("requestheader-extra-headers-prefix")?.unwrap_or_default(),
        }))
    }

    /// Returns whether this is a chain of a client certificate of the API server, the client certificate first.
    pub(crate) fn is_valid_chain(&self, chain: &[CertificateDer<'_>], now: Timestamp) -> bool {
        let [own, between @ ..] = chain else { return false };
        let Ok(certificate) = EndEntityCert::try_from(own) else { return false };
        let anchors: Vec<_> = self.client_cas.iter().filter_map(|it| anchor_from_trusted_cert(it).ok()).collect();
        let now = UnixTime::since_unix_epoch(Duration::from_secs(now.as_second().try_into().unwrap_or_default()));
        let usage = KeyUsage::client_auth();
        let verified = certificate.verify_for_usage(ALL_VERIFICATION_ALGS, &anchors, between, now, usage, None, None);
        verified.is_ok() && (self.allowed_names.is_empty() || self.allowed_names.iter().any(|it| has_name(own, it)))
    }

    /// Returns the caller that the headers name; `None` if they name no user.
    pub(crate) fn caller(&self, headers: &HeaderMap) -> Option<Caller> {
        let first = |names: &[String]| names.iter().find_map(|name| values(headers, name).next());
        let user = first(&self.user_headers).filter(|user| !user.is_empty())?;
        let uid = first(&self.uid_headers).unwrap_or_default();
        let groups = self.group_headers.iter().flat_map(|name| values(headers, name)).collect();
        let mut extra = BTreeMap::<String, Vec<String>>::new();
        for name in headers.keys() {
            let Some(key) = self.extra_prefixes.iter().find_map(|prefix| extra_key(name, prefix)) else { continue };
            extra.entry(key).or_default().extend(values(headers, name.as_str()));
        }
        Some(Caller { user, uid, groups, extra })
    }
}

fn values<'a>(headers: &'a HeaderMap, name: &str) -> impl Iterator<Item = String> + use<'a> {
    let name = HeaderName::try_from(name).ok();
    let values = name.map(|name| headers.get_all(name).iter().collect::<Vec<_>>()).unwrap_or_default();
    values.into_iter().filter_map(|value| Some(value.to_str().ok()?.to_owned()))
}

/// Returns the key of a header for extra data. Names of headers are case-insensitive, and escape other characters as
/// `%xx`.
fn extra_key(header: &HeaderName, prefix: &str) -> Option<String> {
    let key = header.as_str().strip_prefix(&prefix.to_ascii_lowercase())?;
    Some(percent_decode_str(key).decode_utf8_lossy().into_owned())
}

fn has_name(certificate: &CertificateDer<'_>, name: &str) -> bool {
    let Ok((_, certificate)) = x509_parser::parse_x509_certificate(certificate) else { return false };
    certificate.subject().iter_common_name().any(|found| found.as_str().is_ok_and(|found| found == name))
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    /// Returns the names that a ConfigMap with this value of `requestheader-allowed-names` allows.
    fn allowed_names(value: Option<&str>) -> Result<Vec<String>, String> {
        let mut data = json!({
            CLIENT_CA: "", "requestheader-username-headers": r#"["X-Remote-User"]"#, "requestheader-allowed-names": value,
        });
        data.as_object_mut().unwrap().retain(|_, value| !value.is_null());
        read(&data).map(|proxy| proxy.unwrap().allowed_names)
    }

    fn read(data: &Value) -> Result<Option<FrontProxy>, String> {
        let map: ConfigMap = serde_json::from_value(json!({"data": data})).unwrap();
        FrontProxy::read(&map).map_err(|error| error.to_string())
    }

    #[test]
    fn only_an_explicitly_empty_list_of_names_accepts_every_name() {
        assert_eq!(allowed_names(Some(r#"["front-proxy-client"]"#)), Ok(vec!["front-proxy-client".to_owned()]));
        for explicit in ["[]", "null"] {
            assert_eq!(allowed_names(Some(explicit)), Ok(Vec::new()), "{explicit}");
        }
        for unreadable in ["", "front-proxy-client", r#"["a""#, r#"{"a": 1}"#, "[1]", "\"a\""] {
            let error = allowed_names(Some(unreadable)).unwrap_err();
            assert!(error.contains("requestheader-allowed-names is not a list"), "{unreadable}: {error}");
        }
        assert!(allowed_names(None).unwrap_err().contains("requestheader-allowed-names is missing"));
    }

    #[test]
    fn a_config_map_without_a_certificate_authority_has_no_front_proxy() {
        assert_eq!(read(&json!({"client-ca-file": ""})), Ok(None));
        let unreadable =
            json!({CLIENT_CA: "", "requestheader-allowed-names": "[]", "requestheader-username-headers": "?"});
        assert!(read(&unreadable).unwrap_err().contains("requestheader-username-headers is not a list"));
    }
}
