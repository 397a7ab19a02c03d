//! The one place where this program meets the engines: from policies and templates to programs, and from reviews to
//! verdicts. Nothing here talks to a cluster.

use std::collections::BTreeMap;
use std::num::NonZeroUsize;
use std::path::{Path, PathBuf};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use proviso_artifacts::{Digest, FetchError, Fetcher, Module, ModuleReference, ReferenceError, Wanted};
use proviso_core::{Review, Verdict};
use proviso_crds::{Cel, Group, PolicySpec, Program as ProgramSpec, Wasm};
use proviso_engines::{
    CompileError, Deadline, EvaluationError, Program, SettingsError, cel, group, rego, wasm as wasm_engine,
};
use proviso_programs::{compile_cel, compile_rego, unsupported};
use serde_json::{Map, Value};
use tokio::sync::Mutex;

use crate::gatekeeper::{Code, Template};

/// How long one evaluation may take where the policy does not say so. More than on a policy server: tests run on busy
/// machines, and nobody waits for them.
const TIMEOUT: Duration = Duration::from_secs(10);

/// Why there is no program.
#[derive(Debug, thiserror::Error)]
pub enum PrepareError {
    #[error("{field}: {error}")]
    Compile { field: String, error: CompileError },
    #[error("{0}: is not served by this version: remove it")]
    Unsupported(String),
    #[error("{field}: {error}")]
    Reference { field: String, error: ReferenceError },
    #[error("{field}: {error}")]
    Fetch { field: String, error: Box<FetchError> },
    #[error("{field}: {message}")]
    Invalid { field: String, message: String },
    #[error(transparent)]
    Settings(#[from] SettingsError),
    #[error("{0}")]
    Engine(#[from] wasm_engine::EngineError),
    #[error("{field}: is not supported by this version")]
    Libs { field: &'static str },
}

/// Makes programs. What is loaded once is shared by all that need it.
#[derive(Debug)]
pub struct Evaluator {
    fetcher: Fetcher,
    engine: OnceLock<wasm_engine::Engine>,
    modules: Mutex<BTreeMap<Digest, wasm_engine::Module>>,
}

impl Evaluator {
    /// One that fetches modules from servers that `sources` describes, with the credentials in the folder
    /// `pull_secrets`: see `policy-server --help`.
    #[must_use]
    pub fn new(sources: Option<PathBuf>, pull_secrets: Option<PathBuf>) -> Self {
        let fetcher = Fetcher::new(sources, pull_secrets, None);
        Self { fetcher, engine: OnceLock::new(), modules: Mutex::default() }
    }

    /// Makes the program of a policy, and asks it whether it accepts its settings. Relative modules are looked for from
    /// `folder`.
    ///
    /// # Errors
    /// When it cannot be fetched or compiled, or refuses its settings.
    pub async fn policy(&self, spec: &PolicySpec, folder: &Path) -> Result<Program, PrepareError> {
        if let Some(error) = unsupported("spec", spec).into_iter().next() {
            return Err(PrepareError::Unsupported(error.field));
        }
        let program = self.program("spec.program", &spec.program, &spec.settings, folder).await?;
        program.validate_settings(Deadline::after(timeout(spec))).await?;
        Ok(program)
    }

    /// Makes the program of a Gatekeeper template with these parameters, that sees these objects in `data.inventory`.
    ///
    /// # Errors
    /// When it does not compile, or has what this version does not run.
    pub async fn template(
        &self,
        template: &Template,
        parameters: &Map<String, Value>,
        _inventory: &[Value],
    ) -> Result<Program, PrepareError> {
        let (code, parameters) = (template.code.clone(), parameters.clone());
        let field = match &template.code {
            Code::Rego { .. } => "rego",
            Code::Cel(_) => "validations",
        };
        let compiling = move || match code {
            Code::Rego { libs, .. } if !libs.is_empty() => Err(PrepareError::Libs { field: "libs" }),
            // What reads `data.inventory` is refused by the compiler.
            Code::Rego { source, .. } => {
                rego::Program::compile(&source, rego::Dialect::Gatekeeper, None, &Value::Object(parameters))
                    .map(Program::Rego)
                    .map_err(|error| PrepareError::Compile { field: field.to_owned(), error })
            }
            Code::Cel(cel) => compile_cel(&cel, &parameters)
                .map(Program::Cel)
                .map_err(|error| PrepareError::Compile { field: field.to_owned(), error }),
        };
        blocking(compiling).await
    }

    async fn program(
        &self,
        field: &str,
        spec: &ProgramSpec,
        settings: &Map<String, Value>,
        folder: &Path,
    ) -> Result<Program, PrepareError> {
        let (at, settings) = (field.to_owned(), settings.clone());
        match spec {
            ProgramSpec::Wasm(wasm) => {
                let module = self.module(&format!("{field}.wasm"), wasm, folder).await?;
                let settings = serde_json::to_vec(&settings).unwrap_or_default();
                Ok(Program::Wasm(wasm_engine::Program::new(module, settings)))
            }
            ProgramSpec::Rego(rego) => {
                let rego = rego.clone();
                let failed = move |error| PrepareError::Compile { field: format!("{at}.rego.source"), error };
                blocking(move || compile_rego(&rego, &settings).map(Program::Rego).map_err(failed)).await
            }
            ProgramSpec::Cel(cel) => {
                let cel: Cel = cel.clone();
                let failed = move |error| PrepareError::Compile { field: format!("{at}.cel"), error };
                blocking(move || compile_cel(&cel, &settings).map(Program::Cel).map_err(failed)).await
            }
            ProgramSpec::Group(group) => Box::pin(self.group(field, group, folder)).await,
        }
    }

    async fn group(&self, field: &str, spec: &Group, folder: &Path) -> Result<Program, PrepareError> {
        let mut members = BTreeMap::new();
        for (name, member) in &spec.members {
            let field = format!("{field}.group.members.{name}.program");
            let program = self.program(&field, &member.program, &member.settings, folder).await?;
            members.insert(name.clone(), Arc::new(program));
        }
        let failed = |error| PrepareError::Compile { field: format!("{field}.group.expression"), error };
        group::Program::new(members, &spec.expression, spec.message.clone()).map(Program::Group).map_err(failed)
    }

    async fn module(&self, field: &str, spec: &Wasm, folder: &Path) -> Result<wasm_engine::Module, PrepareError> {
        let reference = ModuleReference::parse(&spec.module, folder)
            .map_err(|error| PrepareError::Reference { field: format!("{field}.module"), error })?;
        let digest =
            spec.digest.as_deref().map(str::parse).transpose().map_err(|error| PrepareError::Invalid {
                field: format!("{field}.digest"),
                message: format!("{error}"),
            })?;
        let names: Vec<String> = spec.image_pull_secrets.iter().map(|secret| secret.name.clone()).collect();
        let wanted = Wanted { digest, pin: None, pull_secrets: &names };
        let module = self.fetch(field, &reference, wanted).await?;
        let at = format!("{field}.module");
        let failed = move |error| PrepareError::Compile { field: at.clone(), error };
        if let Some(metadata) = wasm_engine::Metadata::read(&module.bytes).map_err(&failed)? {
            metadata.check_runnable().map_err(&failed)?;
        }
        // Held while it is compiled: two tests with the same module compile it once.
        let mut modules = self.modules.lock().await;
        if let Some(loaded) = modules.get(&module.digest) {
            return Ok(loaded.clone());
        }
        let engine = self.engine()?.clone();
        let (digest, bytes) = (module.digest, module.bytes);
        let loaded = blocking(move || {
            let code = engine.precompile(&bytes).map_err(&failed)?;
            // Compiled here and now.
            engine.load(&wasm_engine::VerifiedCode::assume_verified(code)).map_err(&failed)
        })
        .await?;
        modules.insert(digest, loaded.clone());
        Ok(loaded)
    }

    async fn fetch(
        &self,
        field: &str,
        reference: &ModuleReference,
        wanted: Wanted<'_>,
    ) -> Result<Module, PrepareError> {
        self.fetcher.fetch(reference, wanted).await.map_err(|error| {
            let name = if matches!(error, FetchError::PullSecret(_)) { "imagePullSecrets" } else { "module" };
            PrepareError::Fetch { field: format!("{field}.{name}"), error: Box::new(error) }
        })
    }

    /// The engine for modules: who tests only Rego and CEL reserves no room for it.
    fn engine(&self) -> Result<&wasm_engine::Engine, PrepareError> {
        if let Some(engine) = self.engine.get() {
            return Ok(engine);
        }
        let processors = std::thread::available_parallelism().map_or(1, NonZeroUsize::get);
        let concurrency = u32::try_from(2 * processors).unwrap_or(64).clamp(2, 64);
        let engine = wasm_engine::Engine::new(wasm_engine::Config { concurrency, ..wasm_engine::Config::default() })?;
        Ok(self.engine.get_or_init(|| engine))
    }
}

/// How long one evaluation of this policy may take.
#[must_use]
pub fn timeout(spec: &PolicySpec) -> Duration {
    spec.timeout_eval_seconds.map_or(TIMEOUT, |seconds| Duration::from_secs(seconds.into()))
}

/// What a program says about a review, before mode, `mutating` and message of its policy apply.
///
/// # Errors
/// When it comes to no decision.
pub async fn evaluate(program: &Program, review: &Review, timeout: Duration) -> Result<Verdict, EvaluationError> {
    program.evaluate(review, Deadline::after(timeout)).await
}

/// What a Gatekeeper template says about a review: one message for each violation.
///
/// # Errors
/// When it comes to no decision.
pub async fn violations(program: &Program, review: &Review) -> Result<Vec<String>, EvaluationError> {
    let verdict = evaluate(program, review, TIMEOUT).await?;
    Ok(match (verdict.allowed, verdict.causes.is_empty()) {
        (true, _) => Vec::new(),
        // One alone is the message.
        (false, true) => vec![verdict.message.unwrap_or_default()],
        (false, false) => verdict.causes.into_iter().map(|cause| cause.message).collect(),
    })
}

/// Whether these conditions (`matchConditions`) all hold.
///
/// # Errors
/// When they do not compile, or one has no value.
pub async fn conditions(expressions: Vec<String>, review: &Review) -> Result<bool, String> {
    let validations = expressions.into_iter().map(|expression| cel::Validation { expression, ..Default::default() });
    let program =
        cel::Program::compile(validations.collect(), &Value::Object(Map::new())).map_err(|error| error.to_string())?;
    let verdict = program.evaluate(review, Deadline::after(TIMEOUT)).await.map_err(|error| error.to_string())?;
    Ok(verdict.allowed)
}

/// Compiles off the async workers.
async fn blocking<T: Send + 'static>(
    work: impl FnOnce() -> Result<T, PrepareError> + Send + 'static,
) -> Result<T, PrepareError> {
    tokio::task::spawn_blocking(work).await.unwrap_or_else(|stopped| {
        Err(PrepareError::Invalid {
            field: "spec.program".to_owned(),
            message: format!("compiling stopped: {stopped}"),
        })
    })
}
