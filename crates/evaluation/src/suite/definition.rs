//! The definition of a suite.

use std::path::PathBuf;

use super::filter::Filter;
use super::{gatekeeper, own};

/// A suite of tests.
#[derive(Debug)]
pub struct Suite {
    pub file: PathBuf,
    /// `metadata.name`; empty if the suite has none.
    pub name: String,
    pub(super) tests: Tests,
}

/// The tests of a suite, by the kind of suite.
#[derive(Debug)]
pub(super) enum Tests {
    /// The whole suite has `skip: true`.
    Skipped,
    Gatekeeper(Vec<gatekeeper::Test>),
    Own(Vec<own::Test>),
}

impl Suite {
    /// Returns true if the filter selects a test of the suite.
    #[must_use]
    pub fn is_chosen(&self, filter: &Filter) -> bool {
        match &self.tests {
            Tests::Skipped => false,
            Tests::Gatekeeper(tests) => tests.iter().any(|test| test.is_chosen(filter)),
            Tests::Own(tests) => tests.iter().any(|test| test.is_chosen(filter)),
        }
    }
}
