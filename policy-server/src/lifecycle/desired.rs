//! The revisions that a source desires.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use proviso_artifacts::Digest;
use proviso_core::{Failure, PolicyId};
use proviso_crds::PolicySpec;

use crate::manifests::{DocumentPosition, ExperimentId, ObjectId};
use crate::state::DigestText;

/// A revision that a source desires.
#[derive(Clone, Debug)]
pub struct Desired {
    /// The policy; for a candidate, the policy of its experiment.
    pub policy: PolicyId,
    /// The experiment of a candidate; `None` for a revision of the policy itself.
    pub experiment: Option<ExperimentId>,
    /// `metadata.uid` of the policy or the experiment.
    pub uid: String,
    /// `metadata.generation` of the policy or the experiment.
    pub generation: u64,
    pub spec: Arc<PolicySpec>,
    /// The field of the object that holds the spec. Errors begin with it.
    pub scope: Scope,
    /// The document that holds the spec; `None` if it is not in a file. Errors end with it.
    pub place: Option<DocumentPosition>,
    pub modules: ModuleSource,
    /// True if the revision has worked before, here or on another replica. Only the leader prepares a revision that has not.
    pub was_prepared: bool,
    /// The reason why the revision must not be loaded, although it can be read: another policy has its name or its priority.
    pub refusal: Option<Failure>,
}

impl Desired {
    /// Returns true if the policy is namespaced and in a cluster, where its author must not see the network of the server.
    pub(super) fn has_tenant(&self) -> bool {
        self.policy.namespace().is_some() && matches!(self.modules, ModuleSource::Network(_))
    }

    pub(super) fn is_same_revision(&self, other: &Self) -> bool {
        (&self.policy, &self.experiment, &self.uid, self.generation)
            == (&other.policy, &other.experiment, &other.uid, other.generation)
            && (Arc::ptr_eq(&self.spec, &other.spec) || self.spec == other.spec)
            && self.refusal == other.refusal
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
    /// A manifest. Relative references start at `folder`. `digests` are the digests of the files when the version was
    /// fingerprinted and, if the version was accepted, of its other modules. A module must have its digest here, if there is one.
    Manifest { folder: PathBuf, digests: BTreeMap<String, DigestText> },
    /// An accepted generation. All modules are pinned to these digests; modules of files come from the cache.
    Pinned(BTreeMap<String, DigestText>),
    /// A revision of a cluster. The leader has pinned references to these digests; another reference means the module that it
    /// names now. References to files are refused.
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

    /// Returns true if the leader has pinned a reference to another module than the loaded one: a tag moved between the preparations
    /// of two leaders. Over a folder, each version has its own digests, so a loaded version has the right modules.
    pub(super) fn contradicts(&self, loaded: &BTreeMap<String, Digest>) -> bool {
        let Self::Network(pins) = self else { return false };
        loaded.iter().any(|(reference, digest)| pins.get(reference).is_some_and(|pin| pin != digest))
    }

    /// Returns the folder of relative paths; an empty path if relative paths are not possible.
    pub(super) fn folder(&self) -> &Path {
        if let Self::Manifest { folder, .. } = self { folder } else { Path::new("") }
    }
}
