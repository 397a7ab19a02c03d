//! The Secrets of a policy server: the certificate of its replicas, and the keys that sign modules. Both are renewed in
//! time; pods read them again by themselves.

use jiff::Timestamp;
use k8s_openapi::api::core::v1::Secret;
use kube::ResourceExt as _;
use proviso_crds::PolicyServer;

use super::signing::Keys;
use super::{Context, Error, build};
use crate::authority::kept::Kept;
use crate::authority::leaf::Leaf;
use crate::objects::{self, RETRY};

const NO_AUTHORITY: &str = "there is no authority to sign it: see the operator's log about Secret proviso-ca";

/// The Secrets, as they were found.
pub(super) struct Found {
    pub authority: Option<Secret>,
    pub tls: Option<Secret>,
    pub signing: Option<Secret>,
}

/// What became of them.
#[derive(Debug)]
pub(super) struct Renewed {
    /// When the certificate ends, or why there is none.
    pub certificate: Result<Timestamp, String>,
    /// Whether it is a new one.
    pub is_new: bool,
    pub look_again: Timestamp,
}

/// Renews what is due, and puts right what is wrong.
pub(super) async fn renew(server: &PolicyServer, found: &Found, context: &Context) -> Result<Renewed, Error> {
    let (now, lifetimes) = (Timestamp::now(), &context.lifetimes);
    let own = server.name_any();
    let (keys, keys_due) = Keys::current(found.signing.as_ref(), lifetimes, now)?;
    let secrets = context.secrets();
    let mut signing = secret(server, &build::signing_name(&own), "Opaque")?;
    (signing.data, signing.metadata.annotations) = (Some(keys.data()), Some(keys.annotations()));
    objects::write_secret(&secrets, found.signing.as_ref(), signing).await?;

    let mut renewed = Renewed { certificate: Err(NO_AUTHORITY.to_owned()), is_new: false, look_again: now + RETRY };
    let kept = found.authority.as_ref().and_then(|secret| Kept::read(secret, now).ok());
    let Some(kept) = kept else { return Ok(renewed) };
    let names = build::certificate_names(&own, &context.place.namespace);
    let known = found.tls.as_ref().map(Leaf::found);
    let leaf = match Leaf::current(known, &kept.signing, &names, lifetimes.certificate, now) {
        Ok(leaf) => leaf,
        Err(error) => {
            renewed.certificate = Err(error.to_string());
            return Ok(renewed);
        }
    };
    let mut tls = secret(server, &build::tls_name(&own), "kubernetes.io/tls")?;
    tls.data = Some(leaf.data(&kept.signing));
    objects::write_secret(&secrets, found.tls.as_ref(), tls).await?;
    let look_again = keys_due.min(leaf.look_again);
    Ok(Renewed { certificate: Ok(leaf.expires_at), is_new: leaf.is_new, look_again })
}

fn secret(server: &PolicyServer, name: &str, type_: &str) -> Result<Secret, Error> {
    let metadata = serde_json::from_value(build::metadata(server, name))?;
    Ok(Secret { metadata, type_: Some(type_.to_owned()), ..Secret::default() })
}
