//! Writes the `CustomResourceDefinitions` of all kinds: `crdgen crds charts/proviso-crds/templates`, or `make crds`.

use std::path::PathBuf;
use std::process::ExitCode;

fn main() -> ExitCode {
    let mut arguments = std::env::args_os().skip(1);
    let (Some(plain), Some(chart), None) = (arguments.next(), arguments.next(), arguments.next()) else {
        report("usage: crdgen FOLDER CHART-FOLDER");
        return ExitCode::from(2);
    };
    let (plain, chart) = (PathBuf::from(plain), PathBuf::from(chart));
    let plain = proviso_crds::definitions().into_iter().map(|(file, text)| (plain.join(file), text));
    let chart = proviso_crds::chart().into_iter().map(|(file, text)| (chart.join(file), text));
    for (path, text) in plain.chain(chart) {
        if let Err(error) = std::fs::write(&path, text) {
            report(&format!("{}: {error}", path.display()));
            return ExitCode::FAILURE;
        }
    }
    ExitCode::SUCCESS
}

fn report(message: &str) {
    use std::io::Write as _;
    let _ = writeln!(std::io::stderr(), "{message}");
}
