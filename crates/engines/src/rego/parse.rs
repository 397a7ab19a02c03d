//! From source texts to parsed modules, each in whichever version of Rego it is written, and written out as OPA reads it.

use std::num::NonZeroUsize;

use regorus::unstable::Source;
use regorus::{Engine, PolicyLengthConfig};

use super::bounds::{self, Style};
use super::inspect::{self, Documents};
use super::{layout, negation};
use crate::CompileError;

/// A text and the name that positions in messages call it.
#[derive(Debug)]
pub(super) struct Text<'a> {
    pub name: String,
    pub text: &'a str,
}

struct Parsed {
    name: String,
    text: String,
    style: Style,
}

/// Parses the sources, each as the version that it looks like, else as the other one. When neither parses, the error is that
/// of the version it looks like. What the sources need is checked as they are written; then what regorus would read otherwise
/// than OPA is written out. Queries are read in the version of the first.
pub(super) fn parse(texts: &[Text<'_>], documents: Documents) -> Result<Engine, CompileError> {
    let mut engine = Engine::new();
    let mut parsed = Vec::new();
    for Text { name, text } in texts {
        let source = checked(name, text)?;
        let looks_like = bounds::check(&source)?;
        let text = layout::written_out(&source)?.unwrap_or_else(|| (*text).to_owned());
        let mut module = Parsed { name: name.clone(), text, style: looks_like };
        if let Err(error) = module.add_to(&mut engine) {
            module.style = if looks_like == Style::V0 { Style::V1 } else { Style::V0 };
            module.add_to(&mut engine).map_err(|_| CompileError::Invalid(error))?;
        }
        parsed.push(module);
    }
    inspect::inspect(engine.get_modules(), documents)?;
    let mut changed = false;
    let modules = engine.get_modules();
    for (module, parsed) in modules.iter().zip(&mut parsed) {
        if let Some(text) = negation::written_out(module, modules)? {
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
    engine.set_rego_v0(parsed.first().is_some_and(|first| first.style == Style::V0));
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
    // regorus takes it for the end, and all that follows would silently be no part of the policy.
    if text.contains('\0') {
        return Err(CompileError::Invalid("the source contains a NUL character".into()));
    }
    source(name, text)
}

fn source(name: &str, text: &str) -> Result<Source, CompileError> {
    Source::from_contents(name.to_owned(), text.to_owned())
        .map_err(|error| CompileError::Invalid(error.to_string().trim().to_owned()))
}

impl Parsed {
    fn add_to(&self, engine: &mut Engine) -> Result<(), String> {
        engine.set_rego_v0(self.style == Style::V0);
        engine.set_policy_length_config(LENGTHS);
        let added = engine.add_policy(self.name.clone(), self.text.clone());
        added.map(drop).map_err(|error| error.to_string().trim().to_owned())
    }
}

/// Only the size of the whole source matters; [`bounds`] has checked it.
const LENGTHS: PolicyLengthConfig = PolicyLengthConfig {
    max_col: bounds::MAX_COLUMN,
    max_file_bytes: NonZeroUsize::new(2 * bounds::MAX_SOURCE).unwrap(),
    max_lines: NonZeroUsize::new(20_000).unwrap(),
};
