//! The policies and experiments of the folder, as the REST API reads and changes them.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use k8s_openapi::jiff::Timestamp;
use proviso_core::{Failure, PolicyId, experiment::etag};
use proviso_crds::{ExperimentSpec, PolicyRef, PolicySpec, PreviewSettings};
use proviso_rest_api::{
    Change, Code, CommitPreconditions, Error, ExperimentName, Meta, Preview, State, StoredExperiment, StoredPolicy,
    is_reserved,
};
use serde_json::json;

use super::object::Object;
use super::scan::Folder;
use super::{FolderSource, commit};
use crate::manifests::edit::{self, Content, Draft, EditError};
use crate::manifests::{Annotations, ObjectId, Problem};
use crate::state::ExperimentRecord;

type Result<T> = std::result::Result<T, Error>;

impl From<EditError> for Error {
    fn from(error: EditError) -> Self {
        let (code, reason) = match &error {
            EditError::ReadOnly(_) => (Code::FailedPrecondition, "READ_ONLY"),
            EditError::NotFound { .. } => (Code::FailedPrecondition, "MANIFEST_REFUSED"),
            EditError::Changed(_) => (Code::Aborted, "CONCURRENT_CHANGE"),
            EditError::Io { .. } => (Code::Unavailable, "MANIFESTS"),
            EditError::Serialize { .. } => (Code::Internal, "MANIFEST"),
        };
        Self::new(code, reason, error.to_string())
    }
}

pub(super) fn policy_object(id: &PolicyId) -> ObjectId {
    ObjectId::Policy(id.clone())
}

pub(super) fn experiment_object(name: &ExperimentName) -> ObjectId {
    ObjectId::Experiment(name.into())
}

/// An object as observed last: the version in its manifest, or the last accepted generation if the manifest was never readable.
pub(super) struct ObservedObject<'a> {
    pub object: &'a Object,
    pub spec: &'a PolicySpec,
    experiment: Option<&'a ExperimentRecord>,
    annotations: Annotations,
    generation: u64,
    /// True if the version is the last accepted generation.
    pub is_accepted: bool,
    pub fingerprint: String,
}

impl<'a> ObservedObject<'a> {
    pub(super) fn new(object: &'a Object) -> Option<Self> {
        let fingerprint = object.fingerprint()?;
        let (spec, annotations) = match (&object.manifest, &object.record) {
            (Some(version), _) => (version.spec.as_ref(), version.annotations.clone()),
            (None, Some(record)) => (&record.spec, Annotations::new()),
            (None, None) => return None,
        };
        Some(Self {
            object,
            spec,
            experiment: object.experiment_record(),
            annotations,
            generation: object.generation(fingerprint),
            is_accepted: object.record.as_ref().is_some_and(|record| record.fingerprint == fingerprint),
            fingerprint: fingerprint.to_string(),
        })
    }

    pub(super) fn meta(&self) -> Meta {
        let Self { object, generation, fingerprint, annotations, .. } = self;
        Meta {
            uid: object.uid.clone(),
            // The etag contains the fingerprint if the version is not accepted: two such versions may have the same generation.
            etag: if self.is_accepted { etag(&object.uid, generation) } else { etag(&object.uid, fingerprint) },
            revision: json!([fingerprint, annotations]).to_string(),
            version: format!("{generation}-{fingerprint}"),
            annotations: annotations.clone(),
            create_time: Some(object.created.clone()),
            update_time: object.record.as_ref().and_then(|record| record.updated.clone()),
        }
    }
}

impl FolderSource {
    /// Reads the folder if it has changed.
    pub(super) fn poll(&mut self, folder: &mut Folder) {
        if let Some(scan) = folder.changed() {
            self.take_scan(scan);
        }
    }

    pub(super) fn observed(&self, object: &ObjectId) -> Option<ObservedObject<'_>> {
        self.objects.get(object).and_then(ObservedObject::new)
    }

    /// Returns the reason why the newest version does not serve: its manifest is refused, or the version does not work. Returns
    /// `None` if the version serves or is still being prepared.
    pub(super) fn problem(&self, id: &ObjectId, object: &Object) -> Option<Failure> {
        let refusal = self.problems.iter().find(|problem| problem.object.as_ref() == Some(id));
        let refusal = refusal.map(Problem::to_failure).or_else(|| self.conflicts.refusal(id).cloned());
        refusal.or_else(|| self.failure(object))
    }

    pub(crate) fn stored_policy(&self, id: &PolicyId) -> Result<StoredPolicy> {
        let object = policy_object(id);
        let observed = self.observed(&object).ok_or_else(|| Error::not_found(&format!("policies/{id}")))?;
        let problem = self.problem(&object, observed.object);
        let state = match (&problem, self.live(observed.object)) {
            (Some(_), _) => State::Failed,
            (None, Some(_)) if observed.is_accepted && observed.spec.enabled => State::Active,
            (None, Some(_)) if observed.is_accepted => State::Disabled,
            (None, Some(_)) => State::Updating,
            (None, None) => State::Pending,
        };
        Ok(StoredPolicy { id: id.clone(), meta: observed.meta(), spec: observed.spec.clone(), state, problem })
    }

    /// Returns the policies of a namespace; `None` means of all namespaces and of the cluster scope.
    pub(crate) fn stored_policies(&self, namespace: Option<&str>) -> Vec<StoredPolicy> {
        let ids = self.objects.keys().filter_map(|id| if let ObjectId::Policy(id) = id { Some(id) } else { None });
        let selected = ids.filter(|id| namespace.is_none() || id.namespace() == namespace);
        selected.filter_map(|id| self.stored_policy(id).ok()).collect()
    }

    pub(crate) fn stored_experiment(&self, name: &ExperimentName) -> Result<StoredExperiment> {
        let object = experiment_object(name);
        let not_found = || Error::not_found(&name.to_string());
        let observed = self.observed(&object).ok_or_else(not_found)?;
        let record = observed.experiment.filter(|record| record.policy == name.policy).ok_or_else(not_found)?;
        let preview = &observed.object.preview;
        // The counts of another version do not apply to this version.
        let (divergence, samples) =
            preview.report(observed.generation).map(|report| (report.counts, report.samples)).unzip();
        Ok(StoredExperiment {
            name: name.clone(),
            meta: observed.meta(),
            spec: observed.spec.clone(),
            auto_start: record.auto_start,
            preview_settings: record.preview,
            ttl: record.ttl.clone(),
            preview: preview.of(observed.generation),
            divergence,
            samples: samples.unwrap_or_default(),
            canaries: Vec::new(),
            problem: self.problem(&object, observed.object),
        })
    }

    pub(crate) fn stored_experiments(&self, policy: Option<&PolicyId>) -> Vec<StoredExperiment> {
        let names = self.objects.iter().filter_map(|(id, object)| {
            let (ObjectId::Experiment(id), Some(observed)) = (id, ObservedObject::new(object)) else { return None };
            let parent = &observed.experiment?.policy;
            let is_selected = policy.is_none_or(|policy| policy == parent);
            is_selected.then(|| ExperimentName { policy: parent.clone(), name: id.name.clone() })
        });
        names.filter_map(|name| self.stored_experiment(&name).ok()).collect()
    }

    /// Returns an error if the newest manifest of the object is refused: the API must not overwrite an unreadable document.
    fn check_readable(&self, object: &ObjectId) -> Result<()> {
        match self.problems.iter().find(|problem| problem.object.as_ref() == Some(object)) {
            None => Ok(()),
            Some(problem) => {
                let message = format!("the manifest is refused; repair the file first: {problem}");
                Err(Error::new(Code::FailedPrecondition, "MANIFEST_REFUSED", message))
            }
        }
    }

    /// Opens the file that contains the object. The preconditions of the caller were checked for the version that the server has
    /// read: a newer version in the file, of an editor or of `git pull`, must not be overwritten.
    fn draft(&self, object: &ObjectId) -> Result<Draft> {
        self.check_readable(object)?;
        let gone = || {
            let message = format!("no file of the folder contains {object} any more");
            Error::new(Code::FailedPrecondition, "MANIFEST_REFUSED", message)
        };
        let known = self.objects.get(object).ok_or_else(gone)?;
        let draft = Draft::open(known.file().ok_or_else(gone)?)?;
        draft.check_document(object, known.manifest.as_ref().map(|version| version.digest))?;
        Ok(draft)
    }

    fn create(&mut self, folder: &mut Folder, object: &ObjectId, name: &str, content: &Content) -> Result<()> {
        self.check_readable(object)?;
        // Experiments of different policies in one namespace cannot have the same name, as in Kubernetes.
        if self.objects.contains_key(object) {
            return Err(Error::already_exists(name));
        }
        let path = edit::create(folder.path(), object, content)?;
        tracing::info!(%object, file = %path.display(), "created by the API");
        self.poll(folder);
        Ok(())
    }

    fn rewrite(&mut self, folder: &mut Folder, object: &ObjectId, content: &Content) -> Result<()> {
        let mut draft = self.draft(object)?;
        draft.replace(object, content)?;
        draft.write()?;
        tracing::info!(%object, file = %draft.path().display(), "changed by the API");
        self.poll(folder);
        Ok(())
    }

    fn remove(&mut self, folder: &mut Folder, object: &ObjectId) -> Result<()> {
        let mut draft = self.draft(object)?;
        draft.remove(object)?;
        draft.write()?;
        tracing::info!(%object, file = %draft.path().display(), "deleted by the API");
        self.poll(folder);
        Ok(())
    }

    pub(crate) fn create_policy(&mut self, folder: &mut Folder, id: &PolicyId, change: Change) -> Result<StoredPolicy> {
        self.check_unique(id, None, &change.spec)?;
        let content = Content { spec: json!(change.spec), annotations: change.annotations };
        self.create(folder, &policy_object(id), &format!("policies/{id}"), &content)?;
        self.stored_policy(id)
    }

    pub(crate) fn update_policy(
        &mut self,
        folder: &mut Folder,
        id: &PolicyId,
        revision: &str,
        change: Change,
    ) -> Result<StoredPolicy> {
        let StoredPolicy { meta: before, spec, .. } = self.stored_policy(id)?;
        if before.revision != revision {
            return Err(Error::concurrent_change(&format!("policies/{id}")));
        }
        self.check_unique(id, Some(&spec), &change.spec)?;
        let annotations = merge_annotations(before.annotations, change.annotations);
        let content = Content { spec: json!(change.spec), annotations };
        self.rewrite(folder, &policy_object(id), &content)?;
        self.stored_policy(id)
    }

    /// Deletes a policy and its experiments. The experiments are deleted first, so that no experiment is ever without its policy.
    pub(crate) fn delete_policy(
        &mut self,
        folder: &mut Folder,
        id: &PolicyId,
        etag: Option<&str>,
    ) -> Result<StoredPolicy> {
        let stored = self.stored_policy(id)?;
        check_etag(etag, &stored.meta, &format!("policies/{id}"))?;
        self.draft(&policy_object(id))?;
        for experiment in self.stored_experiments(Some(id)) {
            self.remove(folder, &experiment_object(&experiment.name))?;
        }
        // Each change of a file reads the folder again, and may find a newer version of the policy.
        if self.stored_policy(id)?.meta.revision != stored.meta.revision {
            return Err(Error::concurrent_change(&format!("policies/{id}")));
        }
        self.remove(folder, &policy_object(id))?;
        Ok(stored)
    }

    pub(crate) fn create_experiment(
        &mut self,
        folder: &mut Folder,
        name: &ExperimentName,
        change: Change,
    ) -> Result<StoredExperiment> {
        self.check_point(name, &change.spec)?;
        self.create(folder, &experiment_object(name), &name.to_string(), &experiment_content(name, change))?;
        self.stored_experiment(name)
    }

    /// Checks that an experiment with this spec has the enforcement point of its policy.
    fn check_point(&self, name: &ExperimentName, spec: &PolicySpec) -> Result<()> {
        let policy = self.stored_policy(&name.policy)?;
        spec.check_experiment_of(&name.policy, &policy.spec).map_err(|error| Error::point_mismatch(&error))
    }

    pub(crate) fn update_experiment(
        &mut self,
        folder: &mut Folder,
        name: &ExperimentName,
        revision: &str,
        change: Change,
    ) -> Result<StoredExperiment> {
        let before = self.stored_experiment(name)?.meta;
        if before.revision != revision {
            return Err(Error::concurrent_change(&name.to_string()));
        }
        self.check_point(name, &change.spec)?;
        let annotations = merge_annotations(before.annotations, change.annotations.clone());
        let content = experiment_content(name, Change { annotations, ..change });
        self.rewrite(folder, &experiment_object(name), &content)?;
        self.stored_experiment(name)
    }

    pub(crate) fn delete_experiment(
        &mut self,
        folder: &mut Folder,
        name: &ExperimentName,
        etag: Option<&str>,
    ) -> Result<StoredExperiment> {
        let stored = self.stored_experiment(name)?;
        check_etag(etag, &stored.meta, &name.to_string())?;
        self.remove(folder, &experiment_object(name))?;
        Ok(stored)
    }

    /// Starts or stops the preview of the newest version. A version that is still being prepared is previewed as soon as it is
    /// loaded.
    pub(crate) fn preview(&mut self, name: &ExperimentName, change: Preview) -> Result<StoredExperiment> {
        self.stored_experiment(name)?;
        let object = experiment_object(name);
        let not_found = || Error::not_found(&name.to_string());
        let failure = self.objects.get(&object).and_then(|experiment| self.settled_failure(experiment));
        if change == Preview::Start {
            self.check_readable(&object)?;
            if let Some(failure) = failure {
                return Err(Error::new(Code::FailedPrecondition, "DOES_NOT_WORK", failure.to_string()));
            }
        }
        let now = Time(Timestamp::now());
        let experiment = self.objects.get_mut(&object).ok_or_else(not_found)?;
        match change {
            Preview::Start => experiment.start_preview(&now),
            Preview::Stop if experiment.preview.is_started() => experiment.preview.stop(None, &now),
            Preview::Stop => {
                let message = format!("{name} was never started: there is nothing to stop");
                return Err(Error::new(Code::FailedPrecondition, "NOT_STARTED", message));
            }
        }
        self.is_changed = true;
        self.save_due.get_or_insert_with(std::time::Instant::now);
        self.stored_experiment(name)
    }

    /// Commits the experiment. The version must be loaded, so that the commit replaces no policy by one that cannot work.
    pub(crate) fn commit(
        &mut self,
        folder: &mut Folder,
        name: &ExperimentName,
        committing: &CommitPreconditions,
    ) -> Result<StoredPolicy> {
        let experiment = self.stored_experiment(name)?;
        check_etag(Some(&committing.etag), &experiment.meta, &name.to_string())?;
        let policy = self.stored_policy(&name.policy)?;
        check_etag(committing.parent_etag.as_deref(), &policy.meta, &format!("policies/{}", name.policy))?;
        (experiment.spec.check_experiment_of(&name.policy, &policy.spec))
            .map_err(|error| Error::uncommittable_point(&name.to_string(), &error))?;
        let observed = self.observed(&experiment_object(name));
        let is_prepared = observed.is_some_and(|it| it.is_accepted && self.live(it.object).is_some());
        if !is_prepared {
            let (reason, message) = match experiment.problem {
                Some(problem) => ("DOES_NOT_WORK", format!("{name}: {problem}")),
                None => ("NOT_PREPARED", format!("{name} is still being prepared: try again")),
            };
            return Err(Error::new(Code::FailedPrecondition, reason, message));
        }
        self.check_unique(&name.policy, Some(&policy.spec), &experiment.spec)?;
        let drafts = (self.draft(&policy_object(&name.policy))?, self.draft(&experiment_object(name))?);
        commit::run(folder.path(), &policy, &experiment, drafts)?;
        tracing::info!(experiment = %name, etag = experiment.meta.etag, "committed by the API");
        self.poll(folder);
        self.stored_policy(&name.policy)
    }
}

fn check_etag(given: Option<&str>, meta: &Meta, name: &str) -> Result<()> {
    match given {
        Some(given) if given != meta.etag => Err(Error::etag_mismatch(name, given)),
        _ => Ok(()),
    }
}

/// Returns the annotations of the client, and the reserved annotations that the object had before.
fn merge_annotations(before: Annotations, new: Annotations) -> Annotations {
    before.into_iter().filter(|(key, _)| is_reserved(key)).chain(new).collect()
}

fn experiment_content(name: &ExperimentName, change: Change) -> Content {
    let policy_ref = PolicyRef { name: name.policy.name().to_owned() };
    let Change { spec, annotations, auto_start, preview_settings, ttl } = change;
    let PreviewSettings { sample_rate, logging } = preview_settings;
    let spec = ExperimentSpec { policy_ref, policy: spec, auto_start, sample_rate, logging, ttl };
    Content { spec: json!(spec), annotations }
}
