//! The functions and macros of all expressions. They are declared once, because the declaration takes longer than an evaluation.

use std::sync::{Arc, LazyLock};

use cel::{DeclarationError, Env};

use super::library;

pub(super) static ENVIRONMENT: LazyLock<Arc<Env>> = LazyLock::new(|| {
    let mut environment = Env::stdlib();
    if let Err(error) = declare(&mut environment) {
        // The policies that use a missing function fail, and therefore deny.
        tracing::error!(%error, "some CEL functions could not be declared: policies that use them deny every request");
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
    fn all_functions_can_be_declared() {
        assert_eq!(declare(&mut Env::stdlib()), Ok(()));
    }
}
