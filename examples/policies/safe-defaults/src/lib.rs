//! Fills in missing security settings. A setting that is present is never changed: a workload that needs root can ask for
//! it, and another policy decides if it may.

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
    /// The labels that the object itself gets if it does not have them.
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
            // The pod spec of an existing Pod or Job cannot be changed.
            "Pod" if is_creation => object.get_mut("spec").is_some_and(|pod| pod::fill_in(pod, pod::Origin::Pod)),
            "Job" if is_creation => template(&mut object, "/spec/template/spec"),
            "Deployment" | "StatefulSet" | "DaemonSet" => template(&mut object, "/spec/template/spec"),
            "CronJob" => template(&mut object, "/spec/jobTemplate/spec/template/spec"),
            // A ReplicaSet is never changed: its Deployment compares templates, and would replace it again and again.
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
