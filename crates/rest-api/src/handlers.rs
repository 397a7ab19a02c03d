//! The implementations of the methods. Each reads the request, calls the store, and returns the response.

mod effects;
mod operations;

use std::sync::Arc;

use proviso_core::{PolicyId, names};
use proviso_http::ReceivedBody;
use serde_json::{Map, Value};
use tokio::sync::Semaphore;

use crate::body;
use crate::error::Error;
use crate::filter::{Field, Filter};
use crate::methods::{Method, Rpc};
use crate::names::ExperimentName;
use crate::page::Page;
use crate::resources::fields::{EXPERIMENT_FILTERS, POLICY_FILTERS};
use crate::store::{Caller, PolicyStore, StoredExperiment, StoredPolicy};

/// The maximum length of the name of a resource in the log, in characters. A caller can send a longer name.
const MAX_LOGGED_NAME: usize = 400;
/// The maximum length of the name of a namespace (RFC 1123 label).
const MAX_NAMESPACE: usize = 63;

type Result<T> = std::result::Result<T, Error>;

/// The API over a store.
#[derive(Debug)]
pub(crate) struct Api<S> {
    pub store: Arc<S>,
    /// The permits of the lists of operations.
    lists: Arc<Semaphore>,
}

impl<S> Api<S> {
    pub(crate) fn new(store: Arc<S>) -> Self {
        Self { store, lists: Arc::new(Semaphore::new(operations::MAX_LISTS)) }
    }
}

impl<S> Clone for Api<S> {
    fn clone(&self) -> Self {
        Self { store: Arc::clone(&self.store), lists: Arc::clone(&self.lists) }
    }
}

/// One call of a method.
#[derive(Debug)]
pub(crate) struct Call {
    pub method: &'static Method,
    /// The values of the variables in the path, in the order of the path.
    pub variables: Vec<String>,
    /// The query parameters of the method, by their names in camel case.
    pub query: Map<String, Value>,
    pub body: ReceivedBody,
    /// The caller; `None` if the server did not authenticate one.
    pub caller: Option<Caller>,
}

impl Call {
    fn parameter(&self, name: &str) -> Option<&str> {
        self.query.get(name)?.as_str().filter(|value| !value.is_empty())
    }

    fn required_parameter(&self, name: &str) -> Result<&str> {
        self.parameter(name).ok_or_else(|| Error::invalid(name, "is missing from the query"))
    }

    /// Returns the namespace that a list is limited to. `None` means all namespaces and the cluster scope.
    fn namespace(&self) -> Result<Option<&str>> {
        let namespace = self.query.get("namespace").and_then(Value::as_str);
        match namespace {
            Some(namespace) if namespace.len() > MAX_NAMESPACE || !names::is_dns_label(namespace) => {
                Err(Error::invalid("namespace", "is not the name of a namespace"))
            }
            namespace => Ok(namespace),
        }
    }

    fn policy(&self) -> Result<PolicyId> {
        let id = self.variables.first().map(String::as_str).unwrap_or_default();
        id.parse().map_err(|error: proviso_core::policy_id::PolicyIdError| Error::invalid("name", error.to_string()))
    }

    fn experiment(&self) -> Result<ExperimentName> {
        let name = self.variables.get(1).cloned().unwrap_or_default();
        experiment_id("name", &name)?;
        Ok(ExperimentName { policy: self.policy()?, name })
    }

    fn object(&self) -> Result<Map<String, Value>> {
        body::object(&self.body.bytes)
    }

    fn caller(&self) -> Option<&Caller> {
        self.caller.as_ref()
    }

    /// Returns the name of the resource in the call, for the log: the path with its variables, and the id of a new resource.
    pub(crate) fn resource(&self) -> String {
        let path = self.method.path.trim_start_matches("/v1/").split(':').next().unwrap_or_default();
        let mut variables = self.variables.iter().map(String::as_str);
        let parts =
            path.split('/').map(|part| if part.starts_with('{') { variables.next().unwrap_or(part) } else { part });
        let id = ["policyId", "policyExperimentId", "experimentId"].into_iter().find_map(|name| self.parameter(name));
        let name = parts.chain(id).collect::<Vec<_>>().join("/");
        name.chars().take(MAX_LOGGED_NAME).collect()
    }
}

fn experiment_id(field: &str, name: &str) -> Result<()> {
    proviso_core::policy_id::check_name(name).map_err(|error| Error::invalid(field, error.to_string()))
}

/// Returns the requested page of the resources that match the filter. `collection` is the field of the response with the
/// resources, and `parent` the resource that the list belongs to; empty for a list without a parent.
fn list(call: &Call, collection: &str, parent: &str, fields: &[Field], resources: Vec<Value>) -> Result<Value> {
    let (filter, page) = list_arguments(call, collection, parent, fields)?;
    let resources =
        resources.into_iter().filter(|resource| filter.as_ref().is_none_or(|filter| filter.matches(resource)));
    Ok(page.paginate(collection, resources.collect()))
}

/// Parses the filter and the page of a list.
fn list_arguments(call: &Call, collection: &str, parent: &str, fields: &[Field]) -> Result<(Option<Filter>, Page)> {
    if call.parameter("orderBy").is_some() {
        return Err(Error::invalid("orderBy", "is not supported: lists are ordered by name"));
    }
    let text = call.parameter("filter").unwrap_or_default();
    let filter = Filter::parse(text, fields)?;
    let arguments = [collection, parent, call.namespace()?.unwrap_or_default(), text];
    let page = Page::new(call.parameter("pageSize"), call.parameter("pageToken"), &arguments)?;
    Ok((filter, page))
}

impl<S: PolicyStore> Api<S> {
    pub(crate) async fn call(&self, call: &Call) -> Result<Value> {
        match call.method.rpc {
            Rpc::ListPolicies => self.list_policies(call).await,
            Rpc::GetPolicy => Ok(self.store.policy(call.caller(), &call.policy()?).await?.to_json()),
            Rpc::CreatePolicy => self.create_policy(call).await,
            Rpc::UpdatePolicy => self.update_policy(call).await,
            Rpc::DeletePolicy => self.delete_policy(call).await,
            Rpc::ListExperiments => self.list_experiments(call).await,
            Rpc::GetExperiment => Ok(self.store.experiment(call.caller(), &call.experiment()?).await?.to_json()),
            Rpc::CreateExperiment => self.create_experiment(call).await,
            Rpc::UpdateExperiment => self.update_experiment(call).await,
            Rpc::DeleteExperiment => self.delete_experiment(call).await,
            Rpc::StartPreview | Rpc::StopPreview => self.preview(call).await,
            Rpc::Commit => self.commit(call).await,
            Rpc::ListOperations => self.list_operations(call).await,
            Rpc::GetOperation => self.get_operation(call).await,
            Rpc::WaitOperation => self.wait_operation(call).await,
            Rpc::Document => Ok(crate::openapi::document()),
        }
    }

    async fn list_policies(&self, call: &Call) -> Result<Value> {
        let policies = self.store.policies(call.caller(), call.namespace()?).await?;
        list(call, "policies", "", POLICY_FILTERS, policies.iter().map(StoredPolicy::to_json).collect())
    }

    /// Lists the experiments of one policy. The policy `-` means all policies (AIP-159), or all policies of a namespace.
    async fn list_experiments(&self, call: &Call) -> Result<Value> {
        let parent = call.variables.first().map(String::as_str).unwrap_or_default();
        let experiments = match (parent, call.namespace()?) {
            ("-", None) => self.store.experiments(call.caller(), None).await?,
            ("-", Some(namespace)) => self.store.experiments_in(call.caller(), namespace).await?,
            (_, Some(_)) => {
                return Err(Error::invalid(
                    "namespace",
                    "can only be set for the policy `-`: a policy has one namespace",
                ));
            }
            (_, None) => {
                let policy = call.policy()?;
                self.store.policy(call.caller(), &policy).await?;
                self.store.experiments(call.caller(), Some(&policy)).await?
            }
        };
        let experiments = experiments.iter().map(StoredExperiment::to_json).collect();
        list(call, "policyExperiments", parent, EXPERIMENT_FILTERS, experiments)
    }
}

/// Checks that the name in a body, if the body has one, is the name in the path.
fn check_name_matches(given: Option<&str>, name: &str) -> Result<()> {
    match given {
        Some(given) if given != name => {
            Err(Error::invalid("name", format!("is {given:?}, but the name in the path is {name:?}")))
        }
        _ => Ok(()),
    }
}

/// Parses the body of a custom method. It may have the name of the resource and `fields`, all of them strings.
fn custom_method_body(call: &Call, name: &str, fields: &[&str]) -> Result<Map<String, Value>> {
    let known: Vec<&str> = fields.iter().copied().chain(["name"]).collect();
    let message = body::message("", call.object()?, &known)?;
    for (field, value) in &message {
        if !value.is_string() && !value.is_null() {
            return Err(Error::invalid(field, "is not a string"));
        }
    }
    check_name_matches(message.get("name").and_then(Value::as_str).filter(|name| !name.is_empty()), name)?;
    Ok(message)
}

#[cfg(test)]
mod tests {
    use axum::http::Method as Http;

    use super::*;
    use crate::methods;

    #[test]
    fn the_log_names_the_resource_of_a_call() {
        let long = "x".repeat(1000);
        for (http, path, query, wanted) in [
            (Http::POST, "/v1/policies", ("policyId", "cluster.a"), "policies/cluster.a"),
            (Http::PATCH, "/v1/policies/ns.a.b", ("updateMask", "*"), "policies/ns.a.b"),
            (Http::POST, "/v1/policies/p/experiments", ("experimentId", "e"), "policies/p/experiments/e"),
            (Http::POST, "/v1/policies/p/experiments", ("policyExperimentId", "e"), "policies/p/experiments/e"),
            (Http::POST, "/v1/policies/p/experiments/e:commit", ("", ""), "policies/p/experiments/e"),
            (Http::POST, "/v1/policies", ("policyId", long.as_str()), &format!("policies/{long}")[..MAX_LOGGED_NAME]),
        ] {
            let (method, variables) = methods::find(&http, path).unwrap();
            let query = Map::from_iter([(query.0.to_owned(), query.1.into())]);
            let call = Call { method, variables, query, body: ReceivedBody::default(), caller: None };
            assert_eq!(call.resource(), wanted, "{path}");
        }
    }
}
