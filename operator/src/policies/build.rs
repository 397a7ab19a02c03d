//! What there should be: the revision of a generation, and the webhook that asks it. Pure.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use kube::ResourceExt as _;
use proviso_core::{Action, Endpoint, PolicyId};
use proviso_crds::names::{COMMITTED_EXPERIMENT, POLICY_LABEL, SERVER_LABEL};
use proviso_crds::{
    Admission, FailurePolicy, MatchPolicy, PolicyRevision, PolicyRevisionSpec, RevisedExperiment, RevisedPolicy,
    RevisionRole,
};
use serde_json::{Value, json};

use super::object::{self, PolicyObject};
use crate::context::Error;
use crate::policy_servers::build::name;
use crate::revisions::Revision;

/// Of both kinds of webhook configurations.
pub(super) fn webhook_name(policy: &PolicyId) -> String {
    format!("proviso-{policy}")
}

/// The revision of the newest generation, after these.
pub(super) fn revision<K: PolicyObject>(
    policy: &K,
    before: &[Revision],
    namespace: &str,
) -> Result<PolicyRevision, Error> {
    let generation = policy.meta().generation.ok_or(Error::Incomplete("generation"))?;
    let uid = policy.uid().ok_or(Error::Incomplete("uid"))?;
    let spec = policy.spec();
    let mut revision = PolicyRevision::new(
        &format!("{}-{generation}", object::id(policy)?),
        PolicyRevisionSpec {
            policy_server: spec.policy_server.clone(),
            policy_ref: RevisedPolicy {
                kind: K::KIND,
                namespace: policy.namespace(),
                name: policy.name_any(),
                uid: uid.clone(),
                generation,
            },
            role: RevisionRole::Live,
            experiment_ref: committed(policy, before),
            enabled: spec.enabled,
            data: spec.clone(),
        },
    );
    revision.metadata.namespace = Some(namespace.to_owned());
    revision.labels_mut().insert(SERVER_LABEL.to_owned(), spec.policy_server.clone());
    revision.labels_mut().insert(POLICY_LABEL.to_owned(), uid);
    if let Some(committed) = policy.annotations().get(COMMITTED_EXPERIMENT) {
        revision.annotations_mut().insert(COMMITTED_EXPERIMENT.to_owned(), committed.clone());
    }
    Ok(revision)
}

/// The experiment whose commit made this generation. The annotation stays on the policy; what it names was committed to the
/// first generation that has it.
fn committed<K: PolicyObject>(policy: &K, before: &[Revision]) -> Option<RevisedExperiment> {
    let named = policy.annotations().get(COMMITTED_EXPERIMENT)?;
    let is_known = before.iter().any(|revision| revision.annotations().get(COMMITTED_EXPERIMENT) == Some(named));
    serde_json::from_str(named).ok().filter(|_| !is_known)
}

/// The webhook configuration that asks this generation: the policy server that serves it, and the requests that it is about.
pub(crate) fn webhook(
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
        "metadata": {"name": webhook_name(policy), "labels": {POLICY_LABEL: uid}},
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
                    "name": name(server),
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
