//! The limits that templates of both languages share. A template computes the content of a configuration policy for one component.

use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind};

use serde::Serialize;
use serde_json::{Map, Value};

use crate::{CompileError, Deadline, EvaluationError, memory};

/// The maximum size of the source of a template, in bytes.
pub const MAX_TEMPLATE: usize = 64 * 1024;
/// The maximum size of the content that a template computes, in bytes of JSON: the limit of a policy body.
pub const MAX_CONTENT: usize = proviso_core::configuration::MAX_BODY;
/// The memory limit of the compilation and of one evaluation of a template, in bytes.
const MEMORY_LIMIT: usize = 32 << 20;
const REMEDY: &str = "make the template, the settings or the content smaller";

/// Compiles a template within the memory limit.
pub(crate) fn compile<T>(work: impl FnOnce() -> Result<T, CompileError>) -> Result<T, CompileError> {
    memory::within(MEMORY_LIMIT, REMEDY, work)
        .unwrap_or_else(|why| Err(CompileError::Invalid(format!("compiling it: {why}"))))
}

/// Evaluates a template within the memory limit. A panic of the interpreter fails the evaluation.
pub(crate) fn render<T>(
    deadline: Deadline,
    work: impl FnOnce() -> Result<T, EvaluationError>,
) -> Result<T, EvaluationError> {
    if deadline.has_passed() {
        return Err(EvaluationError::DeadlineExceeded);
    }
    let work = || memory::within(MEMORY_LIMIT, REMEDY, work).unwrap_or_else(|why| Err(EvaluationError::Failed(why)));
    catch_unwind(AssertUnwindSafe(work))
        .unwrap_or_else(|_| Err(EvaluationError::Failed("the interpreter panicked".to_owned())))
}

/// Converts the value of a template. A value may share its parts, so that it has little memory and a long JSON text: the text is
/// limited while it is written.
pub(crate) fn to_object(value: &impl Serialize) -> Result<Map<String, Value>, EvaluationError> {
    let mut text = LimitedText { text: Vec::new(), is_too_large: false };
    if let Err(error) = serde_json::to_writer(&mut text, value) {
        return Err(if text.is_too_large { too_large() } else { EvaluationError::InvalidAnswer(error.to_string()) });
    }
    match serde_json::from_slice(&text.text) {
        Ok(Value::Object(members)) => Ok(members),
        Ok(other) => Err(not_an_object(&other)),
        Err(error) => Err(EvaluationError::InvalidAnswer(error.to_string())),
    }
}

fn not_an_object(value: &Value) -> EvaluationError {
    let found = match value {
        Value::Null => "null",
        Value::Bool(_) => "a boolean",
        Value::Number(_) => "a number",
        Value::String(_) => "a string",
        Value::Array(_) => "a list",
        Value::Object(_) => "an object",
    };
    EvaluationError::InvalidAnswer(format!("the content is {found}, not an object"))
}

pub(crate) fn too_large() -> EvaluationError {
    EvaluationError::InvalidAnswer(format!("the content has more than {MAX_CONTENT} bytes as JSON"))
}

/// JSON of at most [`MAX_CONTENT`] bytes.
struct LimitedText {
    text: Vec<u8>,
    is_too_large: bool,
}

impl io::Write for LimitedText {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        if self.text.len() + bytes.len() > MAX_CONTENT {
            self.is_too_large = true;
            return Err(io::ErrorKind::FileTooLarge.into());
        }
        self.text.extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}
