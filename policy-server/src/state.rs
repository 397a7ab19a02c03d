//! The state file: the last accepted generation of each policy and experiment with its spec, and the operations of the REST API. A
//! restarted server reads them.

use std::collections::BTreeMap;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use proviso_artifacts::{Digest, write_atomically};
use proviso_core::PolicyId;
use proviso_crds::{DEFAULT_TTL, PolicySpec, PreviewMetadata, PreviewSettings};
use proviso_rest_api::StoredOperation;
use serde::{Deserialize, Deserializer, Serialize, Serializer};

/// The last accepted generation of a policy or an experiment.
#[derive(Clone, Debug, Deserialize, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Record {
    /// The uid, generated when the object was first accepted. An object that was removed and created again has another uid.
    pub uid: String,
    /// The number of accepted changes, from 1.
    pub generation: u64,
    /// The digest of everything that defines this generation, including the bytes of its modules.
    #[serde(serialize_with = "to_text", deserialize_with = "from_text")]
    pub fingerprint: Digest,
    /// The file of the manifest. While the file is unreadable, the object counts as existing.
    pub file: PathBuf,
    pub spec: PolicySpec,
    /// The fields that only experiments have; `None` for a policy.
    pub experiment: Option<ExperimentRecord>,
    /// The digests of the modules, by their references.
    pub modules: BTreeMap<String, DigestText>,
    /// The time when the object was first seen.
    #[serde(default)]
    pub created: Option<Time>,
    /// The time when this generation was accepted.
    #[serde(default)]
    pub updated: Option<Time>,
    /// The last start and stop of the preview; `None` for a policy.
    #[serde(default)]
    pub preview: Option<PreviewMetadata>,
    /// The start time of the last preview that was loaded; `None` for a policy, and if no preview was ever loaded.
    #[serde(default)]
    pub previewed_start_time: Option<Time>,
}

/// The fields that an experiment has in addition to a spec. A part of the fingerprint of a version: a default is not serialized, so
/// that a version keeps its fingerprint when the server is updated.
#[derive(Clone, Debug, PartialEq, Deserialize, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct ExperimentRecord {
    #[serde(serialize_with = "to_text", deserialize_with = "from_text")]
    pub policy: PolicyId,
    pub auto_start: bool,
    #[serde(default, skip_serializing_if = "is_default")]
    pub preview: PreviewSettings,
    /// The value of `spec.ttl`.
    #[serde(default = "default_ttl", skip_serializing_if = "is_default_ttl")]
    pub ttl: String,
}

impl ExperimentRecord {
    /// Returns the time from a start of the preview until it stops by itself.
    #[must_use]
    pub fn time_to_live(&self) -> Duration {
        proviso_crds::time_to_live_or_longest(&self.ttl)
    }
}

fn is_default(settings: &PreviewSettings) -> bool {
    *settings == PreviewSettings::default()
}

fn default_ttl() -> String {
    DEFAULT_TTL.to_owned()
}

fn is_default_ttl(ttl: &str) -> bool {
    ttl == DEFAULT_TTL
}

/// A digest that is serialized as text.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, Serialize)]
#[serde(transparent)]
pub struct DigestText(#[serde(serialize_with = "to_text", deserialize_with = "from_text")] pub Digest);

/// All records, by key: `<id>` for a policy, `experiment <id>` for an experiment.
pub type Records = BTreeMap<String, Record>;

/// An object of which no version was accepted yet. Operations wait for the object with this uid.
#[derive(Clone, Debug, Deserialize, Serialize)]
pub struct NewObject {
    pub uid: String,
    /// The time when the object was first seen.
    pub created: Time,
}

/// The content of the state file.
#[derive(Debug, Default, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct State {
    pub records: Records,
    /// The objects without a record, by the same keys.
    pub new_objects: BTreeMap<String, NewObject>,
    /// The operations of the REST API, in the order of their creation.
    pub operations: Vec<Arc<StoredOperation>>,
}

#[derive(Serialize)]
struct ContentOut<'a> {
    version: u32,
    #[serde(flatten)]
    state: &'a State,
}

/// The file of an older server has only the first two fields.
#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct ContentIn {
    version: u32,
    records: BTreeMap<String, serde_json::Value>,
    #[serde(default)]
    new_objects: BTreeMap<String, serde_json::Value>,
    #[serde(default)]
    operations: Vec<serde_json::Value>,
}

const VERSION: u32 = 1;

/// The error of an unusable state file or state folder.
#[derive(Debug, thiserror::Error)]
pub enum StateError {
    #[error("the state file {path} cannot be read or written: {error}")]
    Io { path: PathBuf, error: io::Error },
    #[error("the state folder {0} is in use by another policy server: give each server its own --state-dir")]
    Locked(PathBuf),
    #[error("the state file {path} is damaged ({error}): remove it to start again at generation 1")]
    Damaged { path: PathBuf, error: serde_json::Error },
    #[error(
        "the state file {path} has version {version}, this server reads {VERSION}: use the server that wrote it, or remove the file"
    )]
    Version { path: PathBuf, version: u32 },
}

/// Locks the state folder for this process until the returned file is dropped. Creates the folder if it is missing.
///
/// # Errors
/// Returns an error if the folder cannot be created, or if another server has locked it.
pub fn lock(folder: &Path) -> Result<std::fs::File, StateError> {
    let path = folder.join("lock");
    let io = |error| StateError::Io { path: path.clone(), error };
    std::fs::create_dir_all(folder).map_err(io)?;
    let file = std::fs::File::create(&path).map_err(io)?;
    match file.try_lock() {
        Ok(()) => Ok(file),
        Err(std::fs::TryLockError::WouldBlock) => Err(StateError::Locked(folder.to_owned())),
        Err(std::fs::TryLockError::Error(error)) => Err(io(error)),
    }
}

/// The file of the state.
#[derive(Clone, Debug)]
pub struct StateFile(PathBuf);

impl StateFile {
    /// Returns the state file in this folder.
    #[must_use]
    pub fn in_folder(folder: &Path) -> Self {
        Self(folder.join("state.json"))
    }

    /// Reads the state. Returns an empty state if the file does not exist.
    ///
    /// # Errors
    /// Returns an error if the file cannot be read, is damaged, or has another version.
    pub fn read(&self) -> Result<State, StateError> {
        let path = || self.0.clone();
        let json = match std::fs::read(&self.0) {
            Ok(json) => json,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(State::default()),
            Err(error) => return Err(StateError::Io { path: path(), error }),
        };
        let content: ContentIn =
            serde_json::from_slice(&json).map_err(|error| StateError::Damaged { path: path(), error })?;
        if content.version != VERSION {
            return Err(StateError::Version { path: path(), version: content.version });
        }
        let mut records = Records::new();
        for (key, record) in content.records {
            match serde_json::from_value(record) {
                Ok(record) => {
                    records.insert(key, record);
                }
                // The spec may come from another version of Proviso. The other objects keep their generations.
                Err(error) => {
                    tracing::warn!(object = key, %error, "cannot parse a record: the object starts again at generation 1");
                }
            }
        }
        let new_objects = content.new_objects.into_iter();
        let new_objects = new_objects.filter_map(|(key, new)| Some((key, serde_json::from_value(new).ok()?))).collect();
        let parse = |operation| {
            let parsed = serde_json::from_value(operation);
            parsed.inspect_err(|error| tracing::warn!(%error, "cannot parse an operation: it is forgotten")).ok()
        };
        let operations = content.operations.into_iter().filter_map(parse).collect();
        Ok(State { records, new_objects, operations })
    }

    /// Writes the state atomically: after a crash, the file has either the old state or the new one.
    ///
    /// # Errors
    /// Returns an error if the file cannot be written.
    pub fn write(&self, state: &State) -> Result<(), StateError> {
        let failed = |error| StateError::Io { path: self.0.clone(), error };
        let json = serde_json::to_vec(&ContentOut { version: VERSION, state }).map_err(|error| failed(error.into()))?;
        write_atomically(&self.0, &json).map_err(failed)
    }
}

fn to_text<T: std::fmt::Display, S: Serializer>(value: &T, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.collect_str(value)
}

fn from_text<'de, T, D>(deserializer: D) -> Result<T, D::Error>
where
    T: std::str::FromStr<Err: std::fmt::Display>,
    D: Deserializer<'de>,
{
    String::deserialize(deserializer)?.parse().map_err(serde::de::Error::custom)
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn fields_with_their_defaults_do_not_change_the_fingerprint_of_an_older_version() {
        let older = json!({"policy": "cluster.p", "autoStart": true});
        let record: ExperimentRecord = serde_json::from_value(older.clone()).unwrap();
        assert_eq!((record.preview, record.ttl.as_str()), (PreviewSettings::default(), DEFAULT_TTL));
        assert_eq!(record.time_to_live(), Duration::from_hours(14 * 24));
        assert_eq!(serde_json::to_value(&record).unwrap(), older);
        let newer = ExperimentRecord { ttl: "90m".to_owned(), ..record };
        assert_eq!(serde_json::to_value(&newer).unwrap()["ttl"], "90m");
    }

    #[test]
    fn a_state_file_of_an_older_server_and_one_with_unreadable_operations_are_read() {
        let folder = tempfile::tempdir().unwrap();
        let file = StateFile::in_folder(folder.path());
        let awaited = json!({"effect": "Update", "policy": "cluster.p", "uid": "u", "version": "1-x"});
        let operation = json!({"id": "one", "awaited": awaited, "createTime": "2026-11-20T09:14:07Z"});
        for (content, ids) in [
            (json!({"version": VERSION, "records": {}}), vec![]),
            (json!({"version": VERSION, "records": {}, "operations": [{"id": 1}, operation]}), vec!["one"]),
        ] {
            std::fs::write(folder.path().join("state.json"), content.to_string()).unwrap();
            let state = file.read().unwrap();
            assert_eq!(state.operations.iter().map(|it| it.id.as_str()).collect::<Vec<_>>(), ids);
            file.write(&state).unwrap();
            assert_eq!(file.read().unwrap().operations, state.operations);
        }
    }
}
