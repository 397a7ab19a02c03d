//! The source of a CEL program, with the fields of `ValidatingAdmissionPolicy` and `MutatingAdmissionPolicy`.

/// The source of a CEL program.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Source {
    pub variables: Vec<Variable>,
    pub validations: Vec<Validation>,
    pub audit_annotations: Vec<AuditAnnotation>,
    /// The mutations in their order. Each mutation is applied to the result of the previous one. The validations read the result
    /// of the last one.
    pub mutations: Vec<Mutation>,
    /// An expression for the result of a request policy: a map, or null for no effect.
    pub result: Option<String>,
}

/// A named value. It is evaluated once, when an expression first reads it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Variable {
    /// The name. The later variables and all other expressions read the value as `variables.<name>`.
    pub name: String,
    pub expression: String,
}

/// A condition that the request must satisfy.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Validation {
    /// The condition: if it is false, the request is denied. At most 16 KiB.
    pub expression: String,
    /// The message of a denial. Default, also for an empty message: `failed expression: <expression>`.
    pub message: Option<String>,
    /// An expression for the message of a denial. `message` is used if the evaluation fails, or if the value is not a string, is
    /// empty, has several lines, or is longer than 5 KiB.
    pub message_expression: Option<String>,
    /// `Unauthorized` (401), `Forbidden` (403), `RequestEntityTooLarge` (413) or `Invalid` (422, the default).
    pub reason: Option<String>,
}

/// An annotation in the audit log of the API server.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct AuditAnnotation {
    pub key: String,
    /// An expression whose value is a string, or null for no annotation.
    pub value_expression: String,
}

/// A mutation of the object.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Mutation {
    pub patch_type: PatchType,
    pub expression: String,
}

/// The type of the value of a mutation's expression.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PatchType {
    /// An `Object{…}`, which is merged into the object.
    ApplyConfiguration,
    /// A list of `JSONPatch{…}` operations.
    JsonPatch,
}

impl From<Vec<Validation>> for Source {
    fn from(validations: Vec<Validation>) -> Self {
        Self { validations, ..Self::default() }
    }
}
