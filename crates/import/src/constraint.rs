//! Converts each Gatekeeper constraint to a policy with the program of its template.

use proviso_crds::validation::FieldError;
use proviso_engines::rego::{self, Dialect};
use proviso_evaluation::documents::Document;
use proviso_evaluation::gatekeeper::{Action, Code, Constraint, ConstraintError, Template};
use serde_json::{Value, json};

use crate::constraint_match;
use crate::draft::{Draft, Drafts};
use crate::error::ImportError;
use crate::resources::ResourceNames;

/// A template and its document.
struct TemplateDocument<'a> {
    document: &'a Document,
    template: Template,
    is_used: bool,
}

pub(crate) fn import(documents: &[Document], named: &ResourceNames) -> Drafts {
    let mut errors = Vec::new();
    let mut templates = Vec::new();
    for document in documents.iter().filter(|it| Template::is(&it.value)) {
        match Template::read(&document.value) {
            Ok(template) => templates.push(TemplateDocument { document, template, is_used: false }),
            Err(error) => errors.push(document.error(error).into()),
        }
    }
    let mut drafts = Vec::new();
    for document in documents.iter().filter(|it| Constraint::is(&it.value)) {
        let Some(found) = templates.iter_mut().find(|it| it.template.kind == document.kind()) else {
            let message =
                format!("is {:?}: the ConstraintTemplate of this kind is not among the files", document.kind());
            errors.push(document.error(FieldError::new("kind", message)).into());
            continue;
        };
        found.is_used = true;
        match draft(document, found, named) {
            Ok(draft) => drafts.push(draft),
            Err(found) => errors.extend(found),
        }
    }
    for TemplateDocument { document, template, .. } in templates.iter().filter(|it| !it.is_used) {
        let message = format!(
            "there is no constraint of the kind {}: a template without a constraint has no effect",
            template.kind
        );
        errors.push(document.error(FieldError::new("spec.crd.spec.names.kind", message)).into());
    }
    if errors.is_empty() { Ok(drafts) } else { Err(errors) }
}

fn draft(document: &Document, found: &TemplateDocument<'_>, named: &ResourceNames) -> Result<Draft, Vec<ImportError>> {
    let template = &found.template;
    let one = |error| vec![document.error(error).into()];
    let constraint = Constraint::read(&document.value, template).map_err(|error| match error {
        ConstraintError::Schema(error) | ConstraintError::Other(error) => one(error),
    })?;
    let mode = match constraint.action {
        Action::Deny => "Protect",
        Action::DryRun => "Monitor",
        Action::Warn => {
            let message = "warn has no equivalent: use deny, or dryrun to see in logs and metrics what would be denied";
            return Err(one(FieldError::new("spec.enforcementAction", message)));
        }
        Action::Scoped { .. } => {
            let message = "scoped has no equivalent: use deny or dryrun, for all enforcement points";
            return Err(one(FieldError::new("spec.enforcementAction", message)));
        }
    };
    let operations = template.operations.as_deref();
    let mut admission = constraint_match::admission(document, &constraint.matches, operations, named)?;
    admission["mode"] = mode.into();
    let mut spec =
        json!({"program": program(&template.code), "settings": constraint.parameters, "admission": admission});
    if reads_inventory(&template.code) {
        spec["contextAwareResources"] =
            inventory(template.sync_data.as_deref()).map_err(|error| vec![found.document.error(error).into()])?;
    }
    Ok(Draft {
        place: document.place.clone(),
        namespace: None,
        name: constraint.name,
        origin: document.value["metadata"].clone(),
        spec,
        notes: vec![format!("From the constraint {} of the ConstraintTemplate {}.", document.kind(), template.name)],
    })
}

fn program(code: &Code) -> Value {
    match code {
        Code::Rego { source, libs } => {
            let mut rego = json!({"dialect": "Gatekeeper", "source": source});
            if !libs.is_empty() {
                rego["libs"] = json!(libs);
            }
            json!({"rego": rego})
        }
        Code::Cel(cel) => json!({"cel": cel}),
    }
}

/// Returns true if the program or one of its libraries reads `data.inventory`. A compilation error is ignored here, because the
/// check of the draft reports it.
fn reads_inventory(code: &Code) -> bool {
    let Code::Rego { source, libs } = code else { return false };
    rego::Program::compile_with(source, libs, Dialect::Gatekeeper, None, &json!({}))
        .is_ok_and(|program| program.uses_inventory())
}

/// Returns the kinds that the template reads. `sync_data` is the JSON of the annotation: a list of requirements, each a list of
/// alternatives. Some templates have quotation marks around the JSON.
fn inventory(sync_data: Option<&str>) -> Result<Value, FieldError> {
    let field = "metadata.annotations[metadata.gatekeeper.sh/requires-sync-data]";
    let Some(text) = sync_data else {
        let message =
            "is missing: the template reads data.inventory, and this annotation must list the kinds that it reads";
        return Err(FieldError::new(field, message));
    };
    let requirements: Vec<Vec<Value>> = serde_json::from_str(text.trim().trim_matches('"'))
        .map_err(|error| FieldError::new(field, format!("is not in the format of Gatekeeper: {error}")))?;
    let mut resources = Vec::new();
    for alternative in requirements.iter().flatten() {
        let texts = |field: &str| -> Vec<&str> {
            alternative[field].as_array().into_iter().flatten().filter_map(Value::as_str).collect()
        };
        for group in texts("groups") {
            for version in texts("versions") {
                let api_version = if group.is_empty() { version.to_owned() } else { format!("{group}/{version}") };
                for kind in texts("kinds") {
                    resources.push(json!({"apiVersion": api_version, "kind": kind}));
                }
            }
        }
    }
    Ok(resources.into())
}
