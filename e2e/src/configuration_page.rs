//! Checks the page `docs/concepts/configuration.md`: the tests that its table of the DCAE flow names must exist.

use crate::faults_page::check;

#[test]
fn every_step_of_the_dcae_flow_has_tests_that_exist() {
    let named = check("docs/concepts/configuration.md", "Flow", 1);
    assert!(named > 20, "only {named} tests were found");
}
