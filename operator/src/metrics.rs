//! The metrics of the operator.

use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::time::{Duration, Instant};

use http::{Method, Request};
use kube::runtime::controller::Action;
use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::metrics::histogram::Histogram;
use prometheus_client::metrics::info::Info;
use prometheus_client::registry::Registry;
use proviso_crds::{PolicyPhase, UpdateResult};
use proviso_http::Limits;
use proviso_http::metrics::LimitMetrics;

use crate::caches::Caches;
use crate::kinds::PolicyObject;
use crate::malformed::MaybeMalformed;

/// All metrics of the process.
#[derive(Debug)]
pub(crate) struct Metrics {
    registry: Registry,
    reconciles: Family<ReconcileLabels, Counter>,
    durations: Family<ControllerLabels, Histogram, fn() -> Histogram>,
    queues: Family<ControllerLabels, Gauge>,
    requests: Family<RequestLabels, Counter>,
    policies: Family<PolicyLabels, Gauge>,
    /// 1 while this replica leads, else 0.
    pub leader: Gauge,
    /// The subscriptions whose policies this replica delivers; 0 while it does not lead.
    pub subscriptions: Gauge,
    deliveries: Family<DeliveryLabels, Counter>,
    delivery_durations: Histogram,
    limits: LimitMetrics,
    /// The caches of the controllers that run now.
    caches: Mutex<Weak<Caches>>,
}

/// The series of one controller.
#[derive(Clone, Debug)]
pub(crate) struct ControllerMetrics {
    /// The number of objects that wait to be reconciled.
    pub queue: Gauge,
    succeeded: Counter,
    failed: Counter,
    duration: Histogram,
}

impl ControllerMetrics {
    /// Runs a reconcile, and records its result and duration.
    pub async fn observe<E>(&self, reconcile: impl Future<Output = Result<Action, E>>) -> Result<Action, E> {
        let start = Instant::now();
        let reconciled = reconcile.await;
        self.duration.observe(start.elapsed().as_secs_f64());
        let result = if reconciled.is_ok() { &self.succeeded } else { &self.failed };
        result.inc();
        reconciled
    }
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct ControllerLabels {
    controller: &'static str,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct ReconcileLabels {
    controller: &'static str,
    result: &'static str,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct RequestLabels {
    verb: &'static str,
    resource: String,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct DeliveryLabels {
    result: &'static str,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct PolicyLabels {
    kind: &'static str,
    phase: &'static str,
}

impl Metrics {
    pub fn new() -> Self {
        let mut metrics = Self {
            registry: Registry::with_prefix("proviso_operator"),
            reconciles: Family::default(),
            durations: Family::new_with_constructor(|| Histogram::new([0.001, 0.005, 0.02, 0.1, 0.5, 2.0, 10.0])),
            queues: Family::default(),
            requests: Family::default(),
            policies: Family::default(),
            leader: Gauge::default(),
            subscriptions: Gauge::default(),
            deliveries: Family::default(),
            delivery_durations: Histogram::new([0.02, 0.1, 0.5, 2.0, 10.0, 60.0, 300.0]),
            limits: LimitMetrics::default(),
            caches: Mutex::default(),
        };
        let registry = &mut metrics.registry;
        registry.register("build", "Version of this operator", Info::new([("version", env!("CARGO_PKG_VERSION"))]));
        registry.register("reconciles", "Reconciles by controller and result", metrics.reconciles.clone());
        registry.register("reconcile_duration_seconds", "Time that reconciles took", metrics.durations.clone());
        registry.register("queue_depth", "Objects that wait to be reconciled", metrics.queues.clone());
        registry.register("api_requests", "Requests to the API server by verb and resource", metrics.requests.clone());
        registry.register("policies", "Policies by kind and phase; none while not leading", metrics.policies.clone());
        registry.register("leader", "1 while this replica leads", metrics.leader.clone());
        let subscriptions = metrics.subscriptions.clone();
        registry.register("subscriptions", "Subscriptions whose policies this replica delivers", subscriptions);
        registry.register("deliveries", "Updates of components by result", metrics.deliveries.clone());
        registry.register(
            "delivery_seconds",
            "Time that updates of components took",
            metrics.delivery_durations.clone(),
        );
        metrics.limits.register(registry);
        metrics
    }

    /// Returns the series of a controller. `controller` is the value of their label `controller`, such as `policies`.
    pub fn controller(&self, controller: &'static str) -> ControllerMetrics {
        let labels = ControllerLabels { controller };
        let reconciles = |result| self.reconciles.get_or_create_owned(&ReconcileLabels { controller, result });
        ControllerMetrics {
            queue: self.queues.get_or_create_owned(&labels),
            succeeded: reconciles("success"),
            failed: reconciles("error"),
            duration: self.durations.get_or_create_owned(&labels),
        }
    }

    /// Counts the policies of these caches from now on, until the caches are dropped.
    pub fn follow(&self, caches: &Arc<Caches>) {
        *self.caches.lock().unwrap_or_else(PoisonError::into_inner) = Arc::downgrade(caches);
    }

    /// Counts an update of a component, which took this time.
    pub fn delivered(&self, result: UpdateResult, duration: Duration) {
        let result = match result {
            UpdateResult::Acknowledged => "acknowledged",
            UpdateResult::Rejected => "rejected",
            UpdateResult::Failed => "failed",
        };
        self.deliveries.get_or_create(&DeliveryLabels { result }).inc();
        self.delivery_durations.observe(duration.as_secs_f64());
    }

    /// Counts a request to the API server.
    pub fn request<B>(&self, request: &Request<B>) {
        let (verb, resource) = verb_and_resource(request.method(), request.uri().path(), request.uri().query());
        self.requests.get_or_create(&RequestLabels { verb, resource: resource.to_owned() }).inc();
    }

    /// Returns all metrics in the OpenMetrics text format.
    pub fn to_text(&self, limits: &Limits) -> String {
        self.limits.observe(limits);
        self.policies.clear();
        let caches = self.caches.lock().unwrap_or_else(PoisonError::into_inner).upgrade();
        if let Some(caches) = caches {
            self.count_policies(&caches.policies.reader().store().state());
            self.count_policies(&caches.cluster_policies.reader().store().state());
        }
        proviso_http::metrics::to_text(&self.registry)
    }

    fn count_policies<K: PolicyObject>(&self, policies: &[Arc<MaybeMalformed<K>>]) {
        let phase = |policy: &MaybeMalformed<K>| policy.0.as_ref().ok()?.status()?.phase;
        for counted in PolicyPhase::ALL {
            let number =
                policies.iter().filter(|policy| phase(policy).unwrap_or(PolicyPhase::Pending) == counted).count();
            let labels = PolicyLabels { kind: K::KIND.as_str(), phase: counted.as_str() };
            self.policies.get_or_create(&labels).set(number.try_into().unwrap_or(i64::MAX));
        }
    }
}

/// Returns the verb and the resource of a request to the API server, as in RBAC rules and audit logs.
fn verb_and_resource<'a>(method: &Method, path: &'a str, query: Option<&str>) -> (&'static str, &'a str) {
    let mut segments = path.split('/').filter(|segment| !segment.is_empty());
    // /api/v1/… or /apis/GROUP/VERSION/…
    match segments.next() {
        Some("api") => drop(segments.next()),
        Some("apis") => drop((segments.next(), segments.next())),
        _ => return ("get", ""),
    }
    let rest: Vec<_> = segments.collect();
    let rest = if let ["namespaces", _, rest @ ..] = &rest[..]
        && !rest.is_empty()
    {
        rest
    } else {
        &rest[..]
    };
    let is_watch = query.is_some_and(|query| query.split('&').any(|part| part == "watch=true"));
    let verb = match (method, rest.len()) {
        (&Method::GET, 0 | 1) if is_watch => "watch",
        (&Method::GET, 1) => "list",
        (&Method::POST, _) => "create",
        (&Method::PUT, _) => "update",
        (&Method::PATCH, _) => "patch",
        (&Method::DELETE, _) => "delete",
        _ => "get",
    };
    (verb, rest.first().copied().unwrap_or_default())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn requests_are_counted_by_verb_and_resource() {
        for (method, path, query, expected) in [
            (Method::GET, "/api/v1/pods", None, ("list", "pods")),
            (Method::GET, "/api/v1/namespaces/a/pods", Some("&limit=1"), ("list", "pods")),
            (Method::GET, "/api/v1/namespaces/a/pods", Some("&watch=true&resourceVersion=1"), ("watch", "pods")),
            (Method::GET, "/api/v1/namespaces/a", None, ("get", "namespaces")),
            (Method::GET, "/apis/proviso.dev/v1alpha1/clusterpolicies/a", None, ("get", "clusterpolicies")),
            (
                Method::PATCH,
                "/apis/proviso.dev/v1alpha1/namespaces/a/policyrevisions/b/status",
                None,
                ("patch", "policyrevisions"),
            ),
            (Method::POST, "/apis/events.k8s.io/v1/namespaces/a/events", None, ("create", "events")),
            (Method::DELETE, "/api/v1/namespaces/a/secrets/b", None, ("delete", "secrets")),
            (Method::PUT, "/api/v1/namespaces/a/secrets/b", None, ("update", "secrets")),
            (Method::GET, "/version", None, ("get", "")),
            (Method::GET, "/apis", None, ("get", "")),
        ] {
            assert_eq!(verb_and_resource(&method, path, query), expected, "{method} {path} {query:?}");
        }
    }
}
