//! The one place where this program meets the engines: from policies and templates to programs, and from reviews to
//! verdicts. Nothing here talks to a cluster.

use std::collections::BTreeMap;
use std::num::NonZeroUsize;
use std::path::Path;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use proviso_artifacts::{Digest, FetchError, Fetcher, Module, ModuleReference, ReferenceError, Wanted};
use proviso_core::{Review, Verdict};
use proviso_crds::validation::FieldError;
use proviso_crds::{Cel, ContextAwareResource, Group, GroupMember, PolicySpec, Program as ProgramSpec, Wasm};
use proviso_engines::host::{Fixed, Objects, Resource};
use proviso_engines::{
    CompileError, Deadline, EvaluationError, Program, SettingsError, group, rego, wasm as wasm_engine,
};
use proviso_host::{FolderObjects, Gates, Images, World};
use proviso_programs::{compile_cel, compile_rego, execution_mode};
use serde_json::{Map, Value};
use tokio::sync::Mutex;

use crate::gatekeeper::{Code, Template};
use crate::resources;

/// How long one evaluation may take where the policy does not say so. More than on a policy server: tests run on busy
/// machines, and nobody waits for them.
const TIMEOUT: Duration = Duration::from_secs(10);

/// Why there is no program.
#[derive(Debug, thiserror::Error)]
pub enum PrepareError {
    #[error("{field}: {error}")]
    Compile { field: String, error: CompileError },
    #[error("{0}")]
    Field(FieldError),
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
}

/// Makes programs. What is loaded once is shared by all that need it.
#[derive(Debug)]
pub struct Evaluator {
    fetcher: Arc<Fetcher>,
    engine: OnceLock<wasm_engine::Engine>,
    modules: Mutex<BTreeMap<Digest, wasm_engine::Module>>,
}

impl Evaluator {
    /// One that fetches modules as the fetcher does.
    #[must_use]
    pub fn new(fetcher: Fetcher) -> Self {
        Self { fetcher: Arc::new(fetcher), engine: OnceLock::new(), modules: Mutex::default() }
    }

    /// Makes the program of a policy, and asks it whether it accepts its settings. Relative modules are looked for from
    /// `folder`. `namespace` is the policy's, and of `objects` it sees what its spec says that it may read.
    ///
    /// # Errors
    /// When it cannot be fetched or compiled, or refuses its settings.
    pub async fn policy(
        &self,
        spec: &PolicySpec,
        folder: &Path,
        namespace: Option<&str>,
        objects: &[Value],
    ) -> Result<Program, PrepareError> {
        let known = Arc::<FolderObjects>::default();
        known.replace(objects.iter().cloned());
        let asking = Asking {
            folder,
            gates: Gates::read("spec", namespace, spec).map_err(PrepareError::Field)?,
            world: Arc::new(World::folder(known, Images::new(Arc::clone(&self.fetcher)))),
        };
        let program = self.program(&asking, "spec", spec.into()).await?;
        program.validate_settings(Deadline::after(timeout(spec))).await?;
        Ok(program)
    }

    /// Makes the program of a Gatekeeper template with these parameters. It sees no other objects: see [`with_inventory`].
    ///
    /// # Errors
    /// When it does not compile, or has what this version does not run.
    pub async fn template(
        &self,
        template: &Template,
        parameters: &Map<String, Value>,
    ) -> Result<Program, PrepareError> {
        let (code, parameters) = (template.code.clone(), parameters.clone());
        let field = match &template.code {
            Code::Rego { .. } => "rego",
            Code::Cel(_) => "validations",
        };
        let compiling = move || match code {
            Code::Rego { source, libs } => {
                let (dialect, parameters) = (rego::Dialect::Gatekeeper, Value::Object(parameters));
                rego::Program::compile_with(&source, &libs, dialect, None, &parameters)
                    .map(Program::Rego)
                    .map_err(|error| PrepareError::Compile { field: field.to_owned(), error })
            }
            Code::Cel(cel) => compile_cel(&cel, &parameters)
                .map(Program::Cel)
                .map_err(|error| PrepareError::Compile { field: field.to_owned(), error }),
        };
        blocking(compiling).await
    }

    /// `at` is where the fields of the program and of what it may read stand.
    async fn program(&self, asking: &Asking<'_>, at: &str, part: Part<'_>) -> Result<Program, PrepareError> {
        let host = asking.world.host(asking.gates.rights(at, part.resources, part.program));
        let (field, settings) = (format!("{at}.program"), part.settings.clone());
        let at = field.clone();
        let program = match part.program {
            ProgramSpec::Wasm(wasm) => {
                let field = format!("{field}.wasm");
                let module = self.module(&field, wasm, asking.folder).await?;
                let failed = |error| PrepareError::Compile { field: format!("{field}.mode"), error };
                let mode = module.mode(execution_mode(wasm)).map_err(failed)?;
                let settings = serde_json::to_vec(&settings).unwrap_or_default();
                Ok(Program::Wasm(wasm_engine::Program::new(module, settings).in_mode(mode)))
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
            ProgramSpec::Group(group) => Box::pin(self.group(asking, &field, group)).await,
        };
        Ok(program?.with_host(host))
    }

    async fn group(&self, asking: &Asking<'_>, field: &str, spec: &Group) -> Result<Program, PrepareError> {
        let mut members = BTreeMap::new();
        for (name, member) in &spec.members {
            let program = self.program(asking, &format!("{field}.group.members.{name}"), member.into()).await?;
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

/// What is the same for all programs of a policy.
struct Asking<'a> {
    folder: &'a Path,
    gates: Gates,
    world: Arc<World>,
}

/// A program and what is its own: a policy's, or that of a member of its group.
struct Part<'a> {
    program: &'a ProgramSpec,
    settings: &'a Map<String, Value>,
    resources: &'a [ContextAwareResource],
}

impl<'a> From<&'a PolicySpec> for Part<'a> {
    fn from(spec: &'a PolicySpec) -> Self {
        Self { program: &spec.program, settings: &spec.settings, resources: &spec.context_aware_resources }
    }
}

impl<'a> From<&'a GroupMember> for Part<'a> {
    fn from(member: &'a GroupMember) -> Self {
        Self { program: &member.program, settings: &member.settings, resources: &member.context_aware_resources }
    }
}

/// The same program, that sees these objects, in `data.inventory` and as `namespaceObject`.
#[must_use]
pub fn with_inventory(program: &Program, objects: &[Value]) -> Program {
    program.clone().with_host(Arc::new(Fixed(Arc::new(all(objects)))))
}

/// All of these objects, as Gatekeeper has them in `data.inventory`: what names no namespace belongs to none.
fn all(objects: &[Value]) -> Objects {
    let mut kinds = BTreeMap::<_, Vec<_>>::new();
    for object in objects {
        let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
        let is_namespaced = object["metadata"]["namespace"].is_string();
        let kind = (text(&object["apiVersion"]), text(&object["kind"]), is_namespaced);
        kinds.entry(kind).or_default().push(Arc::new(object.clone()));
    }
    let resource = |((api_version, kind, is_namespaced), objects): ((String, String, bool), _)| Resource {
        plural: resources::plural(&kind),
        api_version,
        kind,
        is_namespaced,
        objects,
    };
    Objects { resources: kinds.into_iter().map(resource).collect() }
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
