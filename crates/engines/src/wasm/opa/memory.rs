//! Compiled Rego imports its memory. A module that owns it is the same module, and its instances come out of the engine's
//! pool, with their data in place and under the engine's limit.

use wasm_encoder::{
    EntityType, ExportKind, ExportSection, ImportSection, MemorySection, MemoryType, Module, RawSection,
};
use wasmparser::{ExportSectionReader, ExternalKind, ImportSectionReader, Parser, Payload, TypeRef};

use crate::CompileError;

/// The module of everything that compiled Rego imports.
pub(in crate::wasm) const IMPORTS: &str = "env";
const MEMORY: &str = "memory";

/// The same module with a memory of its own under the name `memory`. What imports none stays as it is; so does what is
/// damaged, for the compiler to refuse.
pub(in crate::wasm) fn with_own_memory(wasm: &[u8]) -> Result<Vec<u8>, CompileError> {
    let (mut module, mut memory) = (Module::new(), None);
    for payload in Parser::new(0).parse_all(wasm) {
        let Ok(payload) = payload else { return Ok(wasm.to_vec()) };
        match payload {
            Payload::ImportSection(imports) => {
                let (section, imported) = without_memory(imports)?;
                memory = imported;
                module.section(&section);
            }
            Payload::MemorySection(_) if memory.is_some() => {
                return Err(CompileError::Unsupported(
                    "the module has a memory besides the one that it imports".into(),
                ));
            }
            Payload::ExportSection(exports) => {
                add(&mut memory, &mut module);
                module.section(&with_memory(exports)?);
            }
            payload => {
                // The sections that come after the memory's.
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
                    add(&mut memory, &mut module);
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

fn add(memory: &mut Option<MemoryType>, module: &mut Module) {
    if let Some(memory) = memory.take() {
        let mut section = MemorySection::new();
        section.memory(memory);
        module.section(&section);
    }
}

fn without_memory(imports: ImportSectionReader<'_>) -> Result<(ImportSection, Option<MemoryType>), CompileError> {
    let (mut section, mut memory) = (ImportSection::new(), None);
    for import in imports.into_imports() {
        let import = import.map_err(|error| damaged(&error))?;
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

fn with_memory(exports: ExportSectionReader<'_>) -> Result<ExportSection, CompileError> {
    let (mut section, mut is_exported) = (ExportSection::new(), false);
    for export in exports {
        let export = export.map_err(|error| damaged(&error))?;
        is_exported |= export.name == MEMORY;
        let kind = match export.kind {
            ExternalKind::Func => ExportKind::Func,
            ExternalKind::Table => ExportKind::Table,
            ExternalKind::Memory => ExportKind::Memory,
            ExternalKind::Global => ExportKind::Global,
            _ => {
                return Err(CompileError::Unsupported(format!(
                    "the module exports {}, which is no OPA's",
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

fn damaged(error: &wasmparser::BinaryReaderError) -> CompileError {
    CompileError::Invalid(format!("the module does not compile: {error}"))
}
