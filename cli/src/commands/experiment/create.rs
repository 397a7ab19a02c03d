//! `proviso experiment create`.

use std::io::Read as _;
use std::path::Path;
use std::process::ExitCode;

use proviso_core::PolicyId;
use proviso_crds::PreviewLogging;
use serde_json::{Value, json};

use super::super::{in_form, print};
use super::difference::difference;
use super::preview;
use super::session::{Session, print_line};
use crate::arguments::{Create, Form};
use crate::changes::is_same;
use crate::error::Error;
use crate::kinds::Pair as _;
use crate::manifest::{self, ManifestError};
use crate::objects::{ExperimentObject, PolicyObject};
use crate::report::ExperimentReport;
use crate::terminal;

pub async fn run(session: &Session, arguments: &Create) -> Result<ExitCode, Error> {
    let is_printed = matches!(arguments.output.output, Form::Json | Form::Yaml);
    if is_printed && arguments.start {
        return Err(Error::Usage("--start needs the experiment to be created, but -o only prints it".to_owned()));
    }
    let policy = session.backend.find_policy(&arguments.from).await?;
    let id = PolicyId::new(policy.id.namespace(), &arguments.name).map_err(|error| Error::Usage(error.to_string()))?;
    let spec = match &arguments.file {
        Some(file) => from_file(file, &policy)?,
        None if arguments.no_op => manifest::no_op(&policy.spec),
        None => policy.spec.clone(),
    };
    let manifest = experiment(&id, &policy, &spec, arguments);
    if is_same(&policy.spec, &spec) {
        let (policy, kind) = (&policy.id, manifest["kind"].as_str().unwrap_or_default().to_ascii_lowercase());
        let place = policy.namespace().map_or_else(String::new, |namespace| format!(" -n {namespace}"));
        let edit = match &arguments.file {
            _ if is_printed => "edit the printed manifest".to_owned(),
            Some(file) => format!("change {}", file.display()),
            None if !session.backend.is_cluster() => "create it from a changed file: -f FILE".to_owned(),
            None => format!("edit it: kubectl edit {kind} {}{place}", id.name()),
        };
        let problem = format!("{id} does not differ from {policy}, so a preview shows no differences; {edit}");
        terminal::print_warning(&problem);
    }
    if is_printed {
        print(&in_form(&manifest, arguments.output.output, String::new)?)?;
        return Ok(ExitCode::SUCCESS);
    }
    let object = session.backend.create(&id, manifest, arguments.dry_run).await?;
    if arguments.dry_run {
        print(&difference(&object, &policy)?)?;
        print_line(&object, "the API server would accept it. Nothing was created.")?;
        return Ok(ExitCode::SUCCESS);
    }
    // A server prepares the experiment before it answers, so a failure is known here.
    if let Some(problem) = ExperimentReport::new(&object).problem {
        print_line(&object, &format!("created, but it does not work: {}: {}", problem.reason, problem.message))?;
        return Ok(ExitCode::FAILURE);
    }
    if arguments.start {
        print_line(&object, &format!("created, an experiment of {}", policy.id))?;
        preview::start_now(session, &object).await?;
        return Ok(ExitCode::SUCCESS);
    }
    let next = if arguments.auto_start {
        format!("it starts automatically. Follow it: {} experiment status {id} --watch", session.program)
    } else {
        format!("to preview it, start it: {} experiment start {id} --wait", session.program)
    };
    print_line(&object, &format!("created, an experiment of {}; {next}", policy.id))?;
    Ok(ExitCode::SUCCESS)
}

/// Returns the manifest of an experiment.
fn experiment(id: &PolicyId, policy: &PolicyObject, spec: &Value, arguments: &Create) -> Value {
    let [namespaced, cluster] = ExperimentObject::KINDS;
    let mut manifest = json!({
        "apiVersion": format!("{}/{}", proviso_crds::GROUP, proviso_crds::VERSION),
        "kind": if id.namespace().is_some() { namespaced } else { cluster },
        "metadata": {"name": id.name()},
        "spec": {"policyRef": {"name": policy.id.name()}, "policy": spec},
    });
    if let Some(namespace) = id.namespace() {
        manifest["metadata"]["namespace"] = namespace.into();
    }
    let logging = arguments.logging.map(PreviewLogging::from);
    let given = [
        ("autoStart", arguments.auto_start.then_some(json!(true))),
        ("sampleRate", arguments.sample_rate.map(|rate| json!(rate))),
        ("logging", logging.map(|logging| json!(logging))),
        ("ttl", arguments.ttl.as_ref().map(|ttl| json!(ttl))),
    ];
    for (field, value) in given {
        if let Some(value) = value {
            manifest["spec"][field] = value;
        }
    }
    manifest
}

fn from_file(file: &Path, policy: &PolicyObject) -> Result<Value, Error> {
    let (name, text) = if file == Path::new("-") {
        let mut text = String::new();
        ("standard input".to_owned(), std::io::stdin().read_to_string(&mut text).map(|_| text))
    } else {
        (file.display().to_string(), std::fs::read_to_string(file))
    };
    let text = text.map_err(|error| ManifestError::Read { file: name.clone(), error })?;
    Ok(manifest::read(&name, &text, policy)?)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::arguments::{self, Arguments, Command, Experiment, Experiments};
    use crate::objects::tests::{active, policy, spec};
    use clap::FromArgMatches as _;

    fn arguments(options: &[&str]) -> Create {
        let command = ["proviso", "experiment", "create", "stricter", "--from", "policy/labels"];
        let matches = arguments::command("proviso").try_get_matches_from([&command, options].concat()).unwrap();
        let Command::Experiment(Experiments { command: Experiment::Create(create), .. }) =
            Arguments::from_arg_matches(&matches).unwrap().command
        else {
            panic!("another command")
        };
        create
    }

    #[test]
    fn the_manifest_names_the_policy_and_its_namespace() {
        let policy = policy(2, &active(2));
        let id = PolicyId::namespaced("team", "stricter").unwrap();
        let options = ["--auto-start", "--sample-rate", "0.1", "--logging", "divergences", "--ttl", "48h"];
        let manifest = experiment(&id, &policy, &spec("team"), &arguments(&options));
        let wanted = json!({
            "apiVersion": "proviso.dev/v1alpha1", "kind": "PolicyExperiment",
            "metadata": {"name": "stricter", "namespace": "team"},
            "spec": {
                "policyRef": {"name": "labels"}, "policy": spec("team"), "autoStart": true, "sampleRate": 0.1,
                "logging": "Divergences", "ttl": "48h",
            },
        });
        assert_eq!(manifest, wanted);
        assert!(serde_json::from_value::<proviso_crds::ExperimentSpec>(manifest["spec"].clone()).is_ok());
        let of_cluster = experiment(&PolicyId::cluster("stricter").unwrap(), &policy, &spec("team"), &arguments(&[]));
        assert_eq!(of_cluster["kind"], "ClusterPolicyExperiment");
        assert_eq!(of_cluster["metadata"].get("namespace"), None);
        for absent in ["autoStart", "sampleRate", "logging", "ttl"] {
            assert_eq!(of_cluster["spec"].get(absent), None, "{absent}");
        }
    }
}
