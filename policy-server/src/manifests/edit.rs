//! Changes of manifests by the REST API: creates, replaces or removes one document of a file. The other documents stay as they
//! are, byte for byte. Writes are atomic: a file has either the old content or the new one. An editor or `git pull` may change a file
//! at any moment: a file that has changed since it was opened is not written.

use std::io;
use std::path::{Path, PathBuf};

use proviso_artifacts::{Digest, create_atomically, remove_if_unchanged, rewrite_if_unchanged};
use proviso_crds::{PolicySpec, Program};
use serde_yaml::{Mapping, Value};

use super::{Annotations, ObjectId, document};

/// The error of a manifest that cannot be changed.
#[derive(Debug, thiserror::Error)]
pub enum EditError {
    #[error("{path} cannot be written, because its folder is read-only: change the manifest at its source", path = .0.display())]
    ReadOnly(PathBuf),
    #[error("{path}: {error}", path = path.display())]
    Io { path: PathBuf, error: io::Error },
    #[error("{path} has no readable document of {object}: repair the file first", path = path.display())]
    NotFound { path: PathBuf, object: ObjectId },
    #[error("{path} was changed by another program at the same time: try again", path = .0.display())]
    Changed(PathBuf),
    #[error("{object} cannot be written as a manifest: {error}")]
    Serialize { object: ObjectId, error: String },
}

impl EditError {
    fn new(path: &Path, error: io::Error) -> Self {
        match error.kind() {
            io::ErrorKind::PermissionDenied | io::ErrorKind::ReadOnlyFilesystem => Self::ReadOnly(path.to_owned()),
            _ => Self::Io { path: path.to_owned(), error },
        }
    }
}

/// The new content of an object.
#[derive(Clone, Debug)]
pub struct Content {
    /// The whole `spec`.
    pub spec: serde_json::Value,
    pub annotations: Annotations,
}

/// A file that is being changed.
#[derive(Debug)]
pub struct Draft {
    path: PathBuf,
    /// The content of the file when it was opened.
    original: String,
    /// The new content.
    text: String,
}

impl Draft {
    /// Reads the file.
    ///
    /// # Errors
    /// Returns an error if the file cannot be read.
    pub fn open(path: &Path) -> Result<Self, EditError> {
        // If the path is a symbolic link, change its target and keep the link.
        let path = path.canonicalize().map_err(|error| EditError::new(path, error))?;
        let text = std::fs::read_to_string(&path).map_err(|error| EditError::new(&path, error))?;
        Ok(Self { path, original: text.clone(), text })
    }

    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Returns the text of the document of this object.
    ///
    /// # Errors
    /// Returns an error if the file has no readable document of the object.
    pub fn document(&self, object: &ObjectId) -> Result<&str, EditError> {
        self.find(object).map(|(start, end)| &self.text[start..end])
    }

    /// Replaces the content of the document of this object. Comments before and after the content are kept; comments inside of it
    /// are lost.
    ///
    /// # Errors
    /// Returns an error if the file has no readable document of the object, or if the new document would not be readable.
    pub fn replace(&mut self, object: &ObjectId, content: &Content) -> Result<(), EditError> {
        let (start, end) = self.find(object)?;
        let new = rewrite(&self.text[start..end], content)
            .map_err(|error| EditError::Serialize { object: object.clone(), error: error.to_string() })?;
        if !document::read(&new).is_ok_and(|read| read.is_some_and(|read| read.id().as_ref() == Some(object))) {
            return Err(EditError::Serialize {
                object: object.clone(),
                error: "the server would refuse the new document".to_owned(),
            });
        }
        self.text.replace_range(start..end, &new);
        Ok(())
    }

    /// Removes the document of this object.
    ///
    /// # Errors
    /// Returns an error if the file has no readable document of the object.
    pub fn remove(&mut self, object: &ObjectId) -> Result<(), EditError> {
        let (start, end) = self.find(object)?;
        self.text.replace_range(start..end, "");
        Ok(())
    }

    /// Checks that the document of this object has the text with this digest. `None` if the server has not read the document.
    ///
    /// # Errors
    /// Returns an error if the document has another text, or if the file has no readable document of the object.
    pub fn check_document(&self, object: &ObjectId, digest: Option<Digest>) -> Result<(), EditError> {
        let text = self.document(object)?;
        if digest == Some(Digest::of(text.as_bytes())) { Ok(()) } else { Err(self.changed()) }
    }

    /// Checks that the file still has the content that it had when it was opened.
    ///
    /// # Errors
    /// Returns an error if the file was changed or removed, or cannot be read.
    pub fn check_unchanged(&self) -> Result<(), EditError> {
        match std::fs::read(&self.path) {
            Ok(content) if content == self.original.as_bytes() => Ok(()),
            Ok(_) => Err(self.changed()),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Err(self.changed()),
            Err(error) => Err(EditError::new(&self.path, error)),
        }
    }

    /// Writes the file, or removes it if it has no documents left.
    ///
    /// # Errors
    /// Returns an error if the file was changed since it was opened, or cannot be written. Then it is unchanged.
    pub fn write(&self) -> Result<(), EditError> {
        let original = self.original.as_bytes();
        let is_written = if document::split(&self.text).is_empty() {
            remove_if_unchanged(&self.path, original)
        } else {
            rewrite_if_unchanged(&self.path, original, self.text.as_bytes())
        };
        let is_written = is_written.map_err(|error| EditError::new(&self.path, error))?;
        if is_written { Ok(()) } else { Err(self.changed()) }
    }

    /// Writes the content that the file had when it was opened, if the file has the content of this draft now. Another content is
    /// newer, and stays.
    ///
    /// # Errors
    /// Returns an error if the file cannot be read or written.
    pub fn restore(&self) -> Result<(), EditError> {
        rewrite_if_unchanged(&self.path, self.text.as_bytes(), self.original.as_bytes())
            .map_err(|error| EditError::new(&self.path, error))?;
        Ok(())
    }

    fn changed(&self) -> EditError {
        EditError::Changed(self.path.clone())
    }

    fn find(&self, object: &ObjectId) -> Result<(usize, usize), EditError> {
        let mut documents = document::split(&self.text).into_iter().map(|(_, text)| text);
        let found = documents
            .find(|text| {
                document::read(text).is_ok_and(|read| read.is_some_and(|read| read.id().as_ref() == Some(object)))
            })
            .ok_or_else(|| EditError::NotFound { path: self.path.clone(), object: object.clone() })?;
        let start = found.as_ptr() as usize - self.text.as_ptr() as usize;
        Ok((start, start + found.len()))
    }
}

/// Creates a file for a new object in this folder. The name of the file contains the kind and the name of the object.
///
/// # Errors
/// Returns an error if the file cannot be created.
pub fn create(folder: &Path, object: &ObjectId, content: &Content) -> Result<PathBuf, EditError> {
    let (kind, namespace, name) = identity(object);
    let mut metadata = serde_json::json!({"name": name});
    if let Some(namespace) = namespace {
        metadata["namespace"] = namespace.into();
    }
    if !content.annotations.is_empty() {
        metadata["annotations"] = serde_json::json!(content.annotations);
    }
    let manifest = serde_json::json!({
        "apiVersion": format!("{}/{}", proviso_crds::GROUP, proviso_crds::VERSION),
        "kind": kind, "metadata": metadata, "spec": content.spec,
    });
    let text = serde_yaml::to_string(&manifest)
        .map_err(|error| EditError::Serialize { object: object.clone(), error: error.to_string() })?;
    let owner = namespace.map(|namespace| format!("{namespace}.")).unwrap_or_default();
    let base = format!("{}-{owner}{name}", kind.to_lowercase());
    let mut attempt = 1;
    loop {
        let suffix = if attempt == 1 { String::new() } else { format!("-{attempt}") };
        let path = folder.join(format!("{base}{suffix}.yaml"));
        match create_atomically(&path, text.as_bytes()) {
            Ok(()) => return Ok(path),
            // A file of this name exists and may contain other objects: try the next name.
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists && attempt < 100 => attempt += 1,
            Err(error) => return Err(EditError::new(&path, error)),
        }
    }
}

fn identity(object: &ObjectId) -> (&'static str, Option<&str>, &str) {
    match object {
        ObjectId::Policy(id) if id.namespace().is_some() => ("Policy", id.namespace(), id.name()),
        ObjectId::Policy(id) => ("ClusterPolicy", None, id.name()),
        ObjectId::Experiment(id) if id.namespace.is_some() => ("PolicyExperiment", id.namespace.as_deref(), &id.name),
        ObjectId::Experiment(id) => ("ClusterPolicyExperiment", None, &id.name),
        ObjectId::Subscription(id) => ("PolicySubscription", Some(&id.namespace), &id.name),
        ObjectId::Namespace(name) => ("Namespace", None, name),
    }
}

/// Returns the document with new content, in the same format (YAML or JSON).
fn rewrite(text: &str, content: &Content) -> Result<String, serde_yaml::Error> {
    let lead: usize = text.split_inclusive('\n').take_while(|line| document::is_filler(line)).map(str::len).sum();
    let (lead, body) = text.split_at(lead);
    let (mark, body) = body.strip_prefix("---").map_or(("", body), |rest| ("---\n", rest));
    let mut object: Mapping = serde_yaml::from_str(body)?;
    object.insert("spec".into(), serde_yaml::to_value(&content.spec)?);
    if let Some(Value::Mapping(metadata)) = object.get_mut("metadata") {
        if content.annotations.is_empty() {
            metadata.remove("annotations");
        } else {
            metadata.insert("annotations".into(), serde_yaml::to_value(&content.annotations)?);
        }
    }
    let mut new = if body.trim_start().starts_with('{') {
        // The error of the JSON serializer becomes an error of the YAML serializer.
        serde_json::to_string_pretty(&object).map_err(<serde_yaml::Error as serde::ser::Error>::custom)?
    } else {
        serde_yaml::to_string(&object)?
    };
    if !new.ends_with('\n') {
        new.push('\n');
    }
    // Only comments at the start of a line: an indented `#` may belong to a text block.
    let tail: Vec<&str> =
        body.lines().rev().take_while(|line| line.trim().is_empty() || line.starts_with('#')).collect();
    for comment in tail.into_iter().rev().filter(|line| line.starts_with('#')) {
        new.push_str(comment);
        new.push('\n');
    }
    Ok(format!("{lead}{mark}{new}"))
}

/// Makes the relative module references of a spec absolute, for a manifest in another folder. `from` is the folder of the old
/// manifest.
#[must_use]
pub fn resolve_modules(mut spec: PolicySpec, from: &Path) -> PolicySpec {
    resolve_program(&mut spec.program, from);
    spec
}

fn resolve_program(program: &mut Program, from: &Path) {
    match program {
        Program::Wasm(wasm) => {
            let relative = wasm.module.strip_prefix("file://").filter(|path| !path.starts_with('/'));
            if let Some(relative) = relative {
                wasm.module = format!("file://{}", from.join(relative).display());
            }
        }
        Program::Group(group) => {
            group.members.values_mut().for_each(|member| resolve_program(&mut member.program, from));
        }
        Program::None | Program::Rego(_) | Program::Cel(_) | Program::Requests(_) => {}
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;
    use std::os::unix::fs::PermissionsExt as _;

    const TWO: &str = "\
# the first
apiVersion: proviso.dev/v1alpha1
kind: ClusterPolicy
metadata:
  name: a
  labels: {kept: 'yes'}
spec:
  program: {cel: {validations: []}}   # lost
  admission: {rules: [{operations: [CREATE], apiGroups: [''], apiVersions: [v1], resources: [pods]}]}
# of the first still
---   
# the second: untouched,   to the last   blank   
kind:   ConfigMap
apiVersion: v1
data: {a: \"b\"}
--- # three
{\"apiVersion\": \"proviso.dev/v1alpha1\", \"kind\": \"ClusterPolicy\", \"metadata\": {\"name\": \"c\", \"annotations\": {\"x\": \"y\"}},
 \"spec\": {\"program\": {\"cel\": {\"validations\": []}}, \"admission\": {\"rules\": [{\"operations\": [\"CREATE\"], \"apiGroups\": [\"\"], \"apiVersions\": [\"v1\"], \"resources\": [\"pods\"]}]}}}
";

    fn policy(name: &str) -> ObjectId {
        ObjectId::Policy(proviso_core::PolicyId::cluster(name).unwrap())
    }

    fn content(message: &str) -> Content {
        Content {
            spec: json!({
                "program": {"rego": {"dialect": "Admission", "source": format!("package a\n# {message}\n\ndeny := {{}}\n")}},
                "admission": {"rules": [{"operations": ["*"], "apiGroups": ["*"], "apiVersions": ["*"], "resources": ["*"]}]},
            }),
            annotations: Annotations::from([("owner".to_owned(), "me".to_owned())]),
        }
    }

    fn file(text: &str) -> (tempfile::TempDir, PathBuf) {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("a.yaml");
        std::fs::write(&path, text).unwrap();
        (folder, path)
    }

    fn read(path: &Path) -> super::super::Manifests {
        super::super::Manifests::read(path.parent().unwrap())
    }

    #[test]
    fn one_document_is_replaced_and_the_others_stay_byte_for_byte() {
        let (_folder, path) = file(TWO);
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o640)).unwrap();
        let mut draft = Draft::open(&path).unwrap();
        draft.replace(&policy("a"), &content("one")).unwrap();
        draft.write().unwrap();
        let text = std::fs::read_to_string(&path).unwrap();
        let second = TWO.find("---   \n").unwrap();
        assert!(text.ends_with(&TWO[second..]), "{text}");
        assert!(
            text.starts_with("# the first\napiVersion:") && text.contains("\n# of the first still\n---   \n"),
            "{text}"
        );
        assert!(text.contains("kept: 'yes'") || text.contains("kept: yes") || text.contains("kept: \"yes\""), "{text}");
        assert_eq!(std::fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o640);
        let mut draft = Draft::open(&path).unwrap();
        draft.replace(&policy("c"), &content("three")).unwrap();
        draft.write().unwrap();
        let manifests = read(&path);
        assert_eq!(manifests.problems, []);
        for (name, message) in [("a", "one"), ("c", "three")] {
            let policy = &manifests.policies[&proviso_core::PolicyId::cluster(name).unwrap()];
            assert_eq!(policy.annotations, content("").annotations);
            assert_eq!(serde_json::to_value(&policy.spec.program).unwrap(), content(message).spec["program"]);
        }
        assert!(std::fs::read_to_string(&path).unwrap().contains("\"kind\": \"ClusterPolicy\""), "JSON stays JSON");
    }

    #[test]
    fn removing_the_last_document_removes_the_file() {
        let (_folder, path) = file(TWO);
        let mut draft = Draft::open(&path).unwrap();
        draft.remove(&policy("c")).unwrap();
        draft.write().unwrap();
        let third = TWO.find("--- # three").unwrap();
        assert_eq!(std::fs::read_to_string(&path).unwrap(), TWO[..third]);
        assert!(matches!(Draft::open(&path).unwrap().remove(&policy("c")), Err(EditError::NotFound { .. })));
        let (_folder, alone) = file(&TWO[..TWO.find("---   ").unwrap()]);
        let mut draft = Draft::open(&alone).unwrap();
        draft.remove(&policy("a")).unwrap();
        draft.write().unwrap();
        assert!(!alone.exists());
    }

    #[test]
    fn a_file_that_was_changed_since_it_was_opened_is_not_written() {
        let (_folder, path) = file(TWO);
        let draft = || {
            let mut draft = Draft::open(&path).unwrap();
            draft.replace(&policy("a"), &content("one")).unwrap();
            draft
        };
        let open = draft();
        open.check_unchanged().unwrap();
        let edited = TWO.replace("name: a", "name: b");
        std::fs::write(&path, &edited).unwrap();
        assert!(matches!(open.check_unchanged(), Err(EditError::Changed(_))));
        assert!(matches!(open.write(), Err(EditError::Changed(_))));
        open.restore().unwrap();
        assert_eq!(std::fs::read_to_string(&path).unwrap(), edited);
        // A draft is restored as long as nobody has changed the file after it.
        std::fs::write(&path, TWO).unwrap();
        let written = draft();
        written.write().unwrap();
        written.restore().unwrap();
        assert_eq!(std::fs::read_to_string(&path).unwrap(), TWO);
        // The last document of a file is not removed with the edit of another program.
        let alone = "{\"apiVersion\": \"v1\", \"kind\": \"Namespace\", \"metadata\": {\"name\": \"n\"}}";
        std::fs::write(&path, alone).unwrap();
        let mut removing = Draft::open(&path).unwrap();
        removing.remove(&ObjectId::Namespace("n".to_owned())).unwrap();
        std::fs::write(&path, TWO).unwrap();
        assert!(matches!(removing.write(), Err(EditError::Changed(_))));
        assert_eq!(std::fs::read_to_string(&path).unwrap(), TWO);
        std::fs::remove_file(&path).unwrap();
        assert!(matches!(removing.check_unchanged(), Err(EditError::Changed(_))));
    }

    #[test]
    fn a_document_has_the_digest_of_its_own_text_only() {
        let (_folder, path) = file(TWO);
        let digest = read(&path).policies[&proviso_core::PolicyId::cluster("c").unwrap()].digest;
        std::fs::write(&path, TWO.replace("name: a", "name: b")).unwrap();
        Draft::open(&path).unwrap().check_document(&policy("c"), Some(digest)).unwrap();
        std::fs::write(&path, TWO.replace("\"x\": \"y\"", "\"x\": \"z\"")).unwrap();
        for digest in [Some(digest), None] {
            let changed = Draft::open(&path).unwrap().check_document(&policy("c"), digest);
            assert!(matches!(changed, Err(EditError::Changed(_))), "{changed:?}");
        }
    }

    #[test]
    fn a_new_object_gets_its_own_file_and_overwrites_none() {
        let (folder, _) = file("kind: x");
        let id = ObjectId::Policy("ns.pay.p".parse().unwrap());
        std::fs::write(folder.path().join("policy-pay.p.yaml"), "# mine\n").unwrap();
        let path = create(folder.path(), &id, &content("new")).unwrap();
        assert!(path.ends_with("policy-pay.p-2.yaml"), "{path:?}");
        let read = read(&path);
        assert_eq!(read.policies.keys().map(ToString::to_string).collect::<Vec<_>>(), ["ns.pay.p"]);
    }

    #[test]
    fn a_read_only_folder_has_its_own_error() {
        for kind in [io::ErrorKind::PermissionDenied, io::ErrorKind::ReadOnlyFilesystem] {
            assert!(EditError::new(Path::new("a"), kind.into()).to_string().contains("read-only"));
        }
        let missing = create(Path::new("/nowhere"), &policy("a"), &content(""));
        assert!(matches!(missing, Err(EditError::Io { .. })), "{missing:?}");
    }

    #[test]
    fn relative_module_references_become_absolute_in_another_folder() {
        let mut spec = content("").spec;
        spec["program"] = json!({"group": {"expression": "a()", "message": "m", "members": {"a": {
            "program": {"wasm": {"module": "file://./m.wasm"}}}}}});
        let spec = resolve_modules(serde_json::from_value(spec).unwrap(), Path::new("/d"));
        let resolved = serde_json::to_value(spec).unwrap();
        assert_eq!(
            resolved.pointer("/program/group/members/a/program/wasm/module"),
            Some(&json!("file:///d/./m.wasm"))
        );
    }
}
