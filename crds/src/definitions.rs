//! The CustomResourceDefinitions, as the files of `crds/`.

use kube::CustomResourceExt as _;

use crate::{ClusterPolicy, ClusterPolicyExperiment, Policy, PolicyExperiment, PolicyRevision, PolicyServer};

/// The files and their contents.
#[must_use]
pub fn definitions() -> Vec<(String, String)> {
    let definitions = [
        ClusterPolicy::crd(),
        ClusterPolicyExperiment::crd(),
        Policy::crd(),
        PolicyExperiment::crd(),
        PolicyRevision::crd(),
        PolicyServer::crd(),
    ];
    definitions
        .into_iter()
        .map(|definition| {
            let file = format!("{}.yaml", definition.spec.names.plural);
            // The types are ours: they have no keys but texts.
            let text = serde_yaml::to_string(&definition).unwrap_or_default();
            (file, format!("# Generated from the types of this folder: `make crds`.\n{text}"))
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    #[test]
    fn the_files_are_what_the_types_say() {
        for (file, text) in super::definitions() {
            let path = Path::new(env!("CARGO_MANIFEST_DIR")).join(&file);
            let found = std::fs::read_to_string(&path).unwrap_or_default();
            assert!(found == text, "{file} is stale: `make crds`");
        }
    }
}
