//! What is loaded: an immutable snapshot that requests read without a lock and a reload replaces as a whole.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;
use std::time::Duration;

use arc_swap::ArcSwap;
use proviso_core::matching::Labels;
use proviso_core::{Enforcement, Match, PolicyId};
use proviso_engines::Program;

use crate::manifests::ExperimentId;
use crate::metrics::{ExperimentMetrics, PolicyMetrics};

/// The table that requests read.
pub type SharedTable = Arc<ArcSwap<Table>>;

/// All policies, as they were at one moment.
#[derive(Debug, Default)]
pub struct Table {
    pub policies: HashMap<PolicyId, Entry>,
    pub namespaces: Arc<BTreeMap<String, Labels>>,
    /// What is wrong with the folder's documents, a line each.
    pub problems: Vec<String>,
    /// Experiments that preview nothing, and why.
    pub idle_experiments: Vec<(ExperimentId, String)>,
    /// Whether everything in the folder was tried at least once.
    pub is_complete: bool,
}

/// One policy.
#[derive(Debug, Default)]
pub struct Entry {
    /// None while no generation ever worked.
    pub live: Option<Arc<Revision>>,
    /// Older generations that still answer.
    pub retired: Vec<Arc<Revision>>,
    pub experiments: Arc<[Arc<Experiment>]>,
    /// Whether a version is being loaded now.
    pub is_preparing: bool,
    /// Why the newest version of the manifest does not serve.
    pub trouble: Option<String>,
}

/// A generation of a policy or an experiment, ready to decide.
#[derive(Debug)]
pub struct Revision {
    /// The policy; that of an experiment is the one it wants to replace.
    pub policy: PolicyId,
    pub generation: u64,
    /// Strong, with its quotes (AIP-154): a hash of uid and generation.
    pub etag: String,
    pub program: Program,
    pub matching: Match,
    pub enforcement: Enforcement,
    pub enabled: bool,
    /// How long one evaluation may take.
    pub timeout: Duration,
    /// The policy's series. An experiment's evaluations are counted as previews instead.
    pub metrics: PolicyMetrics,
}

/// An ACTIVE experiment.
#[derive(Debug)]
pub struct Experiment {
    pub id: ExperimentId,
    pub revision: Arc<Revision>,
    pub metrics: ExperimentMetrics,
    /// Why the newest version of the manifest is not the one that is previewed.
    pub trouble: Option<String>,
}

impl Entry {
    /// The revision that answers for this generation; the live one where none is named.
    #[must_use]
    pub fn revision(&self, generation: Option<u64>) -> Option<&Arc<Revision>> {
        let mut loaded = self.live.iter().chain(&self.retired);
        match generation {
            None => self.live.as_ref(),
            Some(generation) => loaded.find(|revision| revision.generation == generation),
        }
    }
}
