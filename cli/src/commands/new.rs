//! `proviso new`: creates a folder with the files of a new policy.

use std::path::PathBuf;
use std::process::ExitCode;

use super::print;
use crate::arguments::New;
use crate::error::Error;
use crate::scaffold;

pub fn run(arguments: &New, program: &str) -> Result<ExitCode, Error> {
    let folder = arguments.folder.clone().unwrap_or_else(|| PathBuf::from(&arguments.name));
    // An existing folder is an error, because it may have files of the user.
    std::fs::create_dir(&folder).map_err(|error| Error::file(&folder, error))?;
    for (name, text) in scaffold::files(arguments.language, &arguments.name) {
        let file = folder.join(name);
        let parent = file.parent().unwrap_or(&folder);
        std::fs::create_dir_all(parent).map_err(|error| Error::file(parent, error))?;
        std::fs::write(&file, text).map_err(|error| Error::file(&file, error))?;
    }
    let next = scaffold::next_step(arguments.language);
    print(&format!("{0}: see {0}/README.md; {next}{program} test {0}\n", folder.display()))?;
    Ok(ExitCode::SUCCESS)
}
