//! The files of a new policy. Pure. Tests of this crate build and test such policies.

use crate::arguments::Language;

/// The placeholder for the name of the policy.
const NAME_PLACEHOLDER: &str = "NAME-OF-THE-POLICY";

const REGO: &[(&str, &str)] = &[
    ("README.md", include_str!("scaffold/rego/README.md")),
    ("policy.yaml", include_str!("scaffold/rego/policy.yaml")),
    ("suite.yaml", include_str!("scaffold/rego/suite.yaml")),
];

const CEL: &[(&str, &str)] = &[
    ("README.md", include_str!("scaffold/cel/README.md")),
    ("policy.yaml", include_str!("scaffold/cel/policy.yaml")),
    ("suite.yaml", include_str!("scaffold/cel/suite.yaml")),
];

const GO: &[(&str, &str)] = &[
    ("README.md", include_str!("scaffold/go/README.md")),
    ("Makefile", include_str!("scaffold/go/Makefile")),
    ("go.mod", include_str!("scaffold/go/go.mod.txt")),
    ("main.go", include_str!("scaffold/go/main.go.txt")),
    ("policy.go", include_str!("scaffold/go/policy.go.txt")),
    ("metadata.yaml", include_str!("scaffold/go/metadata.txt")),
    ("policy.yaml", MODULE_POLICY),
    ("suite.yaml", MODULE_SUITE),
];

const RUST: &[(&str, &str)] = &[
    ("README.md", include_str!("scaffold/rust/README.md")),
    (".gitignore", include_str!("scaffold/rust/gitignore.txt")),
    ("Makefile", include_str!("scaffold/rust/Makefile")),
    ("Cargo.toml", include_str!("scaffold/rust/cargo.txt")),
    ("metadata.json", include_str!("scaffold/rust/metadata.json")),
    ("src/lib.rs", include_str!("scaffold/rust/policy.txt")),
    // The library of the example policies.
    ("guest/Cargo.toml", include_str!("../../examples/policies/guest/Cargo.toml")),
    ("guest/src/lib.rs", include_str!("../../examples/policies/guest/src/lib.rs")),
    ("guest/src/abi.rs", include_str!("../../examples/policies/guest/src/abi.rs")),
    ("policy.yaml", MODULE_POLICY),
    ("suite.yaml", MODULE_SUITE),
];

// The manifest and the suite are the same for each language that is compiled to a module.
const MODULE_POLICY: &str = include_str!("scaffold/module/policy.yaml");
const MODULE_SUITE: &str = include_str!("scaffold/module/suite.yaml");

/// Returns the paths and the texts of the files of a policy with this name.
pub fn files(language: Language, name: &str) -> impl Iterator<Item = (&'static str, String)> {
    let files = match language {
        Language::Rego => REGO,
        Language::Cel => CEL,
        Language::Go => GO,
        Language::Rust => RUST,
    };
    files.iter().map(move |(file, text)| (*file, text.replace(NAME_PLACEHOLDER, name)))
}

/// Returns the beginning of the hint about the tests; a module must be built first.
#[must_use]
pub fn next_step(language: Language) -> &'static str {
    match language {
        Language::Rego | Language::Cel => "then: ",
        Language::Go | Language::Rust => "then: make, and ",
    }
}

#[cfg(test)]
mod tests {
    use clap::ValueEnum as _;

    use super::*;

    #[test]
    fn every_file_of_a_policy_has_its_name_and_no_placeholder() {
        for language in Language::value_variants() {
            let files: Vec<_> = files(*language, "owners").collect();
            assert!(files.iter().all(|(_, text)| !text.contains(NAME_PLACEHOLDER)), "{language:?}");
            let manifest = files.iter().find(|(file, _)| *file == "policy.yaml").unwrap();
            assert!(manifest.1.contains("name: owners"), "{language:?}");
        }
    }
}
