//! The checks of the review parser. The fuzz target and the tests of the crate share them.

pub mod envelope;
