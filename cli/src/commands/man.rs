//! `proviso man`: writes a manual page for each command.

use std::path::Path;
use std::process::ExitCode;

use super::print;
use crate::arguments;
use crate::error::Error;

pub fn run(folder: &Path, program: &'static str) -> Result<ExitCode, Error> {
    std::fs::create_dir_all(folder).map_err(|error| Error::file(folder, error))?;
    // A manual page has the name of the executable file.
    let installed: &'static str = if program.contains(' ') { "kubectl-proviso" } else { "proviso" };
    let command = arguments::command(program).name(installed).bin_name(installed).display_name(installed);
    clap_mangen::generate_to(command, folder).map_err(|error| Error::file(folder, error))?;
    print(&format!("{}\n", folder.join(format!("{installed}.1")).display()))?;
    Ok(ExitCode::SUCCESS)
}

#[cfg(test)]
mod tests {
    #[test]
    fn every_command_has_a_manual_page() {
        let folder = tempfile::tempdir().unwrap();
        super::run(folder.path(), "kubectl proviso").unwrap();
        for page in ["kubectl-proviso.1", "kubectl-proviso-test.1", "kubectl-proviso-experiment-commit.1"] {
            let text = std::fs::read_to_string(folder.path().join(page)).unwrap();
            assert!(text.contains(".SH SYNOPSIS"), "{page}: {text}");
        }
    }
}
