//! Compiles the programs of policies and templates, and gives them the objects that they may read.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use proviso_artifacts::Fetcher;
use proviso_capabilities::{FolderObjects, Grants, HostContext, Images};
use proviso_crds::{Cel, ContextAwareResource, Group, GroupMember, PolicySpec, Program as ProgramSpec};
use proviso_engines::{Deadline, Program, group, rego, wasm};
use proviso_programs::{compile_cel, compile_rego, execution_mode};
use serde_json::{Map, Value};

use crate::blocking;
use crate::error::PrepareError;
use crate::gatekeeper::{Code, Template};
use crate::modules::Modules;

/// The time limit of one evaluation if the policy has none. A policy server has a shorter limit, 2 s by default. But tests run on
/// busy machines, and no API server waits for them.
pub(crate) const TIMEOUT: Duration = Duration::from_secs(10);

/// Returns the time limit of one evaluation of this policy: `timeoutEvalSeconds`, by default 10 s.
pub(crate) fn timeout(spec: &PolicySpec) -> Duration {
    spec.timeout_eval_seconds.map_or(TIMEOUT, |seconds| Duration::from_secs(seconds.into()))
}

/// Compiles programs. Policies with the same module share one compilation of it.
#[derive(Debug)]
pub struct Evaluator {
    fetcher: Arc<Fetcher>,
    modules: Modules,
}

impl Evaluator {
    /// Returns an evaluator that fetches modules with `fetcher`.
    #[must_use]
    pub fn new(fetcher: Fetcher) -> Self {
        let fetcher = Arc::new(fetcher);
        Self { modules: Modules::new(Arc::clone(&fetcher)), fetcher }
    }

    /// Compiles the program of a policy, and has the program validate its settings. Relative module references start from
    /// `folder`. `namespace` is the policy's namespace. The program reads the `objects` of the kinds that the spec permits.
    ///
    /// # Errors
    /// Returns an error if a module cannot be fetched, the program does not compile, or it refuses its settings.
    pub(crate) async fn compile_policy(
        &self,
        spec: &PolicySpec,
        folder: &Path,
        namespace: Option<&str>,
        objects: &[Value],
    ) -> Result<Program, PrepareError> {
        if spec.configuration.is_some() {
            let message = "configures components, and decides about no requests: there is nothing to evaluate. PolicySubscriptions deliver it";
            return Err(PrepareError::Invalid { field: "spec.configuration".to_owned(), message: message.to_owned() });
        }
        let folder_objects = Arc::<FolderObjects>::default();
        folder_objects.replace(objects.iter().cloned());
        let context = PolicyContext {
            folder,
            grants: Grants::read("spec", namespace, spec).map_err(PrepareError::Field)?,
            host_context: Arc::new(HostContext::folder(folder_objects, Images::new(Arc::clone(&self.fetcher)))),
        };
        let program = self.compile(&context, "spec", spec.into()).await?;
        program.validate_settings(Deadline::after(timeout(spec))).await?;
        Ok(program)
    }

    /// Compiles the program of a Gatekeeper template with the parameters of a constraint. The program sees no objects.
    ///
    /// # Errors
    /// Returns an error if the program does not compile, or uses a builtin that this version does not support.
    pub(crate) async fn compile_template(
        &self,
        template: &Template,
        parameters: &Map<String, Value>,
    ) -> Result<Program, PrepareError> {
        let (code, parameters) = (template.code.clone(), parameters.clone());
        let field = match &template.code {
            Code::Rego { .. } => "rego",
            Code::Cel(_) => "validations",
        };
        let failed = move |error| PrepareError::Compile { field: field.to_owned(), error };
        blocking::run(move || match code {
            Code::Rego { source, libs } => {
                let (dialect, parameters) = (rego::Dialect::Gatekeeper, Value::Object(parameters));
                let compiled = rego::Program::compile_with(&source, &libs, dialect, None, &parameters);
                compiled.map(Program::Rego).map_err(failed)
            }
            Code::Cel(cel) => compile_cel(&cel, &parameters).map(Program::Cel).map_err(failed),
        })
        .await
    }

    /// Compiles the program of a policy or of a group's member. `at` is the field of the policy or the member.
    async fn compile(
        &self,
        context: &PolicyContext<'_>,
        at: &str,
        source: Source<'_>,
    ) -> Result<Program, PrepareError> {
        let host = context.host_context.host(context.grants.for_program(at, source.resources, source.program));
        let (field, settings) = (format!("{at}.program"), source.settings.clone());
        let at = field.clone();
        let program = match source.program {
            ProgramSpec::Wasm(spec) => {
                let field = format!("{field}.wasm");
                let module = self.modules.load(&field, spec, context.folder).await?;
                let failed = |error| PrepareError::Compile { field: format!("{field}.mode"), error };
                let mode = module.mode(execution_mode(spec)).map_err(failed)?;
                let settings = serde_json::to_vec(&settings).unwrap_or_default();
                Ok(Program::Wasm(wasm::Program::new(module, settings).in_mode(mode)))
            }
            ProgramSpec::Rego(rego) => {
                let rego = rego.clone();
                let failed = move |error| PrepareError::Compile { field: format!("{at}.rego.source"), error };
                blocking::run(move || compile_rego(&rego, &settings).map(Program::Rego).map_err(failed)).await
            }
            ProgramSpec::Cel(cel) => {
                let cel: Cel = cel.clone();
                let failed = move |error| PrepareError::Compile { field: format!("{at}.cel"), error };
                blocking::run(move || compile_cel(&cel, &settings).map(Program::Cel).map_err(failed)).await
            }
            ProgramSpec::None => Err(PrepareError::Invalid { field, message: "is missing".to_owned() }),
            ProgramSpec::Requests(_) => Err(PrepareError::Invalid {
                field: format!("{field}.requests"),
                message: "is evaluated by a policy server only: test the request policies with `proviso evaluate`"
                    .to_owned(),
            }),
            ProgramSpec::Group(group) => Box::pin(self.compile_group(context, &field, group)).await,
        };
        Ok(program?.with_host(host))
    }

    async fn compile_group(
        &self,
        context: &PolicyContext<'_>,
        field: &str,
        spec: &Group,
    ) -> Result<Program, PrepareError> {
        let mut members = BTreeMap::new();
        for (name, member) in &spec.members {
            let program = self.compile(context, &format!("{field}.group.members.{name}"), member.into()).await?;
            members.insert(name.clone(), Arc::new(program));
        }
        let failed = |error| PrepareError::Compile { field: format!("{field}.group.expression"), error };
        group::Program::new(members, &spec.expression, spec.message.clone()).map(Program::Group).map_err(failed)
    }
}

/// The context that all programs of a policy share.
struct PolicyContext<'a> {
    folder: &'a Path,
    grants: Grants,
    host_context: Arc<HostContext>,
}

/// One program of a policy, with its own settings: the policy's program or that of a group's member.
struct Source<'a> {
    program: &'a ProgramSpec,
    settings: &'a Map<String, Value>,
    resources: &'a [ContextAwareResource],
}

impl<'a> From<&'a PolicySpec> for Source<'a> {
    fn from(spec: &'a PolicySpec) -> Self {
        Self { program: &spec.program, settings: &spec.settings, resources: &spec.context_aware_resources }
    }
}

impl<'a> From<&'a GroupMember> for Source<'a> {
    fn from(member: &'a GroupMember) -> Self {
        Self { program: &member.program, settings: &member.settings, resources: &member.context_aware_resources }
    }
}
