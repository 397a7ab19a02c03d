//! The webhook configurations by which the API server asks a policy or an experiment: built, compared and applied.

mod diff;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use kube::api::{DynamicObject, Patch, PatchParams};
use kube::core::{ApiResource, GroupVersionKind};
use kube::{Api, Client};
use proviso_core::{Action, Endpoint, PolicyId, PreviewEndpoint};
use proviso_crds::names::{EXPERIMENT_LABEL, POLICY_LABEL, field_managers};
use proviso_crds::{Admission, FailurePolicy, MatchPolicy};
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};

use crate::cache::{Cache, Cached};
use crate::context::{Context, Error};
use crate::objects;
use crate::policy_servers::names::name as service_name;

/// The name of both kinds of webhook configurations of a policy.
pub(crate) fn name(policy: &PolicyId) -> String {
    format!("proviso-{policy}")
}

/// The name of the webhook configuration of an experiment. `experiment` is its id.
pub(crate) fn preview_name(experiment: &PolicyId) -> String {
    format!("proviso-preview-{experiment}")
}

/// The webhook configuration that asks this generation: the policy server that serves it, and the requests that it is about.
pub(crate) fn build(
    policy: &PolicyId,
    uid: &str,
    generation: i64,
    (server, admission): (&str, &Admission),
    (namespace, bundle): (&str, &str),
) -> Value {
    let generation = generation.try_into().ok();
    let path = Endpoint { action: Action::Validate, policy: policy.clone(), generation }.to_string();
    let mut selector = json!(admission.namespace_selector.clone().unwrap_or_default());
    if let Some(own) = policy.namespace() {
        // Whatever else it says, a policy of a namespace is about that namespace.
        let only = json!({"key": "kubernetes.io/metadata.name", "operator": "In", "values": [own]});
        match selector["matchExpressions"].as_array_mut() {
            Some(expressions) => expressions.push(only),
            None => selector["matchExpressions"] = json!([only]),
        }
    }
    let mut rules = admission.rules.clone();
    for rule in &mut rules {
        if policy.namespace().is_some() {
            // A namespaceSelector lets everything through that belongs to no namespace.
            rule.scope = Some("Namespaced".to_owned());
        }
        rule.scope.get_or_insert_with(|| "*".to_owned());
    }
    let mut conditions = vec![json!({"name": "proviso-exempt", "expression": exempt(policy, namespace)})];
    conditions.extend(admission.match_conditions.iter().map(|condition| json!(condition)));
    // Every field, also where the API server would fill in the same: see `diff`.
    let mut webhook = json!({
        "apiVersion": "admissionregistration.k8s.io/v1",
        "kind": kind(admission),
        "metadata": {"name": name(policy), "labels": {POLICY_LABEL: uid}},
        "webhooks": [{
            "name": format!("{policy}.proviso.dev"),
            "admissionReviewVersions": ["v1"],
            "sideEffects": "None",
            "rules": rules,
            "namespaceSelector": selector,
            "objectSelector": admission.object_selector.clone().unwrap_or_default(),
            "matchConditions": conditions,
            "matchPolicy": match admission.match_policy { MatchPolicy::Exact => "Exact", MatchPolicy::Equivalent => "Equivalent" },
            "failurePolicy": match admission.failure_policy { FailurePolicy::Fail => "Fail", FailurePolicy::Ignore => "Ignore" },
            "timeoutSeconds": admission.timeout_seconds,
            "clientConfig": {
                "service": {
                    "namespace": namespace,
                    "name": service_name(server),
                    "port": 443,
                    "path": path,
                },
                "caBundle": STANDARD.encode(bundle),
            },
        }],
    });
    if admission.mutating {
        webhook["webhooks"][0]["reinvocationPolicy"] = "Never".into();
    }
    webhook
}

fn kind(admission: &Admission) -> &'static str {
    if admission.mutating { "MutatingWebhookConfiguration" } else { "ValidatingWebhookConfiguration" }
}

/// No policy stands between a cluster and its start: not before what Proviso itself consists of, and not before the leases
/// by which Kubernetes' own components and nodes say that they live. Nor before a change of policies: it may be the one
/// that mends them. One of a namespace is not asked about Secrets, which its owner need not be allowed to read.
fn exempt(policy: &PolicyId, namespace: &str) -> String {
    let secrets = match policy.namespace() {
        Some(_) => "!(request.resource.group == '' && request.resource.resource == 'secrets') && ",
        None => "",
    };
    // Requests about objects without a namespace have no such field, and an expression that fails refuses them.
    format!(
        "request.resource.group != 'proviso.dev' && {secrets}\
         (!has(request.namespace) || !(request.namespace == '{namespace}' || \
         (request.resource.group == 'coordination.k8s.io' && request.resource.resource == 'leases' && \
         request.namespace in ['kube-system', 'kube-node-lease'])))"
    )
}

/// The target of an experiment's webhook.
pub(crate) struct Asked<'a> {
    pub policy: &'a PolicyId,
    /// The id of the experiment.
    pub experiment: &'a PolicyId,
    pub uid: &'a str,
    pub generation: i64,
    /// The policy server that answers for the policy.
    pub server: &'a str,
}

/// The webhook configuration that asks an experiment. It covers the requests that a policy with this section would cover, but
/// nobody waits for it and it stops nobody.
pub(crate) fn build_preview(asked: &Asked<'_>, admission: &Admission, (namespace, bundle): (&str, &str)) -> Value {
    let path = PreviewEndpoint {
        policy: asked.policy.clone(),
        experiment: asked.experiment.name().to_owned(),
        generation: asked.generation.try_into().unwrap_or_default(),
    };
    let mut wanted = build(asked.policy, "", asked.generation, (asked.server, admission), (namespace, bundle));
    wanted["kind"] = "ValidatingWebhookConfiguration".into();
    wanted["metadata"] = json!({"name": preview_name(asked.experiment), "labels": {EXPERIMENT_LABEL: asked.uid}});
    let only = &mut wanted["webhooks"][0];
    only["name"] = format!("{}.preview.proviso.dev", asked.experiment).into();
    if let Some(fields) = only.as_object_mut() {
        fields.remove("reinvocationPolicy");
    }
    only["failurePolicy"] = "Ignore".into();
    only["timeoutSeconds"] = 1.into();
    only["clientConfig"]["service"]["path"] = path.to_string().into();
    wanted
}

/// Applies what [`build`] or [`build_preview`] built, unless that would change nothing.
pub(crate) async fn apply<W>(
    wanted: &Value,
    found: Option<&W>,
    cache: &Cache<W>,
    context: &Context,
) -> Result<(), Error>
where
    W: Cached<Sent = W> + DeserializeOwned + Serialize,
{
    if let Some(found) = found
        && diff::is_applied(wanted, &serde_json::to_value(found)?)
    {
        return Ok(());
    }
    let name = wanted["metadata"]["name"].as_str().unwrap_or_default();
    let (webhooks, how, patch) = (Api::<W>::all(context.client.clone()), objects::apply(), Patch::Apply(wanted));
    Ok(cache.write(webhooks.patch(name, &how, &patch)).await?)
}

/// Asks the API server whether it would take this webhook configuration, of either kind. Nothing is written.
pub(crate) async fn dry_run(wanted: &Value, client: &Client) -> kube::Result<()> {
    let kind = wanted["kind"].as_str().unwrap_or_default();
    let kind = ApiResource::from_gvk(&GroupVersionKind::gvk("admissionregistration.k8s.io", "v1", kind));
    let name = wanted["metadata"]["name"].as_str().unwrap_or_default();
    let how = PatchParams::apply(field_managers::ADMISSION).force().dry_run();
    Api::<DynamicObject>::all_with(client.clone(), &kind).patch(name, &how, &Patch::Apply(wanted)).await.map(drop)
}
