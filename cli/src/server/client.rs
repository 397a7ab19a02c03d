//! The HTTP client of the REST API.

use http::{Method, Request};
use percent_encoding::{NON_ALPHANUMERIC, utf8_percent_encode};
use serde_json::Value;

use super::answer;
use super::error::ServerError;
use crate::error::{Error, root_cause};

/// The largest number of items of a page.
const PAGE_SIZE: usize = 1000;

/// A client of one server.
#[derive(Clone)]
pub(super) struct Client {
    http: kube::Client,
    /// The URL of the server, for messages.
    url: String,
}

impl Client {
    pub(super) fn new(http: kube::Client, url: String) -> Self {
        Self { http, url }
    }

    /// Returns the URL of the server.
    pub(super) fn url(&self) -> &str {
        &self.url
    }

    /// Returns a resource; `None` if it does not exist.
    ///
    /// # Errors
    /// When the server does not answer, or refuses the request.
    pub(super) async fn get(&self, path: &str) -> Result<Option<Value>, Error> {
        match self.call(Method::GET, path, None).await {
            Ok(answer) => Ok(Some(answer)),
            Err(error) if is_not_found(&error) => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// Returns the items of all pages of a collection, those of one namespace if there is one.
    ///
    /// # Errors
    /// When the server does not answer, or refuses the request.
    pub(super) async fn list(&self, path: &str, namespace: Option<&str>) -> Result<Vec<Value>, Error> {
        let namespace = namespace.map_or_else(String::new, |it| format!("&namespace={}", encoded(it)));
        let (mut items, mut token) = (Vec::new(), String::new());
        loop {
            let page = format!("{path}?pageSize={PAGE_SIZE}&pageToken={}{namespace}", encoded(&token));
            let mut answer = self.call(Method::GET, &page, None).await?;
            items.extend(answer::items(&mut answer, path));
            match answer["nextPageToken"].as_str() {
                Some(next) if !next.is_empty() => next.clone_into(&mut token),
                _ => return Ok(items),
            }
        }
    }

    /// Calls a method of the API, and returns the body of the response.
    ///
    /// # Errors
    /// When the server does not answer, or refuses the request.
    pub(super) async fn call(&self, method: Method, path: &str, body: Option<&Value>) -> Result<Value, Error> {
        self.call_at(method, &format!("/v1/{path}"), body).await
    }

    /// Calls a method of the API by its whole path, and returns the body of the response.
    ///
    /// # Errors
    /// When the server does not answer, or refuses the request.
    pub(super) async fn call_at(&self, method: Method, path: &str, body: Option<&Value>) -> Result<Value, Error> {
        let body = body.map(serde_json::to_vec).transpose()?.unwrap_or_default();
        let request = Request::builder().method(method).uri(path);
        let request = request.header("content-type", "application/json").body(body.into());
        let request = request.map_err(|error| Error::Usage(format!("{path}: {error}")))?;
        let response = self.http.send(request).await.map_err(|error| self.unreachable(&error))?;
        let status = response.status();
        let body = response.into_body().collect_bytes().await.map_err(|error| self.unreachable(&error))?;
        Ok(answer::read(&self.url, status, &body)?)
    }

    fn unreachable(&self, error: &kube::Error) -> ServerError {
        let (server, cause) = (self.url.clone(), root_cause(error));
        match error {
            kube::Error::Auth(_) => ServerError::Unauthorized { server, cause },
            _ => ServerError::Unreachable { server, cause },
        }
    }
}

/// Encodes a value of a query.
pub(super) fn encoded(value: &str) -> String {
    utf8_percent_encode(value, NON_ALPHANUMERIC).to_string()
}

/// Returns true if the server answered 404.
pub(super) fn is_not_found(error: &Error) -> bool {
    is_refused(error, 404)
}

/// Returns true if the server answered 403.
pub(super) fn is_forbidden(error: &Error) -> bool {
    is_refused(error, 403)
}

fn is_refused(error: &Error, status: u16) -> bool {
    matches!(error, Error::Server(ServerError::Refused(refusal)) if refusal.status == status)
}
