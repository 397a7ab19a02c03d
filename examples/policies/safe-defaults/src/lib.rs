//! Fills in the safe settings that Kubernetes leaves out. What somebody wrote is never changed: who needs root
//! says so, and another policy decides whether they may.

mod labels;
mod pod;

use std::collections::BTreeMap;

use guest::{Policy, Response};
use serde::Deserialize;
use serde_json::Value;

guest::export_policy!(crate::SafeDefaults, metadata: "../metadata.json");

#[derive(Debug)]
pub struct SafeDefaults;

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Settings {
    /// Labels of the object itself, where it does not have them.
    #[serde(default)]
    labels: BTreeMap<String, String>,
}

#[derive(Debug, Deserialize)]
pub struct Request {
    kind: Kind,
    operation: String,
    object: Option<Value>,
}

#[derive(Debug, Deserialize)]
struct Kind {
    kind: String,
}

impl Policy for SafeDefaults {
    type Request = Request;
    type Settings = Settings;

    fn validate(request: Request, settings: &Settings) -> Response {
        let Some(mut object) = request.object else {
            return Response::accept(); // DELETE
        };
        let is_creation = request.operation == "CREATE";
        let mut changed = labels::fill_in(&mut object, &settings.labels);
        changed |= match request.kind.kind.as_str() {
            // The pod of a Pod or Job cannot be changed once it exists.
            "Pod" if is_creation => object.get_mut("spec").is_some_and(|pod| pod::fill_in(pod, pod::Origin::Pod)),
            "Job" if is_creation => template(&mut object, "/spec/template/spec"),
            "Deployment" | "StatefulSet" | "DaemonSet" => template(&mut object, "/spec/template/spec"),
            "CronJob" => template(&mut object, "/spec/jobTemplate/spec/template/spec"),
            // Never a ReplicaSet: its Deployment compares it with its own template and would replace it for ever.
            _ => false,
        };
        if changed { Response::mutate(object) } else { Response::accept() }
    }

    fn validate_settings(settings: &Settings) -> Result<(), String> {
        labels::check(&settings.labels)
    }
}

fn template(object: &mut Value, pointer: &str) -> bool {
    object.pointer_mut(pointer).is_some_and(|pod| pod::fill_in(pod, pod::Origin::Template))
}

#[cfg(test)]
mod tests;
