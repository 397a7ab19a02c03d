//! The content of one policy for any component.

use std::time::Duration;

use proviso_core::configuration::{ConfigurationPolicy, ContentSchema, Item};
use proviso_crds::validation::FieldError;
use proviso_crds::{Configuration, Template};
use proviso_engines::{Deadline, cel, rego};
use serde_json::{Map, Value};

use super::{ComponentFacts, RenderError};

/// The default time limit for one evaluation of a template.
pub const RENDER_TIMEOUT: Duration = Duration::from_secs(1);

/// The compiled template or the fixed content of a policy, with its schema. A renderer is used from a thread that may block: a blocking
/// thread of the runtime, or a child process.
#[derive(Clone, Debug)]
pub struct Renderer {
    source: Source,
    schema: Option<ContentSchema>,
    timeout: Duration,
}

#[derive(Clone, Debug)]
enum Source {
    Content(Map<String, Value>),
    Cel(cel::Template),
    Rego(rego::Template),
}

impl Renderer {
    /// Compiles the template and the schema of a policy. Takes up to a few seconds.
    ///
    /// # Errors
    /// Returns the error of the first field that does not compile. The field is relative to the spec, such as
    /// `configuration.template.cel`.
    pub fn compile(configuration: &Configuration, settings: &Map<String, Value>) -> Result<Self, FieldError> {
        let source = match (&configuration.content, &configuration.template) {
            (Some(content), None) => Source::Content(content.clone()),
            (None, Some(Template { cel: Some(expression), rego: None })) => {
                let compiled = cel::Template::compile(expression, settings);
                Source::Cel(compiled.map_err(|error| FieldError::new("configuration.template.cel", error.to_string()))?)
            }
            (None, Some(Template { cel: None, rego: Some(module) })) => {
                let compiled = rego::Template::compile(module, settings);
                Source::Rego(
                    compiled.map_err(|error| FieldError::new("configuration.template.rego", error.to_string()))?,
                )
            }
            (None, Some(_)) => {
                return Err(FieldError::new("configuration.template", "needs exactly one of `cel` and `rego`"));
            }
            _ => return Err(FieldError::new("configuration", "needs exactly one of `content` and `template`")),
        };
        let schema = configuration.schema.as_ref().map(ContentSchema::compile).transpose();
        let schema = schema.map_err(|error| FieldError::new("configuration.schema", error.to_string()))?;
        Ok(Self { source, schema, timeout: RENDER_TIMEOUT })
    }

    /// Sets the time limit for one evaluation of the template. Default: [`RENDER_TIMEOUT`].
    #[must_use]
    pub fn with_timeout(self, timeout: Duration) -> Self {
        Self { timeout, ..self }
    }

    /// Returns the content for a component: an object, which matches the schema. Blocks the thread for at most about the time limit.
    ///
    /// # Errors
    /// Returns [`RenderError`] if the template has no object as its value, or the content does not match the schema.
    pub fn render(&self, component: &ComponentFacts) -> Result<Value, RenderError> {
        let content = Value::Object(self.content(component)?);
        self.check_schema(&content)?;
        Ok(content)
    }

    /// Returns the body of a policy for a component. Blocks the thread for at most about the time limit.
    ///
    /// # Errors
    /// The errors of [`Self::render`], and [`RenderError::TooLarge`] or [`RenderError::TooDeep`] if the body cannot be delivered.
    pub fn item(&self, policy: &ConfigurationPolicy, component: &ComponentFacts) -> Result<Item, RenderError> {
        Ok(Item::new(policy, &self.render(component)?)?)
    }

    /// Validates content against the schema.
    pub(super) fn check_schema(&self, content: &Value) -> Result<(), RenderError> {
        match &self.schema {
            Some(schema) => Ok(schema.check(content)?),
            None => Ok(()),
        }
    }

    /// Returns the content for a component before its validation.
    fn content(&self, component: &ComponentFacts) -> Result<Map<String, Value>, RenderError> {
        let component = || serde_json::to_value(component).map_err(|error| RenderError::Template(error.to_string()));
        let deadline = Deadline::after(self.timeout);
        let content = match &self.source {
            Source::Content(content) => Ok(content.clone()),
            Source::Cel(template) => template.render(&component()?, deadline),
            Source::Rego(template) => template.render(&component()?, deadline),
        };
        content.map_err(|error| RenderError::of(error, self.timeout))
    }
}
