//! The Secrets of a policy server: the certificate of its replicas, and the keys that sign modules. Both are renewed in
//! time; pods read them again by themselves.

use jiff::Timestamp;
use k8s_openapi::api::core::v1::Secret;
use kube::ResourceExt as _;
use proviso_crds::PolicyServer;

use super::build;
use super::context::Context;
use super::names;
use super::signing::Keys;
use crate::authority::leaf::Leaf;
use crate::context::Error;
use crate::objects::{self, RETRY};

const NO_AUTHORITY: &str = "there is no authority to sign it: see the operator's log about Secret proviso-ca";

/// The Secrets after a renewal.
#[derive(Debug)]
pub(super) struct Renewed {
    /// When the certificate ends, or why there is none.
    pub certificate: Result<Timestamp, String>,
    /// Whether it is a new one.
    pub is_new: bool,
    pub look_again: Timestamp,
}

/// Renews what is due, and puts right what is wrong.
pub(super) async fn renew(server: &PolicyServer, context: &Context) -> Result<Renewed, Error> {
    let (now, lifetimes) = (Timestamp::now(), &context.settings.lifetimes);
    let own = server.name_any();
    let (signing_name, tls_name) = (names::signing_name(&own), names::tls_name(&own));
    let found = find(&signing_name, context).await?;
    let (keys, keys_due) = Keys::current(found.as_ref(), lifetimes, now)?;
    let mut signing = secret(server, &signing_name, "Opaque")?;
    (signing.data, signing.metadata.annotations) = (Some(keys.data()), Some(keys.annotations()));
    write(found, signing, context).await?;

    let mut renewed = Renewed { certificate: Err(NO_AUTHORITY.to_owned()), is_new: false, look_again: now + RETRY };
    let Some(authority) = context.authority.borrow().clone() else { return Ok(renewed) };
    let hosts = build::certificate_names(&own, &context.namespace);
    let found = find(&tls_name, context).await?;
    let known = found.as_ref().map(Leaf::found);
    let leaf = match Leaf::current(known, &authority.signing, &hosts, lifetimes.certificate, now) {
        Ok(leaf) => leaf,
        Err(error) => {
            renewed.certificate = Err(error.to_string());
            return Ok(renewed);
        }
    };
    let mut tls = secret(server, &tls_name, "kubernetes.io/tls")?;
    tls.data = Some(leaf.data(&authority.signing));
    write(found, tls, context).await?;
    let look_again = keys_due.min(leaf.look_again);
    Ok(Renewed { certificate: Ok(leaf.expires_at), is_new: leaf.is_new, look_again })
}

/// The Secret of this name. One that the cache does not have may be there without the label: somebody has removed it.
async fn find(name: &str, context: &Context) -> kube::Result<Option<Secret>> {
    match context.caches.secrets.reader().get(name, Some(&context.namespace)) {
        Some(secret) => Ok(Some(Secret::clone(&secret))),
        None => context.namespaced::<Secret>().get_opt(name).await,
    }
}

async fn write(found: Option<Secret>, wanted: Secret, context: &Context) -> kube::Result<()> {
    let Some(secret) = objects::changed_secret(found, wanted) else { return Ok(()) };
    context.caches.secrets.write(objects::write_secret(&context.namespaced(), &secret)).await
}

fn secret(server: &PolicyServer, name: &str, type_: &str) -> Result<Secret, Error> {
    let metadata = serde_json::from_value(build::metadata(server, name))?;
    Ok(Secret { metadata, type_: Some(type_.to_owned()), ..Secret::default() })
}
