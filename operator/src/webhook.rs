//! The webhook configurations of policies and experiments: built, compared with the cluster, and applied.

mod diff;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use kube::api::{DynamicObject, Patch, PatchParams};
use kube::core::{ApiResource, GroupVersionKind};
use kube::{Api, Client};
use proviso_core::matching::{CREDENTIAL_GROUPS, names_group};
use proviso_core::{Action, CallerToken, Endpoint, PolicyId, PreviewEndpoint, confinement};
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
use crate::tenants::SystemRequests;

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

/// The parts of a webhook by which an API server reaches a policy server, and each recognises the other.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Access<'a> {
    /// The namespace of the policy server.
    pub namespace: &'a str,
    /// The CA certificates of the policy server, in PEM.
    pub bundle: &'a str,
    /// The token by which the policy server recognises the API server; `None` in a webhook that is only validated: a message of the
    /// API server about the webhook must not contain a token.
    pub token: Option<&'a CallerToken>,
}

impl<'a> Access<'a> {
    /// Returns the access of a webhook that is only validated.
    pub fn of_dry_run(namespace: &'a str) -> Self {
        Self { namespace, bundle: "", token: None }
    }

    fn path(&self, endpoint: &impl std::fmt::Display) -> String {
        self.token.map_or_else(|| endpoint.to_string(), |token| token.path(endpoint))
    }
}

/// Builds the webhook configuration that sends requests to a generation: the policy server that serves the
/// generation, and the requests that `admission` selects. `system` tells whether a namespaced policy is asked about
/// requests of Kubernetes itself.
pub(crate) fn build(
    policy: &PolicyId,
    uid: &str,
    generation: i64,
    (server, admission, system): (&str, &Admission, SystemRequests),
    access: Access<'_>,
) -> Value {
    let (generation, namespace) = (generation.try_into().ok(), access.namespace);
    let path = access.path(&Endpoint { action: Action::Validate, policy: policy.clone(), generation });
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
    let exempt = exemption_expression(policy, namespace, system) + &credential_exemption(policy, admission);
    let mut conditions = vec![json!({"name": "proviso-exempt", "expression": exempt})];
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
                "caBundle": STANDARD.encode(access.bundle),
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
/// of Proviso's own objects are exempt, because a change may fix a broken policy. A namespaced policy gets no requests
/// that could raise the power of its author.
fn exemption_expression(policy: &PolicyId, namespace: &str, system: SystemRequests) -> String {
    // Requests for cluster-scoped objects have no `namespace` field, and an expression that fails denies the request.
    let exemption = format!(
        "request.resource.group != 'proviso.dev' && \
         (!has(request.namespace) || !(request.namespace == '{namespace}' || \
         (request.resource.group == 'coordination.k8s.io' && request.resource.resource == 'leases' && \
         request.namespace in ['kube-system', 'kube-node-lease'])))"
    );
    let included = confinement::included_expression();
    match (policy.namespace(), system) {
        (None, _) => exemption,
        (Some(_), SystemRequests::Included) => format!("{exemption} && {included}"),
        (Some(_), SystemRequests::Excluded) => {
            format!("{exemption} && {included} && {}", confinement::no_system_request_expression())
        }
    }
}

/// Returns the rest of the CEL expression, which exempts the reviews that check credentials and permissions, except those of the groups
/// that a rule of a `ClusterPolicy` names. The policy server matches requests in the same way: see `Match::covers`.
fn credential_exemption(policy: &PolicyId, admission: &Admission) -> String {
    let is_named = |group: &str| policy.namespace().is_none() && names_group(&admission.rules, group);
    let exempt = CREDENTIAL_GROUPS.into_iter().filter(|group| !is_named(group));
    exempt.map(|group| format!(" && request.resource.group != '{group}'")).collect::<Vec<_>>().concat()
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
    pub system: SystemRequests,
}

/// Builds the webhook configuration of an experiment. The webhook covers the requests that a policy with this
/// `admission` would cover, but it never blocks a request: it fails open, with a timeout of 1 s.
///
/// The policy server evaluates the `matchConditions`: a condition that fails in the API server would skip this webhook
/// without a trace, although it would deny the request once the experiment is live. The webhook has only the conditions
/// that a policy server cannot evaluate.
pub(crate) fn build_preview(target: &PreviewTarget<'_>, admission: &Admission, access: Access<'_>) -> Value {
    let endpoint = PreviewEndpoint {
        policy: target.policy.clone(),
        experiment: target.experiment.name().to_owned(),
        generation: target.generation.try_into().unwrap_or_default(),
    };
    let conditions = admission.match_conditions.iter().filter(|condition| !Conditions::can_evaluate(condition));
    let admission = Admission { match_conditions: conditions.cloned().collect(), ..admission.clone() };
    let requests = (target.server, &admission, target.system);
    let mut desired = build(target.policy, "", target.generation, requests, access);
    desired["kind"] = "ValidatingWebhookConfiguration".into();
    desired["metadata"] = json!({"name": preview_name(target.experiment), "labels": {EXPERIMENT_LABEL: target.uid}});
    let only = &mut desired["webhooks"][0];
    only["name"] = format!("{}.preview.proviso.dev", target.experiment).into();
    if let Some(fields) = only.as_object_mut() {
        fields.remove("reinvocationPolicy");
    }
    only["failurePolicy"] = "Ignore".into();
    only["timeoutSeconds"] = 1.into();
    only["clientConfig"]["service"]["path"] = access.path(&endpoint).into();
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

    const ACCESS: Access<'static> = Access { namespace: "proviso", bundle: "bundle", token: None };

    #[test]
    fn reviews_of_credentials_are_exempt_unless_a_cluster_policy_names_their_group() {
        let exemption = |policy: &str, groups: &[&str]| {
            let rules = json!({"rules": [{"apiGroups": groups, "apiVersions": ["*"], "resources": ["*"], "operations": ["*"]}]});
            let admission: Admission = serde_json::from_value(rules).unwrap();
            let webhook =
                build(&policy.parse().unwrap(), "u", 1, ("default", &admission, SystemRequests::Excluded), ACCESS);
            webhook["webhooks"][0]["matchConditions"][0]["expression"].as_str().unwrap().to_owned()
        };
        let is_exempt = |expression: &str| {
            CREDENTIAL_GROUPS.map(|group| expression.contains(&format!("&& request.resource.group != '{group}'")))
        };
        for (policy, groups, wanted) in [
            ("cluster.a", &["*"][..], [true, true]),
            ("cluster.a", &["*", "authentication.k8s.io"], [false, true]),
            ("cluster.a", &["authorization.k8s.io"], [true, false]),
            ("ns.team.a", &["authorization.k8s.io", "authentication.k8s.io"], [true, true]),
        ] {
            assert_eq!(is_exempt(&exemption(policy, groups)), wanted, "{policy}, {groups:?}");
        }
    }

    fn target<'a>(policy: &'a PolicyId, experiment: &'a PolicyId, system: SystemRequests) -> PreviewTarget<'a> {
        PreviewTarget { policy, experiment, uid: "u", generation: 2, server: "default", system }
    }

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
        let system = SystemRequests::Excluded;
        let target = target(&policy, &experiment, system);
        let names = |webhook: &Value| {
            let conditions = webhook["webhooks"][0]["matchConditions"].as_array().unwrap();
            conditions.iter().map(|it| it["name"].as_str().unwrap().to_owned()).collect::<Vec<_>>()
        };
        let token = CallerToken::from_random([1; 32]);
        let access = Access { namespace: "proviso", bundle: "bundle", token: Some(&token) };
        let preview = build_preview(&target, &admission, access);
        assert_eq!(names(&preview), ["proviso-exempt", "permission", "unknown"]);
        let only = &preview["webhooks"][0];
        assert_eq!(preview["kind"], "ValidatingWebhookConfiguration");
        assert_eq!(only["failurePolicy"], "Ignore");
        assert_eq!(only["clientConfig"]["service"]["path"], token.path(&"/preview/cluster.a/e/2"));
        let live = build(&policy, "u", 2, ("default", &admission, system), access);
        assert_eq!(live["webhooks"][0]["clientConfig"]["service"]["path"], token.path(&"/validate/cluster.a/2"));
        let dry_run = build(&policy, "u", 2, ("default", &admission, system), Access::of_dry_run("proviso"));
        assert_eq!(dry_run["webhooks"][0]["clientConfig"]["service"]["path"], "/validate/cluster.a/2");
        assert_eq!(names(&live), ["proviso-exempt", "simple", "permission", "unknown"]);
    }

    #[test]
    fn a_namespaced_policy_and_its_previews_have_the_same_exemptions() {
        let admission = serde_json::from_value(json!({
            "rules": [{"apiGroups": ["*"], "apiVersions": ["*"], "resources": ["*"], "operations": ["*"]}],
        }))
        .unwrap();
        let (policy, experiment) = ("ns.team.a".parse().unwrap(), "ns.team.e".parse().unwrap());
        let exemption = |webhook: &Value| webhook["webhooks"][0]["matchConditions"][0]["expression"].clone();
        for (system, is_asked) in [(SystemRequests::Excluded, false), (SystemRequests::Included, true)] {
            let live = build(&policy, "u", 2, ("default", &admission, system), ACCESS);
            let expression = exemption(&live);
            let expression = expression.as_str().unwrap();
            assert!(expression.contains("'rbac.authorization.k8s.io'"), "{expression}");
            assert_eq!(!expression.contains("'system:masters'"), is_asked, "{expression}");
            let target = target(&policy, &experiment, system);
            assert_eq!(exemption(&build_preview(&target, &admission, ACCESS)), expression);
        }
        let cluster = "cluster.a".parse().unwrap();
        let requests = ("default", &admission, SystemRequests::Excluded);
        let expression = exemption(&build(&cluster, "u", 2, requests, ACCESS));
        assert!(!expression.as_str().unwrap().contains("rbac"), "{expression}");
    }
}
