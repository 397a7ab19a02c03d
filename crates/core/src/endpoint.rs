//! The URL paths that an API server calls. Only this module builds and parses them.

use std::fmt;

use crate::policy_id::{PolicyId, PolicyIdError, check_name};

/// The kind of evaluation that a path requests.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Action {
    /// An `AdmissionReview`; the policy's mode, `mutating` and message apply to the answer.
    Validate,
    /// `{"request": <any>}` without Kubernetes' envelope.
    ValidateRaw,
    /// An `AdmissionReview`; the answer is the program's verdict, without mode, `mutating` and message.
    Audit,
}

impl Action {
    const ALL: [Self; 3] = [Self::Validate, Self::ValidateRaw, Self::Audit];

    /// The first segment of the path.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Validate => "validate",
            Self::ValidateRaw => "validate_raw",
            Self::Audit => "audit",
        }
    }
}

/// The path of a policy: `/<action>/<policy id>[/<generation>]`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Endpoint {
    pub action: Action,
    pub policy: PolicyId,
    /// The generation that must answer; `None` for the live generation.
    pub generation: Option<u64>,
}

/// The path of an experiment: `/preview/<policy id>/<experiment>/<generation>`. An experiment has a webhook with this path if
/// the webhook of its policy does not cover the same requests. The answer allows each request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PreviewEndpoint {
    pub policy: PolicyId,
    /// The experiment's `metadata.name`.
    pub experiment: String,
    /// The experiment's `metadata.generation`.
    pub generation: u64,
}

/// The policy or the experiment that a path addresses.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Target {
    Policy(Endpoint),
    Preview(PreviewEndpoint),
}

/// The error of a path that is not an endpoint.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum EndpointError {
    #[error(
        "there is nothing at this path; policies answer at /validate, /validate_raw and /audit, followed by /<policy id>[/<generation>]"
    )]
    Unknown,
    #[error(transparent)]
    Policy(#[from] PolicyIdError),
    #[error("{0:?} is not a generation: it must be a whole number from 1, without leading zeros")]
    Generation(String),
}

impl Endpoint {
    /// Parses the path of a request, without its query.
    ///
    /// # Errors
    /// Returns an error if the path has another form, or if its policy id or generation is malformed.
    pub fn parse(path: &str) -> Result<Self, EndpointError> {
        let mut segments = path.strip_prefix('/').ok_or(EndpointError::Unknown)?.split('/');
        let first = segments.next().unwrap_or_default();
        let action = Action::ALL.into_iter().find(|a| a.as_str() == first).ok_or(EndpointError::Unknown)?;
        let policy = segments.next().ok_or(EndpointError::Unknown)?.parse()?;
        let generation = segments.next().map(parse_generation).transpose()?;
        if segments.next().is_some() {
            return Err(EndpointError::Unknown);
        }
        Ok(Self { action, policy, generation })
    }
}

impl PreviewEndpoint {
    const FIRST: &str = "preview";

    /// Parses the path of a request, without its query.
    ///
    /// # Errors
    /// Returns an error if the path has another form, or if its policy id, experiment or generation is malformed.
    pub fn parse(path: &str) -> Result<Self, EndpointError> {
        let segments: Vec<_> = path.strip_prefix('/').ok_or(EndpointError::Unknown)?.split('/').collect();
        let [Self::FIRST, policy, experiment, generation] = segments[..] else {
            return Err(EndpointError::Unknown);
        };
        check_name(experiment)?;
        Ok(Self {
            policy: policy.parse()?,
            experiment: experiment.to_owned(),
            generation: parse_generation(generation)?,
        })
    }
}

impl Target {
    /// Parses the path of a request, without its query.
    ///
    /// # Errors
    /// Returns the errors of [`Endpoint::parse`] and [`PreviewEndpoint::parse`].
    pub fn parse(path: &str) -> Result<Self, EndpointError> {
        if path.split('/').nth(1) == Some(PreviewEndpoint::FIRST) {
            return PreviewEndpoint::parse(path).map(Self::Preview);
        }
        Endpoint::parse(path).map(Self::Policy)
    }
}

impl fmt::Display for PreviewEndpoint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "/{}/{}/{}/{}", Self::FIRST, self.policy, self.experiment, self.generation)
    }
}

fn parse_generation(text: &str) -> Result<u64, EndpointError> {
    let is_canonical = text.bytes().all(|c| c.is_ascii_digit()) && !text.starts_with('0');
    text.parse().ok().filter(|_| is_canonical).ok_or_else(|| EndpointError::Generation(text.chars().take(40).collect()))
}

impl fmt::Display for Endpoint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "/{}/{}", self.action.as_str(), self.policy)?;
        self.generation.map_or(Ok(()), |generation| write!(f, "/{generation}"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn paths_that_are_not_endpoints_are_refused() {
        for path in [
            "",
            "/",
            "/validate",
            "/validate/",
            "validate/cluster.a",
            "/validate/cluster.a/",
            "/validate/cluster.a/0",
            "/validate/cluster.a/01",
            "/validate/cluster.a/+1",
            "/validate/cluster.a/-1",
            "/validate/cluster.a/1/",
            "/validate/cluster.a/1/2",
            "/validate/../cluster.a",
            "/Validate/cluster.a",
            "/validate/cluster.a/1e3",
            "/validate/cluster.a/18446744073709551616",
            "/preview/cluster.a",
        ] {
            assert!(Endpoint::parse(path).is_err(), "{path:?}");
        }
    }

    #[test]
    fn paths_that_are_not_previews_are_refused() {
        for path in [
            "/preview",
            "/preview/cluster.a",
            "/preview/cluster.a/b",
            "/preview/cluster.a/b/",
            "/preview/cluster.a/b/0",
            "/preview/cluster.a/b/1/",
            "/preview/cluster.a//1",
            "/preview/cluster.a/B/1",
            "/preview/a/b/1",
            "/preview/cluster.a/b/1/2",
            "preview/cluster.a/b/1",
        ] {
            assert!(Target::parse(path).is_err(), "{path:?}");
        }
    }

    proptest! {
        #[test]
        fn a_preview_endpoint_round_trips_through_its_path(name in "[a-z0-9]{1,30}", experiment in "[a-z0-9]{1,9}([.][a-z0-9]{1,9})?", generation in 1..=u64::MAX) {
            let endpoint = PreviewEndpoint { policy: PolicyId::namespaced("n", &name).unwrap(), experiment, generation };
            prop_assert_eq!(Target::parse(&endpoint.to_string()), Ok(Target::Preview(endpoint)));
        }

        #[test]
        fn an_endpoint_round_trips_through_its_path(action in 0..3usize, name in "[a-z0-9]{1,30}", generation in proptest::option::of(1..=u64::MAX)) {
            let endpoint = Endpoint { action: Action::ALL[action], policy: PolicyId::cluster(&name).unwrap(), generation };
            prop_assert_eq!(Endpoint::parse(&endpoint.to_string()), Ok(endpoint));
        }

        #[test]
        fn a_parsed_path_is_formatted_unchanged(path in "/(validate|validate_raw|audit)/[a-z.0-9/%-]{0,30}") {
            if let Ok(endpoint) = Endpoint::parse(&path) {
                prop_assert_eq!(endpoint.to_string(), path);
            }
        }
    }
}
