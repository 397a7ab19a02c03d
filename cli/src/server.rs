//! The client of a server with the REST API (docs/reference/rest-api.md): a policy server over a folder, or an operator.

mod answer;
mod client;
mod connect;
pub mod error;
mod operation;
mod subscriptions;

use std::time::Duration;

use futures_util::stream;
use http::Method;
use jiff::SignedDuration;
use proviso_core::PolicyId;
use serde_json::{Value, json};

use self::client::{Client, encoded, is_forbidden, is_not_found};
use self::error::ServerError;
use crate::cluster::{Action, Scope, candidates, similar_ids};
use crate::error::{Error, Missing};
use crate::experiment::error::ExperimentError;
use crate::found::{CLUSTER_EXPERIMENTS, Found, Omitted, Updates};
use crate::kinds::Pair as _;
use crate::objects::{ExperimentObject, ObjectError, PolicyObject};
use crate::policy_ref::PolicyRef;

pub use operation::{Operation, OperationState};

/// The collection of the experiments of all policies.
const ALL_EXPERIMENTS: &str = "policies/-/experiments";
/// The interval between two requests of a watch, and the longest interval after errors.
const POLL_INTERVAL: Duration = Duration::from_secs(2);
const MAX_POLL_INTERVAL: Duration = Duration::from_secs(30);
/// The time limit for creating or deleting an experiment. Creation includes the preparation of the program, because it changes
/// the etag that a commit needs.
const OPERATION_TIMEOUT: Duration = Duration::from_secs(30);

type Result<T> = std::result::Result<T, Error>;

/// A client of a server, and the namespace of the user.
#[derive(Clone)]
pub struct Server {
    client: Client,
    namespace: String,
    /// True if an argument names the namespace, false if it is the default.
    is_namespace_given: bool,
}

impl Server {
    #[must_use]
    pub fn namespace(&self) -> &str {
        &self.namespace
    }

    pub async fn find_policy(&self, reference: &PolicyRef) -> Result<PolicyObject> {
        let candidates = self.candidates(reference)?;
        let (mut found, mut refused) = (Vec::new(), Vec::new());
        for id in &candidates {
            match self.policy(id).await {
                Ok(policy) => found.extend(policy),
                // An operator lets the user read only some of the candidates.
                Err(error) if is_forbidden(&error) => refused.push(error),
                Err(error) => return Err(error),
            }
        }
        if found.len() > 1 {
            return Err(Error::Ambiguous {
                what: PolicyObject::PLURAL,
                name: reference.name().to_owned(),
                ids: candidates,
            });
        }
        match found.pop() {
            Some(policy) => return Ok(policy),
            None if refused.len() == candidates.len() => return Err(refused.swap_remove(0)),
            None => {}
        }
        let (all, _) = self.visible("policies", candidates.iter().find_map(PolicyId::namespace)).await?;
        let ids: Vec<_> = all.iter().filter_map(|it| PolicyObject::read_resource(it).ok()).map(|it| it.id).collect();
        let similar = similar_ids(reference.name(), &ids);
        let kinds = PolicyObject::KINDS;
        Err(Error::Missing(Missing { kinds, show: None, candidates, similar, forbidden: Vec::new() }))
    }

    /// Finds an experiment among all experiments, because its name does not contain its policy.
    pub async fn find_experiment(&self, reference: &PolicyRef) -> Result<ExperimentObject> {
        let candidates = self.candidates(reference)?;
        let (all, _) = self.visible(ALL_EXPERIMENTS, candidates.iter().find_map(PolicyId::namespace)).await?;
        let all = self.read(all);
        let ids: Vec<_> = all.items.iter().map(|experiment| experiment.id.clone()).collect();
        let mut found: Vec<_> = all.items.into_iter().filter(|it| candidates.contains(&it.id)).collect();
        if found.len() > 1 {
            return Err(Error::Ambiguous {
                what: ExperimentObject::PLURAL,
                name: reference.name().to_owned(),
                ids: candidates,
            });
        }
        found.pop().ok_or_else(|| {
            let (kinds, show) = (ExperimentObject::KINDS, Some(ExperimentObject::SHOW));
            let similar = similar_ids(reference.name(), &ids);
            Error::Missing(Missing { kinds, show, candidates, similar, forbidden: Vec::new() })
        })
    }

    /// Returns the items of a collection. If the user may not list all of them, returns those of the namespace, and true.
    async fn visible(&self, path: &str, namespace: Option<&str>) -> Result<(Vec<Value>, bool)> {
        match self.client.list(path, None).await {
            Err(error) if namespace.is_some() && is_forbidden(&error) => {}
            listed => return Ok((listed?, false)),
        }
        Ok((self.client.list(path, namespace).await?, true))
    }

    fn candidates(&self, reference: &PolicyRef) -> Result<Vec<PolicyId>> {
        candidates(reference, &self.namespace, self.is_namespace_given)
    }

    pub async fn policy(&self, id: &PolicyId) -> Result<Option<PolicyObject>> {
        let found = self.client.get(&format!("policies/{id}")).await?;
        found.map(|it| PolicyObject::read_resource(&it)).transpose().map_err(|error| malformed(id, error))
    }

    pub async fn experiment(&self, policy: &PolicyId, name: &str) -> Result<Option<ExperimentObject>> {
        let found = self.client.get(&format!("policies/{policy}/experiments/{name}")).await?;
        found.map(|it| ExperimentObject::read_resource(&it)).transpose().map_err(|error| malformed(&name, error))
    }

    /// Returns the experiments of a scope. `policy` limits them to the experiments of one policy.
    pub async fn list_experiments(&self, scope: &Scope, policy: Option<&PolicyId>) -> Result<Found<ExperimentObject>> {
        let namespace = matches!(scope, Scope::All { of_all_namespaces: false }).then_some(self.namespace.as_str());
        let path = policy.map(|policy| format!("policies/{policy}/experiments"));
        let mut found = match self.visible(path.as_deref().unwrap_or(ALL_EXPERIMENTS), namespace).await {
            Ok((items, is_partial)) => {
                let mut found = self.read(items);
                if is_partial {
                    let cause = "you may not list the experiments of all namespaces";
                    found.unseen.push(Omitted::forbidden(CLUSTER_EXPERIMENTS, &cause));
                }
                found
            }
            // A deleted policy has no experiments.
            Err(error) if policy.is_some() && is_not_found(&error) => self.read(Vec::new()),
            Err(error) => return Err(error),
        };
        found.items.retain(|experiment| match scope {
            Scope::One(id) => experiment.id == *id,
            Scope::All { of_all_namespaces: false } => {
                experiment.id.namespace().is_none_or(|namespace| namespace == self.namespace)
            }
            Scope::SameNamespace(_) | Scope::All { of_all_namespaces: true } => true,
        });
        Ok(found)
    }

    /// Returns the experiments of a scope at intervals, because the REST API has no watch.
    pub fn follow(&self, scope: &Scope, policy: Option<&PolicyId>) -> Updates<ExperimentObject> {
        let subject = (self.clone(), scope.clone(), policy.cloned());
        Box::pin(stream::unfold((subject, POLL_INTERVAL), async |(subject, pause)| {
            tokio::time::sleep(pause).await;
            let (server, scope, policy) = &subject;
            let found = server.list_experiments(scope, policy.as_ref()).await;
            let pause = next_pause(pause, found.is_ok());
            Some((found, (subject, pause)))
        }))
    }

    /// Creates an experiment, and waits until the server has prepared it, at most for `OPERATION_TIMEOUT`.
    pub async fn create(&self, id: &PolicyId, manifest: &Value) -> Result<ExperimentObject> {
        let spec = &manifest["spec"];
        let name = spec["policyRef"]["name"].as_str().unwrap_or_default();
        let policy = PolicyId::new(id.namespace(), name).map_err(|error| Error::Usage(error.to_string()))?;
        let mut body = json!({"policy": {"spec": spec["policy"]}, "autoStart": spec["autoStart"]});
        // A server of an older version does not know these fields.
        for field in ["sampleRate", "logging"] {
            if let Some(value) = spec.get(field) {
                body[field] = value.clone();
            }
        }
        if let Some(ttl) = spec["ttl"].as_str() {
            body["ttl"] = json!(in_seconds(ttl)?);
        }
        let path = format!("policies/{policy}/experiments?policyExperimentId={}", id.name());
        self.operation(Method::POST, &path, Some(&body)).await?.wait(OPERATION_TIMEOUT).await?;
        let created = self.experiment(&policy, id.name()).await?;
        created.ok_or_else(|| Error::Usage(format!("{id} was created, and deleted meanwhile")))
    }

    pub async fn delete(&self, experiment: &ExperimentObject) -> Result<()> {
        let path = format!("{}?etag={}", path(experiment), encoded(&experiment.etag));
        let started = self.operation(Method::DELETE, &path, None).await;
        started.map_err(|error| refused(error, experiment, "delete"))?.wait(OPERATION_TIMEOUT).await.map(drop)
    }

    pub async fn act(&self, experiment: &ExperimentObject, action: &Action) -> Result<Operation> {
        let (method, body) = match action {
            Action::Start => ("startPreview", json!({})),
            Action::Stop => ("stopPreview", json!({})),
            Action::Commit { etag, parent_etag } => ("commit", json!({"etag": etag, "parentEtag": parent_etag})),
        };
        let path = format!("{}:{method}", path(experiment));
        let started = self.operation(Method::POST, &path, Some(&body)).await;
        started.map_err(|error| refused(error, experiment, action.name()))
    }

    async fn operation(&self, method: Method, path: &str, body: Option<&Value>) -> Result<Operation> {
        let answer = self.client.call(method, path, body).await?;
        Ok(Operation::new(self.client.clone(), answer))
    }

    fn read(&self, items: Vec<Value>) -> Found<ExperimentObject> {
        let mut found = Found { items: Vec::new(), unseen: Vec::new() };
        for item in items {
            match ExperimentObject::read_resource(&item) {
                Ok(experiment) => found.items.push(experiment),
                Err(error) => {
                    let name = item["name"].as_str().unwrap_or(self.client.url());
                    found.unseen.push(Omitted::malformed(name, &error));
                }
            }
        }
        found
    }
}

/// Returns a duration such as `1h30m` in the form of the REST API (proto-JSON), such as `5400s`.
fn in_seconds(duration: &str) -> Result<String> {
    let parsed = duration.parse::<SignedDuration>().map_err(|error| Error::Usage(format!("{duration}: {error}")))?;
    Ok(format!("{}s", parsed.as_secs_f64()))
}

fn path(experiment: &ExperimentObject) -> String {
    format!("policies/{}/experiments/{}", experiment.policy, experiment.id.name())
}

fn malformed(what: &impl ToString, error: ObjectError) -> Error {
    Error::Malformed { what: what.to_string(), error }
}

/// Converts the refusal of an action to an error about the experiment.
fn refused(error: Error, experiment: &ExperimentObject, action: &'static str) -> Error {
    let Error::Server(ServerError::Refused(refusal)) = error else { return error };
    let (cause, reason) = (refusal.to_string(), refusal.reason.as_deref());
    ExperimentError::answered(experiment.id.clone(), action, refusal.status, reason, cause).into()
}

/// Returns the time before the next request of a watch. The time doubles after each error.
fn next_pause(pause: Duration, is_answered: bool) -> Duration {
    if is_answered { POLL_INTERVAL } else { (pause * 2).min(MAX_POLL_INTERVAL) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_duration_has_the_form_of_the_rest_api() {
        for (duration, wanted) in [("336h", "1209600s"), ("1h30m", "5400s"), ("60.5s", "60.5s")] {
            assert_eq!(in_seconds(duration).unwrap(), wanted);
        }
    }

    #[test]
    fn a_watch_backs_off_while_the_server_does_not_answer() {
        let mut pause = POLL_INTERVAL;
        let mut pauses = Vec::new();
        for is_answered in [false, false, false, false, false, true] {
            pause = next_pause(pause, is_answered);
            pauses.push(pause.as_secs());
        }
        assert_eq!(pauses, [4, 8, 16, 30, 30, 2]);
    }
}
