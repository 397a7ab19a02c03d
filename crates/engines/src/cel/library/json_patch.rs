//! `jsonpatch.escapeKey`: a key as it stands in a JSON pointer (RFC 6901).

use cel::common::types::STRING_TYPE;
use cel::{DeclarationError, Env};

use super::argument::{give_text, text};
use super::overload::function;

pub(super) fn declare(environment: &mut Env) -> Result<(), DeclarationError> {
    function(environment, "jsonpatch.escapeKey", vec![STRING_TYPE], |arguments| {
        give_text(text(&arguments, 0)?.replace('~', "~0").replace('/', "~1"))
    })
}
