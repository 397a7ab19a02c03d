//! The callers of the routes for requests to services. In a cluster, the API server reviews the token of a caller and its permissions
//! (docs/adr/0032). The body of a request is read after that.

use std::sync::Arc;

use axum::body::Body;
use axum::extract::{Request, State};
use axum::http::Response;
use axum::middleware::Next;
use kube::Client;
use proviso_authentication::{AuthenticationError, Caller, Permission, Permissions, Tokens};
use proviso_crds::GROUP;
use proviso_rest_api::Problem;

use super::identity::Own;
use crate::metrics::Metrics;
use crate::table::Table;

/// The virtual resource of the permissions. Its objects have the names of policy servers.
const RESOURCE: &str = "servicerequests";

/// Decides which callers may send requests, and which of them may name other users and tenants. Clones share the caches and the limits.
#[derive(Clone, Debug)]
pub struct CallerReviews {
    tokens: Tokens,
    permissions: Permissions,
    policy_server: Arc<str>,
    metrics: Arc<Metrics>,
}

impl CallerReviews {
    /// Reviews the callers of the policy server of this name.
    #[must_use]
    pub fn new(client: Client, policy_server: &str, metrics: Arc<Metrics>) -> Self {
        let (tokens, permissions) = (Tokens::new(client.clone()), Permissions::new(client));
        Self { tokens, permissions, policy_server: policy_server.into(), metrics }
    }

    /// Answers a request only if its caller may send requests: a middleware. The request gets its [`Caller`] as an extension.
    pub(super) async fn require(State(reviews): State<Self>, request: Request, next: Next) -> Response<Body> {
        let (mut head, body) = request.into_parts();
        let admitted = match reviews.tokens.caller(&head).await {
            Ok(caller) => reviews.admit(caller).await,
            Err(error) => Err((refused_reason(&error), problem(&error))),
        };
        match admitted {
            Ok(caller) => {
                head.extensions.insert(caller);
                next.run(Request::from_parts(head, body)).await
            }
            Err((reason, problem)) => {
                reviews.metrics.count_refused(reason);
                problem.to_response()
            }
        }
    }

    /// Returns the caller if it may send requests, otherwise the label `reason` of the metric of refused requests and the answer.
    async fn admit(&self, caller: Caller) -> Result<Caller, (&'static str, Problem)> {
        match self.has_permission(&caller, "create").await {
            Ok(true) => Ok(caller),
            Ok(false) => {
                let user = caller.user.username.as_deref().unwrap_or_default();
                let message = format!(
                    "user {user:?} cannot create {RESOURCE}.{GROUP} for the PolicyServer {}: bind it to the ClusterRole \
                     proviso-request-evaluator",
                    self.policy_server
                );
                Err(("forbidden", Problem::forbidden(&message)))
            }
            Err(error) => Err((refused_reason(&error), problem(&error))),
        }
    }

    /// Returns whether a caller may name other users and tenants than its own.
    ///
    /// # Errors
    /// Returns an error if the API server does not answer.
    pub(super) async fn may_impersonate(&self, caller: &Caller) -> Result<bool, Problem> {
        self.has_permission(caller, "impersonate").await.map_err(|error| problem(&error))
    }

    async fn has_permission(&self, caller: &Caller, verb: &'static str) -> Result<bool, AuthenticationError> {
        let name = Arc::clone(&self.policy_server);
        self.permissions.is_allowed(caller, Permission::Resource { group: GROUP, resource: RESOURCE, verb, name }).await
    }
}

/// Returns the user and the tenant of a caller. The namespaces of the table name the tenants.
///
/// # Errors
/// Returns an error if the caller has no name, or if its namespace is not in the table yet: without the labels of the namespace, the
/// policies of its tenant would be skipped.
pub(super) fn own(caller: &Caller, table: &Table) -> Result<Own, Problem> {
    let user = caller.user.username.as_deref().filter(|user| !user.is_empty());
    let user = user.ok_or_else(|| Problem::unauthenticated("the token has no user name"))?;
    Own::of(user, &table.namespaces)
}

fn refused_reason(error: &AuthenticationError) -> &'static str {
    match error {
        AuthenticationError::NoCredentials | AuthenticationError::Token(_) => "unknown_caller",
        AuthenticationError::TooMany(_) => "too_many_tokens",
        AuthenticationError::Unavailable(_) => "caller_not_reviewed",
    }
}

fn problem(error: &AuthenticationError) -> Problem {
    match error {
        AuthenticationError::NoCredentials => {
            Problem::unauthenticated("no credentials: send `Authorization: Bearer TOKEN` with a token of this cluster")
        }
        AuthenticationError::Token(_) => Problem::unauthenticated(&error.to_string()),
        AuthenticationError::TooMany(_) => {
            Problem::too_many(&error.to_string(), error.retry_after().unwrap_or_default())
        }
        AuthenticationError::Unavailable(cause) => {
            Problem::unavailable(&format!("the API server cannot review the caller: {cause}"))
        }
    }
}
