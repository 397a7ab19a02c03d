//! The types of the values between `authorizer` and a decision.

use std::collections::BTreeMap;
use std::sync::Arc;

use cel::objects::Opaque;
use serde_json::{Map, Value};

use crate::cel::blocking_host::BlockingHost;

pub(super) const AUTHORIZER: &str = "kubernetes.authorization.Authorizer";
pub(super) const PATH: &str = "kubernetes.authorization.PathCheck";
pub(super) const GROUP: &str = "kubernetes.authorization.GroupCheck";
pub(super) const RESOURCE: &str = "kubernetes.authorization.ResourceCheck";
pub(super) const DECISION: &str = "kubernetes.authorization.Decision";

/// The extra attributes of a user (`userInfo.extra`).
pub(super) type Extra = BTreeMap<String, Vec<String>>;

/// A user whose permissions can be checked.
#[derive(Clone, Debug)]
pub(super) struct Authorizer {
    pub host: Arc<BlockingHost>,
    pub user: Arc<str>,
    pub uid: Arc<str>,
    pub groups: Arc<[String]>,
    pub extra: Arc<Extra>,
}

impl PartialEq for Authorizer {
    fn eq(&self, other: &Self) -> bool {
        let of = |it: &Self| (Arc::clone(&it.user), Arc::clone(&it.uid), Arc::clone(&it.groups), Arc::clone(&it.extra));
        of(self) == of(other)
    }
}

impl Eq for Authorizer {}

/// A check of a path that is not a resource, such as `/healthz`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct PathCheck {
    pub authorizer: Authorizer,
    pub path: Arc<str>,
}

/// An API group, whose resources can be checked.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct GroupCheck {
    pub authorizer: Authorizer,
    pub group: Arc<str>,
}

/// A check of a resource.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct ResourceCheck {
    pub authorizer: Authorizer,
    /// The `resourceAttributes` of the `SubjectAccessReview`.
    pub attributes: Arc<Map<String, Value>>,
}

impl ResourceCheck {
    /// Creates a check for any version of a resource, in all namespaces, with any name.
    pub(super) fn new(authorizer: Authorizer, group: &str, resource: &str) -> Self {
        let attributes = [("group", group), ("resource", resource), ("version", "*")];
        let attributes = attributes.into_iter().map(|(key, value)| (key.to_owned(), value.into()));
        Self { authorizer, attributes: Arc::new(attributes.collect()) }
    }

    /// Sets an attribute.
    pub(super) fn with(mut self, key: &str, value: &str) -> Self {
        Arc::make_mut(&mut self.attributes).insert(key.to_owned(), value.into());
        self
    }
}

/// The decision of the API server.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Decision {
    pub allowed: bool,
    pub reason: Arc<str>,
    /// The evaluation error; empty if there was none.
    pub error: Arc<str>,
}

macro_rules! opaque {
    ($($of_type:ident: $name:expr),*) => {
        $(impl Opaque for $of_type {
            fn runtime_type_name(&self) -> &str {
                $name
            }
        })*
    };
}

opaque!(Authorizer: AUTHORIZER, PathCheck: PATH, GroupCheck: GROUP, ResourceCheck: RESOURCE, Decision: DECISION);
