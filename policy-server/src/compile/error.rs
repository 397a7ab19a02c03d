//! Why something is not compiled, and whether it may compile later.

use std::time::Duration;

use proviso_core::Reason;
use proviso_engines::CompileError;

/// A source or module that is not compiled.
#[derive(Debug, thiserror::Error)]
pub enum Uncompiled {
    #[error(transparent)]
    Compile(#[from] CompileError),
    #[error("compiling it took longer than {0:?}: make it smaller, or raise --compile-timeout")]
    Timeout(Duration),
    #[error(
        "compiling it takes more than {0} MiB of memory: make it smaller, or raise --compile-memory and the container's limit"
    )]
    Memory(u32),
    #[error("compiling it takes more than {0} MiB of memory, far more than its size explains: no compiler wrote it")]
    Bomb(u32),
    #[error("the compiler stopped: {0}")]
    Stopped(String),
}

impl Uncompiled {
    #[must_use]
    pub fn reason(&self) -> Reason {
        match self {
            Self::Compile(error) => error.reason(),
            Self::Timeout(_) => Reason::COMPILE_TIMEOUT,
            Self::Memory(_) | Self::Bomb(_) | Self::Stopped(_) => Reason::COMPILE_ERROR,
        }
    }

    /// Returns whether the same source or module may compile later.
    #[must_use]
    pub fn is_passing(&self) -> bool {
        matches!(self, Self::Timeout(_) | Self::Stopped(_))
    }
}
