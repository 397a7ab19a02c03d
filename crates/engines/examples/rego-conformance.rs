//! `rego-conformance FOLDER [-v]`: runs OPA's case files in a folder and its subfolders against Proviso's Rego engine, and
//! counts the outcomes for each folder. With `-v` it lists each case that does not pass. `proviso test` runs Gatekeeper's suites.

#![allow(clippy::print_stdout, reason = "the program prints its results")]

use std::collections::BTreeMap;
use std::path::Path;
use std::process::ExitCode;

#[path = "../tests/support/conformance.rs"]
mod conformance;

use conformance::Outcome;

fn main() -> ExitCode {
    let mut arguments = std::env::args().skip(1);
    let Some(folder) = arguments.next() else {
        println!("usage: rego-conformance FOLDER [-v]");
        return ExitCode::FAILURE;
    };
    let is_verbose = arguments.any(|argument| argument == "-v");
    let runs = match conformance::run(Path::new(&folder)) {
        Ok(runs) => runs,
        Err(error) => {
            println!("{error}");
            return ExitCode::FAILURE;
        }
    };
    let mut folders: BTreeMap<&str, [usize; 5]> = BTreeMap::new();
    let mut total = [0; 5];
    for run in &runs {
        let (column, failure) = match &run.outcome {
            Outcome::Passed => (0, None),
            Outcome::Refused(why) => (1, Some(("refused", why))),
            Outcome::Denied(why) => (2, Some(("denied", why))),
            Outcome::Looser(why) => (3, Some(("looser", why))),
            Outcome::Different(why) => (4, Some(("different", why))),
        };
        folders.entry(&run.folder).or_default()[column] += 1;
        total[column] += 1;
        if let Some((label, why)) = failure.filter(|_| is_verbose) {
            println!("{label}: {} {}: {}", run.folder, run.name, why.replace('\n', " | "));
        }
    }
    println!("{:<60} {:>7} {:>7} {:>7} {:>7} {:>9}", "folder", "passed", "refused", "denied", "looser", "different");
    for (folder, counts) in folders.iter().map(|(folder, counts)| (*folder, counts)).chain([("all", &total)]) {
        let [passed, refused, denied, looser, different] = counts;
        println!("{folder:<60} {passed:>7} {refused:>7} {denied:>7} {looser:>7} {different:>9}");
    }
    ExitCode::SUCCESS
}
