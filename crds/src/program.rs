//! What decides: `spec.program`.

use std::collections::BTreeMap;

use kube::KubeSchema;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

/// Exactly one of the kinds of program.
#[derive(Clone, Debug, PartialEq, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase", try_from = "ProgramFields")]
pub enum Program {
    /// A WebAssembly module, such as a Kubewarden policy.
    Wasm(Wasm),
    /// Rego source.
    Rego(Rego),
    /// Common Expression Language, as in a ValidatingAdmissionPolicy.
    Cel(Cel),
    /// Several programs and a boolean expression over their answers.
    Group(Group),
}

/// A [`Program`] as its fields: formats such as YAML do not read an enum from a mapping by themselves.
#[derive(Deserialize, KubeSchema)]
#[x_kube(
    validation = Rule::new("[has(self.wasm), has(self.rego), has(self.cel), has(self.group)].exists_one(it, it)")
        .message("needs exactly one of `wasm`, `rego`, `cel` and `group`")
)]
struct ProgramFields {
    /// A WebAssembly module, such as a Kubewarden policy.
    wasm: Option<Wasm>,
    /// Rego source.
    rego: Option<Rego>,
    /// Common Expression Language, as in a ValidatingAdmissionPolicy.
    cel: Option<Cel>,
    /// Several programs and a boolean expression over their answers.
    group: Option<Group>,
}

impl TryFrom<ProgramFields> for Program {
    type Error = &'static str;

    fn try_from(fields: ProgramFields) -> Result<Self, Self::Error> {
        match fields {
            ProgramFields { wasm: Some(wasm), rego: None, cel: None, group: None } => Ok(Self::Wasm(wasm)),
            ProgramFields { wasm: None, rego: Some(rego), cel: None, group: None } => Ok(Self::Rego(rego)),
            ProgramFields { wasm: None, rego: None, cel: Some(cel), group: None } => Ok(Self::Cel(cel)),
            ProgramFields { wasm: None, rego: None, cel: None, group: Some(group) } => Ok(Self::Group(group)),
            _ => Err("needs exactly one of `wasm`, `rego`, `cel` and `group`"),
        }
    }
}

/// A WebAssembly module.
#[derive(Clone, Debug, PartialEq, Deserialize, Serialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
pub struct Wasm {
    /// Where the module comes from: `registry://host/repository:tag`, `https://…` or, for a policy server without
    /// a cluster, `file:///absolute/path` or `file://./path/from/the/manifest`.
    #[x_kube(
        validation = Rule::new("self.startsWith('registry://') || self.startsWith('https://')")
            .message("starts with registry:// or https:// (file:// is for a policy server without a cluster)")
    )]
    pub module: String,
    /// The module must have this digest: `sha256:` and 64 hexadecimal digits.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(regex(pattern = "^sha256:[0-9a-f]{64}$"))]
    pub digest: Option<String>,
    /// Secrets with credentials for the registry, in the policy server's namespace.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub image_pull_secrets: Vec<SecretRef>,
    /// The calling convention of a module that does not say it itself.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub mode: Option<WasmMode>,
}

/// The calling convention of a WebAssembly module.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum WasmMode {
    /// waPC: what Kubewarden's SDKs build.
    Wapc,
    /// Rego compiled by `opa build -t wasm`, as OPA's admission policies are written.
    Opa,
    /// Rego compiled by `opa build -t wasm`, as Gatekeeper's policies are written.
    Gatekeeper,
    /// A command that reads the request from standard input.
    Wasi,
}

/// A Secret by name.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize, Serialize, JsonSchema)]
pub struct SecretRef {
    pub name: String,
}

/// Rego.
#[derive(Clone, Debug, PartialEq, Deserialize, Serialize, KubeSchema)]
#[x_kube(
    validation = Rule::new("!has(self.entrypoint) || self.dialect == 'Admission'")
        .message("`entrypoint` is for the dialect Admission: Gatekeeper's is always `violation`"),
    validation = Rule::new("!has(self.libs) || self.dialect == 'Gatekeeper'")
        .message("`libs` is for the dialect Gatekeeper")
)]
#[serde(rename_all = "camelCase")]
pub struct Rego {
    /// One module, at most 256 KiB.
    #[schemars(length(max = 262_144))]
    pub source: String,
    /// Modules of packages below `lib` that the module imports, each at most 256 KiB; for the dialect `Gatekeeper`, as in
    /// its ConstraintTemplates.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 32))]
    pub libs: Vec<String>,
    /// What the module is given and what its answer looks like.
    pub dialect: RegoDialect,
    /// The rule that answers, such as `data.kubernetes.admission.main`; for the dialect `Admission`. Default: the
    /// rules `deny` and `warn` of the module's package.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub entrypoint: Option<String>,
}

/// What a Rego module is given and what its answer looks like.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, Serialize, JsonSchema)]
pub enum RegoDialect {
    /// `violation[{"msg": …}]` over `input.review` and `input.parameters`.
    Gatekeeper,
    /// `deny` and `warn` sets over `input.request` and `input.parameters`, or a whole AdmissionReview.
    Admission,
}

/// CEL expressions over `object`, `oldObject`, `request`, `params` (the settings), `namespaceObject`, `authorizer` and
/// `variables`, with the libraries that Kubernetes has.
#[derive(Clone, Debug, Default, PartialEq, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Cel {
    /// Values that the expressions share. Each is made when it is first read, and may read those before it.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub variables: Vec<CelVariable>,
    /// All must hold. An empty list allows everything: the no-op policy that a preview of a new policy, or of
    /// a deletion, starts with (AIP-236).
    #[serde(default)]
    pub validations: Vec<CelValidation>,
    /// What is added to the API server's audit log. At most 20.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub audit_annotations: Vec<CelAuditAnnotation>,
    /// How the object is changed, in this order. The validations see the changed object. Needs `admission.mutating`.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub mutations: Vec<CelMutation>,
}

/// A named value.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize, Serialize, JsonSchema)]
pub struct CelVariable {
    /// Read as `variables.<name>`: letters, digits and `_`.
    pub name: String,
    pub expression: String,
}

/// An expression that must be true.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct CelValidation {
    pub expression: String,
    /// What the user is told on a denial. Default: `failed expression: …`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub message: Option<String>,
    /// An expression that makes the message. `message` stands in where it fails, or makes an empty text, one of several
    /// lines, or one of more than 5 KiB.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub message_expression: Option<String>,
    /// `Unauthorized`, `Forbidden`, `Invalid` or `RequestEntityTooLarge`. Default: `Invalid`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
}

/// An entry of the audit log.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct CelAuditAnnotation {
    /// At most 63 letters, digits, `-`, `_` and `.`. The API server puts the webhook's name before it.
    pub key: String,
    /// A text, or null for no entry. What is longer than 10 KiB is cut.
    pub value_expression: String,
}

/// A change of the object, as in a MutatingAdmissionPolicy.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct CelMutation {
    pub patch_type: CelMutationType,
    /// An `Object{…}` for `ApplyConfiguration`, a list of `JSONPatch{…}` for `JSONPatch`.
    pub expression: String,
}

/// What a mutation's expression makes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, Serialize, JsonSchema)]
pub enum CelMutationType {
    /// A partial object, merged in: maps field by field, lists of Kubernetes' own kinds by their keys. Atomic lists, and
    /// those of other kinds, are for `JSONPatch`.
    ApplyConfiguration,
    /// A list of JSON Patch operations.
    #[serde(rename = "JSONPatch")]
    JsonPatch,
}

/// Several programs and an expression over their answers.
#[derive(Clone, Debug, PartialEq, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Group {
    /// The members by the names that the expression calls them by.
    pub members: BTreeMap<String, GroupMember>,
    /// A boolean expression such as `signed() || (internal() && !latest())`.
    pub expression: String,
    /// What the user is told on a denial; the members' own messages become its causes.
    pub message: String,
}

/// A member of a group.
#[derive(Clone, Debug, PartialEq, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct GroupMember {
    /// `wasm`, `rego` or `cel`; a group in a group is refused.
    #[schemars(schema_with = "any_object")]
    pub program: Box<Program>,
    /// The member's own settings.
    #[serde(default)]
    #[schemars(schema_with = "any_object")]
    pub settings: Map<String, Value>,
    /// The Kubernetes resources that this member may read. None by default.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub context_aware_resources: Vec<ContextAwareResource>,
}

/// A kind of Kubernetes objects that a program may read.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct ContextAwareResource {
    /// Group and version, such as `apps/v1`.
    pub api_version: String,
    pub kind: String,
}

/// Returns the schema of an object of any shape.
pub(crate) fn any_object(_: &mut schemars::SchemaGenerator) -> schemars::Schema {
    schemars::json_schema!({"type": "object", "x-kubernetes-preserve-unknown-fields": true})
}
