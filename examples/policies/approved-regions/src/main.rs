//! Decides about requests that are not from Kubernetes: a request for a database, a bucket or a machine names an environment
//! and a region. The policy is an ordinary command with an argument, standard input and standard output.

use std::collections::{BTreeMap, BTreeSet};
use std::io::{self, Read, Write};
use std::process::ExitCode;

use guest::{Policy, Response};
use serde::Deserialize;

#[cfg(target_arch = "wasm32")]
#[allow(unsafe_code)] // Rust calls `link_section` an unsafe attribute.
mod metadata {
    const METADATA: &[u8] = include_bytes!("../metadata.json");

    #[used]
    #[unsafe(link_section = "io.kubewarden.metadata")]
    static SECTION: [u8; METADATA.len()] = *include_bytes!("../metadata.json");
}

#[derive(Debug)]
struct ApprovedRegions;

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Settings {
    /// The regions of each environment.
    regions: BTreeMap<String, BTreeSet<String>>,
}

#[derive(Debug, Deserialize)]
struct Request {
    environment: String,
    region: String,
}

impl Policy for ApprovedRegions {
    type Request = Request;
    type Settings = Settings;

    fn validate(request: Request, settings: &Settings) -> Response {
        let Request { environment, region } = request;
        let Some(regions) = settings.regions.get(&environment) else {
            return Response::reject(format!("there is no environment {environment}"));
        };
        if regions.contains(&region) {
            return Response::accept();
        }
        let regions: Vec<&str> = regions.iter().map(String::as_str).collect();
        Response::reject(format!("{environment} runs in {}, not in {region}", regions.join(", ")))
    }

    fn validate_settings(settings: &Settings) -> Result<(), String> {
        match settings.regions.iter().find(|(_, regions)| regions.is_empty()) {
            Some((environment, _)) => Err(format!("`regions.{environment}` is empty")),
            None => Ok(()),
        }
    }
}

fn main() -> ExitCode {
    match run() {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            // The host includes this text in its denial.
            let _ = writeln!(io::stderr(), "{error}");
            ExitCode::FAILURE
        }
    }
}

fn run() -> Result<(), String> {
    let operation = std::env::args().nth(1).unwrap_or_default().replace('-', "_");
    let mut payload = Vec::new();
    io::stdin().read_to_end(&mut payload).map_err(|error| error.to_string())?;
    let answer = guest::answer::<ApprovedRegions>(operation.as_bytes(), &payload)?;
    io::stdout().write_all(&answer).map_err(|error| error.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn settings() -> Settings {
        serde_json::from_str(r#"{"regions": {"test": ["eu-1", "us-1"], "production": ["eu-1"]}}"#).unwrap()
    }

    #[test]
    fn a_region_is_approved_for_its_environment_only() {
        let ask = |environment: &str, region: &str| {
            let request = Request { environment: environment.into(), region: region.into() };
            ApprovedRegions::validate(request, &settings())
        };
        assert!(ask("test", "us-1").accepted);
        assert_eq!(ask("production", "us-1").message.unwrap(), "production runs in eu-1, not in us-1");
        assert_eq!(ask("staging", "eu-1").message.unwrap(), "there is no environment staging");
    }

    #[test]
    fn an_environment_without_regions_is_refused() {
        assert_eq!(ApprovedRegions::validate_settings(&settings()), Ok(()));
        let empty = serde_json::from_str(r#"{"regions": {"test": []}}"#).unwrap();
        assert_eq!(ApprovedRegions::validate_settings(&empty), Err("`regions.test` is empty".to_owned()));
    }
}
