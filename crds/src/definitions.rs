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

fn all() -> Vec<CustomResourceDefinition> {
    vec![
        ClusterPolicy::crd(),
        ClusterPolicyExperiment::crd(),
        Policy::crd(),
        PolicyExperiment::crd(),
        PolicyRevision::crd(),
        PolicyServer::crd(),
        PolicySubscription::crd(),
    ]
}

fn file(definition: &CustomResourceDefinition) -> (String, String) {
    // The types are ours: they have no keys but texts.
    let text = serde_yaml::to_string(&definition).unwrap_or_default();
    (
        format!("{}.yaml", definition.spec.names.plural),
        format!("# Generated from the types of crds/: `make crds`.\n{text}"),
    )
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    #[test]
    fn the_files_are_what_the_types_say() {
        for (folder, files) in [(".", super::definitions()), ("../charts/proviso-crds/templates", super::chart())] {
            let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join(folder);
            for (file, text) in files {
                let found = std::fs::read_to_string(folder.join(&file)).unwrap_or_default();
                assert!(found == text, "{file} in {} is stale: `make crds`", folder.display());
            }
        }
    }
}
