//! From source text to a parsed module, in whichever version of Rego it is written.

use std::num::NonZeroUsize;

use regorus::unstable::{Module, Ref, Source};
use regorus::{Engine, PolicyLengthConfig};

use super::bounds::{self, Style};
use crate::CompileError;

/// What positions in messages call the source.
const NAME: &str = "policy.rego";

/// Parses a source as the version that it looks like, else as the other one. When neither parses, the error
/// is that of the version it looks like.
pub(super) fn parse(source: &str) -> Result<Engine, CompileError> {
    if source.len() > bounds::MAX_SOURCE {
        return Err(CompileError::Unsupported(format!(
            "the source has {} bytes; at most {} are allowed",
            source.len(),
            bounds::MAX_SOURCE
        )));
    }
    // regorus takes it for the end, and all that follows would silently be no part of the policy.
    if source.contains('\0') {
        return Err(CompileError::Invalid("the source contains a NUL character".into()));
    }
    let invalid = |error: String| CompileError::Invalid(error.trim().to_owned());
    let text = Source::from_contents(NAME.into(), source.into()).map_err(|error| invalid(error.to_string()))?;
    let looks_like = bounds::check(&text)?;
    let other = if looks_like == Style::V0 { Style::V1 } else { Style::V0 };
    parse_as(source, looks_like).or_else(|error| parse_as(source, other).map_err(|_| invalid(error)))
}

fn parse_as(source: &str, style: Style) -> Result<Engine, String> {
    let mut engine = Engine::new();
    engine.set_rego_v0(style == Style::V0);
    engine.set_policy_length_config(LENGTHS);
    engine.add_policy(NAME.into(), source.into()).map_err(|error| error.to_string())?;
    Ok(engine)
}

/// Only the size of the whole source matters; [`bounds`] has checked it.
const LENGTHS: PolicyLengthConfig = PolicyLengthConfig {
    max_col: bounds::MAX_COLUMN,
    max_file_bytes: NonZeroUsize::new(bounds::MAX_SOURCE).unwrap(),
    max_lines: NonZeroUsize::new(20_000).unwrap(),
};

/// The one module that was parsed.
pub(super) fn module(engine: &mut Engine) -> Result<&Ref<Module>, CompileError> {
    engine.get_modules().first().ok_or_else(|| CompileError::Invalid("the source has no package".into()))
}
