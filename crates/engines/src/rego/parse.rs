//! Parses the modules of a policy, in Rego v0 or v1. Rewrites the constructs that regorus reads differently from OPA.

use std::num::NonZeroUsize;

use regorus::unstable::Source;
use regorus::{Engine, PolicyLengthConfig};

use super::bounds::{self, RegoVersion};
use super::inspect::{self, Documents};
use super::{layout, negation};
use crate::CompileError;

/// The source of a module.
#[derive(Debug)]
pub(super) struct ModuleSource<'a> {
    /// The name of the module in error messages.
    pub name: String,
    pub text: &'a str,
}

struct ParsedModule {
    name: String,
    text: String,
    version: RegoVersion,
}

/// Parses the sources. Each source is parsed as the version that its tokens suggest, and then as the other version. If both
/// fail, the error is the one of the first attempt. The parser checks the references of the original sources, and then
/// rewrites the negations. The engine reads queries in the version of the first source.
pub(super) fn parse(sources: &[ModuleSource<'_>], documents: Documents) -> Result<Engine, CompileError> {
    let mut engine = Engine::new();
    let mut parsed = Vec::new();
    for ModuleSource { name, text } in sources {
        let source = checked(name, text)?;
        let detected = bounds::check(&source)?;
        let text = layout::rewrite(&source)?.unwrap_or_else(|| (*text).to_owned());
        let mut module = ParsedModule { name: name.clone(), text, version: detected };
        if let Err(error) = module.add_to(&mut engine) {
            module.version = if detected == RegoVersion::V0 { RegoVersion::V1 } else { RegoVersion::V0 };
            module.add_to(&mut engine).map_err(|_| CompileError::Invalid(error))?;
        }
        parsed.push(module);
    }
    inspect::inspect(engine.get_modules(), documents)?;
    let mut changed = false;
    let modules = engine.get_modules();
    for (module, parsed) in modules.iter().zip(&mut parsed) {
        if let Some(text) = negation::rewrite(module, modules)? {
            parsed.text = text;
            changed = true;
        }
    }
    if changed {
        engine = Engine::new();
        for module in &parsed {
            bounds::check(&source(&module.name, &module.text)?)?;
            module.add_to(&mut engine).map_err(CompileError::Invalid)?;
        }
    }
    engine.set_rego_v0(parsed.first().is_some_and(|first| first.version == RegoVersion::V0));
    Ok(engine)
}

fn checked(name: &str, text: &str) -> Result<Source, CompileError> {
    if text.len() > bounds::MAX_SOURCE {
        return Err(CompileError::Unsupported(format!(
            "the source has {} bytes; at most {} are allowed",
            text.len(),
            bounds::MAX_SOURCE
        )));
    }
    // regorus ends the source at a NUL character. The rest would silently be missing from the policy.
    if text.contains('\0') {
        return Err(CompileError::Invalid("the source contains a NUL character".into()));
    }
    source(name, text)
}

fn source(name: &str, text: &str) -> Result<Source, CompileError> {
    Source::from_contents(name.to_owned(), text.to_owned())
        .map_err(|error| CompileError::Invalid(error.to_string().trim().to_owned()))
}

impl ParsedModule {
    fn add_to(&self, engine: &mut Engine) -> Result<(), String> {
        engine.set_rego_v0(self.version == RegoVersion::V0);
        engine.set_policy_length_config(LENGTH_LIMITS);
        let added = engine.add_policy(self.name.clone(), self.text.clone());
        added.map(drop).map_err(|error| error.to_string().trim().to_owned())
    }
}

/// regorus' limits on a source. They are so high that only the limits of [`bounds`] apply.
const LENGTH_LIMITS: PolicyLengthConfig = PolicyLengthConfig {
    max_col: bounds::MAX_COLUMN,
    max_file_bytes: NonZeroUsize::new(2 * bounds::MAX_SOURCE).unwrap(),
    max_lines: NonZeroUsize::new(20_000).unwrap(),
};
