//! `jsonpatch.escapeKey`: escapes a key for a JSON Pointer (RFC 6901).

use cel::common::types::STRING_TYPE;
use cel::{DeclarationError, Env};

use super::argument::{return_text, text};
use super::overload::function;

pub(super) fn declare(environment: &mut Env) -> Result<(), DeclarationError> {
    function(environment, "jsonpatch.escapeKey", vec![STRING_TYPE], |arguments| {
        return_text(text(&arguments, 0)?.replace('~', "~0").replace('/', "~1"))
    })
}
