//! The rules of a PolicySubscription, which the schema of the CRD has for API servers. A policy server over a folder has no API server.

use proviso_core::configuration::{Catalog, CompiledSubscription, resolve};
use proviso_core::names::is_dns_label;

use super::{Delivery, Filter, Notify, PolicySubscriptionSpec};
use crate::configuration::{MAX_ATTRIBUTE, MAX_ATTRIBUTES, MAX_CONFIG_NAME};
use crate::validation::FieldError;

/// The maximum length of the name of a PolicySubscription, in characters.
const MAX_NAME: usize = 150;
/// The maximum length of `scn`, and of the name of an object, in characters.
const MAX_SCN: usize = 253;
/// The maximum length of a DNS label, in characters.
const MAX_LABEL: usize = 63;
/// The maximum number of `policies`.
const MAX_SELECTORS: usize = 100;
/// The maximum number of `canaryFor`.
const MAX_CANARIES: usize = 20;
/// The maximum length of `nameRegex`, in characters.
const MAX_REGEX: usize = 256;
/// The maximum length of `delivery.configMap`, in characters.
const MAX_CONFIG_MAP: usize = 240;
/// The maximum number of the words of a command.
const MAX_WORDS: usize = 64;
/// The maximum length of a word of a command, and of the path of an endpoint, in characters.
const MAX_WORD: usize = 1024;

struct Errors(Vec<FieldError>);

impl PolicySubscriptionSpec {
    /// Returns the errors of a PolicySubscription with this namespace and name: the rules of the schema, and the regular expressions that
    /// cannot be compiled.
    #[must_use]
    pub fn check(&self, namespace: &str, name: &str) -> Vec<FieldError> {
        let mut errors = Errors(Vec::new());
        errors.name("metadata.name", name);
        if name.len() > MAX_NAME {
            errors.add("metadata.name", format!("has {} characters: at most {MAX_NAME} are allowed", name.len()));
        }
        if !is_label(namespace) {
            errors.add("metadata.namespace", "is not a name of a namespace: 1 to 63 characters of a-z, 0-9 and '-'");
        }
        if self.component.is_some() == self.scn.is_some() {
            errors.add("spec", "needs exactly one of `component` and `scn`");
        }
        if let Some(component) = &self.component {
            errors.name("spec.component.name", &component.name);
        }
        errors.length("spec.scn", self.scn.as_deref(), 1, MAX_SCN);
        errors.count("spec.policies", self.policies.len(), 1, MAX_SELECTORS);
        for (index, selector) in self.policies.iter().enumerate() {
            if let Some(filter) = &selector.filter {
                errors.filter(&format!("spec.policies[{index}].filter"), filter);
            }
        }
        errors.count("spec.canaryFor", self.canary_for.len(), 0, MAX_CANARIES);
        for (index, canary) in self.canary_for.iter().enumerate() {
            errors.name(&format!("spec.canaryFor[{index}].experiment"), &canary.experiment);
        }
        if let Some(application) = &self.application {
            errors.name("spec.application.configMap", &application.config_map);
        }
        errors.delivery(&self.delivery);
        match self.subscription(namespace) {
            Ok(subscription) => {
                // A selector that does not compile fails in each resolution, also of a catalog without policies.
                let resolution = resolve(&CompiledSubscription::new(&subscription), &Catalog::default());
                for failure in resolution.failures() {
                    let (field, message) =
                        failure.message.split_once(": ").unwrap_or(("spec.policies", &failure.message));
                    errors.add(field, message);
                }
            }
            Err(error) => errors.0.push(error),
        }
        errors.0
    }
}

fn is_label(text: &str) -> bool {
    text.len() <= MAX_LABEL && is_dns_label(text)
}

impl Errors {
    fn add(&mut self, field: &str, message: impl Into<String>) {
        self.0.push(FieldError::new(field, message.into()));
    }

    fn name(&mut self, field: &str, name: &str) {
        if name.len() > MAX_SCN || !name.split('.').all(is_dns_label) {
            self.add(field, "is not a name of an object: 1 to 253 characters of a-z, 0-9, '-' and '.'");
        }
    }

    fn length(&mut self, field: &str, text: Option<&str>, min: usize, max: usize) {
        if text.is_some_and(|text| !(min..=max).contains(&text.chars().count())) {
            self.add(field, format!("must have {min} to {max} characters"));
        }
    }

    fn count(&mut self, field: &str, count: usize, min: usize, max: usize) {
        if !(min..=max).contains(&count) {
            self.add(field, format!("has {count} items: {min} to {max} are allowed"));
        }
    }

    fn filter(&mut self, at: &str, filter: &Filter) {
        let Filter { name_regex, config_name, owner, attributes, .. } = filter;
        if name_regex.is_none() && config_name.is_none() && owner.is_none() && attributes.is_empty() {
            self.add(at, "needs at least one of `nameRegex`, `configName`, `owner` and `attributes`");
        }
        self.length(&format!("{at}.nameRegex"), name_regex.as_deref(), 1, MAX_REGEX);
        self.length(&format!("{at}.configName"), config_name.as_deref(), 1, MAX_CONFIG_NAME);
        self.length(&format!("{at}.owner"), owner.as_deref(), 1, MAX_CONFIG_NAME);
        self.count(&format!("{at}.attributes"), attributes.len(), 0, MAX_ATTRIBUTES);
        for (key, value) in attributes {
            self.length(&format!("{at}.attributes.{key}"), Some(value), 0, MAX_ATTRIBUTE);
        }
    }

    fn delivery(&mut self, Delivery { config_map, notify }: &Delivery) {
        self.name("spec.delivery.configMap", config_map);
        self.length("spec.delivery.configMap", Some(config_map), 1, MAX_CONFIG_MAP);
        if let Some(notify) = notify {
            self.notify(notify);
        }
    }

    fn notify(&mut self, Notify { timeout_seconds, exec, http }: &Notify) {
        let at = "spec.delivery.notify";
        if exec.is_some() == http.is_some() {
            self.add(at, "needs exactly one of `exec` and `http`");
        }
        if !(1..=300).contains(timeout_seconds) {
            self.add(&format!("{at}.timeoutSeconds"), "must be 1 to 300");
        }
        if let Some(exec) = exec {
            if exec.container.as_deref().is_some_and(|container| !is_label(container)) {
                self.add(&format!("{at}.exec.container"), "is not a name of a container");
            }
            self.count(&format!("{at}.exec.command"), exec.command.len(), 1, MAX_WORDS);
            for (index, word) in exec.command.iter().enumerate() {
                let field = format!("{at}.exec.command[{index}]");
                self.length(&field, Some(word), 0, MAX_WORD);
                if word.contains('\0') {
                    self.add(&field, "contains a NUL character, which no argument of a program can have");
                }
            }
            if exec.command.first().is_some_and(String::is_empty) {
                self.add(&format!("{at}.exec.command[0]"), "is empty: name the program");
            }
        }
        if let Some(http) = http {
            if !is_label(&http.service) {
                self.add(&format!("{at}.http.service"), "is not a name of 1 to 63 characters of a-z, 0-9 and '-'");
            }
            if !http.path.starts_with('/') {
                self.add(&format!("{at}.http.path"), "must begin with a slash");
            }
            self.length(&format!("{at}.http.path"), Some(&http.path), 1, MAX_WORD);
            if !(1..=65535).contains(&http.port) {
                self.add(&format!("{at}.http.port"), "must be 1 to 65535");
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn spec() -> Value {
        json!({
            "scn": "meter",
            "policies": [{"id": "cluster.memory"}, {"filter": {"nameRegex": "cluster\\..*", "attributes": {"site": "a"}}}],
            "canaryFor": [{"policy": "cluster.memory", "experiment": "more"}],
            "delivery": {"configMap": "meter", "notify": {"exec": {"command": ["/opt/reconfigure.sh"]}}},
        })
    }

    fn fields(namespace: &str, name: &str, spec: Value) -> Vec<String> {
        let spec: PolicySubscriptionSpec = serde_json::from_value(spec).unwrap();
        spec.check(namespace, name).into_iter().map(|error| error.field).collect()
    }

    #[test]
    fn each_error_names_its_field() {
        assert_eq!(fields("default", "meter", spec()), [""; 0]);
        let long = "x".repeat(1025);
        for (pointer, value, field) in [
            ("/scn", Value::Null, "spec"),
            ("/scn", json!(""), "spec.scn"),
            ("/component", json!({"kind": "Deployment", "name": "meter"}), "spec"),
            ("/policies", json!([]), "spec.policies"),
            ("/policies/0", json!({}), "spec.policies[0]"),
            ("/policies/0/id", json!("memory"), "spec.policies[0].id"),
            ("/policies/1/filter", json!({}), "spec.policies[1].filter"),
            ("/policies/1/filter/nameRegex", json!(""), "spec.policies[1].filter.nameRegex"),
            ("/policies/1/filter/nameRegex", json!("("), "spec.policies[1]"),
            ("/policies/1/filter/owner", json!(""), "spec.policies[1].filter.owner"),
            ("/policies/1/filter/attributes/site", json!(long), "spec.policies[1].filter.attributes.site"),
            ("/canaryFor/0/experiment", json!("More"), "spec.canaryFor[0].experiment"),
            ("/canaryFor/0/policy", json!("x"), "spec.canaryFor[0].policy"),
            ("/application", json!({"configMap": ""}), "spec.application.configMap"),
            ("/delivery/configMap", json!("Meter"), "spec.delivery.configMap"),
            ("/delivery/notify", json!({}), "spec.delivery.notify"),
            ("/delivery/notify/timeoutSeconds", json!(301), "spec.delivery.notify.timeoutSeconds"),
            ("/delivery/notify/exec/command", json!([]), "spec.delivery.notify.exec.command"),
            ("/delivery/notify/exec/command/0", json!(""), "spec.delivery.notify.exec.command[0]"),
            ("/delivery/notify/exec/command/0", json!("a\0"), "spec.delivery.notify.exec.command[0]"),
            ("/delivery/notify/exec/container", json!("A"), "spec.delivery.notify.exec.container"),
        ] {
            let mut changed = spec();
            let (parent, key) = pointer.rsplit_once('/').unwrap();
            match changed.pointer_mut(parent).unwrap() {
                Value::Array(list) => list[key.parse::<usize>().unwrap()] = value,
                object => object[key] = value,
            }
            let found = fields("default", "meter", changed);
            assert_eq!(found.first().map(String::as_str), Some(field), "{pointer}: {found:?}");
        }
        for (http, field) in [
            (json!({"service": "meter", "path": "/p", "port": 80}), None),
            (json!({"service": "meter.example.com", "path": "/p", "port": 80}), Some("service")),
            (json!({"service": "meter", "path": "p", "port": 80}), Some("path")),
            (json!({"service": "meter", "path": "/p", "port": 0}), Some("port")),
        ] {
            let mut changed = spec();
            changed["delivery"]["notify"] = json!({"http": http});
            let wanted: Vec<_> = field.iter().map(|field| format!("spec.delivery.notify.http.{field}")).collect();
            assert_eq!(fields("default", "meter", changed), wanted);
        }
        assert_eq!(fields("default", &"x".repeat(151), spec()), ["metadata.name"]);
        assert_eq!(fields("Default", "meter", spec()), ["metadata.namespace"]);
    }
}
