//! Checks the page `docs/reference/aip-236.md`: each statement of AIP-236 has tests over a folder and in a cluster, which exist.

use crate::faults_page::check;

#[test]
fn every_statement_of_aip_236_has_tests_that_exist() {
    let named = check("docs/reference/aip-236.md", "Statement", 2);
    assert!(named > 40, "only {named} tests were found");
}
