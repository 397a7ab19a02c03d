//! Named formats: `format.named('…')`, `format.<name>()`, and `validate`, which returns an optional list of errors.

mod check;

use cel::common::types::{CelOptional, STRING_TYPE, Type};
use cel::common::value::{CowVal, Val};
use cel::objects::Opaque;
use cel::{DeclarationError, Env, ExecutionError};

use super::argument::{Result, boxed, opaque, text, texts};
use super::overload::{function, method};
use check::FORMATS;

const NAME: &str = "kubernetes.NamedFormat";

/// A format: an index in [`FORMATS`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Format(usize);

impl Opaque for Format {
    fn runtime_type_name(&self) -> &str {
        NAME
    }
}

pub(super) fn declare(environment: &mut Env) -> std::result::Result<(), DeclarationError> {
    environment.add_type(Type::new_opaque_type(NAME))?;
    function(environment, "format.named", vec![STRING_TYPE], |arguments| {
        let name = text(&arguments, 0)?;
        let format = FORMATS.iter().position(|format| format.name == name);
        let format = format.map(|format| boxed(Format(format))).transpose()?;
        Ok(CowVal::owned(format.map_or_else(CelOptional::none, CelOptional::of)))
    })?;
    for (name, constant) in CONSTANTS {
        function(environment, name, vec![], *constant)?;
    }
    method(environment, Type::new_opaque_type(NAME), "validate", vec![STRING_TYPE], |arguments| {
        let Format(format) = opaque(&arguments, 0)?;
        let format = FORMATS.get(format).ok_or_else(|| ExecutionError::function_error("validate", "no format"))?;
        let checked = (format.check)(text(&arguments, 1)?);
        Ok(CowVal::owned(match checked {
            Ok(()) => CelOptional::none(),
            Err(why) => CelOptional::of(Box::new(texts([why])) as Box<dyn Val>),
        }))
    })
}

type Constant = for<'b, 'v> fn(Vec<CowVal<'b, 'v>>) -> Result<CowVal<'b, 'v>>;

/// A function for each format, in the order of [`FORMATS`]. cel's functions cannot capture values.
const CONSTANTS: &[(&str, Constant)] = &[
    ("format.dns1123Label", |_| super::argument::return_opaque(Format(0))),
    ("format.dns1123Subdomain", |_| super::argument::return_opaque(Format(1))),
    ("format.dns1035Label", |_| super::argument::return_opaque(Format(2))),
    ("format.dns1123LabelPrefix", |_| super::argument::return_opaque(Format(3))),
    ("format.dns1123SubdomainPrefix", |_| super::argument::return_opaque(Format(4))),
    ("format.dns1035LabelPrefix", |_| super::argument::return_opaque(Format(5))),
    ("format.qualifiedName", |_| super::argument::return_opaque(Format(6))),
    ("format.labelValue", |_| super::argument::return_opaque(Format(7))),
    ("format.uri", |_| super::argument::return_opaque(Format(8))),
    ("format.uuid", |_| super::argument::return_opaque(Format(9))),
    ("format.byte", |_| super::argument::return_opaque(Format(10))),
    ("format.date", |_| super::argument::return_opaque(Format(11))),
    ("format.datetime", |_| super::argument::return_opaque(Format(12))),
];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_format_has_a_constant() {
        assert_eq!(CONSTANTS.len(), FORMATS.len());
        for ((constant, operation), (index, format)) in CONSTANTS.iter().zip(FORMATS.iter().enumerate()) {
            assert_eq!(*constant, format!("format.{}", format.name));
            assert_eq!(opaque::<Format>(&[operation(vec![]).unwrap()], 0), Ok(Format(index)));
        }
    }
}
