//! From a spec to something that can decide: fetch, verify, compile, validate the settings. No step touches what
//! serves now.

mod context;
mod error;
mod module;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use proviso_artifacts::{Digest, Fetcher, Volume};
use proviso_capabilities::{Gates, ProgramHost, World};
use proviso_core::{PolicyId, experiment};
use proviso_crds::{Admission, Group, PolicySpec, Program as ProgramSpec, Wasm};
use proviso_engines::{CompileError, Deadline, Program, group, wasm};
use proviso_programs::{Conditions, compile_cel, compile_rego};
use serde_json::{Map, Value};

use crate::compile::Compilers;
use crate::metrics::Metrics;
use crate::modules::Modules;
use crate::table::Revision;

use super::desired::{Desired, Scope};
use context::Parts;
use error::in_field;

pub use error::PrepareError;
pub use module::module_references;

/// Which generation of which policy a revision is.
#[derive(Clone, Copy, Debug)]
pub struct RevisionOf<'a> {
    pub policy: &'a PolicyId,
    /// Of the policy or the experiment: tells it from one of the same name that was removed.
    pub uid: &'a str,
    pub generation: u64,
}

/// A spec made ready.
#[derive(Debug)]
pub struct Prepared {
    pub program: Program,
    /// The digests of the modules that it uses, by their references.
    pub modules: BTreeMap<String, Digest>,
}

/// Makes specs ready. Shared by all rollouts.
#[derive(Debug)]
pub struct Preparer {
    pub modules: Modules,
    pub fetcher: Arc<Fetcher>,
    /// What programs may ask about.
    pub world: Arc<World>,
    pub compilers: Arc<Compilers>,
    pub cache: Option<Volume>,
    /// For policies without a `timeoutEvalSeconds`.
    pub evaluation_timeout: Duration,
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
        Ok(Revision {
            policy: of.policy.clone(),
            generation: of.generation,
            etag: experiment::etag(of.uid, of.generation),
            matching: admission.to_match()?.confined_to(of.policy.namespace()),
            reach: admission.reach(),
            // An API server has compiled them before, and knows more than we do; over a folder `prepare` has.
            conditions: Conditions::compile(&admission.match_conditions).ok().flatten(),
            asks_conditions: self.world.is_folder(),
            enforcement: admission.to_enforcement(),
            enabled: spec.enabled,
            timeout: self.timeout(spec),
            metrics: metrics.policy(of.policy, program.engine()),
            program,
        })
    }

    /// Makes the spec's program, and asks it whether it accepts its settings. What the program may read of the cluster is there
    /// then, unless the revision is known to have worked before.
    ///
    /// # Errors
    /// When any of the steps fails. Nothing that serves is touched.
    pub async fn prepare(&self, desired: &Desired) -> Result<Prepared, PrepareError> {
        let Desired { policy, spec, scope: Scope(at), modules, is_known, .. } = desired;
        if self.world.is_folder() {
            check_conditions(at, spec.admission.as_ref())?;
        }
        let gates = Gates::read(at, policy.namespace(), spec).map_err(PrepareError::Field)?;
        let mut parts = Parts::new(gates, modules);
        let host = parts.host(&self.world, at, &spec.context_aware_resources, &spec.program);
        let field = format!("{at}.program");
        let program = self.program(&field, &spec.program, &spec.settings, host, &mut parts).await?;
        parts.ready(*is_known).await?;
        program.validate_settings(Deadline::after(self.timeout(spec))).await?;
        Ok(Prepared { program, modules: parts.modules })
    }

    async fn program(
        &self,
        field: &str,
        spec: &ProgramSpec,
        settings: &Map<String, Value>,
        host: Arc<ProgramHost>,
        parts: &mut Parts<'_>,
    ) -> Result<Program, PrepareError> {
        let program = match spec {
            ProgramSpec::Wasm(spec) => {
                self.wasm(&format!("{field}.wasm"), spec, settings, parts).await.map(Program::Wasm)
            }
            ProgramSpec::Rego(spec) => {
                let (spec, settings) = (spec.clone(), settings.clone());
                self.source(format!("{field}.rego.source"), move || compile_rego(&spec, &settings))
                    .await
                    .map(Program::Rego)
            }
            ProgramSpec::Cel(spec) => {
                let (spec, settings) = (spec.clone(), settings.clone());
                self.source(format!("{field}.cel"), move || compile_cel(&spec, &settings)).await.map(Program::Cel)
            }
            ProgramSpec::Group(spec) => Box::pin(self.group(field, spec, parts)).await.map(Program::Group),
        };
        Ok(program?.with_host(host))
    }

    async fn wasm(
        &self,
        field: &str,
        spec: &Wasm,
        settings: &Map<String, Value>,
        parts: &mut Parts<'_>,
    ) -> Result<wasm::Program, PrepareError> {
        let (digest, module) = self.module(field, spec, parts.source).await?;
        parts.modules.insert(spec.module.clone(), digest);
        let mode = Self::mode(field, spec, &module)?;
        let settings = serde_json::to_vec(settings).unwrap_or_default();
        Ok(wasm::Program::new(module, settings).in_mode(mode))
    }

    /// Compiles a source off the async workers: some take long.
    async fn source<T: Send + 'static>(
        &self,
        field: String,
        compile: impl FnOnce() -> Result<T, CompileError> + Send + 'static,
    ) -> Result<T, PrepareError> {
        self.compilers.source(compile).await.map_err(|error| PrepareError::Compile { field, error })
    }

    async fn group(&self, field: &str, spec: &Group, parts: &mut Parts<'_>) -> Result<group::Program, PrepareError> {
        let mut members = BTreeMap::new();
        for (name, member) in &spec.members {
            let at = format!("{field}.group.members.{name}");
            let field = format!("{at}.program");
            let host = parts.host(&self.world, &at, &member.context_aware_resources, &member.program);
            let program = self.program(&field, &member.program, &member.settings, host, parts).await?;
            members.insert(name.clone(), Arc::new(program));
        }
        group::Program::new(members, &spec.expression, spec.message.clone())
            .map_err(in_field(&format!("{field}.group.expression")))
    }
}

fn check_conditions(at: &str, admission: Option<&Admission>) -> Result<(), PrepareError> {
    let conditions = admission.map_or(&[][..], |admission| &admission.match_conditions);
    match Conditions::compile(conditions) {
        Ok(_) => Ok(()),
        Err((index, error)) => {
            let field = format!("{at}.admission.matchConditions[{index}].expression");
            Err(PrepareError::Compile { field, error: error.into() })
        }
    }
}
