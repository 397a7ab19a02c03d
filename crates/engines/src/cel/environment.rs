//! The functions and macros that every expression has: built once, because that costs more than an evaluation.

use std::sync::{Arc, LazyLock};

use cel::{DeclarationError, Env};

use super::library;

pub(super) static ENVIRONMENT: LazyLock<Arc<Env>> = LazyLock::new(|| {
    let mut environment = Env::stdlib();
    if let Err(error) = declare(&mut environment) {
        // Without them, policies that use them fail, and so deny.
        tracing::error!(%error, "not all of CEL's functions could be declared");
    }
    Arc::new(environment)
});

fn declare(environment: &mut Env) -> Result<(), DeclarationError> {
    environment.add_extension(cel::extensions::strings)?;
    environment.add_extension(cel::extensions::lists)?;
    library::declare(environment)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn everything_can_be_declared() {
        assert_eq!(declare(&mut Env::stdlib()), Ok(()));
    }
}
