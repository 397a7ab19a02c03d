//! The content of a configuration policy in one generation.

use std::sync::{Mutex, PoisonError};

use proviso_core::PolicyId;
use proviso_core::configuration::{ConfigurationPolicy, Item, Version};
use proviso_crds::validation::FieldError;
use proviso_crds::{Configuration, check_audience};
use proviso_programs::templates::{self, ComponentFacts, RenderError, Renderer};
use serde_json::{Map, Value};

/// The compiled content of a configuration policy: static content, or a template.
#[derive(Debug)]
pub struct Content {
    configuration: Configuration,
    renderer: Renderer,
    /// The last body of static content. All components share it.
    body: Mutex<Option<(ConfigurationPolicy, Item)>>,
}

impl Content {
    /// Compiles the template and the schema, and checks the static content. `at` is the path of the spec. Takes up to a few seconds.
    ///
    /// # Errors
    /// Returns the first field that is not valid.
    pub fn compile(
        at: &str,
        policy: &PolicyId,
        configuration: Configuration,
        settings: &Map<String, Value>,
    ) -> Result<Self, FieldError> {
        if let Some(error) = check_audience(at, policy.namespace(), &configuration) {
            return Err(error);
        }
        if let Some(error) = templates::check_configuration(at, policy, &configuration, settings).into_iter().next() {
            return Err(error);
        }
        let renderer = Renderer::compile(&configuration, settings)
            .map_err(|error| FieldError::new(format!("{at}.{}", error.field), error.message))?;
        Ok(Self { configuration, renderer, body: Mutex::default() })
    }

    /// Returns the facts of the policy in this version, with which filters are compared.
    #[must_use]
    pub fn facts(&self, id: &PolicyId, version: Version) -> ConfigurationPolicy {
        self.configuration.facts(id.clone(), version)
    }

    /// Returns true if the content depends on the component.
    #[must_use]
    pub fn is_template(&self) -> bool {
        self.configuration.template.is_some()
    }

    /// Returns the body of the policy for a component. `policy` has the facts of this content. Blocks the thread while a template is
    /// evaluated.
    ///
    /// # Errors
    /// Returns an error if the template has no valid content for the component.
    pub fn item(&self, policy: &ConfigurationPolicy, component: &ComponentFacts) -> Result<Item, RenderError> {
        if self.is_template() {
            return self.renderer.item(policy, component);
        }
        let mut body = self.body.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some((_, item)) = body.as_ref().filter(|(of, _)| of == policy) {
            return Ok(item.clone());
        }
        let item = self.renderer.item(policy, component)?;
        *body = Some((policy.clone(), item.clone()));
        Ok(item)
    }
}
