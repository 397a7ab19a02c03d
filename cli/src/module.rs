//! Reads the metadata, imports and exports of a module, and writes metadata into it. Pure.

use proviso_engines::CompileError;
use proviso_engines::wasm::Metadata;
use serde_json::Value;
use wasm_encoder::{CustomSection, Module, RawSection};
use wasmparser::{ExternalKind, Parser, Payload, TypeRef};

/// The custom section for Kubewarden's metadata.
const METADATA_SECTION: &str = "io.kubewarden.metadata";

/// The metadata, imports and exports of a module.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Contents {
    /// The metadata without changes; `None` if the module was never annotated.
    pub metadata: Option<Value>,
    /// The imports as `module.name`, in the module's order.
    pub imports: Vec<String>,
    pub exports: Vec<String>,
}

/// The error of reading or annotating a module.
#[derive(Debug, thiserror::Error)]
pub enum ModuleError {
    #[error("the bytes are not a WebAssembly module: {0}")]
    Wasm(#[from] wasmparser::BinaryReaderError),
    #[error("the bytes are a WebAssembly component: a policy must be a core module")]
    Component,
    #[error("the section {METADATA_SECTION}: {0}")]
    Json(serde_json::Error),
    #[error("the metadata is not an object")]
    NoObject,
    #[error("{0}")]
    Metadata(#[from] CompileError),
}

impl Contents {
    /// Reads the contents of a module.
    ///
    /// # Errors
    /// When the bytes are not a core module, or its metadata is not JSON.
    pub fn read(wasm: &[u8]) -> Result<Self, ModuleError> {
        let mut contents = Self::default();
        for payload in Parser::new(0).parse_all(wasm) {
            match payload? {
                Payload::Version { encoding: wasmparser::Encoding::Component, .. } => {
                    return Err(ModuleError::Component);
                }
                Payload::ImportSection(imports) => {
                    for import in imports.into_imports() {
                        let import = import?;
                        let kind = kind(&import.ty);
                        contents.imports.push(format!("{}.{}{kind}", import.module, import.name));
                    }
                }
                Payload::ExportSection(exports) => {
                    for export in exports {
                        let export = export?;
                        let is_function = matches!(export.kind, ExternalKind::Func | ExternalKind::FuncExact);
                        let kind =
                            if is_function { String::new() } else { format!(" ({:?})", export.kind).to_lowercase() };
                        contents.exports.push(format!("{}{kind}", export.name));
                    }
                }
                Payload::CustomSection(section) if section.name() == METADATA_SECTION => {
                    contents.metadata = Some(serde_json::from_slice(section.data()).map_err(ModuleError::Json)?);
                }
                _ => {}
            }
        }
        Ok(contents)
    }

    /// Returns the calling convention of the module, as its metadata or else its imports and exports show it.
    #[must_use]
    pub fn mode(&self) -> String {
        if let Some(mode) = self.metadata.as_ref().and_then(|it| it["executionMode"].as_str()) {
            return mode.to_owned();
        }
        let imports = |prefix: &str| self.imports.iter().any(|it| it.starts_with(prefix));
        let exports = |name: &str| self.exports.iter().any(|it| it == name);
        match () {
            () if imports("env.opa_") => "opa or gatekeeper (set spec.program.wasm.mode)",
            () if imports("wapc.") || exports("__guest_call") => "kubewarden-wapc",
            () if exports("_start") => "wasi",
            () => "unknown",
        }
        .to_owned()
    }
}

fn kind(kind: &TypeRef) -> &'static str {
    match kind {
        TypeRef::Memory(_) => " (memory)",
        TypeRef::Table(_) => " (table)",
        TypeRef::Global(_) => " (global)",
        _ => "",
    }
}

/// Returns the module with this metadata in place of its previous metadata.
///
/// # Errors
/// When the bytes are not a core module, or the metadata is not valid for Kubewarden.
pub fn annotate(wasm: &[u8], metadata: &Value) -> Result<Vec<u8>, ModuleError> {
    let mut metadata = metadata.clone();
    let members = metadata.as_object_mut().ok_or(ModuleError::NoObject)?;
    // Kubewarden has only this version.
    members.entry("protocolVersion").or_insert_with(|| "v1".into());
    let mut module = Module::new();
    for payload in Parser::new(0).parse_all(wasm) {
        let payload = payload?;
        match &payload {
            Payload::Version { encoding: wasmparser::Encoding::Component, .. } => return Err(ModuleError::Component),
            Payload::CustomSection(section) if section.name() == METADATA_SECTION => continue,
            _ => {}
        }
        if let Some((id, range)) = payload.as_section() {
            module.section(&RawSection { id, data: &wasm[range] });
        }
    }
    let text = metadata.to_string();
    module.section(&CustomSection { name: METADATA_SECTION.into(), data: text.as_bytes().into() });
    let annotated = module.finish();
    // Invalid metadata fails here, and not when the policy is deployed.
    Metadata::read(&annotated)?;
    Ok(annotated)
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    /// Returns a module that imports a function of waPC and exports `__guest_call`.
    fn module() -> Vec<u8> {
        use wasm_encoder::{
            CodeSection, EntityType, ExportKind, ExportSection, Function, FunctionSection, ImportSection, TypeSection,
        };
        let mut module = Module::new();
        let mut types = TypeSection::new();
        types.ty().function([], []);
        let mut imports = ImportSection::new();
        imports.import("wapc", "__guest_error", EntityType::Function(0));
        let mut functions = FunctionSection::new();
        functions.function(0);
        let mut exports = ExportSection::new();
        exports.export("__guest_call", ExportKind::Func, 1);
        let mut code = CodeSection::new();
        let mut body = Function::new([]);
        body.instructions().end();
        code.function(&body);
        module.section(&types).section(&imports).section(&functions).section(&exports).section(&code);
        module.finish()
    }

    #[test]
    fn imports_and_exports_of_a_module_are_listed() {
        let contents = Contents::read(&module()).unwrap();
        assert_eq!(
            (&contents.imports[..], &contents.exports[..]),
            (&["wapc.__guest_error".to_owned()][..], &["__guest_call".to_owned()][..])
        );
        assert_eq!((contents.mode().as_str(), contents.metadata), ("kubewarden-wapc", None));
        for (bytes, wanted) in [(&b"not wasm"[..], "not a WebAssembly module"), (b"\0asm\x0d\0\x01\0", "component")] {
            let error = Contents::read(bytes).unwrap_err().to_string();
            assert!(error.contains(wanted), "{error}");
        }
    }

    #[test]
    fn metadata_is_written_once_and_the_rest_stays() {
        let first = annotate(&module(), &json!({"mutating": true, "executionMode": "wasi"})).unwrap();
        let second = annotate(&first, &json!({"mutating": false, "rules": []})).unwrap();
        let contents = Contents::read(&second).unwrap();
        assert_eq!(contents.metadata, Some(json!({"mutating": false, "rules": [], "protocolVersion": "v1"})));
        assert_eq!(contents.imports, Contents::read(&module()).unwrap().imports);
        assert!(second.starts_with(&module()), "the other sections are the same, byte by byte");
        assert_eq!(Contents::read(&first).unwrap().mode(), "wasi");
    }

    #[test]
    fn metadata_that_is_invalid_for_kubewarden_is_refused() {
        for metadata in [json!({"mutating": "yes"}), json!({"executionMode": "magic"}), json!([])] {
            assert!(annotate(&module(), &metadata).is_err(), "{metadata}");
        }
    }
}
