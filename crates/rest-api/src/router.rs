//! The HTTP routes: requests become method calls, and their results become responses. Every error response has the form of
//! AIP-193, even after a panic.

use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::body::Body;
use axum::extract::Request;
use axum::http::{HeaderValue, Method as Http, Response, StatusCode, header};
use axum::routing::any;
use proviso_http::{BodyError, BodyLimits, Peer, ReceivedBody, read_body};
use serde_json::{Map, Value};
use tokio::task::AbortHandle;

use crate::body::to_camel_case;
use crate::error::{Code, Error};
use crate::handlers::{Api, Call};
use crate::methods::{self, Method, Rpc};
use crate::store::{Caller, PolicyStore};

/// The maximum size of a request body, in bytes. The API server of Kubernetes has the same limit.
pub const MAX_BODY: usize = 3 * 1024 * 1024;
/// The time within which a client must send the body.
const BODY_DEADLINE: Duration = Duration::from_secs(10);
/// The time after which a call is answered with an error. A change continues, so that it is not left half done.
const CALL_DEADLINE: Duration = Duration::from_secs(30);
/// The time after which a commit is answered with an error. It is longer than the time for which a commit waits for the preparation
/// of the experiment.
const COMMIT_DEADLINE: Duration = Duration::from_secs(55);
/// The time after which a call of `:wait` is answered with an error. It is longer than the maximum wait.
const WAIT_DEADLINE: Duration = Duration::from_secs(90);

/// Returns the routes of the API over a store, below `/v1`. A layer around this router authenticates the caller, and puts a
/// [`Caller`] into the extensions of the request.
pub fn router<S: PolicyStore>(store: Arc<S>) -> Router {
    let api = Api::new(store);
    let routes = any(move |request: Request| {
        let api = api.clone();
        async move { answer(api, request).await }
    });
    Router::new().route("/v1", routes.clone()).route("/v1/", routes.clone()).route("/v1/{*path}", routes)
}

/// Returns the response for an error. Layers around the router use it too.
#[must_use]
pub fn refuse(error: &Error) -> Response<Body> {
    let status = StatusCode::from_u16(error.http()).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
    let mut response = json(status, &error.to_body());
    if status == StatusCode::SERVICE_UNAVAILABLE {
        response.headers_mut().insert(header::RETRY_AFTER, HeaderValue::from_static("1"));
    }
    if status == StatusCode::UNAUTHORIZED {
        response.headers_mut().insert(header::WWW_AUTHENTICATE, HeaderValue::from_static("Bearer"));
    }
    response
}

pub(crate) fn json(status: StatusCode, value: &Value) -> Response<Body> {
    let mut response = Response::new(Body::from(format!("{value}\n")));
    *response.status_mut() = status;
    response.headers_mut().insert(header::CONTENT_TYPE, HeaderValue::from_static("application/json"));
    response
}

async fn answer<S: PolicyStore>(api: Api<S>, request: Request) -> Response<Body> {
    let found = methods::find(request.method(), request.uri().path());
    let (method, variables) = match found {
        Ok(found) => found,
        Err(allowed) => return no_such_method(&allowed, &request),
    };
    let call = match read(method, variables, request).await {
        Ok(call) => call,
        Err(error) => return refuse(&error),
    };
    let deadline = match method.rpc {
        Rpc::WaitOperation => WAIT_DEADLINE,
        Rpc::Commit => COMMIT_DEADLINE,
        _ => CALL_DEADLINE,
    };
    let calling = async move {
        let result = api.call(&call).await;
        if method.is_change() {
            audit(&call, &result);
        }
        result
    };
    match run(method.id, method.is_change(), deadline, calling).await {
        Ok(value) => json(StatusCode::OK, &value),
        Err(error) => refuse(&error),
    }
}

/// Runs a call in its own task, so that a client that disconnects does not leave a change half done. `method` is its name in the log.
///
/// # Errors
/// Returns the error of the call, or an error if the call panics or exceeds the deadline.
pub(crate) async fn run<T: Send + 'static>(
    method: &'static str,
    is_change: bool,
    deadline: Duration,
    call: impl Future<Output = Result<T, Error>> + Send + 'static,
) -> Result<T, Error> {
    let calling = tokio::spawn(call);
    let _end_with_connection = (!is_change).then(|| AbortOnDrop(calling.abort_handle()));
    let result = match tokio::time::timeout(deadline, calling).await {
        Ok(Ok(result)) => result,
        Ok(Err(panic)) => {
            tracing::error!(method, %panic, "an API call panicked");
            return Err(Error::new(Code::Internal, "INTERNAL", "the call failed: see the log of the server"));
        }
        Err(_) => {
            let message =
                format!("the call takes longer than {} s: a change continues in the background", deadline.as_secs());
            Err(Error::new(Code::DeadlineExceeded, "DEADLINE", message))
        }
    };
    result.inspect_err(|error| {
        if error.code == Code::Internal {
            tracing::error!(method, reason = error.reason(), %error, "an API call failed");
        }
    })
}

/// Ends a task when it is dropped. A server drops the future of a request when the connection of the client ends.
struct AbortOnDrop(AbortHandle);

impl Drop for AbortOnDrop {
    fn drop(&mut self) {
        self.0.abort();
    }
}

/// Logs a call of a method that changes something.
fn audit(call: &Call, result: &Result<Value, Error>) {
    let (status, reason) = match result {
        Ok(_) => (200, ""),
        Err(error) => (error.http(), error.reason()),
    };
    let user = call.caller.as_ref().map(|caller| caller.user.as_str()).unwrap_or_default();
    tracing::info!(user, method = call.method.id, resource = call.resource(), status, reason, "change requested");
}

fn no_such_method(allowed: &[&'static Http], request: &Request) -> Response<Body> {
    let (http, path) = (request.method(), request.uri().path());
    if allowed.is_empty() {
        let path: String = path.chars().take(300).collect();
        return refuse(&Error::new(Code::NotFound, "PATH_NOT_FOUND", format!("the path {path} does not exist")));
    }
    let allowed = allowed.iter().map(|method| method.as_str()).collect::<Vec<_>>().join(", ");
    let message = format!("this path supports {allowed}, not {http}");
    let mut response = refuse(&Error::new(Code::Unimplemented, "METHOD_NOT_ALLOWED", message).with_status(405));
    if let Ok(allowed) = HeaderValue::from_str(&allowed) {
        response.headers_mut().insert(header::ALLOW, allowed);
    }
    response
}

async fn read(method: &'static Method, variables: Vec<String>, request: Request) -> Result<Call, Error> {
    let query = query(method, request.uri().query().unwrap_or_default())?;
    let caller = request.extensions().get::<Caller>().cloned();
    let body = if method.request.is_some() {
        json_body(request, &["application/json"]).await?
    } else {
        ReceivedBody::default()
    };
    Ok(Call { method, variables, query, body, caller })
}

/// Returns the query parameters by their names in camel case. Unknown and repeated parameters are refused.
fn query(method: &Method, query: &str) -> Result<Map<String, Value>, Error> {
    let mut parameters = Map::new();
    for (key, value) in url::form_urlencoded::parse(query.as_bytes()) {
        let name = to_camel_case(&key);
        if !method.query.contains(&name.as_str()) {
            let key: String = key.chars().take(100).collect();
            return Err(Error::invalid(key, format!("is not a parameter of {}", method.id)));
        }
        if parameters.insert(name, value.into_owned().into()).is_some() {
            return Err(Error::invalid(key, "is given twice"));
        }
    }
    Ok(parameters)
}

/// Reads a body of one of these content types. A body without a content type counts as JSON.
pub(crate) async fn json_body(request: Request, types: &[&str]) -> Result<ReceivedBody, Error> {
    let kind = request.headers().get(header::CONTENT_TYPE);
    let is_json = kind.is_none_or(|kind| {
        let kind = kind.to_str().unwrap_or_default().split(';').next().unwrap_or_default().trim();
        types.iter().any(|expected| kind.eq_ignore_ascii_case(expected))
    });
    if !is_json {
        let message = format!("the body must be JSON: send Content-Type: {}", types.join(" or "));
        return Err(Error::new(Code::InvalidArgument, "CONTENT_TYPE", message).with_status(415));
    }
    let (head, body) = request.into_parts();
    let limits = BodyLimits { size: MAX_BODY, timeout: BODY_DEADLINE };
    let received = read_body(body, limits, head.extensions.get::<Peer>()).await;
    received.map_err(|failure| refused(&failure.error))
}

/// Returns the error of a request whose body was not read.
fn refused(error: &BodyError) -> Error {
    match error {
        BodyError::TooLarge(_) => {
            Error::new(Code::InvalidArgument, "BODY_TOO_LARGE", error.to_string()).with_status(413)
        }
        BodyError::Timeout(_) => Error::new(Code::DeadlineExceeded, "BODY_TIMEOUT", error.to_string()).with_status(408),
        BodyError::Unreadable(error) => Error::invalid("body", format!("cannot be read: {error}")),
        BodyError::Overloaded(_) => Error::new(Code::Unavailable, "OVERLOADED", error.to_string()),
    }
}
