//! Writes the `CustomResourceDefinitions` of all kinds into a folder: `cargo run -p proviso-crds --bin crdgen -- crds`.

use std::path::PathBuf;
use std::process::ExitCode;

fn main() -> ExitCode {
    let mut arguments = std::env::args_os().skip(1);
    let (Some(folder), None) = (arguments.next().map(PathBuf::from), arguments.next()) else {
        report("usage: crdgen FOLDER");
        return ExitCode::from(2);
    };
    for (file, text) in proviso_crds::definitions() {
        let path = folder.join(file);
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
