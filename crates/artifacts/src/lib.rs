//! Modules: where they come from and where they are kept.
