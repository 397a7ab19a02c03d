//! The page about a module.

use super::page::{facts, heading};
use super::style::{PLAIN, paint};
use super::view::View;
use crate::report::module::ModuleReport;

/// Renders the digest, size and mode, the metadata as YAML, the imports and the exports.
#[must_use]
pub fn module(report: &ModuleReport, view: &View) -> String {
    let mut page = String::new();
    facts(
        &mut page,
        view,
        &[
            ("Module", report.module.clone()),
            ("Digest", report.digest.clone()),
            ("Size", size(report.size)),
            ("Mode", report.mode.clone()),
        ],
    );
    heading(&mut page, "Metadata");
    match report.metadata.as_ref().map(serde_yaml::to_string) {
        Some(Ok(yaml)) => page.push_str(&paint(PLAIN, &yaml)),
        _ => page.push_str("none: the module was never annotated\n"),
    }
    for (title, names) in [("Imports", &report.imports), ("Exports", &report.exports)] {
        heading(&mut page, title);
        if names.is_empty() {
            page.push_str("none\n");
        }
        for name in names {
            page.push_str(&paint(PLAIN, &format!("{name}\n")));
        }
    }
    page
}

fn size(bytes: usize) -> String {
    match bytes {
        ..10_240 => format!("{bytes} bytes"),
        10_240..10_485_760 => format!("{} KiB", bytes / 1024),
        _ => format!("{} MiB", bytes / (1024 * 1024)),
    }
}

#[cfg(test)]
mod tests {
    use super::super::tests::{plain, view};
    use super::*;

    #[test]
    fn the_page_shows_metadata_imports_and_exports() {
        let report = ModuleReport {
            module: "file.wasm".to_owned(),
            digest: "sha256:00".to_owned(),
            size: 20_480,
            mode: "kubewarden-wapc".to_owned(),
            metadata: Some(serde_json::json!({"mutating": false})),
            imports: vec!["wapc.__guest_error".to_owned()],
            exports: Vec::new(),
        };
        let wanted = "\
Module  file.wasm
Digest  sha256:00
Size    20 KiB
Mode    kubewarden-wapc

Metadata
mutating: false

Imports
wapc.__guest_error

Exports
none
";
        assert_eq!(plain(&module(&report, &view(80))), wanted);
        let page = plain(&module(&ModuleReport { metadata: None, ..report }, &view(80)));
        assert!(page.contains("never annotated"), "{page}");
    }
}
