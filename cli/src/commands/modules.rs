//! The commands about modules: `proviso inspect`, `digest`, `verify`, `pull`, `push` and `annotate`.

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use proviso_artifacts::{FetchOptions, Module, ModuleReference, create_atomically, rewrite_atomically};
use proviso_evaluation::documents;

use super::{Session, fetcher, in_form, print};
use crate::arguments::{Annotate, DigestOf, Inspect, Pull, Push, Registries, Signatures, Verify};
use crate::error::Error;
use crate::module::{self, Contents};
use crate::render;
use crate::report::module::ModuleReport;
use crate::signatures::{self, Signed};

pub async fn inspect(session: &Session<()>, arguments: &Inspect) -> Result<ExitCode, Error> {
    let module = fetch(&arguments.module, &arguments.registries).await?;
    let contents = Contents::read(&module.bytes)?;
    let report = ModuleReport::new(arguments.module.clone(), module.digest.to_string(), module.bytes.len(), contents);
    let form = arguments.output.output;
    print(&in_form(&report, form, || render::module(&report, &session.view(form)))?)?;
    Ok(ExitCode::SUCCESS)
}

pub async fn digest(arguments: &DigestOf) -> Result<ExitCode, Error> {
    let module = fetch(&arguments.module, &arguments.registries).await?;
    print(&format!("{}\n", module.digest))?;
    Ok(ExitCode::SUCCESS)
}

pub async fn verify(arguments: &Verify) -> Result<ExitCode, Error> {
    let Signed { module, manifest } = signed(&arguments.module, &arguments.registries, &arguments.signatures).await?;
    if let Some(wanted) = arguments.digest.filter(|wanted| *wanted != module.digest) {
        let name = arguments.module.clone();
        return Err(Error::DigestMismatch { name, actual: module.digest, wanted });
    }
    let signed = if arguments.signatures.is_any() { " has the required signatures, and" } else { "" };
    print(&format!("{}{signed} has the digest {}\n", arguments.module, module.digest))?;
    if let Some(manifest) = manifest {
        print(&format!("manifest: {manifest}\n"))?;
    }
    Ok(ExitCode::SUCCESS)
}

pub async fn pull(arguments: &Pull) -> Result<ExitCode, Error> {
    let file = arguments.file.clone().unwrap_or_else(|| default_file(&arguments.module));
    if file.exists() {
        return Err(Error::file(&file, std::io::ErrorKind::AlreadyExists.into()));
    }
    let Signed { module, .. } = signed(&arguments.module, &arguments.registries, &arguments.signatures).await?;
    let created = std::path::absolute(&file).and_then(|path| create_atomically(&path, &module.bytes));
    created.map_err(|error| Error::file(&file, error))?;
    print(&format!("{}: {}\n", file.display(), module.digest))?;
    Ok(ExitCode::SUCCESS)
}

pub async fn push(arguments: &Push) -> Result<ExitCode, Error> {
    let module = Module::read(&arguments.file)?;
    // Invalid bytes fail here, and not when a policy server fetches the module.
    Contents::read(&module.bytes)?;
    let manifest = fetcher(&arguments.registries).push(&arguments.artifact, &module).await?;
    let artifact = &arguments.artifact;
    print(&format!("registry://{artifact}\nmanifest: {manifest}\nmodule: {}\n", module.digest))?;
    Ok(ExitCode::SUCCESS)
}

pub fn annotate(arguments: &Annotate) -> Result<ExitCode, Error> {
    let module = Module::read(&arguments.file)?;
    let metadata = documents::only(&arguments.metadata)?.value;
    let annotated = module::annotate(&module.bytes, &metadata)?;
    let file = arguments.to.as_ref().unwrap_or(&arguments.file);
    let written = std::path::absolute(file).and_then(|path| {
        if path.exists() { rewrite_atomically(&path, &annotated) } else { create_atomically(&path, &annotated) }
    });
    written.map_err(|error| Error::file(file, error))?;
    print(&format!("{}: {}\n", file.display(), proviso_artifacts::Digest::of(&annotated)))?;
    Ok(ExitCode::SUCCESS)
}

/// Reads a module from a file, or fetches it by its reference.
async fn fetch(module: &str, registries: &Registries) -> Result<Module, Error> {
    if !module.contains("://") {
        return Ok(Module::read(Path::new(module))?);
    }
    let reference = ModuleReference::parse(module, Path::new(""))?;
    Ok(fetcher(registries).fetch(&reference, FetchOptions::default()).await?)
}

/// Fetches a module, and verifies its signatures if any are required.
async fn signed(module: &str, registries: &Registries, wanted: &Signatures) -> Result<Signed, Error> {
    if wanted.is_any() {
        return signatures::fetch(fetcher(registries), module, wanted).await;
    }
    Ok(Signed { module: fetch(module, registries).await?, manifest: None })
}

/// Returns the name of the file for a module: the last part of its reference.
fn default_file(module: &str) -> PathBuf {
    let last = module.rsplit('/').next().unwrap_or_default();
    let name = last.split(['@', ':', '?', '#']).next().unwrap_or_default().trim_end_matches(".wasm");
    format!("{name}.wasm").into()
}

#[cfg(test)]
mod tests {
    #[test]
    fn the_default_file_has_the_name_of_the_module() {
        for (module, wanted) in [
            ("registry://ghcr.io/team/owners:v1", "owners.wasm"),
            ("registry://ghcr.io/team/owners@sha256:00", "owners.wasm"),
            ("https://example.com/a/owners.wasm?v=1", "owners.wasm"),
        ] {
            assert_eq!(super::default_file(module), std::path::Path::new(wanted));
        }
    }
}
