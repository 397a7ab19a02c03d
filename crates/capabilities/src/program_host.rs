//! The world as one program sees it.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::{Duration, Instant};

use proviso_core::capabilities::KNOWN;
use proviso_engines::host::{Asked, Objects};
use proviso_engines::{Deadline, Host, HostCall};
use serde_json::Value;

use crate::error::AskError;
use crate::kubernetes::{self, reading::Reading};
use crate::rights::Rights;
use crate::world::World;
use crate::{certificate, images};

/// The longest request of a guest, in bytes: what is asked is kept in memory, and read on the workers that answer everybody.
const MAX_REQUEST: usize = 256 << 10;

/// What one program may ask, and who answers. While it lives, the kinds that it may read are followed.
#[derive(Debug)]
pub struct ProgramHost {
    /// Itself: what is asked elsewhere goes on there.
    me: Weak<Self>,
    world: Arc<World>,
    rights: Rights,
    /// Those of `rights.resources`.
    readings: Vec<Reading>,
    /// The objects that were given last, and their versions.
    given: Mutex<Option<(Vec<u64>, Arc<Objects>)>>,
}

impl World {
    /// Creates the host of a program with these rights. The kinds that the program may read are followed from now on, for as
    /// long as the host lives.
    #[must_use]
    pub fn host(self: &Arc<Self>, rights: Rights) -> Arc<ProgramHost> {
        let readings = rights.resources.iter().map(|kind| self.read(kind, rights.namespace.as_deref())).collect();
        let world = Arc::clone(self);
        Arc::new_cyclic(|me| ProgramHost { me: me.clone(), world, rights, readings, given: Mutex::default() })
    }
}

impl ProgramHost {
    /// Waits until the objects of all kinds that the program may read are known.
    ///
    /// # Errors
    /// The first one that stands in the way, with the field that names it.
    pub async fn ready(&self, deadline: Deadline) -> Result<(), (String, AskError)> {
        for (index, reading) in self.readings.iter().enumerate() {
            let field = || format!("{}[{index}]", self.rights.resources_field);
            reading.ready(deadline).await.map_err(|error| (field(), error))?;
        }
        Ok(())
    }

    /// Answers a call.
    ///
    /// # Errors
    /// When the program may not ask, or there is no answer in time.
    pub async fn answer(&self, call: HostCall<'_>, deadline: Deadline) -> Result<Vec<u8>, AskError> {
        let HostCall { binding, namespace, operation, payload } = call;
        let name = format!("{namespace}/{operation}");
        if binding != "kubewarden" {
            return Err(AskError::Unknown(format!("{binding}/{name}")));
        }
        if name == "tracing/log" {
            // What is logged, the engine logs; nobody needs permission.
            return Ok(Vec::new());
        }
        if namespace.contains('/') || !KNOWN.contains(&name.as_str()) {
            return Err(AskError::Unknown(name));
        }
        self.rights.check_call(namespace, operation)?;
        if payload.len() > MAX_REQUEST {
            let error = format!("it is longer than {} KiB", MAX_REQUEST >> 10);
            return Err(AskError::Request { call: name, error });
        }
        let (after, deadline) = shorter(deadline);
        let (me, namespace, operation) = (self.me.clone(), namespace.to_owned(), operation.to_owned());
        let payload = payload.to_vec();
        // Who waits for objects can say why they are not there, a little before all is over.
        let (_, earlier) = shorter(deadline);
        let answer = self.world.run(async move {
            let host = me.upgrade().ok_or_else(|| AskError::Stopped("the policy is gone".to_owned()))?;
            Box::pin(host.dispatch(&namespace, &operation, &payload, earlier)).await
        });
        let answer = tokio::time::timeout_at(deadline.instant().into(), answer).await;
        answer.unwrap_or(Err(AskError::Deadline { call: name, after }))
    }

    async fn dispatch(
        &self,
        namespace: &str,
        operation: &str,
        payload: &[u8],
        deadline: Deadline,
    ) -> Result<Vec<u8>, AskError> {
        let call = format!("{namespace}/{operation}");
        match namespace {
            "kubernetes" => {
                let Self { world, rights, readings, .. } = self;
                kubernetes::answer(world, rights, readings, operation, payload, deadline).await
            }
            "net" => self.world.names().answer(&call, payload).await,
            "crypto" => certificate::answer(&call, payload).await,
            "oci" => images::answer(self.world.images(), &self.rights, operation, payload).await,
            _ => Err(AskError::Unknown(call)),
        }
    }

    async fn give(&self, deadline: Deadline) -> Result<Arc<Objects>, AskError> {
        let (_, deadline) = shorter(deadline);
        for reading in &self.readings {
            reading.ready(deadline).await?;
        }
        let versions = self.readings.iter().map(Reading::version).collect::<Result<Vec<_>, _>>()?;
        if let Some((_, given)) = self.given().as_ref().filter(|(given, _)| *given == versions) {
            return Ok(Arc::clone(given));
        }
        // What was given before is let go first: it may be the only one to hold objects that are gone.
        *self.given() = None;
        let (mut versions, mut resources) = (Vec::new(), Vec::new());
        for reading in &self.readings {
            let (version, resource) = reading.all(deadline).await?;
            versions.push(version);
            resources.push(resource);
        }
        let objects = Arc::new(Objects { resources });
        *self.given() = Some((versions, Arc::clone(&objects)));
        Ok(objects)
    }

    fn given(&self) -> MutexGuard<'_, Option<(Vec<u64>, Arc<Objects>)>> {
        self.given.lock().unwrap_or_else(PoisonError::into_inner)
    }

    async fn find_namespace(&self, name: &str, deadline: Deadline) -> Result<Option<Arc<Value>>, AskError> {
        self.rights.check_namespace(name)?;
        let (_, deadline) = shorter(deadline);
        let (world, name) = (Arc::clone(&self.world), name.to_owned());
        let asked = self.world.run(async move { world.namespace(&name, deadline).await });
        let asked = tokio::time::timeout_at(deadline.instant().into(), asked).await;
        asked.unwrap_or_else(|_| Err(AskError::ApiServer("it does not answer in time".to_owned())))
    }
}

/// A call ends some time before the evaluation does: the program is to hear that it failed.
fn shorter(deadline: Deadline) -> (Duration, Deadline) {
    let left = deadline.instant().saturating_duration_since(Instant::now());
    let own = left * 9 / 10;
    (own, Deadline::after(own))
}

impl Host for ProgramHost {
    fn call<'a>(&'a self, call: HostCall<'a>, deadline: Deadline) -> Asked<'a, Vec<u8>> {
        Box::pin(async move {
            let answer = self.answer(call, deadline).await;
            answer.map_err(|error| {
                let (namespace, operation) = (call.namespace, call.operation);
                tracing::debug!(namespace, operation, reason = error.reason(), %error, "a policy was not answered");
                error.to_string()
            })
        })
    }

    fn objects(&self, deadline: Deadline) -> Asked<'_, Arc<Objects>> {
        Box::pin(async move { self.give(deadline).await.map_err(|error| error.to_string()) })
    }

    fn namespace<'a>(&'a self, name: &'a str, deadline: Deadline) -> Asked<'a, Option<Arc<Value>>> {
        Box::pin(async move { self.find_namespace(name, deadline).await.map_err(|error| error.to_string()) })
    }
}
