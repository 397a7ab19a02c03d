//! Guests that run scripts, and scripts that are built from arbitrary bytes. This module does not depend on the engine.

// The modules have explicit paths because the tests of the engine include this file as a module in another folder.
#[path = "hostile/builtins.rs"]
pub mod builtins;
#[path = "hostile/guest.rs"]
pub mod guest;
#[path = "hostile/opa.rs"]
pub mod opa;
#[path = "hostile/script.rs"]
pub mod script;
#[path = "hostile/wapc.rs"]
pub mod wapc;
#[path = "hostile/wasi.rs"]
pub mod wasi;

use guest::Guest;

/// A calling convention.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Abi {
    Wapc,
    Opa,
    Wasi,
}

impl Abi {
    pub const ALL: [Self; 3] = [Self::Wapc, Self::Opa, Self::Wasi];

    pub fn guest(self) -> Guest {
        match self {
            Self::Wapc => wapc::guest(),
            Self::Opa => opa::guest(),
            Self::Wasi => wasi::guest(),
        }
    }
}
