//! Policies that a tool applies from a repository: finds the tool, and makes the manifest for the repository. Pure.

use std::collections::BTreeMap;

use proviso_crds::names::is_reserved;
use proviso_crds::{GROUP, VERSION};
use serde_json::{Value, json};

use crate::experiment::CommitPlan;
use crate::objects::{ExperimentObject, PolicyObject};
use crate::render;

/// The marks that Argo CD and Flux leave on the objects that they apply.
static TOOLS: [Tool; 2] = [
    Tool {
        name: "Argo CD",
        keys: &["argocd.argoproj.io/tracking-id", "argocd.argoproj.io/instance"],
        managers: &["argocd-controller", "argocd-application-controller"],
    },
    Tool {
        name: "Flux",
        keys: &[
            "kustomize.toolkit.fluxcd.io/name",
            "kustomize.toolkit.fluxcd.io/namespace",
            "helm.toolkit.fluxcd.io/name",
            "helm.toolkit.fluxcd.io/namespace",
        ],
        managers: &["kustomize-controller", "helm-controller"],
    },
];

/// A tool that applies objects from a repository.
#[derive(Debug)]
struct Tool {
    name: &'static str,
    /// The labels and annotations that the tool sets itself.
    keys: &'static [&'static str],
    /// The field managers of the tool.
    managers: &'static [&'static str],
}

/// Returns the warning that a tool applies the policy from a repository; `None` if the policy has no mark of such a tool.
#[must_use]
pub fn warning(policy: &PolicyObject, experiment: &ExperimentObject, program: &str) -> Option<String> {
    let (tool, mark) = TOOLS.iter().find_map(|tool| Some((tool, mark(policy, tool)?)))?;
    let (name, id) = (tool.name, &policy.id);
    Some(format!(
        "{name} applies {id} from a repository ({mark}), so it may put the old spec back after the commit. To change the \
         repository instead: {program} experiment commit {} --to-file FILE",
        experiment.id
    ))
}

fn mark(policy: &PolicyObject, tool: &Tool) -> Option<String> {
    let has = |map: &BTreeMap<String, String>, kind: &str| {
        tool.keys.iter().find(|key| map.contains_key(**key)).map(|key| format!("{kind} {key}"))
    };
    let manager = || policy.managers.iter().find(|manager| tool.managers.contains(&manager.as_str()));
    has(&policy.annotations, "annotation")
        .or_else(|| has(&policy.labels, "label"))
        .or_else(|| manager().map(|manager| format!("field manager {manager}")))
}

/// Returns the manifest of the policy with the spec of the experiment, as YAML for a repository. The first line is a comment that
/// names the versions of both.
///
/// # Errors
/// When the manifest cannot be written as YAML, which does not happen with a spec of an API server.
pub fn manifest(
    policy: &PolicyObject,
    experiment: &ExperimentObject,
    CommitPlan { etag, parent_etag }: &CommitPlan,
) -> Result<String, serde_yaml::Error> {
    let comment = format!("the spec of the experiment {} ({etag}) for {} ({parent_etag})", experiment.id, policy.id);
    // A comment is one line.
    let comment = render::printable(&comment).replace('\n', " ");
    Ok(format!("# {comment}\n{}", serde_yaml::to_string(&object(policy, &experiment.spec))?))
}

/// Returns the policy with this spec, without its status, and without the fields that a server or a tool writes.
fn object(policy: &PolicyObject, spec: &Value) -> Value {
    let mut metadata = json!({"name": policy.id.name()});
    if let Some(namespace) = policy.id.namespace() {
        metadata["namespace"] = namespace.into();
    }
    for (field, map) in [("annotations", &policy.annotations), ("labels", &policy.labels)] {
        let kept: BTreeMap<_, _> = map.iter().filter(|(key, _)| is_of_author(key)).collect();
        if !kept.is_empty() {
            metadata[field] = json!(kept);
        }
    }
    let kind = format!("{:?}", policy.kind());
    json!({"apiVersion": format!("{GROUP}/{VERSION}"), "kind": kind, "metadata": metadata, "spec": spec})
}

/// Returns true if a label or an annotation is of the author of the policy, and not of a program that writes it again.
fn is_of_author(key: &str) -> bool {
    !is_reserved(key) && TOOLS.iter().all(|tool| !tool.keys.contains(&key))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::experiment::plan_commit;
    use crate::manifest;
    use crate::objects::tests::{active, experiment, policy, spec};

    fn with(annotation: Option<&str>, label: Option<&str>, manager: &str) -> PolicyObject {
        let mut policy = policy(2, &active(2));
        policy.annotations.extend(annotation.map(|key| (key.to_owned(), "x".to_owned())));
        policy.labels.extend(label.map(|key| (key.to_owned(), "x".to_owned())));
        policy.managers.push(manager.to_owned());
        policy
    }

    #[test]
    fn a_policy_that_a_tool_applies_has_a_warning() {
        for (annotation, label, manager, wanted) in [
            (None, None, "kubectl-client-side-apply", None),
            // Helm sets this label too.
            (None, Some("app.kubernetes.io/instance"), "helm", None),
            (
                Some("argocd.argoproj.io/tracking-id"),
                None,
                "kubectl",
                Some("Argo CD applies ns.team.labels from a repository (annotation argocd.argoproj.io/tracking-id)"),
            ),
            (None, None, "argocd-controller", Some("Argo CD applies ns.team.labels from a repository (field manager")),
            (
                None,
                Some("kustomize.toolkit.fluxcd.io/name"),
                "kustomize-controller",
                Some("Flux applies ns.team.labels from a repository (label kustomize.toolkit.fluxcd.io/name)"),
            ),
            (None, None, "helm-controller", Some("Flux applies ns.team.labels from a repository (field manager")),
        ] {
            let policy = with(annotation, label, manager);
            let warning = warning(&policy, &experiment(1, &Value::Null), "proviso");
            assert_eq!(warning.is_some(), wanted.is_some(), "{warning:?}");
            if let (Some(warning), Some(wanted)) = (warning, wanted) {
                assert!(warning.starts_with(wanted), "{warning}");
                assert!(warning.ends_with("proviso experiment commit ns.team.stricter --to-file FILE"), "{warning}");
            }
        }
    }

    #[test]
    fn a_manifest_for_a_repository_has_the_spec_of_the_experiment_and_the_metadata_of_the_author() {
        let mut policy =
            with(Some("argocd.argoproj.io/tracking-id"), Some("kustomize.toolkit.fluxcd.io/name"), "kubectl");
        for key in [
            "kubectl.kubernetes.io/last-applied-configuration",
            "proviso.dev/committed-experiment",
            "proviso.dev/changed-by",
            "team.example.com/contact",
            // The author sets these options of Argo CD and Flux.
            "argocd.argoproj.io/sync-options",
            "kustomize.toolkit.fluxcd.io/prune",
        ] {
            policy.annotations.insert(key.to_owned(), "x".to_owned());
        }
        policy.labels.insert("app.kubernetes.io/part-of".to_owned(), "policies".to_owned());
        let experiment = experiment(3, &Value::Null);
        let plan = plan_commit(&experiment, &policy, None, None).unwrap();
        let text = super::manifest(&policy, &experiment, &plan).unwrap();
        let comment = format!(
            "# the spec of the experiment ns.team.stricter ({}) for ns.team.labels ({})\n",
            plan.etag, plan.parent_etag
        );
        let yaml = text.strip_prefix(&comment).unwrap();
        let wanted = json!({
            "apiVersion": "proviso.dev/v1alpha1",
            "kind": "Policy",
            "metadata": {
                "name": "labels",
                "namespace": "team",
                "annotations": {
                    "argocd.argoproj.io/sync-options": "x", "kustomize.toolkit.fluxcd.io/prune": "x",
                    "team.example.com/contact": "x",
                },
                "labels": {"app.kubernetes.io/part-of": "policies"},
            },
            "spec": spec("team"),
        });
        assert_eq!(serde_yaml::from_str::<Value>(yaml).unwrap(), wanted);
        // The file is a manifest of the same policy.
        assert_eq!(manifest::read("labels.yaml", &text, &policy).unwrap(), spec("team"));
    }

    #[test]
    fn a_manifest_without_labels_and_annotations_of_the_author_has_none() {
        let policy = with(Some("kubectl.kubernetes.io/last-applied-configuration"), None, "kubectl");
        assert_eq!(object(&policy, &spec("team"))["metadata"], json!({"name": "labels", "namespace": "team"}));
    }
}
