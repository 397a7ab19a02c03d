//! Changes of manifests, for whoever asks for them by the API: one document of a file is made, replaced or removed, and
//! all others stay as they are, byte for byte. Each file is either the old one or the new one.

use std::io;
use std::path::{Path, PathBuf};

use proviso_artifacts::{create_atomically, remove_for_good, rewrite_atomically};
use proviso_crds::{PolicySpec, Program};
use serde_yaml::{Mapping, Value};

use super::{Annotations, ObjectId, document};

/// Why a manifest cannot be changed.
#[derive(Debug, thiserror::Error)]
pub enum EditError {
    #[error("{path} cannot be written, because its folder is read-only: change the manifest where it comes from", path = .0.display())]
    ReadOnly(PathBuf),
    #[error("{path}: {error}", path = path.display())]
    Io { path: PathBuf, error: io::Error },
    #[error("{path} holds no {object} that can be read: repair it first", path = path.display())]
    Unread { path: PathBuf, object: ObjectId },
    #[error("{object} cannot be written as a manifest: {error}")]
    Unwritable { object: ObjectId, error: String },
}

impl EditError {
    fn new(path: &Path, error: io::Error) -> Self {
        match error.kind() {
            io::ErrorKind::PermissionDenied | io::ErrorKind::ReadOnlyFilesystem => Self::ReadOnly(path.to_owned()),
            _ => Self::Io { path: path.to_owned(), error },
        }
    }
}

/// What an object is to be.
#[derive(Clone, Debug)]
pub struct Content {
    /// The whole `spec`.
    pub spec: serde_json::Value,
    pub annotations: Annotations,
}

/// One file on its way to its next content.
#[derive(Clone, Debug)]
pub struct Draft {
    path: PathBuf,
    text: String,
}

impl Draft {
    /// # Errors
    /// When the file cannot be read.
    pub fn open(path: &Path) -> Result<Self, EditError> {
        // A link stays one: what it leads to is replaced.
        let path = path.canonicalize().map_err(|error| EditError::new(path, error))?;
        let text = std::fs::read_to_string(&path).map_err(|error| EditError::new(&path, error))?;
        Ok(Self { path, text })
    }

    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The document of this object, as it stands here.
    ///
    /// # Errors
    /// When there is none that can be read.
    pub fn document(&self, object: &ObjectId) -> Result<&str, EditError> {
        self.find(object).map(|(start, end)| &self.text[start..end])
    }

    /// Gives the object's document this content. Comments in it are lost, but for those before and after.
    ///
    /// # Errors
    /// When the document is not there.
    pub fn replace(&mut self, object: &ObjectId, content: &Content) -> Result<(), EditError> {
        let (start, end) = self.find(object)?;
        let new = rewritten(&self.text[start..end], content)
            .map_err(|error| EditError::Unwritable { object: object.clone(), error: error.to_string() })?;
        if !document::read(&new).is_ok_and(|read| read.is_some_and(|read| read.id().as_ref() == Some(object))) {
            return Err(EditError::Unwritable {
                object: object.clone(),
                error: "it would not be read again".to_owned(),
            });
        }
        self.text.replace_range(start..end, &new);
        Ok(())
    }

    /// Takes the object's document out.
    ///
    /// # Errors
    /// When the document is not there.
    pub fn remove(&mut self, object: &ObjectId) -> Result<(), EditError> {
        let (start, end) = self.find(object)?;
        self.text.replace_range(start..end, "");
        Ok(())
    }

    /// Writes the file; one that has no document left is removed.
    ///
    /// # Errors
    /// When that fails; the file is then as it was.
    pub fn write(&self) -> Result<(), EditError> {
        let written = if document::split(&self.text).is_empty() {
            remove_for_good(&self.path)
        } else {
            rewrite_atomically(&self.path, self.text.as_bytes())
        };
        written.map_err(|error| EditError::new(&self.path, error))
    }

    fn find(&self, object: &ObjectId) -> Result<(usize, usize), EditError> {
        let mut documents = document::split(&self.text).into_iter().map(|(_, text)| text);
        let found = documents
            .find(|text| {
                document::read(text).is_ok_and(|read| read.is_some_and(|read| read.id().as_ref() == Some(object)))
            })
            .ok_or_else(|| EditError::Unread { path: self.path.clone(), object: object.clone() })?;
        let start = found.as_ptr() as usize - self.text.as_ptr() as usize;
        Ok((start, start + found.len()))
    }
}

/// Makes a file for a new object in this folder, named after it.
///
/// # Errors
/// When that fails.
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
        .map_err(|error| EditError::Unwritable { object: object.clone(), error: error.to_string() })?;
    let owner = namespace.map(|namespace| format!("{namespace}.")).unwrap_or_default();
    let base = format!("{}-{owner}{name}", kind.to_lowercase());
    let mut attempt = 1;
    loop {
        let suffix = if attempt == 1 { String::new() } else { format!("-{attempt}") };
        let path = folder.join(format!("{base}{suffix}.yaml"));
        match create_atomically(&path, text.as_bytes()) {
            Ok(()) => return Ok(path),
            // A file of that name may hold anything.
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
        ObjectId::Namespace(name) => ("Namespace", None, name),
    }
}

/// The document with another content, in the format that it has.
fn rewritten(text: &str, content: &Content) -> Result<String, serde_yaml::Error> {
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
        // What was YAML a moment ago is JSON's.
        serde_json::to_string_pretty(&object).map_err(<serde_yaml::Error as serde::ser::Error>::custom)?
    } else {
        serde_yaml::to_string(&object)?
    };
    if !new.ends_with('\n') {
        new.push('\n');
    }
    // Comments at the very start of a line belong to no text in a block.
    let tail: Vec<&str> =
        body.lines().rev().take_while(|line| line.trim().is_empty() || line.starts_with('#')).collect();
    for comment in tail.into_iter().rev().filter(|line| line.starts_with('#')) {
        new.push_str(comment);
        new.push('\n');
    }
    Ok(format!("{lead}{mark}{new}"))
}

/// The same spec for a manifest in another folder: modules are named by their place relative to it.
#[must_use]
pub fn moved(mut spec: PolicySpec, from: &Path) -> PolicySpec {
    move_program(&mut spec.program, from);
    spec
}

fn move_program(program: &mut Program, from: &Path) {
    match program {
        Program::Wasm(wasm) => {
            let relative = wasm.module.strip_prefix("file://").filter(|path| !path.starts_with('/'));
            if let Some(relative) = relative {
                wasm.module = format!("file://{}", from.join(relative).display());
            }
        }
        Program::Group(group) => {
            group.members.values_mut().for_each(|member| move_program(&mut member.program, from));
        }
        Program::Rego(_) | Program::Cel(_) => {}
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
    fn one_document_is_removed_and_with_the_last_one_the_file() {
        let (_folder, path) = file(TWO);
        let mut draft = Draft::open(&path).unwrap();
        draft.remove(&policy("c")).unwrap();
        draft.write().unwrap();
        let third = TWO.find("--- # three").unwrap();
        assert_eq!(std::fs::read_to_string(&path).unwrap(), TWO[..third]);
        assert!(matches!(Draft::open(&path).unwrap().remove(&policy("c")), Err(EditError::Unread { .. })));
        let (_folder, alone) = file(&TWO[..TWO.find("---   ").unwrap()]);
        let mut draft = Draft::open(&alone).unwrap();
        draft.remove(&policy("a")).unwrap();
        draft.write().unwrap();
        assert!(!alone.exists());
    }

    #[test]
    fn a_new_object_has_a_file_of_its_own_and_overwrites_none() {
        let (folder, _) = file("kind: x");
        let id = ObjectId::Policy("ns.pay.p".parse().unwrap());
        std::fs::write(folder.path().join("policy-pay.p.yaml"), "# mine\n").unwrap();
        let path = create(folder.path(), &id, &content("new")).unwrap();
        assert!(path.ends_with("policy-pay.p-2.yaml"), "{path:?}");
        let read = read(&path);
        assert_eq!(read.policies.keys().map(ToString::to_string).collect::<Vec<_>>(), ["ns.pay.p"]);
    }

    #[test]
    fn a_folder_that_is_read_only_is_told_from_other_failures() {
        for kind in [io::ErrorKind::PermissionDenied, io::ErrorKind::ReadOnlyFilesystem] {
            assert!(EditError::new(Path::new("a"), kind.into()).to_string().contains("read-only"));
        }
        let missing = create(Path::new("/nowhere"), &policy("a"), &content(""));
        assert!(matches!(missing, Err(EditError::Io { .. })), "{missing:?}");
    }

    #[test]
    fn a_module_beside_a_manifest_is_found_from_another_folder() {
        let mut spec = content("").spec;
        spec["program"] = json!({"group": {"expression": "a()", "message": "m", "members": {"a": {
            "program": {"wasm": {"module": "file://./m.wasm"}}}}}});
        let moved = serde_json::to_value(moved(serde_json::from_value(spec).unwrap(), Path::new("/d"))).unwrap();
        assert_eq!(moved.pointer("/program/group/members/a/program/wasm/module"), Some(&json!("file:///d/./m.wasm")));
    }
}
