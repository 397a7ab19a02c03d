//! `authorizer`: may who asks (or a `ServiceAccount`) do something? Each `check` asks the API server.

mod checks;

use std::sync::Arc;

use cel::common::types::{STRING_TYPE, Type};
use cel::common::value::{CowVal, Val};
use cel::{DeclarationError, Env, ExecutionError};
use proviso_core::Review;
use serde::Deserialize;
use serde_json::{Map, Value, json};

use super::argument::{Result, boxed, give, give_bool, give_text, held, text};
use super::overload::method;
use crate::cel::asking::Asking;
use checks::{
    AUTHORIZER, Authorizer, DECISION, Decision, Extra, GROUP, GroupCheck, PATH, PathCheck, RESOURCE, ResourceCheck,
};

/// Who asks, of a request.
#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct Asker {
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

/// The variables `authorizer` and `authorizer.requestResource`.
pub(in crate::cel) fn variables(review: &Review, asking: &Asking) -> Option<[Box<dyn Val>; 2]> {
    let asker: Asker = proviso_core::review::parse(review.request_json()).ok()?;
    let authorizer = Authorizer {
        asking: Arc::new(asking.clone()),
        user: asker.user_info.username.into(),
        uid: asker.user_info.uid.unwrap_or_default().into(),
        groups: asker.user_info.groups.into(),
        extra: Arc::new(asker.user_info.extra.unwrap_or_default()),
    };
    let mut resource = ResourceCheck::new(authorizer.clone(), &asker.resource.group, &asker.resource.resource);
    for (key, value) in [("subresource", asker.sub_resource), ("namespace", asker.namespace), ("name", asker.name)] {
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
        give(PathCheck { authorizer: held(&arguments, 0)?, path: text(&arguments, 1)?.into() })
    })?;
    method(environment, of_type(AUTHORIZER), "group", vec![STRING_TYPE], |arguments| {
        give(GroupCheck { authorizer: held(&arguments, 0)?, group: text(&arguments, 1)?.into() })
    })?;
    method(environment, of_type(AUTHORIZER), "serviceAccount", vec![STRING_TYPE, STRING_TYPE], service_account)?;
    method(environment, of_type(GROUP), "resource", vec![STRING_TYPE], |arguments| {
        let GroupCheck { authorizer, group } = held(&arguments, 0)?;
        give(ResourceCheck::new(authorizer, &group, text(&arguments, 1)?))
    })?;
    method(environment, of_type(RESOURCE), "subresource", vec![STRING_TYPE], |it| narrow("subresource", &it))?;
    method(environment, of_type(RESOURCE), "namespace", vec![STRING_TYPE], |it| narrow("namespace", &it))?;
    method(environment, of_type(RESOURCE), "name", vec![STRING_TYPE], |it| narrow("name", &it))?;
    method(environment, of_type(RESOURCE), "check", vec![STRING_TYPE], |arguments| {
        let check: ResourceCheck = held(&arguments, 0)?;
        let mut attributes = Map::clone(&check.attributes);
        attributes.insert("verb".to_owned(), text(&arguments, 1)?.into());
        ask(&check.authorizer, "resource_attributes", attributes.into())
    })?;
    method(environment, of_type(PATH), "check", vec![STRING_TYPE], |arguments| {
        let check: PathCheck = held(&arguments, 0)?;
        let verb = text(&arguments, 1)?;
        ask(&check.authorizer, "non_resource_attributes", json!({"path": &*check.path, "verb": verb}))
    })?;
    method(environment, of_type(DECISION), "allowed", vec![], |it| give_bool(held::<Decision>(&it, 0)?.allowed))?;
    method(environment, of_type(DECISION), "reason", vec![], |it| give_text(&*held::<Decision>(&it, 0)?.reason))?;
    method(environment, of_type(DECISION), "error", vec![], |it| give_text(&*held::<Decision>(&it, 0)?.error))?;
    method(environment, of_type(DECISION), "errored", vec![], |it| {
        give_bool(!held::<Decision>(&it, 0)?.error.is_empty())
    })
}

fn service_account<'b, 'v>(arguments: Vec<CowVal<'b, 'v>>) -> Result<CowVal<'b, 'v>> {
    let authorizer: Authorizer = held(&arguments, 0)?;
    let (namespace, name) = (text(&arguments, 1)?, text(&arguments, 2)?);
    for (what, text) in [("namespace", namespace), ("name", name)] {
        let allowed = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'-' || byte == b'.';
        if text.is_empty() || text.len() > 253 || !text.bytes().all(allowed) {
            let why = format!("the {what} {text:?} is not valid");
            return Err(ExecutionError::function_error("serviceAccount", why));
        }
    }
    let groups = [
        "system:serviceaccounts".to_owned(),
        format!("system:serviceaccounts:{namespace}"),
        "system:authenticated".to_owned(),
    ];
    let user = format!("system:serviceaccount:{namespace}:{name}").into();
    // Nothing of the user is its.
    give(Authorizer { user, uid: "".into(), groups: groups.into(), extra: Arc::default(), ..authorizer })
}

fn narrow<'b, 'v>(key: &str, arguments: &[CowVal<'b, 'v>]) -> Result<CowVal<'b, 'v>> {
    give(held::<ResourceCheck>(arguments, 0)?.with(key, text(arguments, 1)?))
}

/// Asks. That the question could not be put is an error of the expression, not an answer: `!….allowed()` must not let
/// anybody in because the API server was away.
fn ask<'b, 'v>(authorizer: &Authorizer, key: &str, attributes: Value) -> Result<CowVal<'b, 'v>> {
    let mut review = json!({"user": &*authorizer.user, "groups": &*authorizer.groups, key: attributes});
    // Authorizers may narrow by these.
    if !authorizer.uid.is_empty() {
        review["uid"] = (&*authorizer.uid).into();
    }
    if !authorizer.extra.is_empty() {
        review["extra"] = json!(&*authorizer.extra);
    }
    let status = authorizer.asking.can_i(&review).map_err(|why| ExecutionError::function_error("check", why))?;
    let text = |key: &str| status.get(key).and_then(Value::as_str).unwrap_or_default();
    let allowed = status.get("allowed").and_then(Value::as_bool);
    let allowed = allowed.ok_or_else(|| ExecutionError::function_error("check", "the answer says nothing"))?;
    give(Decision { allowed, reason: text("reason").into(), error: text("evaluationError").into() })
}
