//! The request policies of a table, prepared for requests: their places in the chain, and the tenants of their namespaces.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use proviso_core::PolicyId;
use proviso_core::matching::Labels;
use proviso_core::request::{Criteria, Request, RequestPolicy, RevisionId};

use super::Refusal;
use super::identity::tenant;
use crate::table::{Entry, RequestPoint, Revision, UnservedRequests};

/// The request policies of a table.
#[derive(Debug, Default)]
pub struct ServedRequests {
    live: Vec<(RequestPolicy, Arc<Revision>)>,
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
                    let Some(point) = live.request().filter(|_| live.enabled) else { continue };
                    let revision =
                        RevisionId { policy: id.clone(), generation: live.generation.try_into().unwrap_or(i64::MAX) };
                    let criteria = criteria(id, Some(point), namespaces);
                    let (level, priority) = (point.level, point.priority);
                    requests.live.push((RequestPolicy { revision, level, priority, criteria }, Arc::clone(live)));
                }
                (None, None) => {}
            }
        }
        requests
    }

    /// Returns the policies that cover a request, with their revisions.
    ///
    /// # Errors
    /// Returns an error if a policy that covers the request has no generation that works, or if its live generation is not loaded.
    pub(super) fn covering(&self, request: &Request) -> Result<Vec<&(RequestPolicy, Arc<Revision>)>, Refusal> {
        match self.unserved.iter().find(|unserved| unserved.criteria.cover(request)) {
            Some(unserved) => Err(unserved.refusal()),
            None => Ok(self.live.iter().filter(|(policy, _)| policy.criteria.cover(request)).collect()),
        }
    }
}

/// Returns the criteria of a policy. The tenant of its namespace is one of them. Without a point, they are the only one.
fn criteria(id: &PolicyId, point: Option<&RequestPoint>, namespaces: &BTreeMap<String, Labels>) -> Criteria {
    let tenant = id.namespace().map(|namespace| tenant(namespaces, namespace));
    Criteria { tenant, ..point.map(|point| point.criteria.clone()).unwrap_or_default() }
}
