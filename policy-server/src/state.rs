//! What survives a restart: which generation of each policy and experiment was accepted last, and its spec.

use std::collections::BTreeMap;
use std::io;
use std::path::{Path, PathBuf};

use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use proviso_artifacts::{Digest, write_atomically};
use proviso_core::PolicyId;
use proviso_crds::{PolicySpec, PreviewMetadata};
use serde::{Deserialize, Deserializer, Serialize, Serializer};

/// One accepted generation.
#[derive(Clone, Debug, Deserialize, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Record {
    /// Made when the object was first accepted; another one after it was removed and made again.
    pub uid: String,
    /// Counts the accepted changes, from 1.
    pub generation: u64,
    /// Of everything that makes this generation what it is, the bytes of its modules included.
    #[serde(serialize_with = "to_text", deserialize_with = "from_text")]
    pub fingerprint: Digest,
    /// The file that it stood in: while that file is unreadable, the object counts as still there.
    pub file: PathBuf,
    pub spec: PolicySpec,
    /// None for a policy.
    pub experiment: Option<ExperimentOf>,
    /// The modules by their references.
    pub modules: BTreeMap<String, DigestText>,
    /// When the object was first seen, and when this generation was accepted.
    #[serde(default)]
    pub created: Option<Time>,
    #[serde(default)]
    pub updated: Option<Time>,
    /// Of an experiment: how it was started and stopped last.
    #[serde(default)]
    pub preview: Option<PreviewMetadata>,
}

/// What an experiment has beside a spec.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct ExperimentOf {
    #[serde(serialize_with = "to_text", deserialize_with = "from_text")]
    pub policy: PolicyId,
    pub auto_start: bool,
}

/// A digest in its text form.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, Serialize)]
#[serde(transparent)]
pub struct DigestText(#[serde(serialize_with = "to_text", deserialize_with = "from_text")] pub Digest);

/// All records, by object: policies by their id, experiments by `experiment <id>`.
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

/// A state file that cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum StateError {
    #[error("the state file {path} fails: {error}")]
    Io { path: PathBuf, error: io::Error },
    #[error("the state folder {0} belongs to another policy server that is running: give each its own --state-dir")]
    Taken(PathBuf),
    #[error("the state file {path} is damaged ({error}): remove it to start again at generation 1")]
    Damaged { path: PathBuf, error: serde_json::Error },
    #[error(
        "the state file {path} has version {version}, this server reads {VERSION}: use the server that wrote it, or remove the file"
    )]
    Version { path: PathBuf, version: u32 },
}

/// Makes the state folder this process' own until the file is dropped.
///
/// # Errors
/// When the folder cannot be made, or another server has it.
pub fn lock(folder: &Path) -> Result<std::fs::File, StateError> {
    let path = folder.join("lock");
    let io = |error| StateError::Io { path: path.clone(), error };
    std::fs::create_dir_all(folder).map_err(io)?;
    let file = std::fs::File::create(&path).map_err(io)?;
    match file.try_lock() {
        Ok(()) => Ok(file),
        Err(std::fs::TryLockError::WouldBlock) => Err(StateError::Taken(folder.to_owned())),
        Err(std::fs::TryLockError::Error(error)) => Err(io(error)),
    }
}

/// The file that holds the records.
#[derive(Clone, Debug)]
pub struct StateFile(PathBuf);

impl StateFile {
    /// The state file in this folder.
    #[must_use]
    pub fn in_folder(folder: &Path) -> Self {
        Self(folder.join("state.json"))
    }

    /// Reads the records; none where there is no file yet.
    ///
    /// # Errors
    /// When the file cannot be read or is damaged.
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
                // Such as a spec of another version of Proviso. One object that begins again stops no other.
                Err(error) => {
                    tracing::warn!(object = key, %error, "record not understood: its generations start again");
                }
            }
        }
        Ok(records)
    }

    /// Writes the records; the file has the old ones or the new ones, whatever happens meanwhile.
    ///
    /// # Errors
    /// When the file cannot be written.
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
