//! The request policies of a table, prepared for requests: their places in the chain, and the tenants of their namespaces.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use proviso_core::PolicyId;
use proviso_core::matching::Labels;
use proviso_core::request::{Criteria, Request, RequestPolicy, RevisionId};
use proviso_crds::TENANT;

use super::Refusal;
use crate::table::{Entry, RequestPoint, Revision};

/// The request policies of a table.
#[derive(Debug, Default)]
pub struct ServedRequests {
    live: Vec<(RequestPolicy, Arc<Revision>)>,
    /// The policies of which no generation has worked yet, with the reasons.
    unserved: Vec<(PolicyId, Criteria, String)>,
}

impl ServedRequests {
    /// Collects the request policies of a table. `namespaces` has the labels that name tenants.
    #[must_use]
    pub fn new(policies: &HashMap<PolicyId, Entry>, namespaces: &BTreeMap<String, Labels>) -> Self {
        let mut requests = Self::default();
        for (id, entry) in policies {
            match (&entry.live, &entry.unserved_request) {
                (Some(live), _) => {
                    let Some(point) = live.request().filter(|_| live.enabled) else { continue };
                    let revision =
                        RevisionId { policy: id.clone(), generation: live.generation.try_into().unwrap_or(i64::MAX) };
                    let (level, priority, criteria) = (point.level, point.priority, criteria(id, point, namespaces));
                    requests.live.push((RequestPolicy { revision, level, priority, criteria }, Arc::clone(live)));
                }
                (None, Some((point, why))) => {
                    requests.unserved.push((id.clone(), criteria(id, point, namespaces), why.clone()));
                }
                (None, None) => {}
            }
        }
        requests
    }

    /// Returns the policies that cover a request, with their revisions.
    ///
    /// # Errors
    /// Returns an error if a policy that covers the request has no generation that works.
    pub(super) fn covering(&self, request: &Request) -> Result<Vec<&(RequestPolicy, Arc<Revision>)>, Refusal> {
        match self.unserved.iter().find(|(_, criteria, _)| criteria.cover(request)) {
            Some((policy, _, why)) => Err(Refusal::Unserved { policy: policy.clone(), why: why.clone() }),
            None => Ok(self.live.iter().filter(|(policy, _)| policy.criteria.cover(request)).collect()),
        }
    }
}

/// Returns the criteria of a policy. The tenant of its namespace is one of them.
fn criteria(id: &PolicyId, point: &RequestPoint, namespaces: &BTreeMap<String, Labels>) -> Criteria {
    let tenant = id.namespace().map(|namespace| tenant_of(namespace, namespaces));
    Criteria { tenant, ..point.criteria.clone() }
}

/// Returns the tenant of a namespace: the value of its label, or its name.
pub(super) fn tenant_of(namespace: &str, namespaces: &BTreeMap<String, Labels>) -> String {
    let label = namespaces.get(namespace).and_then(|labels| labels.get(TENANT));
    label.cloned().unwrap_or_else(|| namespace.to_owned())
}
