//! The job of the child process: a batch of templates.

use std::ffi::OsString;
use std::process::ExitCode;
use std::time::{Duration, Instant};

use proviso_crds::Configuration;
use proviso_programs::templates::{ComponentFacts, RenderError, Renderer};
use proviso_sandbox::{Defence, run_job};
use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;
use serde_json::{Map, Value};

use crate::jobs;

/// The internal command of the operator.
pub(super) const RENDER: &str = "render-configuration";

/// The time after which a batch renders no further policy: the rest of the policies is for the next batch.
const BATCH_TIME: Duration = Duration::from_secs(2);

/// The input of a batch: policies for one component.
#[derive(Deserialize, Serialize)]
pub(super) struct RenderInput<P> {
    pub component: ComponentFacts,
    pub policies: Vec<P>,
}

/// A policy of a batch.
#[derive(Deserialize, Serialize)]
pub(super) struct PolicyInput<C, S> {
    pub configuration: C,
    pub settings: S,
}

/// The content of a policy, or its error.
pub(super) type Rendered<T> = Result<T, RenderError>;

/// Runs a job in this process, if the arguments of the program say so: see [`run_job`].
pub(crate) fn run_rendering_job(arguments: impl IntoIterator<Item = OsString>) -> Option<ExitCode> {
    run_job(arguments, RENDER, &Defence::ALL, |_, input| jobs::write(render(&input)))
}

/// Renders a batch. Returns the results of at least the first policy, in the order of the policies.
pub(super) fn render(input: &[u8]) -> Result<Vec<Rendered<Box<RawValue>>>, String> {
    let RenderInput { component, policies } = jobs::read::<RenderInput<Box<RawValue>>>(input)?;
    let started = Instant::now();
    let mut results = Vec::new();
    for policy in policies {
        if !results.is_empty() && started.elapsed() > BATCH_TIME {
            break;
        }
        results.push(render_one(&policy, &component));
    }
    Ok(results)
}

/// Renders one policy. The content is a text, because a tree of values takes many times as much memory.
fn render_one(policy: &RawValue, component: &ComponentFacts) -> Rendered<Box<RawValue>> {
    let PolicyInput { configuration, settings } =
        jobs::read::<PolicyInput<Configuration, Map<String, Value>>>(policy.get().as_bytes())
            .map_err(RenderError::Compile)?;
    let renderer = Renderer::compile(&configuration, &settings).map_err(|error| RenderError::of_field(&error))?;
    let content = renderer.render(component)?;
    serde_json::value::to_raw_value(&content).map_err(|error| RenderError::Template(error.to_string()))
}
