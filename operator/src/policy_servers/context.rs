//! The values that the reconciles of policy servers share.

use std::collections::HashMap;
use std::ops::Deref;
use std::sync::{Arc, Mutex};

use k8s_openapi::NamespaceResourceScope;
use kube::runtime::events::{Event, EventType, Recorder, Reporter};
use kube::runtime::reflector::ObjectRef;
use kube::{Api, Resource, ResourceExt as _};
use proviso_crds::PolicyServer;
use proviso_crds::names::SERVER_LABEL;
use serde_json::Value;

use super::names::Place;
use crate::config::Lifetimes;
use crate::context;
use crate::guarded::Guarded;
use crate::objects::{self, MANAGER};

/// The settings of the operator that only policy servers need.
#[derive(Clone)]
pub(crate) struct Settings {
    pub place: Place,
    pub lifetimes: Lifetimes,
}

/// What every reconcile of a policy server needs.
pub(crate) struct Context {
    shared: Arc<context::Context>,
    pub settings: Settings,
    recorder: Recorder,
    /// The last apply of each object, by its kind and name.
    pub(super) applied: Mutex<HashMap<(String, String), Applied>>,
}

/// An apply, as it was asked for and as the API server answered it.
#[derive(Debug, PartialEq)]
pub(super) struct Applied {
    pub wanted: Value,
    /// The object without its status, and without what changes with every write.
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

    pub(super) fn servers(&self) -> Api<Guarded<PolicyServer>> {
        Api::all(self.client.clone())
    }

    pub(super) fn namespaced<K: Resource<DynamicType = (), Scope = NamespaceResourceScope>>(&self) -> Api<K> {
        Api::namespaced(self.client.clone(), &self.namespace)
    }

    /// Tells the owner of a policy server. Events of the same reason are counted as one.
    pub(super) async fn record(
        &self,
        server: &PolicyServer,
        type_: EventType,
        reason: &str,
        note: &str,
    ) -> Result<(), kube::Error> {
        let event = Event {
            type_,
            reason: reason.to_owned(),
            note: Some(objects::note(note)),
            action: "Reconcile".to_owned(),
            secondary: None,
        };
        self.recorder.publish(&event, &server.object_ref(&())).await
    }
}

/// The policy server that an object was made for.
pub(super) fn of_label<K: Resource>(object: &K) -> Option<ObjectRef<Guarded<PolicyServer>>> {
    object.labels().get(SERVER_LABEL).map(|server| ObjectRef::new(server))
}
