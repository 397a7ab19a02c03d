//! The host of one program: checks its calls against its grants, and answers them.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::{Duration, Instant};

use proviso_core::capabilities::KNOWN;
use proviso_engines::host::{HostFuture, Objects};
use proviso_engines::{Deadline, Host, HostCall};
use serde_json::Value;

use crate::error::HostCallError;
use crate::host_context::HostContext;
use crate::kubernetes::{self, reader::KindReader};
use crate::program_grants::ProgramGrants;
use crate::{certificate, images};

/// The maximum size of a guest's request, in bytes. Requests are cache keys in memory, and are parsed on the async workers.
const MAX_REQUEST: usize = 256 << 10;

/// Answers the host calls of one program. The kinds that the program may read are watched until the host is dropped.
#[derive(Debug)]
pub struct PolicyHost {
    /// A reference to this host for tasks on the host runtime.
    weak_self: Weak<Self>,
    host_context: Arc<HostContext>,
    grants: ProgramGrants,
    /// The readers of the kinds in `grants.resources`, in the same order.
    readers: Vec<KindReader>,
    /// The last snapshot of the objects of all kinds, and the versions of the kinds.
    last_objects: Mutex<Option<(Vec<u64>, Arc<Objects>)>>,
}

impl HostContext {
    /// Creates the host of a program. The kinds that the program may read are watched until the host is dropped.
    #[must_use]
    pub fn host(self: &Arc<Self>, grants: ProgramGrants) -> Arc<PolicyHost> {
        let readers = grants.resources.iter().map(|kind| self.reader(kind, grants.namespace.as_deref())).collect();
        let host_context = Arc::clone(self);
        Arc::new_cyclic(|weak_self| PolicyHost {
            weak_self: weak_self.clone(),
            host_context,
            grants,
            readers,
            last_objects: Mutex::default(),
        })
    }
}

impl PolicyHost {
    /// Waits until the objects of all kinds that the program may read are listed.
    ///
    /// # Errors
    /// Returns the path and the error of the first kind that is not available at the deadline.
    pub async fn ready(&self, deadline: Deadline) -> Result<(), (String, HostCallError)> {
        for (index, reader) in self.readers.iter().enumerate() {
            let field = || format!("{}[{index}]", self.grants.resources_field);
            reader.ready(deadline).await.map_err(|error| (field(), error))?;
        }
        Ok(())
    }

    /// Answers a host call.
    ///
    /// # Errors
    /// Returns an error if the grants do not allow the call, the call is unknown or malformed, or it fails or takes too long.
    pub async fn answer(&self, call: HostCall<'_>, deadline: Deadline) -> Result<Vec<u8>, HostCallError> {
        let HostCall { binding, namespace, operation, payload } = call;
        let name = format!("{namespace}/{operation}");
        if binding != "kubewarden" {
            return Err(HostCallError::Unknown(format!("{binding}/{name}")));
        }
        if name == "tracing/log" {
            // The engine writes the log line. Each program may log.
            return Ok(Vec::new());
        }
        if namespace.contains('/') || !KNOWN.contains(&name.as_str()) {
            return Err(HostCallError::Unknown(name));
        }
        self.grants.check_call(namespace, operation)?;
        if payload.len() > MAX_REQUEST {
            let error = format!("it is longer than {} KiB", MAX_REQUEST >> 10);
            return Err(HostCallError::Request { call: name, error });
        }
        let (after, deadline) = shorten(deadline);
        let (weak_self, namespace, operation) = (self.weak_self.clone(), namespace.to_owned(), operation.to_owned());
        let payload = payload.to_vec();
        // The wait for objects ends before the call does, so that its error can name the missing kind.
        let (_, wait_deadline) = shorten(deadline);
        let answer = self.host_context.run(async move {
            let host =
                weak_self.upgrade().ok_or_else(|| HostCallError::Stopped("the policy was unloaded".to_owned()))?;
            Box::pin(host.dispatch(&namespace, &operation, &payload, wait_deadline)).await
        });
        let answer = tokio::time::timeout_at(deadline.instant().into(), answer).await;
        answer.unwrap_or(Err(HostCallError::Deadline { call: name, after }))
    }

    async fn dispatch(
        &self,
        namespace: &str,
        operation: &str,
        payload: &[u8],
        deadline: Deadline,
    ) -> Result<Vec<u8>, HostCallError> {
        let call = format!("{namespace}/{operation}");
        match namespace {
            "kubernetes" => {
                let Self { host_context, grants, readers, .. } = self;
                kubernetes::answer(host_context, grants, readers, operation, payload, deadline).await
            }
            "net" => self.host_context.dns().answer(&call, payload).await,
            "crypto" => certificate::answer(&call, payload).await,
            "oci" => images::answer(self.host_context.images(), &self.grants, operation, payload).await,
            _ => Err(HostCallError::Unknown(call)),
        }
    }

    /// Returns the objects of all kinds; the last snapshot if no object has changed.
    async fn collect_objects(&self, deadline: Deadline) -> Result<Arc<Objects>, HostCallError> {
        let (_, deadline) = shorten(deadline);
        for reader in &self.readers {
            reader.ready(deadline).await?;
        }
        let versions = self.readers.iter().map(KindReader::version).collect::<Result<Vec<_>, _>>()?;
        if let Some((_, objects)) = self.last_objects().as_ref().filter(|(known, _)| *known == versions) {
            return Ok(Arc::clone(objects));
        }
        // The old snapshot is dropped first. It may be the only reference to deleted objects.
        *self.last_objects() = None;
        let (mut versions, mut resources) = (Vec::new(), Vec::new());
        for reader in &self.readers {
            let (version, resource) = reader.all(deadline).await?;
            versions.push(version);
            resources.push(resource);
        }
        let objects = Arc::new(Objects { resources });
        *self.last_objects() = Some((versions, Arc::clone(&objects)));
        Ok(objects)
    }

    fn last_objects(&self) -> MutexGuard<'_, Option<(Vec<u64>, Arc<Objects>)>> {
        self.last_objects.lock().unwrap_or_else(PoisonError::into_inner)
    }

    async fn find_namespace(&self, name: &str, deadline: Deadline) -> Result<Option<Arc<Value>>, HostCallError> {
        self.grants.check_namespace(name)?;
        let (_, deadline) = shorten(deadline);
        let (host_context, name) = (Arc::clone(&self.host_context), name.to_owned());
        let answer = self.host_context.run(async move { host_context.namespace(&name, deadline).await });
        let answer = tokio::time::timeout_at(deadline.instant().into(), answer).await;
        answer.unwrap_or_else(|_| Err(HostCallError::ApiServer("no answer in time".to_owned())))
    }
}

/// Returns 90 % of the remaining time, and the deadline after it. A call ends before the evaluation, so that the program can
/// handle the failure of the call.
fn shorten(deadline: Deadline) -> (Duration, Deadline) {
    let remaining = deadline.instant().saturating_duration_since(Instant::now());
    let shortened = remaining * 9 / 10;
    (shortened, Deadline::after(shortened))
}

impl Host for PolicyHost {
    fn call<'a>(&'a self, call: HostCall<'a>, deadline: Deadline) -> HostFuture<'a, Vec<u8>> {
        Box::pin(async move {
            let answer = self.answer(call, deadline).await;
            answer.map_err(|error| {
                let (namespace, operation) = (call.namespace, call.operation);
                tracing::debug!(namespace, operation, reason = %error.reason(), %error, "a host call failed");
                self.grants.message(&error)
            })
        })
    }

    fn objects(&self, deadline: Deadline) -> HostFuture<'_, Arc<Objects>> {
        Box::pin(async move { self.collect_objects(deadline).await.map_err(|error| self.grants.message(&error)) })
    }

    fn namespace<'a>(&'a self, name: &'a str, deadline: Deadline) -> HostFuture<'a, Option<Arc<Value>>> {
        Box::pin(async move { self.find_namespace(name, deadline).await.map_err(|error| self.grants.message(&error)) })
    }
}
