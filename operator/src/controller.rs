//! The controller of one kind: the queue of objects, their reconciles, and the delays after errors.

use std::collections::{HashMap, HashSet};
use std::convert::Infallible;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use backon::{BackoffBuilder as _, ExponentialBackoff, ExponentialBuilder};
use futures_util::{Stream, StreamExt as _, stream};
use kube::Resource;
use kube::runtime::applier;
use kube::runtime::controller::{self, Action};
use kube::runtime::reflector::{ObjectRef, Store};
use tokio::sync::mpsc;

use crate::cache::{Cache, Cached, Name, lock, name};
use crate::context::Error;
use crate::metrics::{ControllerMetrics, Metrics};

/// The maximum number of objects of a kind that are reconciled at the same time.
const CONCURRENCY: u16 = 16;
/// The time to wait for more events of an object before its reconcile: replicas report one after the other.
const DEBOUNCE: Duration = Duration::from_millis(100);
/// The delays after consecutive errors. Each delay is twice as long as the one before, plus a random part, so that
/// objects that failed together are not retried together.
const BACKOFF: ExponentialBuilder = ExponentialBuilder::new()
    .with_min_delay(Duration::from_secs(1))
    .with_max_delay(Duration::from_mins(1))
    .without_max_times()
    .with_jitter();
/// The first delay after a write conflict: the event of the other write may already have arrived.
const CONFLICT_DELAY: Duration = Duration::from_millis(100);

/// The queue of one kind, and the state of its reconciles.
#[derive(Debug)]
pub(crate) struct Controller<K: Cached> {
    name: &'static str,
    objects: Store<K>,
    sender: mpsc::UnboundedSender<ObjectRef<K>>,
    receiver: mpsc::UnboundedReceiver<ObjectRef<K>>,
    waiting: Arc<Waiting>,
    metrics: ControllerMetrics,
}

/// The queued objects whose reconcile has not begun. Their number is a metric.
#[derive(Debug)]
struct Waiting {
    objects: Mutex<HashSet<Name>>,
    metrics: ControllerMetrics,
}

impl Waiting {
    fn add(&self, object: Name) {
        self.change(|objects| objects.insert(object));
    }

    fn remove(&self, object: &Name) {
        self.change(|objects| objects.remove(object));
    }

    fn change(&self, change: impl FnOnce(&mut HashSet<Name>) -> bool) {
        let mut objects = lock(&self.objects);
        change(&mut objects);
        self.metrics.queue.set(objects.len().try_into().unwrap_or(i64::MAX));
    }
}

/// The delays of the objects whose last reconcile failed.
#[derive(Debug, Default)]
struct Delays(Mutex<HashMap<Name, ExponentialBackoff>>);

impl Delays {
    fn after(&self, object: Name, error: &Error) -> Duration {
        let first = if error.is_race() { BACKOFF.with_min_delay(CONFLICT_DELAY) } else { BACKOFF };
        let mut delays = lock(&self.0);
        // The backoff never ends, so there is always a next delay.
        delays.entry(object).or_insert_with(|| first.build()).next().unwrap_or(DEBOUNCE)
    }

    fn forget(&self, object: &Name) {
        lock(&self.0).remove(object);
    }
}

fn name_of<K: Resource>(reference: &ObjectRef<K>) -> Name
where
    K::DynamicType: std::fmt::Debug + Eq + std::hash::Hash + Clone,
{
    (reference.namespace.clone(), reference.name.clone())
}

impl<K: Cached> Controller<K> {
    /// Creates a controller of these objects. `name` is the value of the label `controller` of its metrics.
    pub fn new(name: &'static str, objects: &Cache<K>, metrics: &Metrics) -> Self {
        let (sender, receiver) = mpsc::unbounded_channel();
        let metrics = metrics.controller(name);
        metrics.queue.set(0);
        let waiting = Arc::new(Waiting { objects: Mutex::default(), metrics: metrics.clone() });
        let controller = Self { name, objects: objects.reader().store(), sender, receiver, waiting, metrics };
        controller.trigger_on(objects, |object| [ObjectRef::from_obj(object)]);
        controller
    }

    /// Queues the result of `objects_to_queue` for each object that the watch of `cache` delivers.
    pub fn trigger_on<W: Cached, C: IntoIterator<Item = ObjectRef<K>>>(
        &self,
        cache: &Cache<W>,
        objects_to_queue: impl Fn(&W) -> C + Send + 'static,
    ) -> &Self {
        let (sender, waiting) = (self.sender.clone(), Arc::clone(&self.waiting));
        cache.listen(move |object| {
            for reference in objects_to_queue(object) {
                waiting.add(name_of(&reference));
                // The receiver is dropped only when the controllers stop.
                let _ = sender.send(reference);
            }
        });
        self
    }

    /// Reconciles the queued objects until the future is dropped, and all objects for each item of `all`. The caches
    /// must be complete before the call: a reconcile would take an object that is not listed yet for deleted.
    pub async fn run<C, R>(self, context: Arc<C>, all: impl Stream<Item = ()>, reconcile: impl Fn(Arc<K>, Arc<C>) -> R)
    where
        R: Future<Output = Result<Action, Error>> + Send,
    {
        let (name_of_controller, delays) = (self.name, Delays::default());
        let (objects, waiting, metrics) = (self.objects.clone(), Arc::clone(&self.waiting), self.metrics.clone());
        let reconcile = |object: Arc<K>, context: Arc<C>| {
            waiting.remove(&name(&*object));
            Box::pin(metrics.observe(reconcile(object, context)))
        };
        let on_error = |object: Arc<K>, error: &Error, _: Arc<C>| {
            let retry_in = delays.after(name(&*object), error);
            let (object, reason) = (ObjectRef::from_obj(&*object), error.reason());
            if error.is_race() {
                tracing::info!(controller = name_of_controller, %object, %error, ?retry_in, "another writer was faster; trying again");
            } else {
                tracing::warn!(controller = name_of_controller, %object, %reason, %error, ?retry_in, "reconcile failed; trying again");
            }
            Action::requeue(retry_in)
        };
        let config = controller::Config::default().concurrency(CONCURRENCY).debounce(DEBOUNCE);
        applier(reconcile, on_error, context, objects, self.queue(all), config)
            .for_each(|result| {
                match result {
                    Ok((reference, _)) => delays.forget(&name_of(&reference)),
                    Err(controller::Error::ObjectNotFound(reference)) => {
                        waiting.remove(&name_of(&reference));
                        delays.forget(&name_of(&reference));
                    }
                    // `on_error` has logged the error.
                    Err(_) => {}
                }
                std::future::ready(())
            })
            .await;
    }

    /// Returns the queue as a stream.
    fn queue(self, all: impl Stream<Item = ()>) -> impl Stream<Item = Result<ObjectRef<K>, Infallible>> {
        let Self { mut receiver, waiting, objects, .. } = self;
        let queued = stream::poll_fn(move |context| receiver.poll_recv(context));
        let every = all.flat_map(move |()| {
            let references: Vec<_> = objects.state().iter().map(|object| ObjectRef::from_obj(&**object)).collect();
            for reference in &references {
                waiting.add(name_of(reference));
            }
            stream::iter(references)
        });
        stream::select(queued, every).map(Ok)
    }
}

#[cfg(test)]
mod tests {
    use k8s_openapi::api::core::v1::Pod;
    use kube::runtime::watcher::Event;
    use serde_json::json;

    use super::*;
    use crate::cache::reference;

    fn pod(name: &str) -> Pod {
        serde_json::from_value(json!({"metadata": {"name": name, "resourceVersion": "1"}})).unwrap()
    }

    fn conflict() -> Error {
        let status = json!({"status": "Failure", "code": 409, "reason": "Conflict", "message": "changed"});
        Error::Kubernetes(kube::Error::Api(serde_json::from_value(status).unwrap()))
    }

    #[tokio::test]
    async fn the_queue_contains_triggered_objects_and_all_objects_on_demand() {
        let (pods, others) = (Cache::<Pod>::default(), Cache::<Pod>::default());
        pods.apply_event(Event::Apply(pod("a")));
        let controller = Controller::new("pods", &pods, &Metrics::new());
        let (depth, waiting) = (controller.metrics.queue.clone(), Arc::clone(&controller.waiting));
        controller.trigger_on(&others, |other| {
            [reference(&format!("of-{}", other.metadata.name.as_deref().unwrap_or_default()), None)]
        });
        others.apply_event(Event::Apply(pod("x")));
        pods.apply_event(Event::Apply(pod("b")));
        drop((pods, others));
        let mut names: Vec<_> = controller.queue(stream::iter([()])).map(|item| item.unwrap().name).collect().await;
        names.sort_unstable();
        assert_eq!(names, ["a", "b", "b", "of-x"]);
        assert_eq!(depth.get(), 3);
        waiting.remove(&(None, "a".to_owned()));
        assert_eq!(depth.get(), 2);
    }

    #[test]
    fn each_consecutive_error_doubles_the_delay() {
        // The backoff computes with seconds as `f32`.
        const SLACK: Duration = Duration::from_millis(1);
        let (delays, object) = (Delays::default(), (None, "a".to_owned()));
        let rounds = |error: &Error| -> Vec<_> {
            delays.forget(&object);
            (0..10).map(|_| delays.after(object.clone(), error)).collect()
        };
        for (error, first) in [(Error::NoCa, Duration::from_secs(1)), (conflict(), CONFLICT_DELAY)] {
            for (round, delay) in rounds(&error).into_iter().enumerate() {
                let least = (first * 2_u32.pow(round.try_into().unwrap())).min(Duration::from_mins(1));
                assert!(delay + SLACK >= least && delay <= least * 2 + SLACK, "{round}: {delay:?}");
            }
        }
    }
}
