//! The tokens by which policy servers recognise API servers: the current token for the paths of webhooks, and the tokens that webhooks
//! send.

use std::collections::BTreeSet;

use k8s_openapi::api::admissionregistration::v1::WebhookClientConfig;
use k8s_openapi::api::core::v1::Secret;
use kube::ResourceExt as _;
use kube::runtime::reflector::ObjectRef;
use proviso_core::CallerToken;
use proviso_core::caller_token::split_token;
use proviso_crds::names::SERVER_LABEL;

use crate::ca::secret::text;
use crate::cache::{Cached, Reader};
use crate::context::{Context, Error};
use crate::policy_servers::names::{CALLER_TOKENS, callers_name, name as service_name};
use crate::webhook;

/// Returns the token that the webhooks of this policy server send.
///
/// # Errors
/// Returns an error if the Secret of tokens does not exist yet, or has no token: the controller of policy servers repairs it.
pub(crate) fn current(server: &str, context: &Context) -> Result<CallerToken, Error> {
    let secret_name = callers_name(server);
    let secret = context.caches.secrets.reader().get(&secret_name, Some(&context.namespace));
    let tokens = secret.and_then(|secret| CallerToken::parse_list(&text(&secret, CALLER_TOKENS)).ok());
    tokens.and_then(|tokens| tokens.into_iter().next()).ok_or(Error::NoCallerToken(secret_name))
}

/// Returns the tokens that webhooks send to this policy server.
pub(crate) fn used(server: &str, context: &Context) -> BTreeSet<String> {
    let (caches, mut used) = (&context.caches, BTreeSet::new());
    let mut add = |configuration: &str, config: &WebhookClientConfig| {
        let is_ours = webhook::policy_of(configuration).or_else(|| webhook::experiment_of(configuration)).is_some();
        let Some(service) = config.service.as_ref().filter(|_| is_ours) else { return };
        if service.namespace == context.namespace && service.name == service_name(server) {
            let token = service.path.as_deref().and_then(|path| split_token(path).0);
            used.extend(token.map(ToOwned::to_owned));
        }
    };
    for found in caches.validating.reader().store().state() {
        found.webhooks.iter().flatten().for_each(|webhook| add(&found.name_any(), &webhook.client_config));
    }
    for found in caches.mutating.reader().store().state() {
        found.webhooks.iter().flatten().for_each(|webhook| add(&found.name_any(), &webhook.client_config));
    }
    used
}

/// Maps the Secret of the tokens of a policy server to all objects, whose webhooks may send a token of this policy server. Maps other
/// Secrets to nothing.
pub(crate) fn of_secret<K: Cached>(objects: Reader<K>) -> impl Fn(&Secret) -> Vec<ObjectRef<K>> {
    move |secret| {
        let server = secret.labels().get(SERVER_LABEL);
        if server.is_none_or(|server| secret.name_any() != callers_name(server)) {
            return Vec::new();
        }
        objects.store().state().iter().map(|object| ObjectRef::from_obj(&**object)).collect()
    }
}
