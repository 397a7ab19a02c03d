//! The CustomResourceDefinitions, in the form of the files in `crds/` and in the chart `proviso-crds`.

use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use kube::CustomResourceExt as _;

use crate::{
    ClusterPolicy, ClusterPolicyExperiment, Policy, PolicyExperiment, PolicyRevision, PolicyServer, PolicySubscription,
};

/// Returns the name and content of each CustomResourceDefinition file in `crds/`.
#[must_use]
pub fn definitions() -> Vec<(String, String)> {
    all().iter().map(file).collect()
}

/// Returns the content of `crds/Kustomization`, which lists the files of `crds/`.
///
/// `config/crd` refers to the folder, because a kustomization may not refer to single files outside its own folder. The
/// file name has no extension, so that `kubectl apply -f crds` does not read the file.
#[must_use]
pub fn kustomization() -> String {
    let head = "# Generated from the types of crds/: `make record`.\napiVersion: kustomize.config.k8s.io/v1beta1\n\
                kind: Kustomization\nresources:\n";
    definitions().iter().fold(head.to_owned(), |text, (file, _)| text + "  - " + file + "\n")
}

/// Returns the name and content of each template of the chart `proviso-crds`. An annotation makes Helm keep the definitions
/// when the chart is uninstalled: deleting a definition would delete every object of its kind.
#[must_use]
pub fn chart() -> Vec<(String, String)> {
    let keep = |mut definition: CustomResourceDefinition| {
        let annotations = definition.metadata.annotations.get_or_insert_default();
        annotations.insert("helm.sh/resource-policy".to_owned(), "keep".to_owned());
        file(&definition)
    };
    all().into_iter().map(keep).collect()
}

fn all() -> [CustomResourceDefinition; 7] {
    let mut all = [
        ClusterPolicy::crd(),
        ClusterPolicyExperiment::crd(),
        Policy::crd(),
        PolicyExperiment::crd(),
        PolicyRevision::crd(),
        PolicyServer::crd(),
        PolicySubscription::crd(),
    ];
    all.iter_mut().for_each(crate::formats::normalize);
    all
}

fn file(definition: &CustomResourceDefinition) -> (String, String) {
    // Serializing does not fail: all map keys in the definitions are strings.
    let text = serde_yaml::to_string(&definition).unwrap_or_default();
    (
        format!("{}.yaml", definition.spec.names.plural),
        format!("# Generated from the types of crds/: `make record`.\n{text}"),
    )
}

#[cfg(test)]
mod tests {
    #[test]
    fn recorded_definitions_match_the_types() {
        for (folder, files) in [("crds", super::definitions()), ("charts/proviso-crds/templates", super::chart())] {
            for (file, text) in files {
                proviso_recorded::check(&format!("{folder}/{file}"), &text);
            }
        }
        proviso_recorded::check("crds/Kustomization", &super::kustomization());
    }
}
