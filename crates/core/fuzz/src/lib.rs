//! What reads the envelope of a review, for the fuzzer and for the tests of the crate.

pub mod envelope;
