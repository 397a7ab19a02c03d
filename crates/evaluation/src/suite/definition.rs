//! The definition of a suite.

use std::path::{Path, PathBuf};

use super::filter::Filter;
use super::report::TestReport;
use super::{gatekeeper, own, requests};
use crate::evaluator::Evaluator;

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
    Own(Vec<OwnTest>),
}

/// A test of one of Proviso's own suites.
#[derive(Debug)]
pub(super) enum OwnTest {
    Policy(Box<own::Test>),
    /// A test of a chain of request policies.
    Requests(requests::Test),
}

impl OwnTest {
    pub(super) fn is_chosen(&self, filter: &Filter) -> bool {
        match self {
            Self::Policy(test) => test.is_chosen(filter),
            Self::Requests(test) => test.is_chosen(filter),
        }
    }

    pub(super) async fn run(&self, suite: &Path, filter: &Filter, evaluator: &Evaluator) -> TestReport {
        match self {
            Self::Policy(test) => test.run(suite, filter, evaluator).await,
            Self::Requests(test) => test.run(suite, filter, evaluator).await,
        }
    }
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
