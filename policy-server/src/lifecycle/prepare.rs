//! The preparation of a revision: fetches, verifies and compiles the program of a spec, and validates its settings. The revisions
//! that serve are not affected.

mod context;
mod error;
mod module;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use proviso_artifacts::{Digest, Fetcher, Volume};
use proviso_capabilities::{Grants, HostContext, PolicyHost};
use proviso_core::request::ConstraintCache;
use proviso_core::{Match, PolicyId, experiment};
use proviso_crds::{Admission, Configuration, Group, PolicySpec, Program as ProgramSpec, Tenants, Wasm};
use proviso_engines::{CompileError, Deadline, Program, group, wasm};
use proviso_programs::{Conditions, compile_cel, compile_rego};
use serde_json::{Map, Value};

use crate::budgets::{Budgets, within_webhook};
use crate::compile::Compilers;
use crate::config::Config;
use crate::configuration::Content;
use crate::metrics::Metrics;
use crate::modules::Modules;
use crate::program::{ObjectRequests, RevisionProgram};
use crate::table::{AdmissionPoint, Point, RequestPoint, Revision};
use crate::tenants::TenantSettings;

use super::desired::{Desired, Scope};
use super::preparations::Permit;
use context::Parts;
use error::in_field;

pub use error::PrepareError;
pub use module::module_references;

/// The identity of a revision: policy and generation.
#[derive(Clone, Copy, Debug)]
pub struct RevisionId<'a> {
    pub policy: &'a PolicyId,
    /// The uid of the policy or the experiment, which distinguishes it from a removed object of the same name.
    pub uid: &'a str,
    pub generation: u64,
    /// The field of the object that holds the spec, for errors.
    pub scope: Scope,
}

/// The prepared program of a spec.
#[derive(Debug)]
pub struct Prepared {
    pub program: RevisionProgram,
    /// The digests of the modules of the program, by their references.
    pub modules: BTreeMap<String, Digest>,
}

/// The tools that prepare revisions, shared by all preparations.
#[derive(Debug)]
pub struct Preparer {
    pub modules: Modules,
    pub fetcher: Arc<Fetcher>,
    /// The host capabilities that programs may call.
    pub host_context: Arc<HostContext>,
    pub compilers: Arc<Compilers>,
    pub cache: Option<Volume>,
    pub budgets: Budgets,
    pub time_limits: TimeLimits,
    /// The limits of namespaced policies; `None` without a cluster, where all policies have the same author.
    pub tenants: Option<TenantSettings>,
    /// The compiled constraints of request policies, shared by all policies that evaluate them.
    pub constraints: Arc<ConstraintCache>,
}

/// The time limits of evaluations.
#[derive(Clone, Copy, Debug)]
pub struct TimeLimits {
    /// The time limit for policies without `timeoutEvalSeconds`.
    pub default: Duration,
    /// The maximum for namespaced policies, whatever their `timeoutEvalSeconds` is.
    pub namespaced: Duration,
}

impl From<&Config> for TimeLimits {
    fn from(config: &Config) -> Self {
        let default = config.evaluation_timeout;
        Self { default, namespaced: config.namespaced_timeout.unwrap_or(default) }
    }
}

impl TimeLimits {
    /// Returns the time limit of one evaluation of a policy in this namespace (`None` for a cluster policy).
    #[must_use]
    pub fn of(self, namespace: Option<&str>, spec: &PolicySpec) -> Duration {
        let own = spec.timeout_eval_seconds.map(|seconds| Duration::from_secs(seconds.into()));
        let timeout = own.unwrap_or(self.default);
        if namespace.is_some() { timeout.min(self.namespaced) } else { timeout }
    }
}

impl Preparer {
    /// Returns the time limit of one evaluation of this policy.
    fn timeout(&self, policy: &PolicyId, spec: &PolicySpec) -> Duration {
        let timeout = self.time_limits.of(policy.namespace(), spec);
        match &spec.admission {
            Some(admission) if !self.host_context.is_folder() => {
                within_webhook(timeout, Duration::from_secs(admission.timeout_seconds.into()))
            }
            _ => timeout,
        }
    }

    /// Makes a revision of a spec and its prepared program.
    ///
    /// # Errors
    /// Returns an error if the policy has no enforcement point, or if a selector or the level of a request policy is not valid.
    pub fn revision(
        &self,
        id: RevisionId<'_>,
        spec: &PolicySpec,
        program: RevisionProgram,
        metrics: &Metrics,
    ) -> Result<Revision, PrepareError> {
        Ok(Revision {
            policy: id.policy.clone(),
            generation: id.generation,
            etag: experiment::etag(id.uid, id.generation),
            point: self.point(id.scope, id.policy, spec)?,
            enabled: spec.enabled,
            timeout: self.timeout(id.policy, spec),
            accounts: self.budgets.accounts(id.policy),
            metrics: metrics.policy(id.policy, program.engine()),
            program,
        })
    }

    /// Returns the enforcement point of a policy.
    fn point(&self, Scope(at): Scope, policy: &PolicyId, spec: &PolicySpec) -> Result<Point, PrepareError> {
        // The reader of the spec has refused specs with several sections, or with none.
        match (&spec.admission, &spec.request, &spec.configuration) {
            (Some(admission), ..) => Ok(Point::Admission(self.admission_point(policy, admission)?)),
            (None, Some(request), _) => {
                RequestPoint::new(&format!("{at}.request"), policy, request).map(Point::Request)
            }
            (None, None, Some(_)) => Ok(Point::Configuration),
            (None, None, None) => Err(PrepareError::NoPoint),
        }
    }

    fn admission_point(&self, policy: &PolicyId, admission: &Admission) -> Result<AdmissionPoint, PrepareError> {
        let is_folder = self.host_context.is_folder();
        Ok(AdmissionPoint {
            matching: self.confine(admission.to_match()?, policy),
            coverage: admission.coverage(),
            conditions: if is_folder {
                // `prepare` has checked that they compile.
                Conditions::compile(&admission.match_conditions).ok().flatten()
            } else {
                // The API server has accepted all conditions, and evaluates the others.
                Conditions::evaluable(&admission.match_conditions)
            },
            fails_closed: admission.fails_closed(),
            is_matched_by_api_server: !is_folder,
            enforcement: admission.to_enforcement(),
        })
    }

    /// Confines the match of a namespaced policy.
    fn confine(&self, matching: Match, policy: &PolicyId) -> Match {
        let matching = matching.confined_to(policy.namespace());
        let includes_system_requests = self.tenants.as_ref().is_none_or(|settings| settings.includes_system_requests);
        if includes_system_requests { matching } else { matching.without_system_requests() }
    }

    /// Returns the limits of the policy; `None` if it has none. A revision that has worked before keeps working after the limits have
    /// changed, but uses only what they permit now.
    async fn limits(&self, desired: &Desired) -> Result<Option<Tenants>, PrepareError> {
        let Desired { policy, spec, scope: Scope(at), was_prepared, .. } = desired;
        let Some(settings) = self.tenants.as_ref().filter(|_| policy.namespace().is_some()) else { return Ok(None) };
        let tenants = settings.read().await?;
        match tenants.check(at, &settings.server, spec).into_iter().next() {
            Some(error) if !was_prepared => Err(PrepareError::NotPermitted(error)),
            _ => Ok(Some(tenants)),
        }
    }

    /// Prepares the program of a spec: compiles it, waits for the objects that it reads, and validates its settings. A revision
    /// that has worked before does not fail if objects are missing.
    ///
    /// # Errors
    /// Returns an error if one of the steps fails.
    pub async fn prepare(&self, desired: &Desired, permit: Permit) -> Result<Prepared, PrepareError> {
        let Desired { policy, spec, scope: Scope(at), modules, was_prepared, .. } = desired;
        if let Some(configuration) = &spec.configuration {
            return self.configuration(at, policy, configuration, &spec.settings).await;
        }
        if self.host_context.is_folder() {
            check_conditions(at, spec.admission.as_ref())?;
        }
        let grants = Grants::read(at, policy.namespace(), spec).map_err(PrepareError::Field)?;
        let mut parts = Parts::new(policy, grants, self.limits(desired).await?, modules, permit);
        let host = parts.host(&self.host_context, at, &spec.context_aware_resources, &spec.program);
        let field = format!("{at}.program");
        let program = match &spec.program {
            ProgramSpec::Requests(requests) => {
                let binding = requests.binding(&format!("{field}.requests")).map_err(PrepareError::Field)?;
                RevisionProgram::Requests(ObjectRequests { binding, cache: Arc::clone(&self.constraints) })
            }
            program => self.program(&field, program, &spec.settings, host, &mut parts).await?.into(),
        };
        parts.wait_for_context(*was_prepared).await?;
        let place = self.budgets.accounts(policy).preparation_place().await;
        let timeout = self.timeout(policy, spec);
        place.run(async { program.validate_settings(Deadline::after(timeout)).await }).await?;
        Ok(Prepared { program, modules: parts.modules })
    }

    async fn program(
        &self,
        field: &str,
        spec: &ProgramSpec,
        settings: &Map<String, Value>,
        host: Arc<PolicyHost>,
        parts: &mut Parts<'_>,
    ) -> Result<Program, PrepareError> {
        let program = match spec {
            ProgramSpec::Wasm(spec) => {
                self.wasm(&format!("{field}.wasm"), spec, settings, parts).await.map(Program::Wasm)
            }
            ProgramSpec::Rego(spec) => {
                let (spec, settings) = (spec.clone(), settings.clone());
                self.source(parts.policy, format!("{field}.rego.source"), move || compile_rego(&spec, &settings))
                    .await
                    .map(Program::Rego)
            }
            ProgramSpec::Cel(spec) => {
                let (spec, settings) = (spec.clone(), settings.clone());
                self.source(parts.policy, format!("{field}.cel"), move || compile_cel(&spec, &settings))
                    .await
                    .map(Program::Cel)
            }
            ProgramSpec::Group(spec) => Box::pin(self.group(field, spec, parts)).await.map(Program::Group),
            // The validation refuses it as a member of a group.
            ProgramSpec::Requests(_) => Err(PrepareError::Unsupported(format!("{field}.requests"))),
            ProgramSpec::None => Err(PrepareError::NoProgram(field.to_owned())),
        };
        Ok(program?.with_host(host).with_memory_limit(self.compilers.memory_limit()))
    }

    /// Compiles the content of a configuration policy on a blocking thread.
    async fn configuration(
        &self,
        at: &'static str,
        policy: &PolicyId,
        configuration: &Configuration,
        settings: &Map<String, Value>,
    ) -> Result<Prepared, PrepareError> {
        let (id, configuration, settings) = (policy.clone(), configuration.clone(), settings.clone());
        let compile = move || Ok(Content::compile(at, &id, configuration, &settings));
        let compiled = self.compilers.source(policy, compile).await;
        let compiled =
            compiled.map_err(|error| PrepareError::Compile { field: format!("{at}.configuration"), error })?;
        let content = compiled.map_err(PrepareError::Field)?;
        Ok(Prepared { program: RevisionProgram::Configuration(Arc::new(content)), modules: BTreeMap::new() })
    }

    async fn wasm(
        &self,
        field: &str,
        spec: &Wasm,
        settings: &Map<String, Value>,
        parts: &mut Parts<'_>,
    ) -> Result<wasm::Program, PrepareError> {
        let (digest, module) = self.module(field, spec, parts).await?;
        parts.modules.insert(spec.module.clone(), digest);
        let mode = Self::mode(field, spec, &module)?;
        let settings = serde_json::to_vec(settings).unwrap_or_default();
        Ok(wasm::Program::new(module, settings).in_mode(mode))
    }

    /// Compiles a source on a blocking thread.
    async fn source<T: Send + 'static>(
        &self,
        policy: &PolicyId,
        field: String,
        compile: impl FnOnce() -> Result<T, CompileError> + Send + 'static,
    ) -> Result<T, PrepareError> {
        self.compilers.source(policy, compile).await.map_err(|error| PrepareError::Compile { field, error })
    }

    async fn group(&self, field: &str, spec: &Group, parts: &mut Parts<'_>) -> Result<group::Program, PrepareError> {
        let mut members = BTreeMap::new();
        for (name, member) in &spec.members {
            let at = format!("{field}.group.members.{name}");
            let field = format!("{at}.program");
            let host = parts.host(&self.host_context, &at, &member.context_aware_resources, &member.program);
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
