//! The CustomResourceDefinitions, as the files of `crds/`.

use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use kube::CustomResourceExt as _;

use crate::{
    ClusterPolicy, ClusterPolicyExperiment, Policy, PolicyExperiment, PolicyRevision, PolicyServer, PolicySubscription,
};

/// The files of `crds/` and their contents.
#[must_use]
pub fn definitions() -> Vec<(String, String)> {
    all().iter().map(file).collect()
}

/// `crds/Kustomization`, which lists the files of `crds/`. `config/crd` refers to the folder: a kustomization may not refer to single
/// files outside its own folder. The name has no extension, so that `kubectl apply -f crds` does not read the file.
#[must_use]
pub fn kustomization() -> String {
    let head = "# Generated from the types of crds/: `make record`.\napiVersion: kustomize.config.k8s.io/v1beta1\n\
                kind: Kustomization\nresources:\n";
    definitions().iter().fold(head.to_owned(), |text, (file, _)| text + "  - " + file + "\n")
}

/// The files of the chart: the same, but Helm does not delete them, and with them every policy, when the chart goes.
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
    all.iter_mut().for_each(crate::formats::settle);
    all
}

fn file(definition: &CustomResourceDefinition) -> (String, String) {
    // The types are ours: they have no keys but texts.
    let text = serde_yaml::to_string(&definition).unwrap_or_default();
    (
        format!("{}.yaml", definition.spec.names.plural),
        format!("# Generated from the types of crds/: `make record`.\n{text}"),
    )
}

#[cfg(test)]
mod tests {
    #[test]
    fn the_files_are_what_the_types_say() {
        for (folder, files) in [("crds", super::definitions()), ("charts/proviso-crds/templates", super::chart())] {
            for (file, text) in files {
                proviso_recorded::check(&format!("{folder}/{file}"), &text);
            }
        }
        proviso_recorded::check("crds/Kustomization", &super::kustomization());
    }
}
