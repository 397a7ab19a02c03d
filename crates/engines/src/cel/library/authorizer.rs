//! `authorizer`: checks the permissions of the user of the request, or of a `ServiceAccount`. Each `check` is a
//! `SubjectAccessReview`.

mod checks;

use std::sync::Arc;

use cel::common::types::{STRING_TYPE, Type};
use cel::common::value::{CowVal, Val};
use cel::{DeclarationError, Env, ExecutionError};
use proviso_core::Review;
use serde::Deserialize;
use serde_json::{Map, Value, json};

use super::argument::{Result, boxed, opaque, return_bool, return_opaque, return_text, text};
use super::overload::method;
use crate::cel::blocking_host::BlockingHost;
use checks::{
    AUTHORIZER, Authorizer, DECISION, Decision, Extra, GROUP, GroupCheck, PATH, PathCheck, RESOURCE, ResourceCheck,
};

/// The user and the resource of a request.
#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct RequestAttributes {
    user_info: UserInfo,
    resource: Resource,
    sub_resource: Option<String>,
    namespace: Option<String>,
    name: Option<String>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct UserInfo {
    username: String,
    uid: Option<String>,
    groups: Vec<String>,
    extra: Option<Extra>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct Resource {
    group: String,
    resource: String,
}

/// Returns the variables `authorizer` and `authorizer.requestResource`; `None` if the request has no valid user.
pub(in crate::cel) fn variables(review: &Review, host: &BlockingHost) -> Option<[Box<dyn Val>; 2]> {
    let request: RequestAttributes = proviso_core::review::parse(review.request_json()).ok()?;
    let authorizer = Authorizer {
        host: Arc::new(host.clone()),
        user: request.user_info.username.into(),
        uid: request.user_info.uid.unwrap_or_default().into(),
        groups: request.user_info.groups.into(),
        extra: Arc::new(request.user_info.extra.unwrap_or_default()),
    };
    let mut resource = ResourceCheck::new(authorizer.clone(), &request.resource.group, &request.resource.resource);
    let attributes = [("subresource", request.sub_resource), ("namespace", request.namespace), ("name", request.name)];
    for (key, value) in attributes {
        resource = resource.with(key, &value.unwrap_or_default());
    }
    Some([boxed(authorizer).ok()?, boxed(resource).ok()?])
}

pub(super) fn declare(environment: &mut Env) -> std::result::Result<(), DeclarationError> {
    let of_type = |name: &'static str| Type::new_opaque_type(name);
    for name in [AUTHORIZER, PATH, GROUP, RESOURCE, DECISION] {
        environment.add_type(of_type(name))?;
    }
    method(environment, of_type(AUTHORIZER), "path", vec![STRING_TYPE], |arguments| {
        return_opaque(PathCheck { authorizer: opaque(&arguments, 0)?, path: text(&arguments, 1)?.into() })
    })?;
    method(environment, of_type(AUTHORIZER), "group", vec![STRING_TYPE], |arguments| {
        return_opaque(GroupCheck { authorizer: opaque(&arguments, 0)?, group: text(&arguments, 1)?.into() })
    })?;
    method(environment, of_type(AUTHORIZER), "serviceAccount", vec![STRING_TYPE, STRING_TYPE], service_account)?;
    method(environment, of_type(GROUP), "resource", vec![STRING_TYPE], |arguments| {
        let GroupCheck { authorizer, group } = opaque(&arguments, 0)?;
        return_opaque(ResourceCheck::new(authorizer, &group, text(&arguments, 1)?))
    })?;
    method(environment, of_type(RESOURCE), "subresource", vec![STRING_TYPE], |it| narrow("subresource", &it))?;
    method(environment, of_type(RESOURCE), "namespace", vec![STRING_TYPE], |it| narrow("namespace", &it))?;
    method(environment, of_type(RESOURCE), "name", vec![STRING_TYPE], |it| narrow("name", &it))?;
    method(environment, of_type(RESOURCE), "check", vec![STRING_TYPE], |arguments| {
        let target: ResourceCheck = opaque(&arguments, 0)?;
        let mut attributes = Map::clone(&target.attributes);
        attributes.insert("verb".to_owned(), text(&arguments, 1)?.into());
        check(&target.authorizer, "resource_attributes", attributes.into())
    })?;
    method(environment, of_type(PATH), "check", vec![STRING_TYPE], |arguments| {
        let target: PathCheck = opaque(&arguments, 0)?;
        let verb = text(&arguments, 1)?;
        check(&target.authorizer, "non_resource_attributes", json!({"path": &*target.path, "verb": verb}))
    })?;
    method(environment, of_type(DECISION), "allowed", vec![], |it| return_bool(opaque::<Decision>(&it, 0)?.allowed))?;
    method(environment, of_type(DECISION), "reason", vec![], |it| return_text(&*opaque::<Decision>(&it, 0)?.reason))?;
    method(environment, of_type(DECISION), "error", vec![], |it| return_text(&*opaque::<Decision>(&it, 0)?.error))?;
    method(environment, of_type(DECISION), "errored", vec![], |it| {
        return_bool(!opaque::<Decision>(&it, 0)?.error.is_empty())
    })
}

fn service_account<'b, 'v>(arguments: Vec<CowVal<'b, 'v>>) -> Result<CowVal<'b, 'v>> {
    let authorizer: Authorizer = opaque(&arguments, 0)?;
    let (namespace, name) = (text(&arguments, 1)?, text(&arguments, 2)?);
    for (parameter, text) in [("namespace", namespace), ("name", name)] {
        let allowed = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'-' || byte == b'.';
        if text.is_empty() || text.len() > 253 || !text.bytes().all(allowed) {
            let why = format!("the {parameter} {text:?} is not valid");
            return Err(ExecutionError::function_error("serviceAccount", why));
        }
    }
    let groups = [
        "system:serviceaccounts".to_owned(),
        format!("system:serviceaccounts:{namespace}"),
        "system:authenticated".to_owned(),
    ];
    let user = format!("system:serviceaccount:{namespace}:{name}").into();
    // The ServiceAccount has neither the UID nor the extra attributes of the user.
    return_opaque(Authorizer { user, uid: "".into(), groups: groups.into(), extra: Arc::default(), ..authorizer })
}

fn narrow<'b, 'v>(key: &str, arguments: &[CowVal<'b, 'v>]) -> Result<CowVal<'b, 'v>> {
    return_opaque(opaque::<ResourceCheck>(arguments, 0)?.with(key, text(arguments, 1)?))
}

/// Sends a `SubjectAccessReview`. A review that fails is an error of the expression, not a decision: otherwise `!….allowed()`
/// would be true while the API server is unavailable.
fn check<'b, 'v>(authorizer: &Authorizer, key: &str, attributes: Value) -> Result<CowVal<'b, 'v>> {
    let mut review = json!({"user": &*authorizer.user, "groups": &*authorizer.groups, key: attributes});
    // Authorizers may restrict permissions by these attributes.
    if !authorizer.uid.is_empty() {
        review["uid"] = (&*authorizer.uid).into();
    }
    if !authorizer.extra.is_empty() {
        review["extra"] = json!(&*authorizer.extra);
    }
    let status = authorizer.host.can_i(&review).map_err(|why| ExecutionError::function_error("check", why))?;
    let text = |key: &str| status.get(key).and_then(Value::as_str).unwrap_or_default();
    let allowed = status.get("allowed").and_then(Value::as_bool);
    let allowed = allowed.ok_or_else(|| {
        ExecutionError::function_error("check", "the status of the SubjectAccessReview has no field allowed")
    })?;
    return_opaque(Decision { allowed, reason: text("reason").into(), error: text("evaluationError").into() })
}
