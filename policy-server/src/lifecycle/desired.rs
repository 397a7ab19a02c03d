//! The revisions that a source desires.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use proviso_artifacts::Digest;
use proviso_core::PolicyId;
use proviso_crds::PolicySpec;

use crate::manifests::{ExperimentId, ObjectId, Place};
use crate::state::DigestText;

/// A revision that a source wants to have loaded.
#[derive(Clone, Debug)]
pub struct Desired {
    /// The policy; for a candidate, the policy that its experiment wants to replace.
    pub policy: PolicyId,
    /// The experiment of a candidate; `None` for a revision of the policy itself.
    pub experiment: Option<ExperimentId>,
    /// `metadata.uid` of the policy or the experiment.
    pub uid: String,
    /// `metadata.generation` of the policy or the experiment.
    pub generation: u64,
    pub spec: Arc<PolicySpec>,
    /// The field of its object that holds the spec: errors begin with it.
    pub scope: Scope,
    /// The document that holds the spec; `None` if it is not in a file. Errors end with it.
    pub place: Option<Place>,
    pub modules: ModuleSource,
    /// Whether the revision has worked before, here or on another replica. A revision that has not is prepared by the leader
    /// alone.
    pub is_known: bool,
}

impl Desired {
    pub(super) fn is_same_revision(&self, other: &Self) -> bool {
        (&self.policy, &self.experiment, &self.uid, self.generation)
            == (&other.policy, &other.experiment, &other.uid, other.generation)
            && (Arc::ptr_eq(&self.spec, &other.spec) || self.spec == other.spec)
    }
}

/// The field of an object that holds the spec of a policy.
#[derive(Clone, Copy, Debug)]
pub struct Scope(pub(super) &'static str);

impl Scope {
    pub const POLICY: Self = Self("spec");

    #[must_use]
    pub fn of(id: &ObjectId) -> Self {
        if matches!(id, ObjectId::Experiment(_)) { Self("spec.policy") } else { Self::POLICY }
    }
}

/// The source of the modules of a spec.
#[derive(Clone, Debug, PartialEq)]
pub enum ModuleSource {
    /// The modules that the references name now; relative references start at this folder. Files must be the bytes that were
    /// seen when the version was fingerprinted; other modules must be the ones of when it was accepted, if it was.
    Manifest { folder: PathBuf, digests: BTreeMap<String, DigestText> },
    /// The modules that the references named when the spec was accepted, from the cache.
    Pinned(BTreeMap<String, DigestText>),
    /// Modules that every replica of a cluster can fetch. The leader has pinned the digests of these references; other
    /// references mean the modules that they name now.
    Network(BTreeMap<String, Digest>),
}

impl ModuleSource {
    /// Returns the digest that the module of this reference must have.
    pub(super) fn pin(&self, reference: &str) -> Option<Digest> {
        match self {
            Self::Manifest { digests, .. } | Self::Pinned(digests) => digests.get(reference).map(|digest| digest.0),
            Self::Network(pins) => pins.get(reference).copied(),
        }
    }

    /// Returns the folder of relative paths; an empty path if nothing is relative to a folder.
    pub(super) fn folder(&self) -> &Path {
        if let Self::Manifest { folder, .. } = self { folder } else { Path::new("") }
    }
}
