//! The state that the reconciles of policy servers share.

use std::collections::HashMap;
use std::ops::Deref;
use std::sync::{Arc, Mutex};

use k8s_openapi::NamespaceResourceScope;
use k8s_openapi::api::core::v1::ObjectReference;
use kube::runtime::events::{Event, EventType, Recorder, Reporter};
use kube::runtime::reflector::ObjectRef;
use kube::{Api, Resource, ResourceExt as _};
use proviso_crds::PolicyServer;
use proviso_crds::names::SERVER_LABEL;
use serde_json::Value;

use super::names::ServerDefaults;
use crate::config::Lifetimes;
use crate::context;
use crate::malformed::MaybeMalformed;
use crate::objects::{self, MANAGER};

/// The settings of the operator that only policy servers need.
#[derive(Clone)]
pub(crate) struct Settings {
    pub defaults: ServerDefaults,
    pub lifetimes: Lifetimes,
}

/// The state that every reconcile of a policy server needs.
pub(crate) struct Context {
    shared: Arc<context::Context>,
    pub settings: Settings,
    recorder: Recorder,
    /// The last apply of each object, by its kind and name.
    pub(super) applied: Mutex<HashMap<(String, String), Applied>>,
}

/// An applied object, and the response of the API server.
#[derive(Debug, PartialEq)]
pub(super) struct Applied {
    pub desired: Value,
    /// The object in the response, without its status and without the fields that change with every write.
    pub content: Value,
}

impl Deref for Context {
    type Target = context::Context;

    fn deref(&self) -> &context::Context {
        &self.shared
    }
}

impl Context {
    pub fn new(shared: Arc<context::Context>, settings: Settings) -> Self {
        let reporter = Reporter { controller: MANAGER.to_owned(), instance: None };
        let recorder = Recorder::new(shared.client.clone(), reporter);
        Self { shared, settings, recorder, applied: Mutex::default() }
    }

    pub(super) fn servers(&self) -> Api<MaybeMalformed<PolicyServer>> {
        Api::all(self.client.clone())
    }

    pub(super) fn namespaced<K: Resource<DynamicType = (), Scope = NamespaceResourceScope>>(&self) -> Api<K> {
        Api::namespaced(self.client.clone(), &self.namespace)
    }

    /// Publishes an Event of a policy server. Events of the same reason are merged into one.
    pub(super) async fn record(
        &self,
        server: &PolicyServer,
        type_: EventType,
        reason: &str,
        note: &str,
    ) -> Result<(), kube::Error> {
        self.record_related(server, type_, reason, note, None).await
    }

    /// Publishes an Event of a policy server that concerns another object too. Events of the same reason and the same
    /// other object are merged into one.
    pub(super) async fn record_related(
        &self,
        server: &PolicyServer,
        type_: EventType,
        reason: &str,
        note: &str,
        related: Option<ObjectReference>,
    ) -> Result<(), kube::Error> {
        let event = Event {
            type_,
            reason: reason.to_owned(),
            note: Some(objects::event_note(note)),
            action: "Reconcile".to_owned(),
            secondary: related,
        };
        self.recorder.publish(&event, &server.object_ref(&())).await
    }
}

/// Maps an object to the policy server that its label names.
pub(super) fn of_label<K: Resource>(object: &K) -> Option<ObjectRef<MaybeMalformed<PolicyServer>>> {
    object.labels().get(SERVER_LABEL).map(|server| ObjectRef::new(server))
}
