//! What the author of a policy writes, as `ValidatingAdmissionPolicy` and `MutatingAdmissionPolicy` have it.

/// A whole CEL program.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Source {
    pub variables: Vec<Variable>,
    pub validations: Vec<Validation>,
    pub audit_annotations: Vec<AuditAnnotation>,
    /// Applied in order, each to what the one before made; the validations see what comes out.
    pub mutations: Vec<Mutation>,
}

/// A value with a name. It is made when an expression first asks for it, and only once.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Variable {
    /// Read as `variables.<name>`, by what comes after it.
    pub name: String,
    pub expression: String,
}

/// One condition.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Validation {
    /// Must evaluate to true, or the request is denied. At most 16 KiB.
    pub expression: String,
    /// What a denial says. Default, also for an empty one: `failed expression: <expression>`.
    pub message: Option<String>,
    /// Makes what a denial says. `message` stands in where it has no value, or an empty one, or one of several lines.
    pub message_expression: Option<String>,
    /// `Unauthorized` (401), `Forbidden` (403), `RequestEntityTooLarge` (413) or `Invalid` (422, the default).
    pub reason: Option<String>,
}

/// An entry of the API server's audit log.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct AuditAnnotation {
    pub key: String,
    /// A string, or null for no entry.
    pub value_expression: String,
}

/// A change of the object.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Mutation {
    pub patch_type: PatchType,
    pub expression: String,
}

/// What a mutation's expression makes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PatchType {
    /// An `Object{…}` that is merged into the object.
    ApplyConfiguration,
    /// A list of `JSONPatch{…}`.
    JsonPatch,
}

impl From<Vec<Validation>> for Source {
    fn from(validations: Vec<Validation>) -> Self {
        Self { validations, ..Self::default() }
    }
}
