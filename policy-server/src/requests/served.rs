//! The request policies of a table, prepared for requests: their places in the chain, the tenants of their namespaces, and the candidates
//! of their experiments.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use proviso_core::PolicyId;
use proviso_core::matching::Labels;
use proviso_core::request::{Criteria, Request, RequestPolicy, RevisionId};
use proviso_crds::tenant;

use super::Refusal;
use crate::table::{Entry, Experiment, RequestPoint, Revision, UnservedRequests};

/// A policy with its place in the chain.
pub(super) type PlacedRevision = (RequestPolicy, Arc<Revision>);

/// The request policies of a table.
#[derive(Debug, Default)]
pub struct ServedRequests {
    live: Vec<PlacedRevision>,
    candidates: Vec<Candidate>,
    /// The requests that are refused, because their policies cannot answer them.
    unserved: Vec<Unserved>,
}

/// The requests of a policy that are refused.
#[derive(Debug)]
struct Unserved {
    policy: PolicyId,
    criteria: Criteria,
    live: Option<u64>,
    why: String,
}

impl Unserved {
    fn refusal(&self) -> Refusal {
        let (policy, why) = (self.policy.clone(), self.why.clone());
        match self.live {
            Some(generation) => Refusal::NotLoaded { policy, generation, why },
            None => Refusal::Unserved { policy, why },
        }
    }
}

/// The candidate of an active experiment on a request policy.
#[derive(Debug)]
pub struct Candidate {
    pub experiment: Arc<Experiment>,
    /// The place of the candidate in the chain, with the generation of the live policy: messages that differ in the generation only are no
    /// divergence. `None` if the candidate is disabled.
    place: Option<RequestPolicy>,
    /// The place of the live policy; `None` if it is disabled, or not loaded on this server.
    live_place: Option<RequestPolicy>,
    /// The generation of the live policy; `None` if this server has loaded none.
    pub live_generation: Option<u64>,
    /// The etag of the live generation; `None` if no generation is live.
    pub live_etag: Option<String>,
}

impl Candidate {
    fn policy(&self) -> &PolicyId {
        &self.experiment.revision.policy
    }

    /// Returns true if the candidate or its live policy covers the request.
    fn concerns(&self, request: &Request) -> bool {
        [&self.place, &self.live_place].into_iter().flatten().any(|place| place.criteria.cover(request))
    }
}

impl ServedRequests {
    /// Collects the request policies of a table. `namespaces` has the labels that name tenants.
    #[must_use]
    pub fn new(policies: &HashMap<PolicyId, Entry>, namespaces: &BTreeMap<String, Labels>) -> Self {
        let mut requests = Self::default();
        for (id, entry) in policies {
            match (&entry.unserved_requests, &entry.live) {
                (Some(UnservedRequests { point, live, why }), _) => requests.unserved.push(Unserved {
                    policy: id.clone(),
                    criteria: criteria(id, point.as_ref(), namespaces),
                    live: *live,
                    why: why.clone(),
                }),
                (None, Some(live)) => {
                    if let Some(place) = place(live, live.generation, namespaces) {
                        requests.live.push((place, Arc::clone(live)));
                    }
                }
                (None, None) => {}
            }
            // The experiments of a policy have its enforcement point.
            for experiment in entry.experiments.iter().filter(|experiment| experiment.revision.request().is_some()) {
                let generation = entry.live.as_ref().map_or(experiment.revision.generation, |live| live.generation);
                requests.candidates.push(Candidate {
                    place: place(&experiment.revision, generation, namespaces),
                    experiment: Arc::clone(experiment),
                    live_place: entry.live.as_ref().and_then(|live| place(live, live.generation, namespaces)),
                    live_generation: entry.live.as_ref().map(|live| live.generation),
                    live_etag: entry.live_etag().map(ToOwned::to_owned),
                });
            }
        }
        requests
    }

    /// Returns the policies that cover a request, with their revisions.
    ///
    /// # Errors
    /// Returns an error if a policy that covers the request has no generation that works, or if its live generation is not loaded.
    pub(super) fn covering(&self, request: &Request) -> Result<Vec<&PlacedRevision>, Refusal> {
        match self.unserved.iter().find(|unserved| unserved.criteria.cover(request)) {
            Some(unserved) => Err(unserved.refusal()),
            None => Ok(self.live.iter().filter(|(policy, _)| policy.criteria.cover(request)).collect()),
        }
    }

    /// Returns the candidates that a request concerns: those that cover it, and those whose live policy covers it.
    pub(super) fn concerned(&self, request: &Request) -> impl Iterator<Item = &Candidate> {
        self.candidates.iter().filter(move |candidate| candidate.concerns(request))
    }

    /// Returns the candidate of an experiment.
    #[must_use]
    pub fn candidate(&self, experiment: &Arc<Experiment>) -> Option<&Candidate> {
        self.candidates.iter().find(|candidate| Arc::ptr_eq(&candidate.experiment, experiment))
    }

    /// Returns the policies that cover a request while the candidate is in the place of its live policy.
    #[must_use]
    pub fn with_candidate(&self, request: &Request, candidate: &Candidate) -> Vec<PlacedRevision> {
        let others = self.live.iter().filter(|(place, _)| place.revision.policy != *candidate.policy());
        let candidate = candidate.place.clone().map(|place| (place, Arc::clone(&candidate.experiment.revision)));
        others.cloned().chain(candidate).filter(|(place, _)| place.criteria.cover(request)).collect()
    }
}

/// Returns the place of a revision in the chain, as this generation of its policy. `None` if the revision is disabled, or is that of
/// another kind of policy.
fn place(revision: &Revision, generation: u64, namespaces: &BTreeMap<String, Labels>) -> Option<RequestPolicy> {
    let point = revision.request().filter(|_| revision.enabled)?;
    let generation = generation.try_into().unwrap_or(i64::MAX);
    Some(RequestPolicy {
        revision: RevisionId { policy: revision.policy.clone(), generation },
        level: point.level,
        priority: point.priority,
        criteria: criteria(&revision.policy, Some(point), namespaces),
    })
}

/// Returns the criteria of a policy. The tenant of its namespace is one of them. Without a point, they are the only one.
fn criteria(id: &PolicyId, point: Option<&RequestPoint>, namespaces: &BTreeMap<String, Labels>) -> Criteria {
    let tenant = id.namespace().map(|namespace| tenant(namespace, namespaces.get(namespace)).to_owned());
    Criteria { tenant, ..point.map(|point| point.criteria.clone()).unwrap_or_default() }
}

#[cfg(test)]
mod tests {
    use proviso_crds::{PreviewSettings, TENANT};
    use serde_json::{Value, json};

    use super::*;
    use crate::lifecycle::tests::revision_of;
    use crate::manifests::ExperimentId;
    use crate::metrics::Metrics;
    use crate::table::Point;

    fn revision(policy: &PolicyId, section: &Value, enabled: bool, generation: u64) -> Arc<Revision> {
        let request = serde_json::from_value(section.clone()).unwrap();
        let point = Point::Request(RequestPoint::new("spec.request", policy, &request).unwrap());
        let spec = json!({"program": {"cel": {"validations": []}}, "admission": {"rules": []}, "enabled": enabled});
        Arc::new(Revision { policy: policy.clone(), generation, point, ..revision_of(&spec, true) })
    }

    /// Returns the generation 7 of the policy `live` with an experiment, and the policy `other` for all requests.
    fn served(policy: &PolicyId, live: &Value, candidate: (&Value, bool), tenants: &Value) -> ServedRequests {
        let id = ExperimentId { namespace: policy.namespace().map(ToOwned::to_owned), name: "e".to_owned() };
        let experiment = Experiment {
            metrics: Metrics::new().experiment(&id),
            id,
            revision: revision(policy, candidate.0, candidate.1, 1),
            settings: PreviewSettings::default(),
            counter: None,
            failure: None,
        };
        let other = PolicyId::cluster("other").unwrap();
        let entry = Entry {
            live: Some(revision(policy, live, true, 7)),
            experiments: [Arc::new(experiment)].into(),
            ..Entry::default()
        };
        let others = Entry { live: Some(revision(&other, &json!({}), true, 1)), ..Entry::default() };
        let namespaces = serde_json::from_value(tenants.clone()).unwrap();
        ServedRequests::new(&HashMap::from([(policy.clone(), entry), (other, others)]), &namespaces)
    }

    /// Returns the revisions and the priorities of the chain with the candidate; `None` if the request does not concern the experiment.
    fn chain(served: &ServedRequests, request: &Request) -> Option<Vec<String>> {
        let candidate = served.concerned(request).next()?;
        let chain = served.with_candidate(request, candidate);
        let mut texts: Vec<_> =
            chain.iter().map(|(place, _)| format!("{} at {}", place.revision, place.priority)).collect();
        texts.sort();
        Some(texts)
    }

    #[test]
    fn the_candidate_takes_the_place_of_its_live_policy() {
        let policy = PolicyId::cluster("live").unwrap();
        let (other, candidate) =
            ("policy cluster.other (generation 1) at 500", "policy cluster.live (generation 7) at 9");
        let (vm, database) = (json!({"serviceTypes": ["vm"]}), json!({"serviceTypes": ["database"], "priority": 9}));
        for (enabled, service_type, expected) in [
            // Only the live policy covers the request.
            (true, "vm", Some(vec![other])),
            // Only the candidate covers it.
            (true, "database", Some(vec![candidate, other])),
            (true, "queue", None),
            (false, "vm", Some(vec![other])),
            (false, "database", None),
        ] {
            let served = served(&policy, &vm, (&database, enabled), &json!({}));
            let request = Request::new(json!({"service_type": service_type}), None, None).unwrap();
            let found = chain(&served, &request);
            let found = found.as_ref().map(|found| found.iter().map(String::as_str).collect::<Vec<_>>());
            assert_eq!(found, expected, "{enabled} {service_type}");
            let live = served.covering(&request).unwrap().len();
            assert_eq!(live, if service_type == "vm" { 2 } else { 1 }, "the candidate does not answer");
        }
    }

    #[test]
    fn a_candidate_covers_the_requests_of_its_tenant_only() {
        let policy = PolicyId::namespaced("team-blue", "live").unwrap();
        let tenants = json!({"team-blue": {TENANT: "blue"}});
        let served = served(&policy, &json!({}), (&json!({"user": "ana"}), true), &tenants);
        let concerned = |tenant: &str, user: &str| {
            let request = Request::new(json!({}), Some(tenant.to_owned()), Some(user.to_owned())).unwrap();
            chain(&served, &request).map(|chain| chain.len())
        };
        assert_eq!(concerned("blue", "ana"), Some(2));
        assert_eq!(concerned("blue", "ben"), Some(1), "the live policy covers the request");
        assert_eq!((concerned("green", "ana"), concerned("team-blue", "ana")), (None, None));
    }
}
