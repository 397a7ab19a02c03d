//! Writes the OpenAPI document into a file: `openapi docs/openapi.json`.

use std::process::ExitCode;

fn main() -> ExitCode {
    let written =
        std::env::args_os().nth(1).map(|path| std::fs::write(path, format!("{:#}\n", proviso_api::document())));
    if let Some(Ok(())) = written { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}
