//! From a spec to something that can decide: fetch, verify, compile, validate the settings. No step touches what
//! serves now.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use proviso_artifacts::{Cache, CacheError, Digest, DigestError, FetchError, Module, ModuleReference, ReferenceError};
use proviso_core::PolicyId;
use proviso_crds::{ContextAwareResource, Group, PolicySpec, Program as ProgramSpec, Wasm, WasmMode};
use proviso_engines::{CompileError, Deadline, EvaluationError, Program, SettingsError, group, wasm};
use proviso_programs::{compile_cel, compile_rego};
use serde_json::{Map, Value};

use crate::manifests::ObjectId;
use crate::metrics::Metrics;
use crate::modules::{COMPILE_TIMEOUT, ModuleError, Modules};
use crate::state::DigestText;
use crate::table::Revision;

/// Why a spec cannot be made to decide.
#[derive(Debug, thiserror::Error)]
pub enum PrepareError {
    #[error(transparent)]
    Reference(#[from] ReferenceError),
    #[error(transparent)]
    Fetch(#[from] FetchError),
    #[error(transparent)]
    Cache(#[from] CacheError),
    #[error("the module {0} is not in the state folder any more")]
    Lost(Digest),
    #[error(transparent)]
    Module(#[from] ModuleError),
    #[error("{field}: {error}")]
    Compile { field: String, error: CompileError },
    #[error("{0}: is not served by this version: remove it")]
    Unsupported(String),
    #[error("the module {0} changed while it was being read")]
    Changed(String),
    #[error("spec.program.wasm.digest: {0}")]
    Digest(#[from] DigestError),
    #[error("the record of {0} names no policy: remove it from the state folder")]
    Record(ObjectId),
    #[error("spec.admission: is missing: say which requests the policy decides about")]
    NoAdmission,
    #[error(
        "{0}.wasm.module: a file:// module is for a policy server over a folder: name one that every replica can fetch"
    )]
    File(String),
    #[error(transparent)]
    Settings(#[from] SettingsError),
    #[error("spec.admission: {0}")]
    Match(#[from] kube::core::ParseExpressionError),
    #[error("{field}: compiling it took longer than {} s", COMPILE_TIMEOUT.as_secs())]
    Timeout { field: String },
    #[error("the compiler stopped: {0}")]
    Stopped(String),
    #[error("spec.policyRef.name: cannot be changed from {from} to {to}: make a new experiment")]
    Immutable { from: String, to: String },
}

impl PrepareError {
    /// Stable name: log field and, in a cluster, the reason of the condition.
    #[must_use]
    pub fn reason(&self) -> &'static str {
        match self {
            Self::Reference(_) | Self::Lost(_) | Self::Changed(_) => "PullError",
            Self::Fetch(error) => error.reason(),
            Self::Cache(error) => error.reason(),
            Self::Module(error) => error.reason(),
            Self::Compile { error, .. } => error.reason(),
            Self::Unsupported(_) => "Unsupported",
            Self::Settings(error) => error.reason(),
            Self::Match(_)
            | Self::Immutable { .. }
            | Self::Digest(_)
            | Self::Record(_)
            | Self::NoAdmission
            | Self::File(_) => "Invalid",
            Self::Timeout { .. } => "CompileTimeout",
            Self::Stopped(_) => "CompileError",
        }
    }
}

impl PrepareError {
    /// Whether the same version may work later, because what stood in its way was not its own.
    #[must_use]
    pub fn is_passing(&self) -> bool {
        match self {
            Self::Fetch(error) => matches!(error, FetchError::File { .. }),
            Self::Module(error) => !matches!(error, ModuleError::Compile(_)),
            Self::Settings(SettingsError::Unanswered(error)) => {
                matches!(error, EvaluationError::DeadlineExceeded | EvaluationError::Overloaded)
            }
            Self::Cache(_) | Self::Timeout { .. } | Self::Stopped(_) => true,
            _ => false,
        }
    }
}

/// Where the modules of a spec come from.
#[derive(Clone, Debug)]
pub enum ModuleSource {
    /// What the references name now; relative ones start at this folder. They must be the bytes that were seen when
    /// the version was fingerprinted.
    Manifest { folder: PathBuf, digests: BTreeMap<String, DigestText> },
    /// What the references named when the spec was accepted, from the cache.
    Pinned(BTreeMap<String, DigestText>),
    /// What the references name now, from where every replica of a cluster can fetch it.
    Network,
}

/// Where a policy's spec stands in its object: the start of every field's path.
#[derive(Clone, Copy, Debug)]
pub struct Scope(&'static str);

impl Scope {
    pub const POLICY: Self = Self("spec");

    #[must_use]
    pub fn of(id: &ObjectId) -> Self {
        if matches!(id, ObjectId::Experiment(_)) { Self("spec.policy") } else { Self::POLICY }
    }
}

/// Which generation of which policy a revision is.
#[derive(Clone, Copy, Debug)]
pub struct RevisionOf<'a> {
    pub policy: &'a PolicyId,
    /// Of the policy or the experiment: tells it from one of the same name that was removed.
    pub uid: &'a str,
    pub generation: u64,
}

/// Makes specs ready. Shared by all rollouts.
#[derive(Debug)]
pub struct Preparer {
    pub modules: Modules,
    pub cache: Option<Arc<Cache>>,
    /// For policies without a `timeoutEvalSeconds`.
    pub evaluation_timeout: Duration,
}

/// The modules that a spec names.
pub fn module_references(program: &ProgramSpec) -> Vec<&Wasm> {
    match program {
        ProgramSpec::Wasm(wasm) => vec![wasm],
        ProgramSpec::Group(group) => {
            group.members.values().flat_map(|member| module_references(&member.program)).collect()
        }
        ProgramSpec::Rego(_) | ProgramSpec::Cel(_) => Vec::new(),
    }
}

/// Reads the module behind a reference. Blocks on the disk.
///
/// # Errors
/// When the reference names nothing that can be read, or something with another digest than it asks for.
fn fetch(spec: &Wasm, folder: &Path) -> Result<Module, PrepareError> {
    let wanted = spec.digest.as_deref().map(str::parse).transpose()?;
    Ok(ModuleReference::parse(&spec.module, folder)?.fetch(wanted.as_ref())?)
}

/// Reads the module at this path. Blocks on the disk.
///
/// # Errors
/// When the file cannot be read or is too large.
pub fn read_module(path: &Path) -> Result<Module, FetchError> {
    ModuleReference::File(path.to_owned()).fetch(None)
}

impl Preparer {
    /// How long one evaluation of this policy may take.
    #[must_use]
    pub fn timeout(&self, spec: &PolicySpec) -> Duration {
        spec.timeout_eval_seconds.map_or(self.evaluation_timeout, |seconds| Duration::from_secs(seconds.into()))
    }

    /// Puts a program and the spec that it was made of together.
    ///
    /// # Errors
    /// When the spec covers nothing that can be told.
    pub fn revision(
        &self,
        of: RevisionOf<'_>,
        spec: &PolicySpec,
        program: Program,
        metrics: &Metrics,
    ) -> Result<Revision, PrepareError> {
        // A spec without this section was refused when it was read.
        let admission = spec.admission.as_ref().ok_or(PrepareError::NoAdmission)?;
        let etag = Digest::of(format!("{}/{}", of.uid, of.generation).as_bytes()).hex();
        Ok(Revision {
            policy: of.policy.clone(),
            generation: of.generation,
            etag: format!("\"{}\"", &etag[..16]),
            matching: admission.to_match()?.confined_to(of.policy.namespace()),
            enforcement: admission.to_enforcement(),
            enabled: spec.enabled,
            timeout: self.timeout(spec),
            metrics: metrics.policy(of.policy, program.engine()),
            program,
        })
    }

    /// Makes the spec's program, and asks it whether it accepts its settings.
    ///
    /// # Errors
    /// When any of the steps fails. Nothing that serves is touched.
    pub async fn prepare(
        &self,
        spec: &PolicySpec,
        Scope(at): Scope,
        source: &ModuleSource,
    ) -> Result<Program, PrepareError> {
        refuse_unsupported(at, spec)?;
        let program = self.program(&format!("{at}.program"), &spec.program, &spec.settings, source).await?;
        program.validate_settings(Deadline::after(self.timeout(spec))).await?;
        Ok(program)
    }

    async fn program(
        &self,
        field: &str,
        spec: &ProgramSpec,
        settings: &Map<String, Value>,
        source: &ModuleSource,
    ) -> Result<Program, PrepareError> {
        match spec {
            ProgramSpec::Wasm(spec) => self.wasm(field, spec, settings, source).await.map(Program::Wasm),
            ProgramSpec::Rego(spec) => {
                let (spec, settings) = (spec.clone(), settings.clone());
                compile(format!("{field}.rego.source"), move || compile_rego(&spec, &settings)).await.map(Program::Rego)
            }
            ProgramSpec::Cel(spec) => {
                let (spec, settings) = (spec.clone(), settings.clone());
                compile(format!("{field}.cel"), move || compile_cel(&spec, &settings)).await.map(Program::Cel)
            }
            ProgramSpec::Group(spec) => Box::pin(self.group(field, spec, source)).await.map(Program::Group),
        }
    }

    async fn wasm(
        &self,
        field: &str,
        spec: &Wasm,
        settings: &Map<String, Value>,
        source: &ModuleSource,
    ) -> Result<wasm::Program, PrepareError> {
        if spec.mode.is_some_and(|mode| mode != WasmMode::Wapc) {
            return Err(PrepareError::Unsupported(format!("{field}.wasm.mode")));
        }
        if !spec.image_pull_secrets.is_empty() {
            return Err(PrepareError::Unsupported(format!("{field}.wasm.imagePullSecrets")));
        }
        if matches!(source, ModuleSource::Network) && spec.module.starts_with("file://") {
            return Err(PrepareError::File(field.to_owned()));
        }
        let module = self.module(spec.clone(), source.clone()).await?;
        if let Some(metadata) = wasm::Metadata::read(&module.bytes).map_err(in_field(field))? {
            metadata.check_runnable().map_err(in_field(field))?;
        }
        let settings = serde_json::to_vec(settings).unwrap_or_default();
        Ok(wasm::Program::new(self.modules.get(&module).await?, settings))
    }

    async fn module(&self, spec: Wasm, source: ModuleSource) -> Result<Module, PrepareError> {
        let cache = self.cache.clone();
        let reading = tokio::task::spawn_blocking(move || match source {
            ModuleSource::Manifest { folder, digests } => {
                let module = fetch(&spec, &folder)?;
                match digests.get(&spec.module) {
                    Some(seen) if seen.0 == module.digest => Ok(module),
                    _ => Err(PrepareError::Changed(spec.module)),
                }
            }
            ModuleSource::Pinned(digests) => {
                let digest = digests.get(&spec.module).ok_or_else(|| ReferenceError::Scheme(spec.module.clone()))?.0;
                let bytes = cache.map(|cache| cache.module(&digest)).transpose()?.flatten();
                bytes.map(|bytes| Module { digest, bytes }).ok_or(PrepareError::Lost(digest))
            }
            // Nothing is relative to a folder there.
            ModuleSource::Network => fetch(&spec, Path::new("")),
        });
        reading.await.map_err(|stopped| PrepareError::Stopped(stopped.to_string()))?
    }

    async fn group(&self, field: &str, spec: &Group, source: &ModuleSource) -> Result<group::Program, PrepareError> {
        let mut members = BTreeMap::new();
        for (name, member) in &spec.members {
            let at = format!("{field}.group.members.{name}");
            refuse_reads(&at, &member.context_aware_resources)?;
            let program = self.program(&format!("{at}.program"), &member.program, &member.settings, source).await?;
            members.insert(name.clone(), Arc::new(program));
        }
        group::Program::new(members, &spec.expression, spec.message.clone())
            .map_err(in_field(&format!("{field}.group.expression")))
    }
}

/// Compiles off the async workers: some sources take long.
async fn compile<T: Send + 'static>(
    field: String,
    compile: impl FnOnce() -> Result<T, CompileError> + Send + 'static,
) -> Result<T, PrepareError> {
    match tokio::time::timeout(COMPILE_TIMEOUT, tokio::task::spawn_blocking(compile)).await {
        Ok(Ok(result)) => result.map_err(in_field(&field)),
        Ok(Err(stopped)) => Err(PrepareError::Stopped(stopped.to_string())),
        Err(_) => Err(PrepareError::Timeout { field }),
    }
}

fn in_field(field: &str) -> impl FnOnce(CompileError) -> PrepareError {
    let field = field.to_owned();
    |error| PrepareError::Compile { field, error }
}

/// What the kinds have and this version does not serve. To ignore it would be to decide otherwise than asked.
fn refuse_unsupported(at: &str, spec: &PolicySpec) -> Result<(), PrepareError> {
    refuse_reads(at, &spec.context_aware_resources)?;
    if !spec.host_capabilities.is_empty() {
        return Err(PrepareError::Unsupported(format!("{at}.hostCapabilities")));
    }
    if spec.admission.as_ref().is_some_and(|admission| !admission.match_conditions.is_empty()) {
        return Err(PrepareError::Unsupported(format!("{at}.admission.matchConditions")));
    }
    Ok(())
}

fn refuse_reads(field: &str, resources: &[ContextAwareResource]) -> Result<(), PrepareError> {
    if resources.is_empty() {
        return Ok(());
    }
    Err(PrepareError::Unsupported(format!("{field}.contextAwareResources")))
}
