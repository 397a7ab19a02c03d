//! Unique names and priorities of the request policies of a folder (docs/adr/0035). An accepted generation has its name and its
//! priority. Files have no order: if two versions that were never accepted want the same one, neither becomes live, and requests that
//! one of them covers are refused.

use std::collections::{BTreeMap, BTreeSet};

use proviso_core::{Failure, PolicyId};
use proviso_crds::uniqueness::{Claim, InUse, SECTION, UniqueFields, arbitrate};
use proviso_crds::{PolicySpec, tenant};

use super::FolderSource;
use super::object::Object;
use crate::manifests::{ObjectId, Problem};

/// The names and priorities that request policies want and other policies have.
#[derive(Debug, Default, PartialEq)]
pub(super) struct Conflicts(BTreeMap<ObjectId, Conflict>);

#[derive(Debug, PartialEq)]
struct Conflict {
    failure: Failure,
    problems: Vec<Problem>,
}

impl Conflicts {
    /// Returns the reason why the newest version of an object must not become live.
    pub(super) fn refusal(&self, id: &ObjectId) -> Option<&Failure> {
        self.0.get(id).map(|conflict| &conflict.failure)
    }

    /// Returns the problems of all manifests in conflict: one for each name and priority.
    pub(super) fn problems(&self) -> impl Iterator<Item = &Problem> {
        self.0.values().flat_map(|conflict| &conflict.problems)
    }

    pub(super) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

impl FolderSource {
    /// Decides again which request policies have their names and priorities, and desires the versions that may become live now.
    pub(super) fn arbitrate(&mut self) {
        let new = self.conflicts();
        if new == self.conflicts {
            return;
        }
        let known: Vec<_> = self.conflicts.problems().cloned().collect();
        for problem in new.problems().filter(|problem| !known.contains(problem)) {
            tracing::warn!(
                place = %problem.place, field = problem.field, error = problem.message,
                "the version is not served; the last good version of the policy keeps serving"
            );
        }
        let old = std::mem::replace(&mut self.conflicts, new);
        self.is_changed = true;
        let concerned: BTreeSet<ObjectId> = old.0.into_keys().chain(self.conflicts.0.keys().cloned()).collect();
        for id in concerned {
            self.desire(&id);
        }
    }

    fn conflicts(&self) -> Conflicts {
        let (ids, claims): (Vec<_>, Vec<_>) = self
            .objects
            .iter()
            .filter_map(|(id, object)| {
                let ObjectId::Policy(policy) = id else { return None };
                Some((id, self.claim(policy, object)?))
            })
            .unzip();
        let losses = arbitrate(&claims);
        let conflicts = ids.into_iter().zip(losses).filter_map(|(id, losses)| {
            let place = self.objects.get(id)?.manifest.as_ref()?.place.clone();
            let problem = |loss: &InUse| Problem {
                place: place.clone(),
                object: Some(id.clone()),
                field: format!("{SECTION}.{}", loss.value.field.as_str()),
                message: self.message(loss),
            };
            let problems: Vec<_> = losses.iter().map(problem).collect();
            let reason = losses.first()?.value.field.reason();
            let message = problems.iter().map(ToString::to_string).collect::<Vec<_>>().join("; ");
            Some((id.clone(), Conflict { failure: Failure::new(reason, message), problems }))
        });
        Conflicts(conflicts.collect())
    }

    /// Returns the claim of a policy; `None` if it has no requests.
    fn claim(&self, policy: &PolicyId, object: &Object) -> Option<Claim> {
        let fields = |spec: &PolicySpec| {
            UniqueFields::new(spec.request.as_ref()?, SECTION, policy.namespace(), policy.name()).ok()
        };
        let live = object.record.as_ref().and_then(|record| fields(&record.spec));
        let newest = object.manifest.as_ref().and_then(|version| fields(&version.spec));
        if live.is_none() && newest.is_none() {
            return None;
        }
        let labels = |namespace: &str| self.namespaces.get(namespace).map(|found| &found.spec);
        let tenant = policy.namespace().map(|namespace| tenant(namespace, labels(namespace)).to_owned());
        Some(Claim { policy: policy.clone(), tenant, live, newest, age: None })
    }

    /// Returns the message about a name or a priority, with the manifest of the other policy.
    fn message(&self, loss: &InUse) -> String {
        let other = self.objects.get(&ObjectId::Policy(loss.by.clone()));
        let place = other.and_then(|other| other.manifest.as_ref()).map(|version| &version.place);
        let place = place.map(|place| format!(" ({} is in {place})", loss.by)).unwrap_or_default();
        format!("{loss}{place}")
    }
}
