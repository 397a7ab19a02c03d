//! Discovery of the suites below some paths.

use std::path::{Path, PathBuf};

use proviso_crds::validation::FieldError;
use serde_json::Value;
use walkdir::{DirEntry, WalkDir};

use super::definition::{Suite, Tests};
use super::{gatekeeper, own};
use crate::documents::{self, Document, DocumentError, typed};

/// The API groups of both kinds of suite. A file whose text has neither of them has no suite.
const GROUPS: [&str; 2] = [gatekeeper::GROUP, own::GROUP];

/// The error of suites that cannot be read.
#[derive(Debug, thiserror::Error)]
pub enum SuiteError {
    #[error("{} cannot be searched: {error}", path.display())]
    Walk { path: PathBuf, error: walkdir::Error },
    #[error(transparent)]
    Document(#[from] DocumentError),
    #[error("{} has no suite: it needs a document with apiVersion {} or {} and kind Suite", .0.display(), gatekeeper::VERSION, own::VERSION)]
    NoSuite(PathBuf),
    #[error("there is no suite in {0}: it needs a file with apiVersion {version} or {own} and kind Suite", version = gatekeeper::VERSION, own = own::VERSION)]
    None(String),
}

/// Reads the suites in these files and below these folders, in the order of their paths. Hidden files are skipped.
///
/// # Errors
/// Returns an error if a file or a suite cannot be read, or there is no suite.
pub fn discover(paths: &[PathBuf]) -> Result<Vec<Suite>, SuiteError> {
    let mut suites = Vec::new();
    for path in paths {
        if path.is_dir() {
            for file in files(path) {
                let file = file.map_err(|error| SuiteError::Walk { path: path.clone(), error })?;
                suites.extend(read(file.path())?);
            }
        } else {
            let read = read(path)?;
            if read.is_empty() {
                return Err(SuiteError::NoSuite(path.clone()));
            }
            suites.extend(read);
        }
    }
    if suites.is_empty() {
        let all: Vec<_> = paths.iter().map(|path| path.display().to_string()).collect();
        return Err(SuiteError::None(all.join(", ")));
    }
    Ok(suites)
}

/// Returns the YAML and JSON files below a folder, without hidden files.
fn files(folder: &Path) -> impl Iterator<Item = Result<DirEntry, walkdir::Error>> {
    let is_hidden = |entry: &DirEntry| entry.depth() > 0 && entry.file_name().as_encoded_bytes().starts_with(b".");
    let is_manifest = |entry: &DirEntry| {
        let extension = entry.path().extension().and_then(|it| it.to_str());
        entry.file_type().is_file() && extension.is_some_and(|it| ["yaml", "yml", "json"].contains(&it))
    };
    let entries = WalkDir::new(folder).sort_by_file_name().into_iter().filter_entry(move |entry| !is_hidden(entry));
    entries.filter(move |entry| entry.as_ref().map_or(true, is_manifest))
}

/// Reads the suites of a file. A file without an API group of suites is not parsed: it may be a template that is not YAML.
fn read(file: &Path) -> Result<Vec<Suite>, DocumentError> {
    let text = documents::text(file)?;
    if !GROUPS.iter().any(|group| text.contains(group)) {
        return Ok(Vec::new());
    }
    let documents = documents::parse(file, &text)?;
    let suites = documents.iter().filter(|it| it.kind() == "Suite" && GROUPS.contains(&it.group()));
    suites.map(|document| suite(file, document).map_err(|error| document.error(error))).collect()
}

fn suite(file: &Path, document: &Document) -> Result<Suite, FieldError> {
    let value = &document.value;
    let tests = match document.group() {
        gatekeeper::GROUP => Tests::Gatekeeper(gatekeeper::read(value)?),
        _ => Tests::Own(own::read(value)?),
    };
    let tests = if is_skipped(value)? { Tests::Skipped } else { tests };
    let name = value["metadata"]["name"].as_str().unwrap_or_default().to_owned();
    Ok(Suite { file: file.to_owned(), name, tests })
}

fn is_skipped(suite: &Value) -> Result<bool, FieldError> {
    suite.get("skip").map_or(Ok(false), |skip| typed("skip", skip))
}

#[cfg(test)]
mod tests {
    use super::*;

    const OWN: &str = "apiVersion: test.proviso.dev/v1alpha1\nkind: Suite\ntests: []\n";

    fn write(folder: &Path, files: &[(&str, &str)]) {
        for (name, text) in files {
            let file = folder.join(name);
            std::fs::create_dir_all(file.parent().unwrap()).unwrap();
            std::fs::write(file, text).unwrap();
        }
    }

    #[test]
    fn suites_are_found_below_a_folder_among_other_files() {
        let folder = tempfile::tempdir().unwrap();
        let gatekeeper = "kind: Suite\napiVersion: test.gatekeeper.sh/v1alpha1\nskip: true\ntests: []\n";
        write(
            folder.path(),
            &[
                ("b/suite.yaml", gatekeeper),
                ("a/tests.yml", OWN),
                ("a/template.yaml", "{{ not YAML }}"),
                ("a/pod.yaml", "kind: Pod"),
                (".git/suite.yaml", "test.proviso.dev: ["),
            ],
        );
        let suites = discover(&[folder.path().to_owned()]).unwrap();
        let found: Vec<_> = suites.iter().map(|it| it.file.strip_prefix(folder.path()).unwrap().to_owned()).collect();
        assert_eq!(found, [Path::new("a/tests.yml"), Path::new("b/suite.yaml")]);
        assert!(matches!(suites[1].tests, Tests::Skipped));
        let pod = folder.path().join("a/pod.yaml");
        assert!(matches!(discover(&[pod]), Err(SuiteError::NoSuite(_))));
    }

    #[test]
    fn an_invalid_suite_is_refused_with_file_and_field() {
        let folder = tempfile::tempdir().unwrap();
        assert!(matches!(discover(&[folder.path().to_owned()]), Err(SuiteError::None(_))));
        for (text, wanted) in [
            (format!("{OWN}test: 1\n"), "unknown field `test`"),
            (format!("{OWN}---\n["), "is not YAML"),
            (OWN.replace("v1alpha1", "v2"), "apiVersion: is \"test.proviso.dev/v2\""),
            (OWN.replace("[]", "[{name: a}]"), "tests[0]: missing field `policy`"),
        ] {
            write(folder.path(), &[("suite.yaml", &text)]);
            let error = discover(&[folder.path().to_owned()]).unwrap_err().to_string();
            assert!(error.contains("suite.yaml") && error.contains(wanted), "{error}");
        }
    }
}
