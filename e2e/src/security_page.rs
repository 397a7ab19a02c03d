//! Checks the page `docs/concepts/security.md`: the tests that its tables of threats name must exist.

use crate::faults_page::check;

#[test]
fn every_threat_has_tests_that_exist() {
    let named = check("docs/concepts/security.md", "Threat", 1);
    assert!(named > 40, "only {named} tests were found");
}
