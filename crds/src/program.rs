//! `spec.program`: the program that evaluates requests.

use std::collections::BTreeMap;

use kube::KubeSchema;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use crate::object_requests::ObjectRequests;

/// The program of a policy: exactly one of `wasm`, `rego`, `cel`, `group` and `requests`.
#[derive(Clone, Debug, Default, PartialEq, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase", try_from = "ProgramFields")]
pub enum Program {
    /// The spec has no program: the policy configures components (`spec.configuration`).
    #[default]
    #[serde(skip)]
    #[schemars(skip)]
    None,
    /// A WebAssembly module, such as a Kubewarden policy.
    Wasm(Wasm),
    /// Rego source code.
    Rego(Rego),
    /// CEL (Common Expression Language) expressions, as in a ValidatingAdmissionPolicy.
    Cel(Cel),
    /// Several programs and a boolean expression over their results.
    Group(Group),
    /// The request policies of the policy server, which decide about a part of the object.
    Requests(ObjectRequests),
}

/// The fields of a [`Program`]. serde_yaml does not read an enum from a mapping, so `Program` is read by way of this struct.
#[derive(Deserialize, KubeSchema)]
#[x_kube(
    validation = Rule::new("[has(self.wasm), has(self.rego), has(self.cel), has(self.group), has(self.requests)].exists_one(it, it)")
        .message("needs exactly one of `wasm`, `rego`, `cel`, `group` and `requests`")
)]
struct ProgramFields {
    /// A WebAssembly module, such as a Kubewarden policy.
    wasm: Option<Wasm>,
    /// Rego source code.
    rego: Option<Rego>,
    /// CEL (Common Expression Language) expressions, as in a ValidatingAdmissionPolicy.
    cel: Option<Cel>,
    /// Several programs and a boolean expression over their results.
    group: Option<Group>,
    /// The request policies of the policy server, which decide about a part of the object.
    requests: Option<ObjectRequests>,
}

impl TryFrom<ProgramFields> for Program {
    type Error = &'static str;

    fn try_from(fields: ProgramFields) -> Result<Self, Self::Error> {
        let ProgramFields { wasm, rego, cel, group, requests } = fields;
        match (wasm, rego, cel, group, requests) {
            (Some(wasm), None, None, None, None) => Ok(Self::Wasm(wasm)),
            (None, Some(rego), None, None, None) => Ok(Self::Rego(rego)),
            (None, None, Some(cel), None, None) => Ok(Self::Cel(cel)),
            (None, None, None, Some(group), None) => Ok(Self::Group(group)),
            (None, None, None, None, Some(requests)) => Ok(Self::Requests(requests)),
            _ => Err("needs exactly one of `wasm`, `rego`, `cel`, `group` and `requests`"),
        }
    }
}

impl Program {
    #[must_use]
    pub fn is_none(&self) -> bool {
        *self == Self::None
    }
}

/// A WebAssembly module that evaluates requests.
#[derive(Clone, Debug, PartialEq, Deserialize, Serialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
pub struct Wasm {
    /// The source of the module: `registry://host/repository:tag`, `registry://host/repository@sha256:…` or `https://…`. A
    /// policy server without a cluster also reads `file:///absolute/path` and `file://./path/from/the/manifest`.
    #[x_kube(
        validation = Rule::new("self.startsWith('registry://') || self.startsWith('https://')")
            .message("must start with registry:// or https:// (file:// works only for a policy server without a cluster)")
    )]
    pub module: String,
    /// The required digest of the module's bytes: `sha256:` and 64 hexadecimal digits in lower case. A module with another
    /// digest is refused. Default: any digest.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(regex(pattern = "^sha256:[0-9a-f]{64}$"))]
    pub digest: Option<String>,
    /// The Secrets whose credentials are used for the registry; the `imagePullSecrets` of the PolicyServer must include them.
    /// Default: all `imagePullSecrets` of the PolicyServer.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub image_pull_secrets: Vec<SecretRef>,
    /// The calling convention of the module: `wapc`, `opa`, `gatekeeper` or `wasi`. Default: the calling convention that the
    /// module's metadata or exports determine. Compiled Rego without metadata needs this field.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub mode: Option<WasmMode>,
    /// `true`: the policy server initialises a waPC module once, when it compiles the module, and each evaluation starts with a
    /// snapshot of the initialised module. A module has no snapshot if its initialisation reads the time, random numbers or
    /// data of its host. `false`: each evaluation initialises the module, which takes about 0.5 ms for a module in Go.
    /// Default: true.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub snapshot: Option<bool>,
}

/// The calling convention of a WebAssembly module.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum WasmMode {
    /// waPC, as the Kubewarden SDKs build modules.
    Wapc,
    /// Rego compiled by `opa build -t wasm`, in the style of OPA's admission policies.
    Opa,
    /// Rego compiled by `opa build -t wasm`, in the style of Gatekeeper's policies.
    Gatekeeper,
    /// A WASI command that reads the request from standard input.
    Wasi,
}

/// A reference to a Secret.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize, Serialize, JsonSchema)]
pub struct SecretRef {
    /// The name of the Secret.
    pub name: String,
}

/// Rego source code that evaluates requests.
#[derive(Clone, Debug, PartialEq, Deserialize, Serialize, KubeSchema)]
#[x_kube(
    validation = Rule::new("!has(self.entrypoint) || self.dialect != 'Gatekeeper'")
        .message("`entrypoint` is for the dialects Admission and Request: the entrypoint of Gatekeeper is always `violation`"),
    validation = Rule::new("!has(self.entrypoint) || self.dialect != 'Request' || self.entrypoint in ['result', 'main']")
        .message("`entrypoint` of the dialect Request must be `result` or `main`"),
    validation = Rule::new("!has(self.libs) || self.dialect == 'Gatekeeper'")
        .message("`libs` is for the dialect Gatekeeper")
)]
#[serde(rename_all = "camelCase")]
pub struct Rego {
    /// The source code of the module, at most 256 KiB.
    #[schemars(length(max = 262_144))]
    pub source: String,
    /// The source code of libraries that the module imports, as in a ConstraintTemplate: at most 32 modules of packages below
    /// `lib`, each at most 256 KiB. Only for the dialect `Gatekeeper`. Default: no libraries.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 32))]
    pub libs: Vec<String>,
    /// The form of the module's input and result. `Gatekeeper`: `violation[{"msg": …}]` over `input.review` and
    /// `input.parameters`. `Admission`: `deny` and `warn` sets, or a whole AdmissionReview, over `input.request` and
    /// `input.parameters`. `Request`, for request policies: the rule `result` over `input.payload`, or, as in the API that the DCM
    /// project published, the rule `main` over `input.spec`.
    pub dialect: RegoDialect,
    /// The rule that returns the result. For the dialect `Admission`, such as `data.kubernetes.admission.main`; default: the rule `main` or
    /// `response` of the module's package if there is one, otherwise the rules `deny` and `warn`. For the dialect `Request`, `result` or
    /// `main`: a policy whose module does not have the named rule has no effect, as in the API that the DCM project published. Default:
    /// the rule that the module has, which must be one of them.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub entrypoint: Option<String>,
}

/// The form of the input and the result of a Rego module.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, Serialize, JsonSchema)]
pub enum RegoDialect {
    /// `violation[{"msg": …}]` over `input.review` and `input.parameters`.
    Gatekeeper,
    /// `deny` and `warn` sets, or a whole AdmissionReview, over `input.request` and `input.parameters`.
    Admission,
    /// The rule `result` over `input.payload`, or the rule `main` over `input.spec`. For request policies.
    Request,
}

/// CEL expressions over `object`, `oldObject`, `request`, `params` (the settings), `namespaceObject`, `authorizer` and
/// `variables`, with the CEL libraries of Kubernetes.
#[derive(Clone, Debug, Default, PartialEq, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Cel {
    /// Named values that the expressions share. A variable is evaluated when an expression first reads it, and may read the
    /// variables before it in the list. Default: no variables.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub variables: Vec<CelVariable>,
    /// The expressions that must all be true for a request to be allowed. An empty list allows every request: the no-op
    /// policy with which a preview of a new policy, or of a deletion, starts (AIP-236). Default: empty.
    #[serde(default)]
    pub validations: Vec<CelValidation>,
    /// The annotations that are added to the API server's audit log: at most 20. Default: no annotations.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub audit_annotations: Vec<CelAuditAnnotation>,
    /// The changes to the object, in the order in which they are applied. The validations see the changed object. Requires
    /// `admission.mutating: true`. Default: no changes.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub mutations: Vec<CelMutation>,
    /// An expression for the result of a request policy: a map with `patch`, `constraints` and `serviceProvider`, or null for no
    /// effect. It is evaluated if all validations are true. Only for request policies. Default: no effect.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub result: Option<String>,
}

/// A named value.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize, Serialize, JsonSchema)]
pub struct CelVariable {
    /// The name of the variable: letters, digits and `_`. Expressions read the variable as `variables.<name>`.
    pub name: String,
    /// The CEL expression of the value.
    pub expression: String,
}

/// A condition that a request must meet.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct CelValidation {
    /// The CEL expression that must be true for the request to be allowed.
    pub expression: String,
    /// The message of a denial. Default: `failed expression: …`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub message: Option<String>,
    /// A CEL expression that returns the message of a denial. `message` is used instead if the expression fails, or if its
    /// result is empty, has several lines, or is longer than 5 KiB.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub message_expression: Option<String>,
    /// The reason of a denial: `Unauthorized`, `Forbidden`, `Invalid` or `RequestEntityTooLarge`. Default: `Invalid`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
}

/// An annotation in the API server's audit log.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct CelAuditAnnotation {
    /// The key of the annotation: at most 63 letters, digits, `-`, `_` and `.`. The API server prefixes it with the name of the
    /// webhook.
    pub key: String,
    /// A CEL expression that returns the value of the annotation, or null to add no annotation. A value that is longer than
    /// 10 KiB is truncated.
    pub value_expression: String,
}

/// A change of the object, as in a MutatingAdmissionPolicy.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct CelMutation {
    /// The form of the change: `ApplyConfiguration` or `JSONPatch`.
    pub patch_type: CelMutationType,
    /// A CEL expression that returns the change: an `Object{…}` for `ApplyConfiguration`, a list of `JSONPatch{…}` for
    /// `JSONPatch`.
    pub expression: String,
}

/// The form of the change that the expression of a mutation returns.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, Serialize, JsonSchema)]
pub enum CelMutationType {
    /// A partial object that is merged into the object. Maps merge by field, and lists of Kubernetes' own kinds merge by
    /// their keys. Atomic lists and the lists of custom resources need `JSONPatch`.
    ApplyConfiguration,
    /// A list of JSON Patch operations.
    #[serde(rename = "JSONPatch")]
    JsonPatch,
}

/// Several programs and a boolean expression over their results.
#[derive(Clone, Debug, PartialEq, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Group {
    /// The programs, by the names that the expression uses: 1 to 32.
    pub members: BTreeMap<String, GroupMember>,
    /// A boolean expression over the members, such as `signed() || (internal() && !latest())`. A request is allowed if it
    /// is true.
    pub expression: String,
    /// The message of a denial. The messages of the members become causes of the denial.
    pub message: String,
}

/// A member of a group.
#[derive(Clone, Debug, PartialEq, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct GroupMember {
    /// The program of the member: exactly one of `wasm`, `rego` and `cel`. A group cannot be a member of a group.
    #[schemars(schema_with = "any_object")]
    pub program: Box<Program>,
    /// The settings of the member's program. At most 256 KiB as JSON. Default: empty.
    #[serde(default)]
    #[schemars(schema_with = "any_object")]
    pub settings: Map<String, Value>,
    /// The kinds of Kubernetes objects that this member may read: at most 32. Default: no kinds.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub context_aware_resources: Vec<ContextAwareResource>,
}

/// A kind of Kubernetes objects that a program may read.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct ContextAwareResource {
    /// The API group and version of the kind, such as `apps/v1`, or `v1` for the core group.
    pub api_version: String,
    /// The kind, such as `Deployment`.
    pub kind: String,
}

/// Returns the schema of an object of any shape.
pub(crate) fn any_object(_: &mut schemars::SchemaGenerator) -> schemars::Schema {
    schemars::json_schema!({"type": "object", "x-kubernetes-preserve-unknown-fields": true})
}
