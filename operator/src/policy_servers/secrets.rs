//! The Secrets of a policy server: the certificate of its replicas, the keys that sign modules, and the tokens of callers. All are
//! renewed in time; replicas reload them without a restart.

use std::collections::BTreeSet;

use jiff::Timestamp;
use k8s_openapi::api::core::v1::Secret;
use kube::ResourceExt as _;
use proviso_crds::PolicyServer;

use super::build;
use super::context::Context;
use super::keys::{Keys, Kind};
use super::names;
use crate::ca::serving::ServingCertificate;
use crate::caller_tokens;
use crate::context::Error;
use crate::objects::{self, RETRY};

const NO_CA: &str = "there is no CA to sign it: see the operator's log about Secret proviso-ca";

/// The Secrets after a renewal.
#[derive(Debug)]
pub(super) struct RenewedSecrets {
    /// The expiry of the certificate, or the reason why there is no certificate.
    pub certificate: Result<Timestamp, String>,
    /// True if the certificate is new.
    pub is_new: bool,
    pub next_check: Timestamp,
}

/// Renews the Secrets that are due, and repairs those that are invalid.
pub(super) async fn renew(server: &PolicyServer, context: &Context) -> Result<RenewedSecrets, Error> {
    let (now, lifetimes) = (Timestamp::now(), &context.settings.lifetimes);
    let own = server.name_any();
    let tls_name = names::tls_name(&own);
    let signing = (names::signing_name(&own), Kind::Signing, BTreeSet::new());
    let callers = (names::callers_name(&own), Kind::CallerToken, caller_tokens::used(&own, context));
    let mut keys_due = Timestamp::MAX;
    for (name, kind, used) in [signing, callers] {
        let found = find(&name, context).await?;
        let (keys, due) = Keys::current(kind, found.as_ref(), &used, lifetimes, now)?;
        let mut desired = secret(server, &name, "Opaque")?;
        (desired.data, desired.metadata.annotations) = (Some(keys.data()), Some(keys.annotations()));
        write(found, desired, context).await?;
        keys_due = keys_due.min(due);
    }

    let mut renewed = RenewedSecrets { certificate: Err(NO_CA.to_owned()), is_new: false, next_check: now + RETRY };
    let Some(ca) = context.ca.borrow().clone() else { return Ok(renewed) };
    let hosts = build::certificate_names(&own, &context.namespace);
    let found = find(&tls_name, context).await?;
    let known = found.as_ref().map(ServingCertificate::read);
    let serving = match ServingCertificate::current(known, &ca.signing, &hosts, lifetimes.certificate, now) {
        Ok(serving) => serving,
        Err(error) => {
            renewed.certificate = Err(error.to_string());
            return Ok(renewed);
        }
    };
    let mut tls = secret(server, &tls_name, "kubernetes.io/tls")?;
    tls.data = Some(serving.data(&ca.signing));
    write(found, tls, context).await?;
    let next_check = keys_due.min(serving.next_check);
    Ok(RenewedSecrets { certificate: Ok(serving.expires_at), is_new: serving.is_new, next_check })
}

/// Returns the Secret of this name. The cache does not have a Secret whose label was removed, so the API server is
/// asked then.
async fn find(name: &str, context: &Context) -> kube::Result<Option<Secret>> {
    match context.caches.secrets.reader().get(name, Some(&context.namespace)) {
        Some(secret) => Ok(Some(Secret::clone(&secret))),
        None => context.namespaced::<Secret>().get_opt(name).await,
    }
}

async fn write(found: Option<Secret>, desired: Secret, context: &Context) -> kube::Result<()> {
    let Some(secret) = objects::changed_secret(found, desired) else { return Ok(()) };
    context.caches.secrets.write(objects::write_secret(&context.namespaced(), &secret)).await
}

fn secret(server: &PolicyServer, name: &str, type_: &str) -> Result<Secret, Error> {
    let metadata = serde_json::from_value(build::metadata(server, name))?;
    Ok(Secret { metadata, type_: Some(type_.to_owned()), ..Secret::default() })
}
