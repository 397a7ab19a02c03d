//! The commit of an experiment in a folder. It changes two documents: it replaces the policy and removes the experiment.
//! Documents of one file change together. For documents of two files, the commit intent is written to a file first. After a
//! crash, the next start finishes the commit if the manifest of the policy has the annotation of the committed experiment, and
//! otherwise drops the intent. Without the intent, the annotation has no effect.

use std::path::{Path, PathBuf};

use proviso_artifacts::{Digest, remove_durably, write_atomically};
use proviso_crds::names::COMMITTED_EXPERIMENT;
use proviso_rest_api::{Error, StoredExperiment, StoredPolicy};
use serde::{Deserialize, Serialize};
use serde_json::json;

use crate::manifests::edit::{Content, Draft, EditError, resolve_modules};
use crate::manifests::{ExperimentId, ObjectId};

/// The file of the commit intent, in the folder of manifests. The file is hidden, so the server does not read it as a manifest.
const INTENT: &str = ".proviso-commit.json";

/// The intent of a commit, with the facts that the recovery after a crash needs.
#[derive(Debug, Deserialize, Serialize)]
#[serde(rename_all = "camelCase")]
struct Intent {
    policy: String,
    policy_file: PathBuf,
    /// The value of the annotation `COMMITTED_EXPERIMENT` that the committed policy has.
    committed: String,
    namespace: Option<String>,
    experiment: String,
    experiment_file: PathBuf,
    /// The digest of the document of the experiment. A document of another experiment with the same name is not removed.
    digest: String,
}

impl Intent {
    fn policy(&self) -> Option<ObjectId> {
        self.policy.parse().ok().map(ObjectId::Policy)
    }

    fn experiment(&self) -> ObjectId {
        ObjectId::Experiment(ExperimentId { namespace: self.namespace.clone(), name: self.experiment.clone() })
    }
}

/// Commits the experiment. The drafts contain the documents for which the preconditions were checked.
///
/// # Errors
/// Returns an error if another program has changed one of the files since it was opened, or if a file cannot be written. Then the
/// manifests are unchanged, except if restoring the manifest of the policy fails too: then the next start finishes the commit.
pub(super) fn run(
    folder: &Path,
    policy: &StoredPolicy,
    experiment: &StoredExperiment,
    (mut policy_draft, mut experiment_draft): (Draft, Draft),
) -> Result<(), Error> {
    let from = experiment_draft.path().parent().unwrap_or(folder).to_owned();
    let is_elsewhere = policy_draft.path().parent() != Some(&from);
    let spec = if is_elsewhere { resolve_modules(experiment.spec.clone(), &from) } else { experiment.spec.clone() };
    let committed = experiment.committed();
    let mut annotations = policy.meta.annotations.clone();
    annotations.insert(COMMITTED_EXPERIMENT.to_owned(), committed.clone());
    let (policy_object, experiment_object) =
        (ObjectId::Policy(policy.id.clone()), ObjectId::Experiment((&experiment.name).into()));
    let content = Content { spec: json!(spec), annotations };
    if policy_draft.path() == experiment_draft.path() {
        policy_draft.replace(&policy_object, &content)?;
        policy_draft.remove(&experiment_object)?;
        return Ok(policy_draft.write()?);
    }
    policy_draft.replace(&policy_object, &content)?;
    let intent = Intent {
        policy: policy.id.to_string(),
        policy_file: policy_draft.path().to_owned(),
        committed,
        namespace: policy.id.namespace().map(ToOwned::to_owned),
        experiment: experiment.name.name.clone(),
        experiment_file: experiment_draft.path().to_owned(),
        digest: Digest::of(experiment_draft.document(&experiment_object)?.as_bytes()).to_string(),
    };
    experiment_draft.remove(&experiment_object)?;
    record(folder, &intent)?;
    // A changed experiment is found before the policy is written. Each write then compares its own file once more.
    let written = experiment_draft.check_unchanged().and_then(|()| policy_draft.write());
    let result = written.and_then(|()| experiment_draft.write());
    if result.is_err()
        && let Err(error) = policy_draft.restore()
    {
        tracing::error!(%error, experiment = %experiment.name, "a commit is half done: the next start finishes it");
    }
    if !is_half_done(&intent) {
        forget(folder);
    }
    Ok(result?)
}

fn record(folder: &Path, intent: &Intent) -> Result<(), EditError> {
    let path = folder.join(INTENT);
    let json = serde_json::to_vec(intent).unwrap_or_default();
    write_atomically(&path, &json).map_err(|error| match error.kind() {
        std::io::ErrorKind::PermissionDenied | std::io::ErrorKind::ReadOnlyFilesystem => EditError::ReadOnly(path),
        _ => EditError::Io { path, error },
    })
}

fn forget(folder: &Path) {
    if let Err(error) = remove_durably(&folder.join(INTENT)) {
        tracing::warn!(%error, "cannot remove the intent of a finished commit");
    }
}

/// Returns true if the policy is committed and the experiment still exists.
fn is_half_done(intent: &Intent) -> bool {
    let Some(policy) = intent.policy() else { return false };
    let is_committed = Draft::open(&intent.policy_file).is_ok_and(|draft| {
        draft.document(&policy).is_ok_and(|text| {
            let object: Option<serde_json::Value> = serde_yaml::from_str(text.trim_start_matches("---")).ok();
            object.is_some_and(|object| {
                object["metadata"]["annotations"][COMMITTED_EXPERIMENT] == intent.committed.as_str()
            })
        })
    });
    let is_there = Draft::open(&intent.experiment_file).is_ok_and(|draft| {
        let document = draft.document(&intent.experiment());
        document.is_ok_and(|text| Digest::of(text.as_bytes()).to_string() == intent.digest)
    });
    is_committed && is_there
}

/// Finishes a commit that a crash has left half done. Drops the intent of a commit that had not begun or was finished.
pub(super) fn recover(folder: &Path) {
    let Ok(json) = std::fs::read(folder.join(INTENT)) else { return };
    let Ok(intent) = serde_json::from_slice::<Intent>(&json) else {
        tracing::error!(file = %folder.join(INTENT).display(), "cannot parse the intent of a commit: check both manifests, then remove the file");
        return;
    };
    if is_half_done(&intent) {
        let removed = Draft::open(&intent.experiment_file).and_then(|mut draft| {
            draft.remove(&intent.experiment())?;
            draft.write()
        });
        if let Err(error) = removed {
            tracing::error!(%error, experiment = intent.experiment, "cannot remove a committed experiment");
            return;
        }
        tracing::warn!(experiment = intent.experiment, "finished an interrupted commit");
    }
    forget(folder);
}

#[cfg(test)]
mod tests {
    use super::*;
    use proviso_crds::{DEFAULT_TTL, PreviewSettings};
    use proviso_rest_api::{Code, ExperimentName, Meta, State};
    use std::collections::BTreeMap;

    fn spec(message: &str) -> serde_json::Value {
        json!({
            "program": {"cel": {"validations": [{"expression": "false", "message": message}]}},
            "admission": {"rules": [{"operations": ["*"], "apiGroups": ["*"], "apiVersions": ["*"], "resources": ["*"]}]},
        })
    }

    fn manifest(kind: &str, name: &str, spec: &serde_json::Value) -> String {
        json!({"apiVersion": "proviso.dev/v1alpha1", "kind": kind, "metadata": {"name": name}, "spec": spec})
            .to_string()
    }

    fn meta(uid: &str) -> Meta {
        Meta {
            uid: uid.into(),
            etag: "\"1\"".into(),
            revision: String::new(),
            version: "3-sha256:0".into(),
            annotations: BTreeMap::new(),
            create_time: None,
            update_time: None,
        }
    }

    struct Fixture {
        folder: tempfile::TempDir,
        policy: StoredPolicy,
        experiment: StoredExperiment,
    }

    impl Fixture {
        fn new() -> Self {
            let folder = tempfile::tempdir().unwrap();
            std::fs::write(folder.path().join("p.json"), manifest("ClusterPolicy", "p", &spec("old"))).unwrap();
            let experiment = json!({"policyRef": {"name": "p"}, "policy": spec("new")});
            std::fs::write(folder.path().join("e.json"), manifest("ClusterPolicyExperiment", "e", &experiment))
                .unwrap();
            let id: proviso_core::PolicyId = "cluster.p".parse().unwrap();
            Self {
                folder,
                policy: StoredPolicy {
                    id: id.clone(),
                    meta: meta("p"),
                    spec: serde_json::from_value(spec("old")).unwrap(),
                    state: State::Active,
                    problem: None,
                },
                experiment: StoredExperiment {
                    name: ExperimentName { policy: id, name: "e".into() },
                    meta: meta("e"),
                    spec: serde_json::from_value(spec("new")).unwrap(),
                    auto_start: false,
                    preview_settings: PreviewSettings::default(),
                    ttl: DEFAULT_TTL.to_owned(),
                    preview: None,
                    divergence: None,
                    samples: Vec::new(),
                    canaries: Vec::new(),
                    problem: None,
                },
            }
        }

        fn path(&self, file: &str) -> PathBuf {
            self.folder.path().join(file)
        }

        fn text(&self, file: &str) -> Option<String> {
            std::fs::read_to_string(self.path(file)).ok()
        }

        fn drafts(&self) -> (Draft, Draft) {
            (Draft::open(&self.path("p.json")).unwrap(), Draft::open(&self.path("e.json")).unwrap())
        }

        fn run(&self, drafts: (Draft, Draft)) -> Result<(), Error> {
            run(self.folder.path(), &self.policy, &self.experiment, drafts)
        }

        fn commit(&self) -> Result<(), Error> {
            self.run(self.drafts())
        }

        fn texts(&self) -> [Option<String>; 3] {
            ["p.json", "e.json", INTENT].map(|file| self.text(file))
        }
    }

    #[test]
    fn a_commit_changes_the_policy_and_removes_the_experiment() {
        let fixture = Fixture::new();
        fixture.commit().unwrap();
        let text = fixture.text("p.json").unwrap();
        assert!(
            text.contains("new") && text.contains(COMMITTED_EXPERIMENT) && text.contains("\\\"generation\\\":3"),
            "{text}"
        );
        assert_eq!((fixture.text("e.json"), fixture.text(INTENT)), (None, None));
    }

    #[test]
    fn a_restart_finishes_a_half_done_commit_and_drops_one_that_had_not_begun() {
        let fixture = Fixture::new();
        let before = (fixture.text("p.json"), fixture.text("e.json"));
        fixture.commit().unwrap();
        let committed = fixture.text("p.json").unwrap();
        let digest = Digest::of(before.1.clone().unwrap().as_bytes()).to_string();
        // The crash came after the intent was written.
        std::fs::write(fixture.path("p.json"), before.0.clone().unwrap()).unwrap();
        std::fs::write(fixture.path("e.json"), before.1.clone().unwrap()).unwrap();
        let recorded: serde_json::Value = serde_json::from_str(&committed).unwrap();
        let intent = Intent {
            policy: "cluster.p".into(),
            policy_file: fixture.path("p.json"),
            committed: recorded["metadata"]["annotations"][COMMITTED_EXPERIMENT].as_str().unwrap().to_owned(),
            namespace: None,
            experiment: "e".into(),
            experiment_file: fixture.path("e.json"),
            digest,
        };
        record(fixture.folder.path(), &intent).unwrap();
        recover(fixture.folder.path());
        assert_eq!(
            (fixture.text("p.json"), fixture.text("e.json"), fixture.text(INTENT)),
            (before.0, before.1.clone(), None)
        );

        // The crash came after the policy was written: the restart finishes the commit.
        std::fs::write(fixture.path("p.json"), &committed).unwrap();
        record(fixture.folder.path(), &intent).unwrap();
        recover(fixture.folder.path());
        assert_eq!(
            (fixture.text("p.json"), fixture.text("e.json"), fixture.text(INTENT)),
            (Some(committed.clone()), None, None)
        );

        // A new experiment with the same name is kept.
        let other = before.1.unwrap().replace("new", "newer");
        std::fs::write(fixture.path("e.json"), &other).unwrap();
        record(fixture.folder.path(), &intent).unwrap();
        recover(fixture.folder.path());
        assert_eq!((fixture.text("e.json"), fixture.text(INTENT)), (Some(other), None));
    }

    #[test]
    fn a_commit_that_fails_changes_nothing() {
        let fixture = Fixture::new();
        let before = fixture.text("p.json");
        let drafts = fixture.drafts();
        // A folder in place of the experiment's file cannot be removed as a file.
        std::fs::remove_file(fixture.path("e.json")).unwrap();
        std::fs::create_dir(fixture.path("e.json")).unwrap();
        assert!(fixture.run(drafts).is_err());
        assert_eq!((fixture.text("p.json"), fixture.text(INTENT)), (before, None));
    }

    // An editor or `git pull` changes a file after the server has read and checked it.
    #[test]
    fn a_commit_neither_overwrites_a_newer_policy_nor_deletes_an_edited_experiment() {
        for file in ["p.json", "e.json"] {
            let fixture = Fixture::new();
            let drafts = fixture.drafts();
            let edited = fixture.text(file).unwrap().replace("old", "newer").replace("new", "newest");
            std::fs::write(fixture.path(file), &edited).unwrap();
            let wanted = fixture.texts();
            let error = fixture.run(drafts).unwrap_err();
            assert_eq!((error.code, error.reason()), (Code::Aborted, "CONCURRENT_CHANGE"), "{file}");
            assert_eq!(fixture.texts(), wanted, "{file}");
            assert_eq!(fixture.text(file), Some(edited));
        }
        // A removed file is not created again.
        for file in ["p.json", "e.json"] {
            let fixture = Fixture::new();
            let drafts = fixture.drafts();
            std::fs::remove_file(fixture.path(file)).unwrap();
            let wanted = fixture.texts();
            assert_eq!(fixture.run(drafts).unwrap_err().reason(), "CONCURRENT_CHANGE", "{file}");
            assert_eq!(fixture.texts(), wanted, "{file}");
        }
    }

    #[test]
    fn a_commit_within_one_file_does_not_overwrite_an_edit() {
        let fixture = Fixture::new();
        let both = format!("{}\n---\n{}\n", fixture.text("p.json").unwrap(), fixture.text("e.json").unwrap());
        std::fs::remove_file(fixture.path("e.json")).unwrap();
        std::fs::write(fixture.path("p.json"), &both).unwrap();
        let drafts = || (Draft::open(&fixture.path("p.json")).unwrap(), Draft::open(&fixture.path("p.json")).unwrap());
        let opened = drafts();
        let edited = both.replace("new", "newest");
        std::fs::write(fixture.path("p.json"), &edited).unwrap();
        assert_eq!(fixture.run(opened).unwrap_err().reason(), "CONCURRENT_CHANGE");
        assert_eq!(fixture.text("p.json"), Some(edited));
        fixture.run(drafts()).unwrap();
        let text = fixture.text("p.json").unwrap();
        assert!(text.contains(COMMITTED_EXPERIMENT) && !text.contains("ClusterPolicyExperiment"), "{text}");
    }

    #[test]
    fn the_annotation_of_a_committed_experiment_alone_deletes_nothing() {
        let fixture = Fixture::new();
        let experiment = fixture.text("e.json").unwrap();
        fixture.commit().unwrap();
        // The policy has the annotation of exactly this experiment, and there is no intent.
        std::fs::write(fixture.path("e.json"), experiment).unwrap();
        let before = fixture.texts();
        assert!(before[0].as_ref().unwrap().contains(COMMITTED_EXPERIMENT) && before[2].is_none());
        recover(fixture.folder.path());
        assert_eq!(fixture.texts(), before);
    }
}
