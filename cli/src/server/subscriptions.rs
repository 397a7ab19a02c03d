//! `PolicySubscription`s of a server with the REST API.

use http::Method;
use serde::Deserialize as _;
use serde_json::{Value, json};

use super::client::{encoded, is_not_found};
use super::{Result, Server};
use crate::cluster::similar_names;
use crate::error::{Error, MissingSubscription};
use crate::found::{Found, Omitted};
use crate::objects::{ObjectError, SubscriptionName, SubscriptionObject};
use crate::report::{Bodies, Body, ItemReport};

/// The path of the collection.
const SUBSCRIPTIONS: &str = "/api/v1alpha1/subscriptions";
/// The largest number of items of a page.
const PAGE_SIZE: usize = 1000;

impl Server {
    /// Returns the subscriptions of the user's namespace, or of all namespaces.
    pub async fn subscriptions(&self, of_all_namespaces: bool) -> Result<Found<SubscriptionObject>> {
        self.list_subscriptions((!of_all_namespaces).then_some(self.namespace.as_str())).await
    }

    /// Finds the subscription of this name in the user's namespace.
    pub async fn find_subscription(&self, name: &str) -> Result<SubscriptionObject> {
        let of = SubscriptionName { namespace: self.namespace.clone(), name: name.to_owned() };
        if let Some(found) = self.subscription(&of).await? {
            return Ok(found);
        }
        let names = self.list_subscriptions(None).await?.items.into_iter().map(|it| it.name).collect();
        Err(Error::MissingSubscription(MissingSubscription { similar: similar_names(name, names), name: of }))
    }

    /// Returns a subscription; `None` if it does not exist.
    pub async fn subscription(&self, of: &SubscriptionName) -> Result<Option<SubscriptionObject>> {
        let Some(answer) = self.read_subscription(of).await? else { return Ok(None) };
        let object = SubscriptionObject::read_json(&answer["subscription"]);
        object.map(Some).map_err(|error| malformed(of, error))
    }

    /// Returns the bodies of the policies of a component. `items` are its policies.
    pub async fn bodies(&self, of: &SubscriptionName, items: &[ItemReport]) -> Result<Bodies> {
        let answer = self.read_subscription(of).await?;
        Ok(answer.map(|answer| bodies(&answer, items)).unwrap_or_default())
    }

    /// Requests that all policies of a component are sent again. Returns the value that the server chose for the request.
    pub async fn request_resend(&self, subscription: &SubscriptionObject) -> Result<String> {
        let path = format!("{}:resend", path(&subscription.name));
        let answer = self.client.call_at(Method::POST, &path, Some(&json!({}))).await?;
        let value = String::deserialize(&answer["resend"]);
        value.map_err(|error| malformed(&subscription.name, ObjectError::Field { field: "resend", error }))
    }

    /// Returns the answer about a subscription: `subscription`, `policies`, and the bodies in `has` and `should`; `None` if it does not
    /// exist.
    async fn read_subscription(&self, of: &SubscriptionName) -> Result<Option<Value>> {
        match self.client.call_at(Method::GET, &path(of), None).await {
            Ok(answer) => Ok(Some(answer)),
            Err(error) if is_not_found(&error) => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// Returns the subscriptions of a namespace, or of all namespaces, from all pages of the collection.
    async fn list_subscriptions(&self, namespace: Option<&str>) -> Result<Found<SubscriptionObject>> {
        let namespace = namespace.map_or_else(String::new, |it| format!("&namespace={}", encoded(it)));
        let mut found = Found { items: Vec::new(), unseen: Vec::new() };
        let mut token = String::new();
        loop {
            let page = format!("{SUBSCRIPTIONS}?max_page_size={PAGE_SIZE}&page_token={}{namespace}", encoded(&token));
            let answer = self.client.call_at(Method::GET, &page, None).await?;
            for item in answer["subscriptions"].as_array().into_iter().flatten() {
                match SubscriptionObject::read_json(item) {
                    Ok(subscription) => found.items.push(subscription),
                    Err(error) => {
                        let name = item["metadata"]["name"].as_str().unwrap_or(self.client.url());
                        found.unseen.push(Omitted::malformed(name, &error));
                    }
                }
            }
            match answer["next_page_token"].as_str() {
                Some(next) if !next.is_empty() => next.clone_into(&mut token),
                _ => return Ok(found),
            }
        }
    }
}

fn path(of: &SubscriptionName) -> String {
    format!("{SUBSCRIPTIONS}/{}/{}", of.namespace, of.name)
}

fn malformed(of: &SubscriptionName, error: ObjectError) -> Error {
    Error::Malformed { what: of.to_string(), error }
}

/// Returns the bodies of the members `has` and `should`.
fn bodies(answer: &Value, items: &[ItemReport]) -> Bodies {
    let mut bodies = Bodies::default();
    for item in items {
        let id = &item.policy;
        if let (Some(version), Some(stored)) = (&item.has, answer["has"].get(id)) {
            bodies.has.insert(id.clone(), body(version, stored, "the server does not show it"));
        }
        if let (Some(version), Some(desired)) = (&item.should, answer["should"].get(id)) {
            let policy = answer["policies"].as_array().into_iter().flatten().find(|policy| policy["id"] == **id);
            let failed = policy.filter(|policy| policy["state"] == "failed");
            let cause = failed.and_then(|policy| policy["message"].as_str()).unwrap_or("the server does not show it");
            bodies.should.insert(id.clone(), body(version, desired, cause));
        }
    }
    bodies
}

/// Returns the body of a policy in this version. `cause` is the reason for the body null.
fn body(version: &str, body: &Value, cause: &str) -> Body {
    // A candidate has the generation of the live policy before the first slash.
    let generation = version.split('/').next();
    match body["policyVersion"].as_str() {
        _ if body.is_null() => Err(cause.to_owned()),
        _ if body["configOmitted"] == true => Err("it is confidential, and you may not read it".to_owned()),
        other if other.is_some() && other != generation => {
            Err(format!("the server has version {} in its place", other.unwrap_or_default()))
        }
        _ => Ok(body.clone()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::report::ItemState;

    #[test]
    fn a_body_that_is_not_shown_has_a_cause() {
        let shown = json!({"policyVersion": "2", "config": {}});
        let confidential = json!({"configOmitted": true, "policyVersion": "2"});
        for (version, value, wanted) in [
            ("2", &shown, None),
            ("2/trial/1", &shown, None),
            ("1", &shown, Some("the server has version 2 in its place")),
            ("2", &Value::Null, Some("too large")),
            ("2", &confidential, Some("it is confidential, and you may not read it")),
        ] {
            assert_eq!(body(version, value, "too large").err().as_deref(), wanted, "{version} {value}");
        }
    }

    #[test]
    fn bodies_are_those_of_the_members_has_and_should() {
        let item = |id: &str, has: Option<&str>| ItemReport {
            policy: id.to_owned(),
            has: has.map(str::to_owned),
            should: Some("2".to_owned()),
            state: ItemState::Pending,
            message: None,
        };
        let body = |version: &str| json!({"policyVersion": version, "config": {}});
        let answer = json!({
            "policies": [
                {"id": "cluster.broken", "state": "failed", "message": "too large"},
                {"id": "cluster.hidden", "state": "pending", "message": "another cause"},
                {"id": "cluster.memory", "state": "pending", "has": {"version": "1"}, "should": {"version": "2"}},
            ],
            "has": {"cluster.memory": body("1")},
            "should": {"cluster.broken": null, "cluster.hidden": null, "cluster.memory": body("2")},
        });
        let items =
            [item("cluster.broken", Some("1")), item("cluster.hidden", None), item("cluster.memory", Some("1"))];
        let found = bodies(&answer, &items);
        assert_eq!(found.has, [("cluster.memory".to_owned(), Ok(body("1")))].into());
        let unknown = |cause: &str| Err(cause.to_owned());
        let should = [
            ("cluster.broken".to_owned(), unknown("too large")),
            ("cluster.hidden".to_owned(), unknown("the server does not show it")),
            ("cluster.memory".to_owned(), Ok(body("2"))),
        ];
        assert_eq!(found.should, should.into());
    }
}
