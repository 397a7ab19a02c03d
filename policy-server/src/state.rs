//! The state file: the last accepted generation of each policy and experiment, and its spec. A restarted server reads them.

use std::collections::BTreeMap;
use std::io;
use std::path::{Path, PathBuf};

use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use proviso_artifacts::{Digest, write_atomically};
use proviso_core::PolicyId;
use proviso_crds::{PolicySpec, PreviewMetadata};
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
}

/// The fields that an experiment has in addition to a spec.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct ExperimentRecord {
    #[serde(serialize_with = "to_text", deserialize_with = "from_text")]
    pub policy: PolicyId,
    pub auto_start: bool,
}

/// A digest that is serialized as text.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, Serialize)]
#[serde(transparent)]
pub struct DigestText(#[serde(serialize_with = "to_text", deserialize_with = "from_text")] pub Digest);

/// All records, by key: `<id>` for a policy, `experiment <id>` for an experiment.
pub type Records = BTreeMap<String, Record>;

#[derive(Serialize)]
struct ContentOut {
    version: u32,
    records: Records,
}

#[derive(Deserialize)]
struct ContentIn {
    version: u32,
    records: BTreeMap<String, serde_json::Value>,
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

/// The file of the records.
#[derive(Clone, Debug)]
pub struct StateFile(PathBuf);

impl StateFile {
    /// Returns the state file in this folder.
    #[must_use]
    pub fn in_folder(folder: &Path) -> Self {
        Self(folder.join("state.json"))
    }

    /// Reads the records. Returns no records if the file does not exist.
    ///
    /// # Errors
    /// Returns an error if the file cannot be read, is damaged, or has another version.
    pub fn read(&self) -> Result<Records, StateError> {
        let path = || self.0.clone();
        let json = match std::fs::read(&self.0) {
            Ok(json) => json,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Records::new()),
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
        Ok(records)
    }

    /// Writes the records atomically: after a crash, the file has either the old records or the new ones.
    ///
    /// # Errors
    /// Returns an error if the file cannot be written.
    pub fn write(&self, records: Records) -> Result<(), StateError> {
        let failed = |error| StateError::Io { path: self.0.clone(), error };
        let json =
            serde_json::to_vec(&ContentOut { version: VERSION, records }).map_err(|error| failed(error.into()))?;
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
