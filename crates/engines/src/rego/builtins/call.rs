//! Calls of regorus' builtins.

use std::sync::LazyLock;

use regorus::Value;
use regorus::unstable::{BUILTINS, Expr, Ref, Source, Span};

/// A placeholder for the position of the call, which regorus' builtins need for their messages.
static NO_POSITION: LazyLock<Option<Span>> = LazyLock::new(|| {
    let source = Source::from_contents("builtin".into(), String::new()).ok()?;
    Some(Span { source, line: 1, col: 1, start: 0, end: 0 })
});

/// Calls a builtin of regorus as its interpreter does: the result of an error is undefined. An exceeded limit stays an error.
pub(super) fn call(name: &str, values: &[Value]) -> Result<Value, String> {
    let (Some((builtin, _)), Some(span)) = (BUILTINS.get(name), NO_POSITION.as_ref()) else {
        return Err("it is missing".into());
    };
    let argument = || Ref::new(Expr::Null { span: span.clone(), value: Value::Null, eidx: 0 });
    let arguments: Vec<Ref<Expr>> = values.iter().map(|_| argument()).collect();
    match builtin(span, &arguments, values, false) {
        Err(error) if error.downcast_ref::<regorus::LimitError>().is_some() => Err(error.to_string()),
        Err(_) => Ok(Value::Undefined),
        Ok(value) => Ok(value),
    }
}
