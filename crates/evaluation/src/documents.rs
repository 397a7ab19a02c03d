//! YAML and JSON files, parsed into documents that know their file and position.

use std::fmt;
use std::io::Read as _;
use std::path::{Path, PathBuf};

use serde::Deserialize as _;
use serde::de::DeserializeOwned;
use serde_json::Value;

use proviso_crds::validation::FieldError;

/// The maximum size of a file, in bytes. A policy server has the same limit for its manifests.
const MAX_FILE: u64 = 16 * 1024 * 1024;

/// A document of a file.
#[derive(Clone, Debug)]
pub struct Document {
    pub place: DocumentPosition,
    pub value: Value,
}

/// The file and the position of a document, for messages.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DocumentPosition {
    pub file: PathBuf,
    /// The position of the document in the file, from 1; `None` if the file has only one document.
    pub number: Option<usize>,
}

impl fmt::Display for DocumentPosition {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.file.display())?;
        self.number.map_or(Ok(()), |number| write!(f, ": document {number}"))
    }
}

/// The error of a file or a document that cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum DocumentError {
    #[error("{} cannot be read: {error}", file.display())]
    Read { file: PathBuf, error: std::io::Error },
    #[error("{} is larger than {} MiB", file.display(), MAX_FILE >> 20)]
    Large { file: PathBuf },
    #[error("{} is not YAML: {error}", file.display())]
    Yaml { file: PathBuf, error: serde_yaml::Error },
    #[error("{} has {count} {what}: there must be exactly one", file.display())]
    Count { file: PathBuf, what: &'static str, count: usize },
    #[error("{place}: {error}")]
    Field { place: DocumentPosition, error: FieldError },
}

impl Document {
    /// Returns the API group of `apiVersion`; empty for the core group.
    #[must_use]
    pub fn group(&self) -> &str {
        group(&self.value)
    }

    /// Returns `kind`; empty if it is missing.
    #[must_use]
    pub fn kind(&self) -> &str {
        self.value["kind"].as_str().unwrap_or_default()
    }

    /// Returns an error about a field of this document.
    #[must_use]
    pub fn error(&self, error: FieldError) -> DocumentError {
        DocumentError::Field { place: self.place.clone(), error }
    }
}

/// Returns the API group of an object; empty for the core group.
#[must_use]
pub fn group(object: &Value) -> &str {
    object["apiVersion"].as_str().and_then(|version| version.split_once('/')).map_or("", |(group, _)| group)
}

/// Reads all documents of a file, without empty ones. `-` is the standard input.
///
/// # Errors
/// Returns an error if the file cannot be read, is larger than 16 MiB, or is not YAML.
pub fn read(file: &Path) -> Result<Vec<Document>, DocumentError> {
    parse(file, &text(file)?)
}

/// Reads the text of a file. `-` is the standard input.
///
/// # Errors
/// Returns an error if the file cannot be read, or is larger than 16 MiB.
pub fn text(file: &Path) -> Result<String, DocumentError> {
    let failed = |error| DocumentError::Read { file: file.to_owned(), error };
    let mut text = String::new();
    if file == Path::new("-") {
        std::io::stdin().lock().take(MAX_FILE + 1).read_to_string(&mut text).map_err(failed)?;
    } else {
        std::fs::File::open(file).map_err(failed)?.take(MAX_FILE + 1).read_to_string(&mut text).map_err(failed)?;
    }
    if text.len() as u64 > MAX_FILE { Err(DocumentError::Large { file: file.to_owned() }) } else { Ok(text) }
}

/// Parses the text of `file` into its documents, without empty ones.
///
/// # Errors
/// Returns an error if the text is not YAML.
pub fn parse(file: &Path, text: &str) -> Result<Vec<Document>, DocumentError> {
    let mut values = Vec::new();
    for (index, document) in serde_yaml::Deserializer::from_str(text).enumerate() {
        let value =
            Value::deserialize(document).map_err(|error| DocumentError::Yaml { file: file.to_owned(), error })?;
        if !value.is_null() {
            values.push((index + 1, value));
        }
    }
    let is_alone = values.len() == 1;
    let place = |number| DocumentPosition { file: file.to_owned(), number: (!is_alone).then_some(number) };
    Ok(values.into_iter().map(|(number, value)| Document { place: place(number), value }).collect())
}

/// Reads the only document of a file. `-` is the standard input.
///
/// # Errors
/// Returns an error if the file cannot be read, or does not have exactly one document.
pub fn only(file: &Path) -> Result<Document, DocumentError> {
    exactly_one(file, read(file)?, "documents")
}

/// Returns the only document in `documents`, which come from `file`. `what` names the documents in the error.
///
/// # Errors
/// Returns an error if there is no document, or more than one.
pub fn exactly_one(file: &Path, mut documents: Vec<Document>, what: &'static str) -> Result<Document, DocumentError> {
    match (documents.pop(), documents.len()) {
        (Some(document), 0) => Ok(document),
        (last, before) => {
            let count = before + usize::from(last.is_some());
            Err(DocumentError::Count { file: file.to_owned(), what, count })
        }
    }
}

/// Deserializes a part of a document. `at` is the field of the part; empty for the whole document.
///
/// # Errors
/// Returns the field that does not match the type. An unknown field is an error for a type with `deny_unknown_fields`.
pub fn typed<T: DeserializeOwned>(at: &str, value: &Value) -> Result<T, FieldError> {
    serde_path_to_error::deserialize(value).map_err(|error| {
        let path = error.path().to_string();
        let field = match (at, path.as_str()) {
            ("", ".") => "the document".to_owned(),
            (at, ".") => at.to_owned(),
            ("", path) => path.to_owned(),
            (at, path) => format!("{at}.{path}"),
        };
        FieldError::new(field, error.into_inner().to_string())
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde::Deserialize;

    fn of(text: &str) -> Result<Vec<Document>, DocumentError> {
        parse(Path::new("a.yaml"), text)
    }

    #[test]
    fn documents_know_their_position_in_the_file() {
        let documents = of("---\n# nothing\n---\na: 1\n---\nb: 2\n").unwrap();
        let places: Vec<_> = documents.iter().map(|it| it.place.to_string()).collect();
        assert_eq!(places, ["a.yaml: document 2", "a.yaml: document 3"]);
        assert_eq!(of("{\"a\": 1}").unwrap()[0].place.to_string(), "a.yaml");
        assert!(of("a: [").unwrap_err().to_string().starts_with("a.yaml is not YAML"));
        let two = exactly_one(Path::new("a.yaml"), documents, "documents").unwrap_err();
        assert_eq!(two.to_string(), "a.yaml has 2 documents: there must be exactly one");
    }

    #[test]
    fn a_wrong_field_is_named_with_its_path() {
        #[derive(Debug, Deserialize)]
        #[serde(deny_unknown_fields)]
        struct Inner {
            #[allow(dead_code, reason = "only its type matters")]
            b: Vec<u32>,
        }
        let error = |value: Value| typed::<std::collections::BTreeMap<String, Inner>>("spec", &value).unwrap_err();
        assert_eq!(error(serde_json::json!({"a": {"b": [1, "x"]}})).field, "spec.a.b[1]");
        assert_eq!(error(serde_json::json!({"a": {"c": 1}})).field, "spec.a.c");
        assert_eq!(error(serde_json::json!([])).field, "spec");
    }
}
