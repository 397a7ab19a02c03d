//! The documents of a file: splits a file into documents, and reads each as an object. An error names each wrong field and its
//! line.

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::Namespace;
use kube::core::ObjectMeta;
use proviso_core::PolicyId;
use proviso_core::matching::Labels;
use proviso_core::policy_id;
use proviso_crds::validation::{self, FieldError};
use proviso_crds::{ExperimentSpec, PolicySpec, PolicySubscriptionSpec};
use serde::Deserialize;
use serde::de::DeserializeOwned;
use serde_json::Value;

use super::SubscriptionManifest;
use super::id::{ExperimentId, ObjectId, SubscriptionId};
use super::nodes::Nodes;

/// `metadata.annotations`.
pub type Annotations = BTreeMap<String, String>;

/// The object of a document.
pub(super) enum Object {
    Policy(PolicyId, Box<PolicySpec>, Annotations),
    Experiment(ExperimentId, Box<ExperimentSpec>, Annotations),
    Subscription(SubscriptionId, Box<SubscriptionManifest>, Annotations),
    Namespace(String, Labels, Box<Value>),
    /// An object of another kind.
    Other(Box<Value>),
}

impl Object {
    /// Returns the id of the object; `None` for objects of other kinds.
    pub(super) fn id(&self) -> Option<ObjectId> {
        match self {
            Self::Policy(id, ..) => Some(ObjectId::Policy(id.clone())),
            Self::Experiment(id, ..) => Some(ObjectId::Experiment(id.clone())),
            Self::Subscription(id, ..) => Some(ObjectId::Subscription(id.clone())),
            Self::Namespace(name, ..) => Some(ObjectId::Namespace(name.clone())),
            Self::Other(_) => None,
        }
    }
}

/// A manifest of one of Proviso's kinds, without its status.
#[derive(Deserialize)]
struct Manifest<S> {
    metadata: ObjectMeta,
    spec: S,
}

/// A fault of a document.
#[derive(Debug)]
pub(super) struct Fault {
    pub object: Option<ObjectId>,
    pub field: String,
    /// The line in the document, from 1.
    pub line: usize,
    pub message: String,
}

/// Splits a file into documents. Returns the first line of each document, from 1, and its text. A line that starts with `---`
/// separates documents everywhere, even inside a quoted text (YAML 1.2.2, production 206). So an unclosed quote in one document
/// does not affect the next document.
pub(super) fn split(text: &str) -> Vec<(usize, &str)> {
    let mut documents = Vec::new();
    let (mut start, mut start_line, mut at) = (0, 1, 0);
    for (index, line) in text.split_inclusive('\n').enumerate() {
        let is_separator =
            line.strip_prefix("---").is_some_and(|rest| rest.is_empty() || rest.starts_with([' ', '\t', '\r', '\n']));
        if is_separator {
            documents.push((start_line, &text[start..at]));
            (start, start_line) = (at, index + 1);
        }
        at += line.len();
    }
    documents.push((start_line, &text[start..]));
    documents.retain(|(_, document)| document.lines().any(|line| !is_filler(line)));
    documents
}

/// Returns true if a line has no content: it is empty, a comment, a separator, or a directive.
pub(super) fn is_filler(line: &str) -> bool {
    let line = line.strip_prefix("---").unwrap_or(line).trim();
    line.is_empty() || line.starts_with('#') || line.starts_with('%')
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Outline {
    #[serde(default)]
    api_version: String,
    #[serde(default)]
    kind: String,
    #[serde(default)]
    metadata: OutlineMetadata,
}

#[derive(Default, Deserialize)]
struct OutlineMetadata {
    #[serde(default)]
    name: String,
    namespace: Option<String>,
}

/// The maximum nesting depth of a document. The parser's time and memory grow with the square of the depth: 40 KB of `- - - …`
/// would take gigabytes.
const MAX_NESTING: usize = 500;

/// Returns true if brackets, or list items on one line, are nested too deep. Brackets in quotes and text blocks count too, so the
/// limit is far above the depth of a usual manifest. Nesting by indentation needs no check, because the size of such a document
/// grows with the square of the depth.
fn nests_too_deep(text: &str) -> bool {
    let mut depth = 0_usize;
    let brackets = text.bytes().any(|byte| {
        match byte {
            b'[' | b'{' => depth += 1,
            b']' | b'}' => depth = depth.saturating_sub(1),
            _ => {}
        }
        depth > MAX_NESTING
    });
    let indicators =
        |line: &str| line.split_ascii_whitespace().take_while(|word| ["-", "?", ":"].contains(word)).count();
    brackets || text.lines().any(|line| indicators(line) > MAX_NESTING)
}

/// Reads a document. Returns `None` for an object of another kind without a name, or with values that JSON does not have:
/// programs cannot read such an object.
pub(super) fn read(text: &str) -> Result<Option<Object>, Vec<Fault>> {
    let whole = |field: &str, line: usize, message: String| {
        vec![Fault { object: None, field: field.to_owned(), line, message }]
    };
    if nests_too_deep(text) {
        return Err(whole("", 1, format!("is nested deeper than {MAX_NESTING} levels")));
    }
    let outline: Outline = serde_yaml::from_str(text).map_err(|error| {
        let line = error.location().map_or(1, |location| location.line());
        whole("", line, format!("is not a Kubernetes object in YAML or JSON: {error}"))
    })?;
    if outline.kind.is_empty() || outline.api_version.is_empty() {
        return Err(whole("", 1, "is not a Kubernetes object: `apiVersion` or `kind` is missing".to_owned()));
    }
    let reader = Reader { text, nodes: Nodes::of(text) };
    let group_version = format!("{}/{}", proviso_crds::GROUP, proviso_crds::VERSION);
    if outline.api_version == "v1" && outline.kind == "Namespace" {
        let name = outline.metadata.name;
        if name.is_empty() {
            return Err(whole("metadata.name", reader.nodes.line("metadata"), "is missing".to_owned()));
        }
        let object = Some(ObjectId::Namespace(name.clone()));
        let namespace: Namespace = reader.typed().map_err(|fault| vec![Fault { object, ..fault }])?;
        let whole = serde_yaml::from_str(text).unwrap_or_default();
        return Ok(Some(Object::Namespace(name, namespace.metadata.labels.unwrap_or_default(), whole)));
    }
    let Some(version) = outline.api_version.strip_prefix("proviso.dev/") else {
        let object = serde_yaml::from_str(text).ok().filter(|_| !outline.metadata.name.is_empty());
        return Ok(object.map(Object::Other));
    };
    if version != proviso_crds::VERSION {
        let message = format!("is {:?}: this version serves {group_version}", outline.api_version);
        return Err(whole("apiVersion", reader.nodes.line("apiVersion"), message));
    }
    let cluster_scoped = outline.kind.starts_with("Cluster");
    if cluster_scoped && outline.metadata.namespace.is_some() {
        let message = format!("must not be set: a {} belongs to no namespace", outline.kind);
        return Err(whole("metadata.namespace", reader.nodes.line("metadata.namespace"), message));
    }
    // A missing namespace means `default`, as in kubectl.
    let namespace = (!cluster_scoped).then(|| outline.metadata.namespace.unwrap_or_else(|| "default".to_owned()));
    let name =
        |error: &dyn std::fmt::Display| whole("metadata.name", reader.nodes.line("metadata.name"), error.to_string());
    match outline.kind.as_str() {
        "Policy" | "ClusterPolicy" => {
            let id = PolicyId::new(namespace.as_deref(), &outline.metadata.name).map_err(|error| name(&error))?;
            let object = ObjectId::Policy(id.clone());
            let (annotations, spec) = reader.manifest::<PolicySpec>(&object)?;
            reader.validated(&object, validation::policy(&spec))?;
            Ok(Some(Object::Policy(id, Box::new(spec), annotations)))
        }
        "PolicyExperiment" | "ClusterPolicyExperiment" => {
            policy_id::check_name(&outline.metadata.name).map_err(|error| name(&error))?;
            let id = ExperimentId { namespace, name: outline.metadata.name };
            let object = ObjectId::Experiment(id.clone());
            let (annotations, spec) = reader.manifest::<ExperimentSpec>(&object)?;
            reader.validated(&object, validation::experiment(&spec))?;
            Ok(Some(Object::Experiment(id, Box::new(spec), annotations)))
        }
        "PolicySubscription" => {
            let (namespace, name) = (namespace.unwrap_or_default(), outline.metadata.name);
            let id = SubscriptionId { namespace, name };
            let object = ObjectId::Subscription(id.clone());
            let Manifest { metadata, spec } = reader.whole::<PolicySubscriptionSpec>(&object)?;
            reader.validated(&object, spec.check(&id.namespace, &id.name))?;
            let subscription = SubscriptionManifest { spec, labels: metadata.labels.unwrap_or_default() };
            Ok(Some(Object::Subscription(id, Box::new(subscription), metadata.annotations.unwrap_or_default())))
        }
        kind => {
            let message = format!(
                "is {kind:?}, which is none of ClusterPolicy, Policy, ClusterPolicyExperiment, PolicyExperiment and PolicySubscription of {group_version}"
            );
            Err(whole("kind", reader.nodes.line("kind"), message))
        }
    }
}

/// The planned sections of a spec that this version does not serve.
const UNSERVED_SECTIONS: [&str; 2] = ["rollout", "promotion"];

struct Reader<'a> {
    text: &'a str,
    nodes: Nodes,
}

impl Reader<'_> {
    /// Reads a manifest of one of Proviso's kinds. Each unknown field is a fault.
    fn manifest<S: DeserializeOwned>(&self, object: &ObjectId) -> Result<(Annotations, S), Vec<Fault>> {
        let Manifest { metadata, spec } = self.whole(object)?;
        Ok((metadata.annotations.unwrap_or_default(), spec))
    }

    /// Reads a manifest of one of Proviso's kinds, with its metadata. Each unknown field is a fault.
    fn whole<S: DeserializeOwned>(&self, object: &ObjectId) -> Result<Manifest<S>, Vec<Fault>> {
        let mut unknown = Vec::new();
        let typed = self.deserialize::<Manifest<S>>(|path| unknown.push(path));
        let fault = |fault: Fault| Fault { object: Some(object.clone()), ..fault };
        let manifest = typed.map_err(|error| vec![fault(error)])?;
        // `read` has checked the first two. A status, which `kubectl get -o yaml` prints, is ignored.
        unknown.retain(|path| !["apiVersion", "kind", "status"].contains(&path.as_str()));
        let faults: Vec<_> = unknown.into_iter().map(|field| fault(self.unknown(field))).collect();
        if faults.is_empty() { Ok(manifest) } else { Err(faults) }
    }

    /// Reads a kind of Kubernetes. It may have unknown fields, of a newer version of Kubernetes.
    fn typed<T: DeserializeOwned>(&self) -> Result<T, Fault> {
        self.deserialize(|_| ())
    }

    fn deserialize<T: DeserializeOwned>(&self, mut unknown: impl FnMut(String)) -> Result<T, Fault> {
        let mut track = serde_path_to_error::Track::new();
        let yaml = serde_yaml::Deserializer::from_str(self.text);
        let tracked = serde_path_to_error::Deserializer::new(yaml, &mut track);
        let result = serde_ignored::deserialize(tracked, |path| unknown(path_text(&path)));
        result.map_err(|error: serde_yaml::Error| {
            let field = track.path().to_string();
            let field = if field == "." { String::new() } else { field };
            let line = error.location().map_or_else(|| self.nodes.line(&field), |location| location.line());
            Fault { object: None, line, message: without_position(&error.to_string(), &field), field }
        })
    }

    fn unknown(&self, field: String) -> Fault {
        let name = field.rsplit('.').next().unwrap_or_default();
        let message = if UNSERVED_SECTIONS.contains(&name) {
            "is not served by this version: remove it".to_owned()
        } else {
            "is not a known field: check its spelling and its place".to_owned()
        };
        Fault { object: None, line: self.nodes.line(&field), field, message }
    }

    fn validated(&self, object: &ObjectId, errors: Vec<FieldError>) -> Result<(), Vec<Fault>> {
        if errors.is_empty() {
            return Ok(());
        }
        Err(errors
            .into_iter()
            .map(|FieldError { field, message }| Fault {
                object: Some(object.clone()),
                line: self.nodes.line(&field),
                field,
                message,
            })
            .collect())
    }
}

/// Returns the path in the form `a.b[0].c`.
fn path_text(path: &serde_ignored::Path<'_>) -> String {
    use serde_ignored::Path;
    match path {
        Path::Root => String::new(),
        Path::Seq { parent, index } => format!("{}[{index}]", path_text(parent)),
        Path::Map { parent, key } => match path_text(parent) {
            parent if parent.is_empty() => key.clone(),
            parent => format!("{parent}.{key}"),
        },
        Path::Some { parent } | Path::NewtypeStruct { parent } | Path::NewtypeVariant { parent } => path_text(parent),
    }
}

/// Returns the message of a YAML error without its path and position, which [`Fault`] has as separate fields.
fn without_position(message: &str, field: &str) -> String {
    let message = match message.split_once(": ") {
        Some((path, rest)) if field.starts_with(path) => rest,
        _ => message,
    };
    message.rsplit_once(" at line ").map_or(message, |(message, _)| message).to_owned()
}
