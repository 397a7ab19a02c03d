//! The modules of a spec: fetches or reads them, and compares them with the digests that they must have.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use proviso_artifacts::{Digest, FetchError, FetchOptions, Module, ModuleReference};
use proviso_crds::validation::FieldError;
use proviso_crds::{Program as ProgramSpec, Wasm};
use proviso_engines::wasm;
use proviso_programs::{execution_mode, snapshot_mode};

use super::Preparer;
use super::context::Parts;
use super::error::{PrepareError, in_field};
use crate::lifecycle::desired::ModuleSource;

/// Returns the modules that a program names.
pub fn module_references(program: &ProgramSpec) -> Vec<&Wasm> {
    match program {
        ProgramSpec::Wasm(wasm) => vec![wasm],
        ProgramSpec::Group(group) => {
            group.members.values().flat_map(|member| module_references(&member.program)).collect()
        }
        ProgramSpec::None | ProgramSpec::Rego(_) | ProgramSpec::Cel(_) | ProgramSpec::Requests(_) => Vec::new(),
    }
}

impl Preparer {
    /// Loads the module of the spec at this field. Returns its digest and the loaded module.
    pub(super) async fn module(
        &self,
        field: &str,
        spec: &Wasm,
        parts: &mut Parts<'_>,
    ) -> Result<(Digest, wasm::Module), PrepareError> {
        let source = parts.source;
        let reference = ModuleReference::parse(&spec.module, source.folder())
            .map_err(|error| PrepareError::Reference { field: format!("{field}.module"), error })?;
        let digest = spec.digest.as_deref().map(str::parse).transpose();
        let digest = digest.map_err(|error| PrepareError::Digest { field: format!("{field}.digest"), error })?;
        let (pin, snapshot) = (source.pin(&spec.module), snapshot_mode(spec));
        let module = if let ModuleReference::File(path) = &reference {
            self.file(field, spec, path, source)
                .await?
                .expect(digest.as_ref())
                .map_err(|error| fetch_error(field, error))?
        } else {
            // A loaded module was compared with its digest when it was loaded. Only its signatures are checked again.
            let wanted = pin.filter(|pin| digest.is_none_or(|digest| digest == *pin));
            let loaded = wanted.and_then(|pin| Some((pin, self.modules.loaded(pin, snapshot)?)));
            if let Some((pin, loaded)) = loaded
                && self.fetcher.is_trusted(pin).await.map_err(|error| fetch_error(field, error))?
            {
                return Ok((pin, loaded));
            }
            let names: Vec<String> = spec.image_pull_secrets.iter().map(|secret| secret.name.clone()).collect();
            let limits = parts.tenant.as_ref().map(|(_, limits)| Arc::clone(limits));
            let wanted = FetchOptions { digest, pin, pull_secrets: &names, tenant: limits.as_deref() };
            let cached = self.fetcher.fetch_cached(&reference, wanted).await;
            if let Some(module) = cached.map_err(|error| fetch_error(field, error))? {
                module
            } else {
                // A module that the cache has needs no server.
                if let Some((tenants, _)) = &parts.tenant
                    && !tenants.allows_module(&spec.module)
                {
                    let message = "comes from a server that is not permitted for namespaced policies any more";
                    return Err(PrepareError::NotPermitted(FieldError::new(format!("{field}.module"), message)));
                }
                let fetched = parts.permit.fetch(self.fetcher.fetch_uncached(&reference, wanted)).await;
                fetched.map_err(|error| fetch_error(field, error))?
            }
        };
        let loaded = self.modules.get(parts.policy, &module, snapshot).await;
        Ok((module.digest, loaded.map_err(|error| PrepareError::Compile { field: field.to_owned(), error })?))
    }

    /// Returns the execution mode of a module, from the metadata of the module or from the spec.
    pub(super) fn mode(field: &str, spec: &Wasm, module: &wasm::Module) -> Result<wasm::ExecutionMode, PrepareError> {
        module.mode(execution_mode(spec)).map_err(in_field(&format!("{field}.mode")))
    }

    /// Reads a module of a `file://` reference: from its file, or from the cache if its digest is pinned.
    async fn file(&self, field: &str, spec: &Wasm, path: &Path, source: &ModuleSource) -> Result<Module, PrepareError> {
        if !spec.image_pull_secrets.is_empty() {
            return Err(PrepareError::Unsupported(format!("{field}.imagePullSecrets")));
        }
        if self.fetcher.requires_signatures() {
            return Err(fetch_error(field, FetchError::Unverifiable(spec.module.clone())));
        }
        let pin = source.pin(&spec.module);
        match source {
            ModuleSource::Manifest { .. } => {
                let module = read(path.to_owned()).await.map_err(|error| fetch_error(field, error))?;
                if pin == Some(module.digest) { Ok(module) } else { Err(PrepareError::Changed(spec.module.clone())) }
            }
            ModuleSource::Pinned(_) => self.cached_file(&spec.module, pin).await,
            ModuleSource::Network(_) => Err(PrepareError::File(format!("{field}.module"))),
        }
    }

    /// Reads a module from the cache, as its file was when the policy was accepted.
    async fn cached_file(&self, reference: &str, pin: Option<Digest>) -> Result<Module, PrepareError> {
        let lost = || PrepareError::Lost(reference.to_owned());
        let (pin, cache) = (pin.ok_or_else(lost)?, self.cache.as_ref().ok_or_else(lost)?);
        let bytes = cache.run(move |cache| cache.module(&pin)).await?;
        bytes.map(|bytes| Module::new(pin, bytes)).ok_or_else(lost)
    }
}

fn fetch_error(field: &str, error: FetchError) -> PrepareError {
    let name = if matches!(error, FetchError::PullSecret(_)) { "imagePullSecrets" } else { "module" };
    PrepareError::Fetch { field: format!("{field}.{name}"), error: error.into() }
}

async fn read(path: PathBuf) -> Result<Module, FetchError> {
    let reading = tokio::task::spawn_blocking(move || Module::read(&path));
    reading.await.map_err(|stopped| FetchError::Stopped(stopped.to_string()))?
}
