//! The management of request policies by HTTP, in the two forms of the DCM project: as its ADR has it below `/api/v1`, and as its
//! published implementation has it below `/api/v1alpha1`. Both have the policies of the same store. Errors have the form of RFC 7807.

mod adr;
mod call;
mod policies;
mod published;
#[cfg(test)]
mod test_policy;

use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::body::Body;
use axum::extract::Request;
use axum::http::{HeaderValue, Method, Response, StatusCode, header};
use axum::routing::any;
use percent_encoding::percent_decode_str;
use serde_json::{Value, json};

use crate::error::{Code, Error};
use crate::problem::Problem;
use crate::router::{json as json_response, run};
use crate::store::{Caller, PolicyStore};
use call::{Answer, Call};
use policies::Policies;

/// The path of the health check, which needs no authentication.
pub const HEALTH: &str = "/api/v1alpha1/health";

/// The time after which a call is answered with an error. It is longer than the time for which a change waits for other changes, is
/// written, and waits until it is served.
const DEADLINE: Duration = Duration::from_secs(45);

/// One of the two forms of the API.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Form {
    Adr,
    Published,
}

/// The resource that a path names.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Target {
    Collection,
    /// The policy with this id.
    Policy(String),
}

impl Form {
    const fn prefix(self) -> &'static str {
        match self {
            Self::Adr => "/api/v1/",
            Self::Published => "/api/v1alpha1/",
        }
    }

    /// Returns the methods of a target, with their names in the log.
    const fn methods(self, target: &Target) -> &'static [(Method, &'static str)] {
        match (self, target) {
            (_, Target::Collection) => &[(Method::GET, "ListRequestPolicies"), (Method::POST, "CreateRequestPolicy")],
            (Self::Adr, Target::Policy(_)) => &[
                (Method::GET, "GetRequestPolicy"),
                (Method::PUT, "ReplaceRequestPolicy"),
                (Method::DELETE, "DeleteRequestPolicy"),
            ],
            (Self::Published, Target::Policy(_)) => &[
                (Method::GET, "GetRequestPolicy"),
                (Method::PATCH, "UpdateRequestPolicy"),
                (Method::DELETE, "DeleteRequestPolicy"),
            ],
        }
    }
}

/// Returns the routes of both forms over a store. A layer around this router authenticates the caller, and puts a [`Caller`] into the
/// extensions of the request. The routes answer every path below `/api/v1` and `/api/v1alpha1` that no other router has.
pub fn router<S: PolicyStore>(store: Arc<S>) -> Router {
    let policies = Policies::new(store);
    let mut all = Router::new();
    for (form, paths) in [
        (Form::Adr, ["/api/v1", "/api/v1/", "/api/v1/{*path}"]),
        (Form::Published, ["/api/v1alpha1", "/api/v1alpha1/", "/api/v1alpha1/{*path}"]),
    ] {
        let policies = policies.clone();
        let routes = any(move |request: Request| {
            let policies = policies.clone();
            async move { answer(form, policies, request).await }
        });
        for path in paths {
            all = all.route(path, routes.clone());
        }
    }
    all
}

/// Returns the route of the health check of the published form.
pub fn health_router() -> Router {
    Router::new().route(HEALTH, any(health))
}

async fn health(request: Request) -> Response<Body> {
    if [Method::GET, Method::HEAD].contains(request.method()) {
        return json_response(StatusCode::OK, &json!({"status": "ok", "path": "health"}));
    }
    method_not_allowed(&["GET"], &request)
}

async fn answer<S: PolicyStore>(form: Form, policies: Policies<S>, request: Request) -> Response<Body> {
    let path = request.uri().path().to_owned();
    let Some(target) = target(form, &path) else {
        let shown: String = path.chars().take(300).collect();
        return refuse(
            &Error::new(Code::NotFound, "PATH_NOT_FOUND", format!("the path {shown} does not exist")),
            &path,
        );
    };
    let methods = form.methods(&target);
    let Some((_, name)) = methods.iter().find(|(method, _)| method == request.method()) else {
        let methods: Vec<_> = methods.iter().map(|(method, _)| method.as_str()).collect();
        return method_not_allowed(&methods, &request);
    };
    let is_change = request.method() != Method::GET;
    let called = async {
        let call = Call::read(request).await?;
        let calling = async move {
            let caller = call.caller.clone();
            let resource = if let Target::Policy(id) = &target { id.clone() } else { String::new() };
            let answered = match form {
                Form::Adr => adr::answer(&policies, &target, call).await,
                Form::Published => published::answer(&policies, &target, call).await,
            };
            if is_change {
                audit(name, caller.as_ref(), &resource, &answered);
            }
            answered
        };
        run(name, is_change, DEADLINE, calling).await
    };
    match called.await {
        Ok(answer) => respond(answer),
        Err(error) => refuse(&error, &path),
    }
}

/// Returns the resource that a path names; `None` if the path does not exist.
fn target(form: Form, path: &str) -> Option<Target> {
    let mut parts = path.strip_prefix(form.prefix())?.split('/');
    match (parts.next(), parts.next(), parts.next()) {
        (Some("policies"), None, None) => Some(Target::Collection),
        (Some("policies"), Some(id), None) if !id.is_empty() => {
            Some(Target::Policy(percent_decode_str(id).decode_utf8().ok()?.into_owned()))
        }
        _ => None,
    }
}

fn respond(answer: Answer) -> Response<Body> {
    match answer {
        Answer::Ok(value) => json_response(StatusCode::OK, &value),
        Answer::Created(location, value) => {
            let mut response = json_response(StatusCode::CREATED, &value);
            if let Ok(location) = HeaderValue::from_str(&location) {
                response.headers_mut().insert(header::LOCATION, location);
            }
            response
        }
        Answer::NoContent => {
            let mut response = Response::new(Body::empty());
            *response.status_mut() = StatusCode::NO_CONTENT;
            response
        }
    }
}

fn refuse(error: &Error, path: &str) -> Response<Body> {
    Problem::from(error).with_instance(path).to_response()
}

fn method_not_allowed(allowed: &[&str], request: &Request) -> Response<Body> {
    let allowed = allowed.join(", ");
    let message = format!("this path supports {allowed}, not {}", request.method());
    let error = Error::new(Code::Unimplemented, "METHOD_NOT_ALLOWED", message).with_status(405);
    let mut response = refuse(&error, request.uri().path());
    if let Ok(allowed) = HeaderValue::from_str(&allowed) {
        response.headers_mut().insert(header::ALLOW, allowed);
    }
    response
}

/// Logs a call that changes something.
fn audit(method: &str, caller: Option<&Caller>, resource: &str, answered: &Result<Answer, Error>) {
    let (status, reason, created) = match answered {
        Ok(Answer::Created(location, _)) => (201, "", location.as_str()),
        Ok(Answer::Ok(_)) => (200, "", ""),
        Ok(Answer::NoContent) => (204, "", ""),
        Err(error) => (error.http(), error.reason(), ""),
    };
    let resource: String = if resource.is_empty() { created } else { resource }.chars().take(400).collect();
    let user = caller.map(|caller| caller.user.as_str()).unwrap_or_default();
    tracing::info!(user, method, resource, status, reason, "change requested");
}

/// Returns an object of the answer with these fields; absent if the value is null.
fn without_nulls(mut value: Value) -> Value {
    if let Value::Object(fields) = &mut value {
        fields.retain(|_, field| !field.is_null());
    }
    value
}

/// Returns the paths with the methods that each supports.
#[cfg(test)]
pub(crate) fn routes() -> Vec<(&'static str, Vec<&'static str>)> {
    let policy = || Target::Policy(String::new());
    let routes = [
        ("/api/v1/policies", Form::Adr, Target::Collection),
        ("/api/v1/policies/{id}", Form::Adr, policy()),
        ("/api/v1alpha1/policies", Form::Published, Target::Collection),
        ("/api/v1alpha1/policies/{id}", Form::Published, policy()),
    ];
    let methods =
        |form: Form, target: &Target| form.methods(target).iter().map(|(method, _)| method.as_str()).collect();
    routes
        .into_iter()
        .map(|(path, form, target)| (path, methods(form, &target)))
        .chain([(HEALTH, vec!["GET"])])
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_name_the_collection_or_a_policy() {
        let policy = |id: &str| Some(Target::Policy(id.to_owned()));
        for (form, path, expected) in [
            (Form::Adr, "/api/v1/policies", Some(Target::Collection)),
            (Form::Adr, "/api/v1/policies/a", policy("a")),
            (Form::Published, "/api/v1alpha1/policies/a%20b", policy("a b")),
            (Form::Published, "/api/v1alpha1/policies/a:b", policy("a:b")),
            (Form::Published, "/api/v1alpha1/policies", Some(Target::Collection)),
            (Form::Published, "/api/v1alpha1/policies/", None),
            (Form::Published, "/api/v1alpha1/policies:evaluate", None),
            (Form::Published, "/api/v1alpha1/policies/a/b", None),
            (Form::Published, "/api/v1alpha1/policies/%ff", None),
            (Form::Published, "/api/v1alpha1", None),
            (Form::Adr, "/api/v1/engine", None),
        ] {
            assert_eq!(target(form, path), expected, "{path}");
        }
    }
}
