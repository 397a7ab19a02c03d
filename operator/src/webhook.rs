//! The webhook configurations of policies and experiments: built, compared with the cluster, and applied.

mod diff;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use kube::api::{DynamicObject, Patch, PatchParams};
use kube::core::{ApiResource, GroupVersionKind};
use kube::{Api, Client};
use proviso_core::{Action, Endpoint, PolicyId, PreviewEndpoint};
use proviso_crds::names::{EXPERIMENT_LABEL, POLICY_LABEL, field_managers};
use proviso_crds::{Admission, FailurePolicy, MatchPolicy};
use proviso_programs::Conditions;
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};

use crate::cache::{Cache, Cached};
use crate::context::{Context, Error};
use crate::objects;
use crate::policy_servers::names::name as service_name;

/// Returns the name of the webhook configuration of a policy, which is the same for both kinds of configurations.
pub(crate) fn name(policy: &PolicyId) -> String {
    format!("proviso-{policy}")
}

/// Returns the name of the webhook configuration of the experiment with this id.
pub(crate) fn preview_name(experiment: &PolicyId) -> String {
    format!("proviso-preview-{experiment}")
}

/// Returns the policy whose webhook configuration has this name; `None` if the name has another form.
pub(crate) fn policy_of(name: &str) -> Option<PolicyId> {
    name.strip_prefix("proviso-")?.parse().ok()
}

/// Returns the experiment whose webhook configuration has this name; `None` if the name has another form.
pub(crate) fn experiment_of(name: &str) -> Option<PolicyId> {
    name.strip_prefix("proviso-preview-")?.parse().ok()
}

/// Builds the webhook configuration that sends requests to a generation: the policy server that serves the
/// generation, and the requests that `admission` selects.
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
        // A namespaced policy covers only its own namespace, whatever its own selector matches.
        let only = json!({"key": "kubernetes.io/metadata.name", "operator": "In", "values": [own]});
        match selector["matchExpressions"].as_array_mut() {
            Some(expressions) => expressions.push(only),
            None => selector["matchExpressions"] = json!([only]),
        }
    }
    let mut rules = admission.rules.clone();
    for rule in &mut rules {
        if policy.namespace().is_some() {
            // A namespaceSelector also matches all cluster-scoped objects.
            rule.scope = Some("Namespaced".to_owned());
        }
        rule.scope.get_or_insert_with(|| "*".to_owned());
    }
    let mut conditions = vec![json!({"name": "proviso-exempt", "expression": exemption_expression(policy, namespace)})];
    conditions.extend(admission.match_conditions.iter().map(|condition| json!(condition)));
    // Names every field, even if its value is the API server's default: see `diff`.
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

/// Returns the CEL expression that exempts requests from a policy. A policy must not keep a cluster from starting, so
/// requests for Proviso's own namespace, and for the leases of Kubernetes components and nodes, are exempt. Changes
/// of Proviso's own objects are exempt, because a change may fix a broken policy. A namespaced policy gets no
/// Secrets, because its owner may not be allowed to read them.
fn exemption_expression(policy: &PolicyId, namespace: &str) -> String {
    let secrets = match policy.namespace() {
        Some(_) => "!(request.resource.group == '' && request.resource.resource == 'secrets') && ",
        None => "",
    };
    // Requests for cluster-scoped objects have no `namespace` field, and an expression that fails denies the request.
    format!(
        "request.resource.group != 'proviso.dev' && {secrets}\
         (!has(request.namespace) || !(request.namespace == '{namespace}' || \
         (request.resource.group == 'coordination.k8s.io' && request.resource.resource == 'leases' && \
         request.namespace in ['kube-system', 'kube-node-lease'])))"
    )
}

/// The target of an experiment's webhook.
pub(crate) struct PreviewTarget<'a> {
    pub policy: &'a PolicyId,
    /// The id of the experiment.
    pub experiment: &'a PolicyId,
    pub uid: &'a str,
    pub generation: i64,
    /// The policy server that serves the policy.
    pub server: &'a str,
}

/// Builds the webhook configuration of an experiment. The webhook covers the requests that a policy with this
/// `admission` would cover, but it never blocks a request: it fails open, with a timeout of 1 s.
///
/// The policy server evaluates the `matchConditions`: a condition that fails in the API server would skip this webhook
/// without a trace, although it would deny the request once the experiment is live. The webhook has only the conditions
/// that a policy server cannot evaluate.
pub(crate) fn build_preview(
    target: &PreviewTarget<'_>,
    admission: &Admission,
    (namespace, bundle): (&str, &str),
) -> Value {
    let path = PreviewEndpoint {
        policy: target.policy.clone(),
        experiment: target.experiment.name().to_owned(),
        generation: target.generation.try_into().unwrap_or_default(),
    };
    let conditions = admission.match_conditions.iter().filter(|condition| !Conditions::can_evaluate(condition));
    let admission = Admission { match_conditions: conditions.cloned().collect(), ..admission.clone() };
    let mut desired = build(target.policy, "", target.generation, (target.server, &admission), (namespace, bundle));
    desired["kind"] = "ValidatingWebhookConfiguration".into();
    desired["metadata"] = json!({"name": preview_name(target.experiment), "labels": {EXPERIMENT_LABEL: target.uid}});
    let only = &mut desired["webhooks"][0];
    only["name"] = format!("{}.preview.proviso.dev", target.experiment).into();
    if let Some(fields) = only.as_object_mut() {
        fields.remove("reinvocationPolicy");
    }
    only["failurePolicy"] = "Ignore".into();
    only["timeoutSeconds"] = 1.into();
    only["clientConfig"]["service"]["path"] = path.to_string().into();
    desired
}

/// Applies a configuration from [`build`] or [`build_preview`], unless the apply would change nothing.
pub(crate) async fn apply<W>(
    desired: &Value,
    found: Option<&W>,
    cache: &Cache<W>,
    context: &Context,
) -> Result<(), Error>
where
    W: Cached<Sent = W> + DeserializeOwned + Serialize,
{
    if let Some(found) = found
        && diff::is_applied(desired, &serde_json::to_value(found)?)
    {
        return Ok(());
    }
    let name = desired["metadata"]["name"].as_str().unwrap_or_default();
    let (webhooks, params, patch) =
        (Api::<W>::all(context.client.clone()), objects::apply_params(), Patch::Apply(desired));
    Ok(cache.write(webhooks.patch(name, &params, &patch)).await?)
}

/// Validates a webhook configuration of either kind by a server-side dry run.
pub(crate) async fn dry_run(desired: &Value, client: &Client) -> kube::Result<()> {
    let kind = desired["kind"].as_str().unwrap_or_default();
    let kind = ApiResource::from_gvk(&GroupVersionKind::gvk("admissionregistration.k8s.io", "v1", kind));
    let name = desired["metadata"]["name"].as_str().unwrap_or_default();
    let params = PatchParams::apply(field_managers::ADMISSION).force().dry_run();
    Api::<DynamicObject>::all_with(client.clone(), &kind).patch(name, &params, &Patch::Apply(desired)).await.map(drop)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_preview_webhook_has_only_the_conditions_that_a_policy_server_cannot_evaluate() {
        let admission = serde_json::from_value(json!({
            "rules": [{"apiGroups": [""], "apiVersions": ["v1"], "resources": ["pods"], "operations": ["CREATE"]}],
            "mutating": true,
            "matchConditions": [
                {"name": "simple", "expression": "object.spec.nodeName == 'a'"},
                {"name": "permission", "expression": "authorizer.group('').resource('pods').check('delete').allowed()"},
                {"name": "unknown", "expression": "noSuchFunction(object)"},
            ],
        }))
        .unwrap();
        let (policy, experiment) = ("cluster.a".parse().unwrap(), "cluster.e".parse().unwrap());
        let target =
            PreviewTarget { policy: &policy, experiment: &experiment, uid: "u", generation: 2, server: "default" };
        let names = |webhook: &Value| {
            let conditions = webhook["webhooks"][0]["matchConditions"].as_array().unwrap();
            conditions.iter().map(|it| it["name"].as_str().unwrap().to_owned()).collect::<Vec<_>>()
        };
        let preview = build_preview(&target, &admission, ("proviso", "bundle"));
        assert_eq!(names(&preview), ["proviso-exempt", "permission", "unknown"]);
        let only = &preview["webhooks"][0];
        assert_eq!(preview["kind"], "ValidatingWebhookConfiguration");
        assert_eq!(only["failurePolicy"], "Ignore");
        assert_eq!(only["clientConfig"]["service"]["path"], "/preview/cluster.a/e/2");
        let live = build(&policy, "u", 2, ("default", &admission), ("proviso", "bundle"));
        assert_eq!(names(&live), ["proviso-exempt", "simple", "permission", "unknown"]);
    }
}
