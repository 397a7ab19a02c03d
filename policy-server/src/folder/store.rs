//! Policies and experiments of the folder as the API sees and changes them.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use k8s_openapi::jiff::Timestamp;
use proviso_core::{Failure, PolicyId, experiment::etag};
use proviso_crds::{ExperimentSpec, PolicyRef, PolicySpec, PreviewMetadata};
use proviso_rest_api::{
    Awaited, Change, Code, Committing, Effect, Error, ExperimentName, Meta, Preview, Progress, State, StoredExperiment,
    StoredPolicy, is_reserved,
};
use serde_json::json;

use super::object::Object;
use super::scan::Folder;
use super::{FolderSource, commit};
use crate::manifests::edit::{self, Content, Draft, EditError};
use crate::manifests::{Annotations, ObjectId, Problem};
use crate::state::ExperimentOf;

type Result<T> = std::result::Result<T, Error>;

impl From<EditError> for Error {
    fn from(error: EditError) -> Self {
        let (code, reason) = match &error {
            EditError::ReadOnly(_) => (Code::FailedPrecondition, "READ_ONLY"),
            EditError::Unread { .. } => (Code::FailedPrecondition, "MANIFEST_REFUSED"),
            EditError::Io { .. } => (Code::Unavailable, "MANIFESTS"),
            EditError::Unwritable { .. } => (Code::Internal, "MANIFEST"),
        };
        Self::new(code, reason, error.to_string())
    }
}

fn policy_object(id: &PolicyId) -> ObjectId {
    ObjectId::Policy(id.clone())
}

fn experiment_object(name: &ExperimentName) -> ObjectId {
    ObjectId::Experiment(name.into())
}

/// An object as its manifest has it, or had it when it could be read last.
pub(super) struct Seen<'a> {
    pub object: &'a Object,
    pub spec: &'a PolicySpec,
    experiment: Option<&'a ExperimentOf>,
    annotations: Annotations,
    generation: u64,
    /// Whether it is the generation that was accepted last.
    pub is_accepted: bool,
    fingerprint: String,
}

impl<'a> Seen<'a> {
    fn new(object: &'a Object) -> Option<Self> {
        let fingerprint = object.fingerprint()?;
        let (spec, experiment, annotations) = match (&object.wanted, &object.record) {
            (Some(wanted), _) => (wanted.spec.as_ref(), wanted.experiment.as_ref(), wanted.annotations.clone()),
            (None, Some(record)) => (&record.spec, record.experiment.as_ref(), Annotations::new()),
            (None, None) => return None,
        };
        Some(Self {
            object,
            spec,
            experiment,
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
            // A version that is not accepted may share its generation with another that never will be.
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
    /// Takes in what has changed in the folder.
    pub(super) fn look(&mut self, folder: &mut Folder) {
        if let Some(scan) = folder.changed() {
            self.take_scan(scan);
        }
    }

    pub(super) fn seen(&self, object: &ObjectId) -> Option<Seen<'_>> {
        self.objects.get(object).and_then(Seen::new)
    }

    /// Why the newest version does not serve: its manifest is refused, or it does not work.
    fn problem(&self, id: &ObjectId, object: &Object) -> Option<Failure> {
        let refusal = self.problems.iter().find(|problem| problem.object.as_ref() == Some(id));
        refusal.map(Problem::to_failure).or_else(|| self.failure(object))
    }

    pub(crate) fn stored_policy(&self, id: &PolicyId) -> Result<StoredPolicy> {
        let object = policy_object(id);
        let seen = self.seen(&object).ok_or_else(|| Error::not_found(&format!("policies/{id}")))?;
        let problem = self.problem(&object, seen.object);
        let state = match (&problem, self.live(seen.object)) {
            (Some(_), _) => State::Failed,
            (None, Some(_)) if seen.is_accepted && seen.spec.enabled => State::Active,
            (None, Some(_)) if seen.is_accepted => State::Disabled,
            (None, Some(_)) => State::Updating,
            (None, None) => State::Pending,
        };
        Ok(StoredPolicy { id: id.clone(), meta: seen.meta(), spec: seen.spec.clone(), state, problem })
    }

    pub(crate) fn stored_policies(&self) -> Vec<StoredPolicy> {
        let ids = self.objects.keys().filter_map(|id| if let ObjectId::Policy(id) = id { Some(id) } else { None });
        ids.filter_map(|id| self.stored_policy(id).ok()).collect()
    }

    pub(crate) fn stored_experiment(&self, name: &ExperimentName) -> Result<StoredExperiment> {
        let object = experiment_object(name);
        let seen = self.seen(&object).filter(|seen| seen.experiment.is_some_and(|of| of.policy == name.policy));
        let seen = seen.ok_or_else(|| Error::not_found(&name.to_string()))?;
        let generation = i64::try_from(seen.generation).unwrap_or(i64::MAX);
        let preview = seen.object.preview.clone();
        // What another version came to says nothing about this one.
        let session = seen.object.session.as_ref().filter(|session| session.generation == seen.generation);
        let report = session.map(|session| session.tally.report());
        let (divergence, samples) = report.map(|report| (report.counts, report.samples)).unzip();
        Ok(StoredExperiment {
            name: name.clone(),
            meta: seen.meta(),
            spec: seen.spec.clone(),
            auto_start: seen.experiment.is_some_and(|of| of.auto_start),
            preview: preview.map(|preview| PreviewMetadata { state: preview.state(generation), ..preview }),
            divergence,
            samples: samples.unwrap_or_default(),
            problem: self.problem(&object, seen.object),
        })
    }

    pub(crate) fn stored_experiments(&self, policy: Option<&PolicyId>) -> Vec<StoredExperiment> {
        let names = self.objects.iter().filter_map(|(id, object)| {
            let (ObjectId::Experiment(id), Some(seen)) = (id, Seen::new(object)) else { return None };
            let of = &seen.experiment?.policy;
            let is_asked = policy.is_none_or(|policy| policy == of);
            is_asked.then(|| ExperimentName { policy: of.clone(), name: id.name.clone() })
        });
        names.filter_map(|name| self.stored_experiment(&name).ok()).collect()
    }

    /// A document that is there and cannot be read must not be passed by.
    fn refuse_broken(&self, object: &ObjectId) -> Result<()> {
        match self.problems.iter().find(|problem| problem.object.as_ref() == Some(object)) {
            None => Ok(()),
            Some(problem) => {
                let message = format!("its manifest is refused; repair it first: {problem}");
                Err(Error::new(Code::FailedPrecondition, "MANIFEST_REFUSED", message))
            }
        }
    }

    /// The file that the object stands in.
    pub(super) fn draft(&self, object: &ObjectId) -> Result<Draft> {
        self.refuse_broken(object)?;
        let gone = || Error::new(Code::FailedPrecondition, "MANIFEST_REFUSED", format!("{object} is in no file now"));
        let file = self.objects.get(object).and_then(Object::file).ok_or_else(gone)?;
        Ok(Draft::open(file)?)
    }

    fn create(&mut self, folder: &mut Folder, object: &ObjectId, name: &str, content: &Content) -> Result<()> {
        self.refuse_broken(object)?;
        // Also one of another policy: in one namespace experiments have names of their own.
        if self.objects.contains_key(object) {
            return Err(Error::exists(name));
        }
        let path = edit::create(folder.path(), object, content)?;
        tracing::info!(%object, file = %path.display(), "created by the API");
        self.look(folder);
        Ok(())
    }

    fn rewrite(&mut self, folder: &mut Folder, object: &ObjectId, content: &Content) -> Result<()> {
        let mut draft = self.draft(object)?;
        draft.replace(object, content)?;
        draft.write()?;
        tracing::info!(%object, file = %draft.path().display(), "changed by the API");
        self.look(folder);
        Ok(())
    }

    fn remove(&mut self, folder: &mut Folder, object: &ObjectId) -> Result<()> {
        let mut draft = self.draft(object)?;
        draft.remove(object)?;
        draft.write()?;
        tracing::info!(%object, file = %draft.path().display(), "deleted by the API");
        self.look(folder);
        Ok(())
    }

    pub(crate) fn create_policy(&mut self, folder: &mut Folder, id: &PolicyId, change: Change) -> Result<StoredPolicy> {
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
        let before = self.stored_policy(id)?.meta;
        if before.revision != revision {
            return Err(Error::busy(&format!("policies/{id}")));
        }
        let content = Content { spec: json!(change.spec), annotations: kept(before.annotations, change.annotations) };
        self.rewrite(folder, &policy_object(id), &content)?;
        self.stored_policy(id)
    }

    /// The experiments first: there is no moment at which one has no policy.
    pub(crate) fn delete_policy(
        &mut self,
        folder: &mut Folder,
        id: &PolicyId,
        etag: Option<&str>,
    ) -> Result<StoredPolicy> {
        let stored = self.stored_policy(id)?;
        same_etag(etag, &stored.meta, &format!("policies/{id}"))?;
        self.draft(&policy_object(id))?;
        for experiment in self.stored_experiments(Some(id)) {
            self.remove(folder, &experiment_object(&experiment.name))?;
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
        self.stored_policy(&name.policy)?;
        self.create(folder, &experiment_object(name), &name.to_string(), &experiment_content(name, change))?;
        self.stored_experiment(name)
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
            return Err(Error::busy(&name.to_string()));
        }
        let annotations = kept(before.annotations, change.annotations.clone());
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
        same_etag(etag, &stored.meta, &name.to_string())?;
        self.remove(folder, &experiment_object(name))?;
        Ok(stored)
    }

    /// Starts or stops the newest version; one that is still being prepared is previewed as soon as it works.
    pub(crate) fn preview(&mut self, name: &ExperimentName, change: Preview) -> Result<StoredExperiment> {
        self.stored_experiment(name)?;
        let object = experiment_object(name);
        self.refuse_broken(&object)?;
        let not_found = || Error::not_found(&name.to_string());
        let experiment = self.objects.get(&object).ok_or_else(not_found)?;
        let failure = self.failure(experiment).filter(|_| self.is_settled(experiment));
        let experiment = self.objects.get_mut(&object).ok_or_else(not_found)?;
        let now = Time(Timestamp::now());
        experiment.preview = match (change, &experiment.preview) {
            (Preview::Start, before) => {
                if let Some(failure) = failure {
                    return Err(Error::new(Code::FailedPrecondition, "DOES_NOT_WORK", failure.to_string()));
                }
                let fingerprint = experiment.fingerprint();
                let generation = fingerprint.map_or(1, |fingerprint| experiment.generation(fingerprint));
                let generation = i64::try_from(generation).unwrap_or(i64::MAX);
                Some(PreviewMetadata::start(before.as_ref(), generation, now))
            }
            (Preview::Stop, Some(before)) => Some(before.clone().stop(now)),
            (Preview::Stop, None) => {
                let message = format!("{name} was never started: there is nothing to stop");
                return Err(Error::new(Code::FailedPrecondition, "NOT_STARTED", message));
            }
        };
        self.is_changed = true;
        self.unsaved.get_or_insert_with(std::time::Instant::now);
        self.stored_experiment(name)
    }

    pub(crate) fn commit(
        &mut self,
        folder: &mut Folder,
        name: &ExperimentName,
        committing: &Committing,
    ) -> Result<StoredPolicy> {
        let experiment = self.stored_experiment(name)?;
        same_etag(Some(&committing.etag), &experiment.meta, &name.to_string())?;
        let policy = self.stored_policy(&name.policy)?;
        same_etag(committing.parent_etag.as_deref(), &policy.meta, &format!("policies/{}", name.policy))?;
        if !self.seen(&experiment_object(name)).is_some_and(|seen| seen.is_accepted) {
            let why = experiment.problem.map_or_else(|| "is still being prepared".to_owned(), |why| why.to_string());
            return Err(Error::new(Code::FailedPrecondition, "DOES_NOT_WORK", format!("{name}: {why}")));
        }
        let drafts = (self.draft(&policy_object(&name.policy))?, self.draft(&experiment_object(name))?);
        commit::run(folder.path(), &policy, &experiment, drafts)?;
        tracing::info!(experiment = %name, etag = experiment.meta.etag, "committed by the API");
        self.look(folder);
        self.stored_policy(&name.policy)
    }

    pub(crate) fn progress(&self, awaited: &Awaited) -> Progress {
        let object = match (awaited.effect, awaited.experiment()) {
            (Effect::Commit, _) | (_, None) => policy_object(&awaited.policy),
            (_, Some(name)) => experiment_object(&name),
        };
        let seen = self.seen(&object).filter(|seen| seen.object.uid == awaited.uid);
        let failed = |code, reason: &str, message: &str| Progress::Failed(Error::new(code, reason, message));
        let seen = match (seen, awaited.effect) {
            (None, Effect::Delete) | (Some(_), Effect::StopPreview) => return Progress::Done,
            (None, _) => return Progress::Failed(Error::not_found(&awaited.target())),
            (Some(_), Effect::Delete) => return Progress::Running("it to be gone".to_owned()),
            (Some(seen), _) => seen,
        };
        let (generation, fingerprint) = awaited.version.split_once('-').unwrap_or_default();
        let generation: u64 = generation.parse().unwrap_or_default();
        let accepted = seen.object.record.as_ref();
        let accepted_generation = accepted.map_or(0, |record| record.generation);
        let is_same = accepted.is_some_and(|record| record.fingerprint.to_string() == fingerprint);
        let suspended = "the preview was suspended before it had begun";
        match accepted_generation.cmp(&generation) {
            std::cmp::Ordering::Equal if is_same => match (self.live(seen.object), awaited.effect) {
                (Some(_), Effect::StartPreview) if !seen.object.is_active(generation) => {
                    failed(Code::Aborted, "SUSPENDED", suspended)
                }
                (Some(_), _) => Progress::Done,
                (None, _) => Progress::Running("it to be loaded".to_owned()),
            },
            std::cmp::Ordering::Greater if awaited.effect == Effect::StartPreview => {
                failed(Code::Aborted, "SUSPENDED", suspended)
            }
            // A newer one serves: this one did, or would have.
            std::cmp::Ordering::Greater => Progress::Done,
            std::cmp::Ordering::Less if seen.fingerprint == fingerprint => {
                match self.problem(&object, seen.object).filter(|_| self.is_settled(seen.object)) {
                    Some(failure) => Progress::Failed(Error::does_not_work(&failure)),
                    None => Progress::Running("its program to be prepared".to_owned()),
                }
            }
            _ => failed(Code::Aborted, "SUPERSEDED", "another version took its place before it served"),
        }
    }
}

fn same_etag(given: Option<&str>, meta: &Meta, name: &str) -> Result<()> {
    match given {
        Some(given) if given != meta.etag => Err(Error::stale(name, given)),
        _ => Ok(()),
    }
}

/// What clients write, and beside it what is not theirs.
fn kept(before: Annotations, new: Annotations) -> Annotations {
    before.into_iter().filter(|(key, _)| is_reserved(key)).chain(new).collect()
}

fn experiment_content(name: &ExperimentName, change: Change) -> Content {
    let policy_ref = PolicyRef { name: name.policy.name().to_owned() };
    let spec = ExperimentSpec { policy_ref, policy: change.spec, auto_start: change.auto_start };
    Content { spec: json!(spec), annotations: change.annotations }
}
