//! What is in a module, and writing into it what it says about itself. Pure.

use proviso_engines::CompileError;
use proviso_engines::wasm::Metadata;
use serde_json::Value;
use wasm_encoder::{CustomSection, Module, RawSection};
use wasmparser::{ExternalKind, Parser, Payload, TypeRef};

/// The section that Kubewarden keeps the metadata in.
const SECTION: &str = "io.kubewarden.metadata";

/// What was found in a module.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Contents {
    /// As it stands there; none where the module was never annotated.
    pub metadata: Option<Value>,
    /// `module.name`, in the module's order.
    pub imports: Vec<String>,
    pub exports: Vec<String>,
}

/// Bytes that are no module, or metadata that is none.
#[derive(Debug, thiserror::Error)]
pub enum ModuleError {
    #[error("these bytes are no WebAssembly module: {0}")]
    Wasm(#[from] wasmparser::BinaryReaderError),
    #[error("this is a WebAssembly component: policies are core modules")]
    Component,
    #[error("the section {SECTION}: {0}")]
    Json(serde_json::Error),
    #[error("the metadata is no object")]
    NoObject,
    #[error("{0}")]
    Metadata(#[from] CompileError),
}

impl Contents {
    /// Looks into a module.
    ///
    /// # Errors
    /// When it is none, or its metadata is no JSON.
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
                        let what = kind(&import.ty);
                        contents.imports.push(format!("{}.{}{what}", import.module, import.name));
                    }
                }
                Payload::ExportSection(exports) => {
                    for export in exports {
                        let export = export?;
                        let is_function = matches!(export.kind, ExternalKind::Func | ExternalKind::FuncExact);
                        let what =
                            if is_function { String::new() } else { format!(" ({:?})", export.kind).to_lowercase() };
                        contents.exports.push(format!("{}{what}", export.name));
                    }
                }
                Payload::CustomSection(section) if section.name() == SECTION => {
                    contents.metadata = Some(serde_json::from_slice(section.data()).map_err(ModuleError::Json)?);
                }
                _ => {}
            }
        }
        Ok(contents)
    }

    /// How the module is called: what it says, or what its imports tell.
    #[must_use]
    pub fn mode(&self) -> String {
        if let Some(mode) = self.metadata.as_ref().and_then(|it| it["executionMode"].as_str()) {
            return mode.to_owned();
        }
        let imports = |prefix: &str| self.imports.iter().any(|it| it.starts_with(prefix));
        let exports = |name: &str| self.exports.iter().any(|it| it == name);
        match () {
            () if imports("env.opa_") => "opa or gatekeeper (say which: spec.program.wasm.mode)",
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

/// The module with this metadata in place of what it had.
///
/// # Errors
/// When it is no module, or the metadata is not what Kubewarden writes.
pub fn annotate(wasm: &[u8], metadata: &Value) -> Result<Vec<u8>, ModuleError> {
    let mut metadata = metadata.clone();
    let members = metadata.as_object_mut().ok_or(ModuleError::NoObject)?;
    // There is no other.
    members.entry("protocolVersion").or_insert_with(|| "v1".into());
    let mut module = Module::new();
    for payload in Parser::new(0).parse_all(wasm) {
        let payload = payload?;
        match &payload {
            Payload::Version { encoding: wasmparser::Encoding::Component, .. } => return Err(ModuleError::Component),
            Payload::CustomSection(section) if section.name() == SECTION => continue,
            _ => {}
        }
        if let Some((id, range)) = payload.as_section() {
            module.section(&RawSection { id, data: &wasm[range] });
        }
    }
    let text = metadata.to_string();
    module.section(&CustomSection { name: SECTION.into(), data: text.as_bytes().into() });
    let annotated = module.finish();
    // What is wrong with it is found now, not when the policy is deployed.
    Metadata::read(&annotated)?;
    Ok(annotated)
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    /// With a function `run` that is exported, and an import of waPC's.
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
    fn a_module_tells_what_it_needs_and_offers() {
        let contents = Contents::read(&module()).unwrap();
        assert_eq!(
            (&contents.imports[..], &contents.exports[..]),
            (&["wapc.__guest_error".to_owned()][..], &["__guest_call".to_owned()][..])
        );
        assert_eq!((contents.mode().as_str(), contents.metadata), ("kubewarden-wapc", None));
        for (bytes, wanted) in [(&b"not wasm"[..], "no WebAssembly module"), (b"\0asm\x0d\0\x01\0", "component")] {
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
        assert!(second.starts_with(&module()), "what was there is the same, byte by byte");
        assert_eq!(Contents::read(&first).unwrap().mode(), "wasi");
    }

    #[test]
    fn metadata_that_kubewarden_would_not_write_is_refused() {
        for metadata in [json!({"mutating": "yes"}), json!({"executionMode": "magic"}), json!([])] {
            assert!(annotate(&module(), &metadata).is_err(), "{metadata}");
        }
    }
}
