//! Rewrites compiled Rego so that the module defines the memory that it imports. The engine's pool then allocates the memory
//! of each instance, with the data in place and under the engine's limit.

use wasm_encoder::{
    EntityType, ExportKind, ExportSection, ImportSection, MemorySection, MemoryType, Module, RawSection,
};
use wasmparser::{ExportSectionReader, ExternalKind, ImportSectionReader, Parser, Payload, TypeRef};

use crate::CompileError;

/// The module name of all imports of compiled Rego.
pub(in crate::wasm) const IMPORTS: &str = "env";
const MEMORY: &str = "memory";

/// Returns the module with a memory of its own, exported as `memory`, in place of the imported memory. Returns a module
/// without an imported memory, or a damaged module, unchanged: the compiler refuses a damaged module later.
pub(in crate::wasm) fn with_own_memory(wasm: &[u8]) -> Result<Vec<u8>, CompileError> {
    let (mut module, mut memory) = (Module::new(), None);
    for payload in Parser::new(0).parse_all(wasm) {
        let Ok(payload) = payload else { return Ok(wasm.to_vec()) };
        match payload {
            Payload::ImportSection(imports) => {
                let (section, imported) = remove_memory_import(imports)?;
                memory = imported;
                module.section(&section);
            }
            Payload::MemorySection(_) if memory.is_some() => {
                return Err(CompileError::Unsupported(
                    "the module has a memory besides the one that it imports".into(),
                ));
            }
            Payload::ExportSection(exports) => {
                define_memory(&mut memory, &mut module);
                module.section(&export_memory(exports)?);
            }
            payload => {
                // The memory section must come before these sections.
                if matches!(
                    payload,
                    Payload::GlobalSection(_)
                        | Payload::TagSection(_)
                        | Payload::StartSection { .. }
                        | Payload::ElementSection(_)
                        | Payload::DataCountSection { .. }
                        | Payload::CodeSectionStart { .. }
                        | Payload::DataSection(_)
                ) {
                    define_memory(&mut memory, &mut module);
                }
                if let Some((id, range)) = payload.as_section() {
                    let Some(data) = wasm.get(range) else { return Ok(wasm.to_vec()) };
                    module.section(&RawSection { id, data });
                }
            }
        }
    }
    Ok(module.finish())
}

/// Adds the memory section, once.
fn define_memory(memory: &mut Option<MemoryType>, module: &mut Module) {
    if let Some(memory) = memory.take() {
        let mut section = MemorySection::new();
        section.memory(memory);
        module.section(&section);
    }
}

fn remove_memory_import(imports: ImportSectionReader<'_>) -> Result<(ImportSection, Option<MemoryType>), CompileError> {
    let (mut section, mut memory) = (ImportSection::new(), None);
    for import in imports.into_imports() {
        let import = import.map_err(|error| parse_error(&error))?;
        match import.ty {
            TypeRef::Func(index) => {
                section.import(import.module, import.name, EntityType::Function(index));
            }
            TypeRef::Memory(imported)
                if (import.module, import.name) == (IMPORTS, MEMORY) && memory.is_none() && !imported.shared =>
            {
                memory = Some(MemoryType {
                    minimum: imported.initial,
                    maximum: imported.maximum,
                    memory64: imported.memory64,
                    shared: false,
                    page_size_log2: imported.page_size_log2,
                });
            }
            _ => {
                let (module, name) = (import.module, import.name);
                return Err(CompileError::Unsupported(format!(
                    "the module imports {module}.{name}, which is not provided to compiled Rego: only the memory and the \
                     functions of OPA are"
                )));
            }
        }
    }
    Ok((section, memory))
}

/// Returns the exports, with the memory among them.
fn export_memory(exports: ExportSectionReader<'_>) -> Result<ExportSection, CompileError> {
    let (mut section, mut is_exported) = (ExportSection::new(), false);
    for export in exports {
        let export = export.map_err(|error| parse_error(&error))?;
        is_exported |= export.name == MEMORY;
        let kind = match export.kind {
            ExternalKind::Func => ExportKind::Func,
            ExternalKind::Table => ExportKind::Table,
            ExternalKind::Memory => ExportKind::Memory,
            ExternalKind::Global => ExportKind::Global,
            _ => {
                return Err(CompileError::Unsupported(format!(
                    "the module exports {}, which is of a kind that compiled Rego does not export",
                    export.name
                )));
            }
        };
        section.export(export.name, kind, export.index);
    }
    if !is_exported {
        section.export(MEMORY, ExportKind::Memory, 0);
    }
    Ok(section)
}

fn parse_error(error: &wasmparser::BinaryReaderError) -> CompileError {
    CompileError::Invalid(format!("the module does not compile: {error}"))
}
