//! `proviso import`: converts policies of other systems, and prints them or writes them into a folder.

use std::io::Write as _;
use std::path::Path;
use std::process::ExitCode;

use proviso_evaluation::documents;
use proviso_import::{Imported, import};

use super::print;
use crate::arguments::Import;
use crate::error::Error;

pub fn run(arguments: &Import) -> Result<ExitCode, Error> {
    let mut all = Vec::new();
    for file in &arguments.files {
        all.extend(documents::read(file)?);
    }
    let imported = import(all, &arguments.resources.iter().cloned().collect())?;
    if let Some(folder) = &arguments.output_dir {
        write_all(folder, &imported)?;
        return Ok(ExitCode::SUCCESS);
    }
    let texts = imported.iter().map(Imported::to_yaml).collect::<Result<Vec<_>, _>>()?;
    print(&texts.join("---\n"))?;
    Ok(ExitCode::SUCCESS)
}

/// Writes a file for each policy. An existing file is an error, because it may have changes of the user.
fn write_all(folder: &Path, imported: &[Imported]) -> Result<(), Error> {
    std::fs::create_dir_all(folder).map_err(|error| Error::file(folder, error))?;
    for policy in imported {
        let file = folder.join(policy.file_name());
        let text = policy.to_yaml()?;
        let written = std::fs::File::create_new(&file).and_then(|mut open| open.write_all(text.as_bytes()));
        written.map_err(|error| Error::file(&file, error))?;
        print(&format!("{}\n", file.display()))?;
    }
    Ok(())
}
