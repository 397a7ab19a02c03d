//! Checks of subscriptions: the selectors, and the permissions of the author. The operator writes ConfigMaps and Secrets and runs commands
//! for a subscription, with permissions of its own. So its author needs the same permissions in the namespace.

mod names;

use k8s_openapi::api::authentication::v1::UserInfo;
use k8s_openapi::api::authorization::v1::{ResourceAttributes, SubjectAccessReview, SubjectAccessReviewSpec};
use kube::Api;
use kube::api::PostParams;
use proviso_core::PolicyId;
use proviso_core::configuration::Filter;
use proviso_crds::PolicySubscriptionSpec;
use proviso_crds::validation::FieldError;

use super::review::{Object, Refusal, ReviewedRequest, read};
use super::{API_SERVER_TIMEOUT, Admission};

pub(crate) use names::SubscriptionNames;

/// The service account of the operator, which the chart and its admission policies name so too.
const OPERATOR: &str = "proviso-operator";

/// A permission that the author of a subscription needs in its namespace.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Permission {
    /// The field of the subscription that needs the permission.
    field: &'static str,
    verb: &'static str,
    resource: &'static str,
    subresource: Option<&'static str>,
    /// The name of the object; `None` if the verb is for no known object.
    name: Option<String>,
}

impl Admission {
    /// Returns the reason to deny a subscription as an error. `namespace` is that of the subscription.
    pub(super) async fn subscription_refusal(
        &self,
        request: &ReviewedRequest<'_>,
        object: &Object<'_>,
        namespace: &str,
    ) -> Result<(), Refusal> {
        // The API server has validated the schema, which limits the size of what is read here.
        let spec: PolicySubscriptionSpec = read(object.spec()).map_err(|error| format!("spec: {error}"))?;
        let permissions = permissions(&spec);
        let errors = self.checks.run_blocking({
            let namespace = namespace.to_owned();
            move || check(&spec, &namespace)
        });
        let errors = errors.await?;
        if !errors.is_empty() {
            let errors: Vec<_> = errors.iter().map(ToString::to_string).collect();
            return Err(Refusal::from(errors.join("; ")));
        }
        let user = &request.user_info;
        if is_operator(user, &self.namespace) {
            return Ok(());
        }
        let reviews = permissions.iter().map(|permission| self.permission_refusal(user, namespace, permission));
        // The answer names the first permission that is missing, whichever review ends first.
        futures_util::future::join_all(reviews).await.into_iter().collect()
    }

    /// Asks the API server for a permission of the user in the namespace.
    async fn permission_refusal(&self, user: &UserInfo, namespace: &str, wanted: &Permission) -> Result<(), Refusal> {
        let spec = review_spec(user, namespace, wanted);
        let review = SubjectAccessReview { spec, ..SubjectAccessReview::default() };
        let reviews = Api::<SubjectAccessReview>::all(self.client.clone());
        let field = wanted.field;
        let busy = |error: String| {
            Refusal::busy(format!("{field}: the permissions of the user cannot be reviewed now, try again: {error}"))
        };
        let status =
            match tokio::time::timeout(API_SERVER_TIMEOUT, reviews.create(&PostParams::default(), &review)).await {
                Ok(Ok(answered)) => answered.status.unwrap_or_default(),
                Ok(Err(error)) => return Err(busy(error.to_string())),
                Err(_) => return Err(busy("the API server does not answer".to_owned())),
            };
        if status.allowed && status.denied != Some(true) {
            return Ok(());
        }
        Err(Refusal::forbidden(refusal(user, namespace, wanted)))
    }

    /// Returns a warning about a subscription whose ConfigMap or service component name another subscription has. The controller decides
    /// which of them has it.
    pub(super) async fn subscription_warning(&self, request: &ReviewedRequest<'_>) -> Option<String> {
        let object = request.object().ok()??;
        let spec: PolicySubscriptionSpec = read(object.spec()).ok()?;
        let _ = tokio::time::timeout(API_SERVER_TIMEOUT, self.subscriptions.listed()).await;
        let namespace = request.namespace.as_deref().unwrap_or_default();
        self.subscriptions.warning(namespace, &object.metadata.name, &spec)
    }
}

/// Returns the errors of the selectors and canaries that the schema does not find. `namespace` is that of the subscription.
fn check(spec: &PolicySubscriptionSpec, namespace: &str) -> Vec<FieldError> {
    let mut errors = Vec::new();
    let mut check_id = |field: String, id: &str| match id.parse::<PolicyId>() {
        Err(error) => errors.push(FieldError::new(field, format!("is no policy id: {error}"))),
        Ok(id) => {
            if let Some(other) = id.namespace().filter(|other| *other != namespace) {
                let message = format!(
                    "is a Policy of the namespace {other}: a subscription selects ClusterPolicies, and Policies of its own namespace \
                     {namespace}"
                );
                errors.push(FieldError::new(field, message));
            }
        }
    };
    for (index, selector) in spec.policies.iter().enumerate() {
        if let Some(id) = &selector.id {
            check_id(format!("spec.policies[{index}].id"), id);
        }
    }
    for (index, canary) in spec.canary_for.iter().enumerate() {
        check_id(format!("spec.canaryFor[{index}].policy"), &canary.policy);
    }
    for (index, selector) in spec.policies.iter().enumerate() {
        if let Some(Err(error)) = selector.filter.as_ref().map(|filter| Filter::from(filter).check()) {
            errors.push(FieldError::new(format!("spec.policies[{index}].filter.nameRegex"), error.to_string()));
        }
    }
    errors
}

/// Returns whether the user is the operator in this namespace, whose own permissions are wider than those of the author.
fn is_operator(user: &UserInfo, namespace: &str) -> bool {
    let name = user.username.as_deref().and_then(|name| name.strip_prefix("system:serviceaccount:"));
    name.and_then(|name| name.split_once(':')) == Some((namespace, OPERATOR))
}

/// Returns the permissions that the author of a subscription needs in its namespace. The body of a confidential policy is in a Secret with
/// the name of the ConfigMap, and a policy may become confidential later. A notification by HTTP needs none: every pod can send
/// requests to a Service.
fn permissions(spec: &PolicySubscriptionSpec) -> Vec<Permission> {
    let stored =
        |resource, verb, name| Permission { field: "spec.delivery.configMap", verb, resource, subresource: None, name };
    let writes = |resource| {
        let name = spec.delivery.config_map.clone();
        [stored(resource, "create", None), stored(resource, "update", Some(name))]
    };
    let mut permissions: Vec<_> = ["configmaps", "secrets"].into_iter().flat_map(writes).collect();
    if spec.delivery.notify.as_ref().is_some_and(|notify| notify.exec.is_some()) {
        permissions.push(Permission {
            field: "spec.delivery.notify.exec",
            verb: "create",
            resource: "pods",
            subresource: Some("exec"),
            name: None,
        });
    }
    permissions
}

fn review_spec(user: &UserInfo, namespace: &str, wanted: &Permission) -> SubjectAccessReviewSpec {
    SubjectAccessReviewSpec {
        user: user.username.clone(),
        uid: user.uid.clone(),
        groups: user.groups.clone(),
        extra: user.extra.clone(),
        resource_attributes: Some(ResourceAttributes {
            verb: Some(wanted.verb.to_owned()),
            group: Some(String::new()),
            resource: Some(wanted.resource.to_owned()),
            subresource: wanted.subresource.map(ToOwned::to_owned),
            namespace: Some(namespace.to_owned()),
            name: wanted.name.clone(),
            ..ResourceAttributes::default()
        }),
        ..SubjectAccessReviewSpec::default()
    }
}

/// Returns the message about a missing permission, in the words of the API server.
fn refusal(user: &UserInfo, namespace: &str, wanted: &Permission) -> String {
    let Permission { field, verb, resource, subresource, name } = wanted;
    let resource =
        subresource.map_or_else(|| (*resource).to_owned(), |subresource| format!("{resource}/{subresource}"));
    let name = name.as_ref().map(|name| format!(" {name:?}")).unwrap_or_default();
    let user = user.username.as_deref().unwrap_or_default();
    format!(
        "{field}: User {user:?} cannot {verb} resource {resource:?}{name} in the namespace {namespace:?}: the operator does it for the \
         author of a subscription, who needs the permission"
    )
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn spec(fields: &Value) -> PolicySubscriptionSpec {
        let mut spec = json!({
            "component": {"kind": "Deployment", "name": "collector"}, "policies": [{"id": "cluster.memory"}],
            "delivery": {"configMap": "collector-policies"},
        });
        spec.as_object_mut().unwrap().extend(fields.as_object().unwrap().clone());
        serde_json::from_value(spec).unwrap()
    }

    #[test]
    fn each_error_names_its_field() {
        let filter = |name: &str| json!({"policies": [{"id": "cluster.memory"}, {"filter": {"nameRegex": name}}]});
        let canary = |policy: &str| json!({"canaryFor": [{"policy": policy, "experiment": "more"}]});
        for (fields, expected) in [
            (json!({}), vec![]),
            (json!({"policies": [{"id": "ns.team.memory"}]}), vec![]),
            (canary("ns.team.memory"), vec![]),
            (filter("cluster[.]memory-.*"), vec![]),
            (json!({"policies": [{"id": "ns.other.memory"}]}), vec!["spec.policies[0].id"]),
            (json!({"policies": [{"id": "memory"}]}), vec!["spec.policies[0].id"]),
            (canary("ns.other.memory"), vec!["spec.canaryFor[0].policy"]),
            (filter("a)|(b"), vec!["spec.policies[1].filter.nameRegex"]),
            // The API server accepts this regular expression, and no memory for it is left.
            (filter("(((((a{100}){100}){100})))"), vec!["spec.policies[1].filter.nameRegex"]),
        ] {
            let found: Vec<_> = check(&spec(&fields), "team").into_iter().map(|error| error.field).collect();
            assert_eq!(found, expected, "{fields}");
        }
    }

    #[test]
    fn the_author_needs_the_permissions_that_the_operator_uses() {
        let of = |notify: Value| {
            let spec = spec(&json!({"delivery": {"configMap": "policies", "notify": notify}}));
            let permissions = permissions(&spec).into_iter();
            let text = |it: Permission| {
                let review = review_spec(&UserInfo::default(), "team", &it).resource_attributes.unwrap();
                assert_eq!((review.namespace.as_deref(), review.group.as_deref()), (Some("team"), Some("")));
                let parts = [review.verb, review.resource, review.subresource, review.name];
                parts.into_iter().flatten().collect::<Vec<_>>().join(" ")
            };
            permissions.map(text).collect::<Vec<_>>()
        };
        let stored = ["create configmaps", "update configmaps policies", "create secrets", "update secrets policies"];
        let http = json!({"http": {"service": "collector", "port": 80, "path": "/policies"}});
        assert_eq!(of(Value::Null), stored);
        assert_eq!(of(http), stored);
        let exec = of(json!({"exec": {"command": ["/reconfigure.sh"]}}));
        assert_eq!(exec, [stored.as_slice(), &["create pods exec"]].concat());
    }

    #[test]
    fn only_the_operator_needs_no_permissions_of_the_author() {
        let is_operator = |name: &str| {
            is_operator(&UserInfo { username: Some(name.to_owned()), ..UserInfo::default() }, "proviso-system")
        };
        assert!(is_operator("system:serviceaccount:proviso-system:proviso-operator"));
        for other in [
            "system:serviceaccount:proviso-system:policy-server-default",
            "system:serviceaccount:proviso-system:proviso-operator-2",
            "system:serviceaccount:team:proviso-operator",
            "proviso-operator",
        ] {
            assert!(!is_operator(other), "{other}");
        }
    }

    #[test]
    fn a_refusal_names_the_user_the_permission_and_the_field() {
        let user = UserInfo { username: Some("ann".to_owned()), ..UserInfo::default() };
        let exec = spec(&json!({"delivery": {"configMap": "policies", "notify": {"exec": {"command": ["a"]}}}}));
        let texts: Vec<_> = permissions(&exec).iter().map(|it| refusal(&user, "team", it)).collect();
        for (text, words) in texts.iter().zip([
            r#"spec.delivery.configMap: User "ann" cannot create resource "configmaps" in the namespace "team": "#,
            r#"spec.delivery.configMap: User "ann" cannot update resource "configmaps" "policies" in the namespace "team": "#,
            r#"spec.delivery.configMap: User "ann" cannot create resource "secrets" in the namespace "team": "#,
            r#"spec.delivery.configMap: User "ann" cannot update resource "secrets" "policies" in the namespace "team": "#,
            r#"spec.delivery.notify.exec: User "ann" cannot create resource "pods/exec" in the namespace "team": "#,
        ]) {
            assert!(text.starts_with(words), "{text}");
        }
    }
}
