//! The errors of compilation.

use std::time::Duration;

use proviso_core::Reason;
use proviso_engines::CompileError;

/// The error of a source or module that was not compiled.
#[derive(Debug, thiserror::Error)]
pub enum CompileFailure {
    #[error(transparent)]
    Compile(#[from] CompileError),
    #[error("compiling it took longer than {0:?}: make it smaller, or raise --compile-timeout")]
    Timeout(Duration),
    #[error(
        "compiling it takes more than {0} MiB of memory: make it smaller, or raise --compile-memory and the container's limit"
    )]
    Memory(u32),
    /// The module needs far more memory than other modules of its size: it seems made to exhaust the compiler.
    #[error(
        "compiling it takes more than {0} MiB of memory, far more than its size explains: it seems made to exhaust the compiler"
    )]
    Bomb(u32),
    #[error("the compiler stopped: {0}")]
    Stopped(String),
}

impl CompileFailure {
    #[must_use]
    pub fn reason(&self) -> Reason {
        match self {
            Self::Compile(error) => error.reason(),
            Self::Timeout(_) => Reason::COMPILE_TIMEOUT,
            Self::Memory(_) | Self::Bomb(_) | Self::Stopped(_) => Reason::COMPILE_ERROR,
        }
    }

    /// Returns true if the same source or module may compile later.
    #[must_use]
    pub fn is_transient(&self) -> bool {
        matches!(self, Self::Timeout(_) | Self::Stopped(_))
    }
}
