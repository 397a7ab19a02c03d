//! The number and size of the policies, experiments and revisions of each namespace, and their limits (docs/adr/0021).
//!
//! Every replica of the operator watches these objects and keeps only their sizes: the admission webhook, which every replica serves,
//! then needs no request to the API server. Concurrent creations may exceed a limit by a few objects; the controllers, which read the
//! same sizes, schedule no generation beyond it.

use std::collections::{HashMap, HashSet};
use std::sync::Mutex;
use std::time::Duration;

use clap::Args;
use futures_util::TryStreamExt as _;
use jiff::Timestamp;
use kube::core::{ApiResource, DynamicObject};
use kube::runtime::{WatchStreamExt as _, watcher};
use kube::{Api, Client, ResourceExt as _};
use proviso_core::Failure;
use proviso_crds::{Policy, PolicyExperiment, PolicyRevision, reasons};
use serde::Serialize;
use tokio::sync::watch;

use crate::cache::lock;
use crate::objects::watch_config;

/// The number of objects in one page of a list, which are in memory at the same time.
const PAGE_SIZE: u32 = 50;
const MIB: u64 = 1024 * 1024;

/// The limits of each namespace.
#[derive(Args, Clone, Copy, Debug)]
#[allow(clippy::doc_markdown, reason = "the doc comments are the help text that a terminal shows")]
#[allow(clippy::struct_field_names, reason = "the fields are the names of arguments")]
pub struct NamespaceLimits {
    /// Maximum number of Policies in one namespace
    #[arg(long, env = "PROVISO_MAX_POLICIES_PER_NAMESPACE", default_value_t = 100, value_name = "COUNT")]
    pub max_policies_per_namespace: usize,

    /// Maximum number of PolicyExperiments in one namespace
    #[arg(long, env = "PROVISO_MAX_EXPERIMENTS_PER_NAMESPACE", default_value_t = 100, value_name = "COUNT")]
    pub max_experiments_per_namespace: usize,

    /// Maximum size of the specs of the Policies and PolicyExperiments of one namespace and of their revisions, in MiB
    #[arg(long, env = "PROVISO_MAX_MIB_PER_NAMESPACE", default_value_t = 32, value_name = "MIB")]
    pub max_mib_per_namespace: u64,
}

impl Default for NamespaceLimits {
    fn default() -> Self {
        Self { max_policies_per_namespace: 100, max_experiments_per_namespace: 100, max_mib_per_namespace: 32 }
    }
}

/// A kind whose objects count.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum CountedKind {
    Policy,
    Experiment,
    Revision,
}

impl CountedKind {
    const ALL: [Self; 3] = [Self::Policy, Self::Experiment, Self::Revision];

    fn plural(self) -> &'static str {
        match self {
            Self::Policy => "policies",
            Self::Experiment => "experiments",
            Self::Revision => "revisions",
        }
    }

    fn resource(self) -> ApiResource {
        match self {
            Self::Policy => ApiResource::erase::<Policy>(&()),
            Self::Experiment => ApiResource::erase::<PolicyExperiment>(&()),
            Self::Revision => ApiResource::erase::<PolicyRevision>(&()),
        }
    }
}

/// The namespace and the name of an object.
type Name = (String, String);

/// The facts of an object that limits need.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Measured {
    /// The namespace that the object counts for. For a revision, this is the namespace of its policy.
    namespace: String,
    /// Creation time and uid, which order the objects of a kind.
    age: (Option<Timestamp>, String),
    /// The kind and the name of the object whose revision this is; `None` if this is no revision.
    revision_of: Option<(CountedKind, String)>,
    /// The size of the spec as JSON, in bytes.
    bytes: u64,
}

/// The objects that an operator replica knows, and the limits.
#[derive(Debug)]
pub(crate) struct Usage {
    limits: NamespaceLimits,
    objects: Mutex<HashMap<CountedKind, HashMap<Name, Measured>>>,
    /// The kinds that were listed.
    listed: watch::Sender<Vec<CountedKind>>,
}

impl Default for Usage {
    fn default() -> Self {
        Self::new(NamespaceLimits::default())
    }
}

/// Returns the size of a spec as JSON, in bytes.
pub(crate) fn size(spec: &(impl Serialize + ?Sized)) -> u64 {
    struct Counter(u64);
    impl std::io::Write for Counter {
        fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
            self.0 += bytes.len() as u64;
            Ok(bytes.len())
        }

        fn flush(&mut self) -> std::io::Result<()> {
            Ok(())
        }
    }
    let mut counter = Counter(0);
    // A spec that came from JSON can be written as JSON.
    let _ = serde_json::to_writer(&mut counter, spec);
    counter.0
}

impl Usage {
    pub fn new(limits: NamespaceLimits) -> Self {
        Self { limits, objects: Mutex::default(), listed: watch::Sender::new(Vec::new()) }
    }

    /// Watches the objects until the future is dropped. `namespace` is the namespace of the operator, with the revisions.
    pub async fn follow(&self, client: &Client, namespace: &str) {
        let follow = |kind: CountedKind| {
            let resource = kind.resource();
            let api = match kind {
                CountedKind::Policy | CountedKind::Experiment => Api::all_with(client.clone(), &resource),
                CountedKind::Revision => Api::namespaced_with(client.clone(), namespace, &resource),
            };
            self.follow_kind(kind, api)
        };
        let [policies, experiments, revisions] = CountedKind::ALL.map(follow);
        tokio::join!(policies, experiments, revisions);
    }

    async fn follow_kind(&self, kind: CountedKind, api: Api<DynamicObject>) {
        let config = watch_config().page_size(PAGE_SIZE);
        let mut events = std::pin::pin!(watcher(api, config).default_backoff());
        let mut listing = HashMap::new();
        loop {
            match events.try_next().await {
                Ok(Some(event)) => self.apply_event(kind, event, &mut listing),
                Err(error) => tracing::warn!(kind = kind.plural(), %error, "watch of sizes interrupted; trying again"),
                // kube's watches do not end.
                Ok(None) => return,
            }
        }
    }

    fn apply_event(
        &self,
        kind: CountedKind,
        event: watcher::Event<DynamicObject>,
        listing: &mut HashMap<Name, Measured>,
    ) {
        let name = |object: &DynamicObject| (object.namespace().unwrap_or_default(), object.name_any());
        match event {
            watcher::Event::Init => listing.clear(),
            watcher::Event::InitApply(object) => listing.extend(measure(kind, &object).map(|it| (name(&object), it))),
            watcher::Event::InitDone => {
                lock(&self.objects).insert(kind, std::mem::take(listing));
                self.listed.send_if_modified(|listed| {
                    let is_first = !listed.contains(&kind);
                    if is_first {
                        listed.push(kind);
                    }
                    is_first
                });
            }
            watcher::Event::Apply(object) => {
                if let Some(measured) = measure(kind, &object) {
                    lock(&self.objects).entry(kind).or_default().insert(name(&object), measured);
                }
            }
            watcher::Event::Delete(object) => {
                lock(&self.objects).entry(kind).or_default().remove(&name(&object));
            }
        }
    }

    /// Waits until all kinds have been listed.
    pub async fn listed(&self) {
        // Cannot fail: the sender lives as long as `self`.
        let _ = self.listed.subscribe().wait_for(|listed| listed.len() == CountedKind::ALL.len()).await;
    }

    /// Waits until all kinds have been listed, or until the time has passed.
    pub async fn listed_within(&self, limit: Duration) {
        let _ = tokio::time::timeout(limit, self.listed()).await;
    }

    /// Returns the reason why the API server must not store an object with this spec; `None` if the namespace has room for it. An
    /// update that makes the spec no larger is always possible, so that a full namespace can be corrected.
    pub fn refusal_of_write(
        &self,
        kind: CountedKind,
        namespace: &str,
        name: &str,
        spec: &(impl Serialize + ?Sized),
    ) -> Option<String> {
        let known = lock(&self.objects);
        let object = (namespace.to_owned(), name.to_owned());
        let before = known.get(&kind).and_then(|objects| objects.get(&object)).map(|measured| measured.bytes);
        let bytes = size(spec);
        if before.is_some_and(|before| bytes <= before) {
            return None;
        }
        let number = of(&known, kind, namespace).filter(|(name, _)| **name != object).count();
        if before.is_none() && number >= self.limit(kind) {
            return Some(self.too_many(kind, namespace));
        }
        // The object and its revision.
        let added = 2 * bytes - before.unwrap_or_default();
        (total(&known, namespace) + added > self.bytes()).then(|| self.too_large(namespace))
    }

    /// Returns the reason why an object gets no revision: the namespace has too many other objects of the kind that are older or have a
    /// revision, or no room for a revision with this spec.
    pub fn refusal_of_revision(
        &self,
        kind: CountedKind,
        namespace: &str,
        (name, age): (&str, &(Option<Timestamp>, String)),
        spec: &(impl Serialize + ?Sized),
    ) -> Option<Failure> {
        let known = lock(&self.objects);
        let revisions = of(&known, CountedKind::Revision, namespace);
        let scheduled = revisions.filter_map(|(_, measured)| measured.revision_of.as_ref());
        let scheduled: HashSet<_> = scheduled.filter(|of| of.0 == kind).map(|of| of.1.as_str()).collect();
        // Objects that are created within the same second are ordered by their uid.
        let is_before = |(other, measured): &(&Name, &Measured)| {
            let has_precedence = scheduled.contains(other.1.as_str()) && !scheduled.contains(name);
            other.1 != name && (measured.age < *age || has_precedence)
        };
        let message = if of(&known, kind, namespace).filter(is_before).count() >= self.limit(kind) {
            self.too_many(kind, namespace)
        } else if total(&known, namespace) + size(spec) > self.bytes() {
            self.too_large(namespace)
        } else {
            return None;
        };
        Some(Failure::new(reasons::NAMESPACE_FULL, message))
    }

    fn limit(&self, kind: CountedKind) -> usize {
        match kind {
            CountedKind::Policy => self.limits.max_policies_per_namespace,
            CountedKind::Experiment => self.limits.max_experiments_per_namespace,
            // Revisions are limited by the number of policies, their revisionHistoryLimit, and the size.
            CountedKind::Revision => usize::MAX,
        }
    }

    fn bytes(&self) -> u64 {
        self.limits.max_mib_per_namespace.saturating_mul(MIB)
    }

    fn too_many(&self, kind: CountedKind, namespace: &str) -> String {
        let (limit, kinds) = (self.limit(kind), kind.plural());
        format!(
            "the namespace {namespace} has {limit} {kinds} already, which is the most: delete one, or ask an administrator to raise \
             --max-{kinds}-per-namespace of the operator"
        )
    }

    fn too_large(&self, namespace: &str) -> String {
        let limit = self.limits.max_mib_per_namespace;
        format!(
            "the policies, experiments and revisions of the namespace {namespace} would take more than {limit} MiB, which is the most: \
             delete some, lower spec.revisionHistoryLimit, or ask an administrator to raise --max-mib-per-namespace of the operator"
        )
    }
}

/// Returns what limits need of an object; `None` for the revision of a cluster-scoped policy.
fn measure(kind: CountedKind, object: &DynamicObject) -> Option<Measured> {
    let spec = &object.data["spec"];
    let namespace = match kind {
        CountedKind::Policy | CountedKind::Experiment => object.namespace()?,
        CountedKind::Revision => spec["policyRef"]["namespace"].as_str()?.to_owned(),
    };
    let revision_of = match (kind, spec["experimentRef"]["name"].as_str(), spec["policyRef"]["name"].as_str()) {
        (CountedKind::Revision, Some(experiment), _) if spec["role"] == "Candidate" => {
            Some((CountedKind::Experiment, experiment.to_owned()))
        }
        (CountedKind::Revision, _, Some(policy)) => Some((CountedKind::Policy, policy.to_owned())),
        _ => None,
    };
    let created = object.creation_timestamp().map(|time| time.0);
    Some(Measured { namespace, age: (created, object.uid().unwrap_or_default()), revision_of, bytes: size(spec) })
}

fn of<'a>(
    known: &'a HashMap<CountedKind, HashMap<Name, Measured>>,
    kind: CountedKind,
    namespace: &'a str,
) -> impl Iterator<Item = (&'a Name, &'a Measured)> {
    let objects = known.get(&kind).into_iter().flatten();
    objects.filter(move |(_, measured)| measured.namespace == namespace)
}

fn total(known: &HashMap<CountedKind, HashMap<Name, Measured>>, namespace: &str) -> u64 {
    let sizes = CountedKind::ALL.into_iter().flat_map(|kind| of(known, kind, namespace));
    sizes.map(|(_, measured)| measured.bytes).sum()
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn object(kind: CountedKind, name: &str, second: i64, bytes: usize) -> DynamicObject {
        let spec = match kind {
            CountedKind::Revision => json!({"policyRef": {"namespace": "team"}, "data": "a".repeat(bytes)}),
            CountedKind::Policy | CountedKind::Experiment => json!({"data": "a".repeat(bytes)}),
        };
        let namespace = if kind == CountedKind::Revision { "proviso-system" } else { "team" };
        let created = Timestamp::from_second(second).unwrap().to_string();
        let metadata = json!({"name": name, "namespace": namespace, "uid": name, "creationTimestamp": created});
        serde_json::from_value(json!({"metadata": metadata, "spec": spec})).unwrap()
    }

    fn usage(objects: Vec<(CountedKind, DynamicObject)>) -> Usage {
        let limits = NamespaceLimits {
            max_policies_per_namespace: 2,
            max_experiments_per_namespace: 1,
            max_mib_per_namespace: 1,
        };
        let usage = Usage::new(limits);
        for (kind, object) in objects {
            usage.apply_event(kind, watcher::Event::Apply(object), &mut HashMap::new());
        }
        usage
    }

    fn age(second: i64, uid: &str) -> (Option<Timestamp>, String) {
        (Some(Timestamp::from_second(second).unwrap()), uid.to_owned())
    }

    #[test]
    fn a_namespace_has_a_maximum_number_of_policies() {
        let policies = [("a", 1), ("b", 2)]
            .map(|(name, second)| (CountedKind::Policy, object(CountedKind::Policy, name, second, 1)));
        let usage = usage(policies.to_vec());
        let refusal = usage.refusal_of_write(CountedKind::Policy, "team", "c", &json!({})).unwrap();
        assert!(refusal.contains("has 2 policies already"), "{refusal}");
        let write = |namespace: &str, name: &str| {
            usage.refusal_of_write(CountedKind::Policy, namespace, name, &json!({"a": "much longer"}))
        };
        assert_eq!((write("other", "c"), write("team", "a")), (None, None));
        assert_eq!(usage.refusal_of_write(CountedKind::Experiment, "team", "e", &json!({})), None);

        // A policy that was created at the same time as another one, and exceeds the limit.
        let scheduled = |second, uid: &str| {
            usage.refusal_of_revision(CountedKind::Policy, "team", (uid, &age(second, uid)), &json!({}))
        };
        assert_eq!(scheduled(2, "b"), None);
        assert_eq!(scheduled(2, "c").unwrap().reason, reasons::NAMESPACE_FULL);
        assert_eq!(scheduled(1, "Z"), None, "it is older than one of them");
        // Both have a revision, so that a policy of the same second whose uid is smaller gets none.
        for name in ["a", "b"] {
            let mut revision = object(CountedKind::Revision, &format!("ns.team.{name}-1"), 2, 1);
            revision.data["spec"]["policyRef"]["name"] = name.into();
            usage.apply_event(CountedKind::Revision, watcher::Event::Apply(revision), &mut HashMap::new());
        }
        assert!(scheduled(1, "Z").is_some());
        assert_eq!(scheduled(2, "b"), None, "its next generation");
    }

    #[test]
    fn a_namespace_has_a_maximum_size_with_its_revisions() {
        let large = |kind, name| (kind, object(kind, name, 1, 300 * 1024));
        let usage = usage(vec![large(CountedKind::Policy, "a"), large(CountedKind::Revision, "ns.team.a-1")]);
        let spec = |bytes: usize| json!({"data": "a".repeat(bytes)});
        let write = |name: &str, bytes| usage.refusal_of_write(CountedKind::Policy, "team", name, &spec(bytes));
        assert_eq!(write("b", 200 * 1024), None);
        assert!(write("b", 230 * 1024).unwrap().contains("more than 1 MiB"));
        // A full namespace can be corrected.
        assert_eq!(write("a", 300 * 1024), None);
        assert!(write("a", 700 * 1024).is_some());
        let scheduled =
            |bytes| usage.refusal_of_revision(CountedKind::Policy, "team", ("a", &age(1, "a")), &spec(bytes));
        assert_eq!((scheduled(300 * 1024), scheduled(500 * 1024).is_some()), (None, true));
        let elsewhere = usage.refusal_of_revision(CountedKind::Policy, "other", ("a", &age(1, "a")), &spec(900 * 1024));
        assert_eq!(elsewhere, None);
    }
}
