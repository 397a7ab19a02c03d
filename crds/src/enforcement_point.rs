//! The enforcement point of a policy. An experiment cannot change it: the two versions of the policy would decide about different requests,
//! or configure components, and nothing could be compared.

use std::fmt;

use proviso_core::PolicyId;

use crate::PolicySpec;

/// The place where a policy takes effect.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EnforcementPoint {
    /// Requests to the Kubernetes API: `spec.admission`.
    Admission,
    /// Requests to services: `spec.request`.
    Request,
    /// The configuration of components: `spec.configuration`.
    Configuration,
}

/// The error of an experiment whose enforcement point is not that of its policy. Worded to follow the path of the spec, `spec.policy`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PointMismatch {
    policy: PolicyId,
    point: EnforcementPoint,
    experiment: EnforcementPoint,
}

impl EnforcementPoint {
    /// Returns the name of the section in the spec of a policy.
    #[must_use]
    pub fn section(self) -> &'static str {
        match self {
            Self::Admission => "admission",
            Self::Request => "request",
            Self::Configuration => "configuration",
        }
    }

    /// Returns the enforcement point of a spec with these sections; `None` if it is not valid because it has several or none.
    #[must_use]
    pub fn of_sections(has_admission: bool, has_request: bool, has_configuration: bool) -> Option<Self> {
        match (has_admission, has_request, has_configuration) {
            (true, false, false) => Some(Self::Admission),
            (false, true, false) => Some(Self::Request),
            (false, false, true) => Some(Self::Configuration),
            _ => None,
        }
    }

    /// Checks that an experiment with this enforcement point can belong to a policy.
    ///
    /// # Errors
    /// Returns an error if the policy has another enforcement point.
    pub fn check_experiment_of(self, policy: &PolicyId, point: Self) -> Result<(), PointMismatch> {
        if self == point { Ok(()) } else { Err(PointMismatch { policy: policy.clone(), point, experiment: self }) }
    }
}

impl fmt::Display for PointMismatch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (own, wanted) = (self.experiment.section(), self.point.section());
        write!(
            f,
            "has the section `{own}`, and {} has `{wanted}`: an experiment has the same section as its policy; \
             use `{wanted}`, or create a policy with `{own}`",
            self.policy
        )
    }
}

impl std::error::Error for PointMismatch {}

impl PolicySpec {
    /// Returns the enforcement point of the policy; `None` if the spec is not valid because it has several of the sections or none.
    #[must_use]
    pub fn enforcement_point(&self) -> Option<EnforcementPoint> {
        EnforcementPoint::of_sections(self.admission.is_some(), self.request.is_some(), self.configuration.is_some())
    }

    /// Checks that this spec can be that of an experiment of a policy with the spec `live`. Sections that are missing have their own
    /// errors.
    ///
    /// # Errors
    /// Returns an error if the enforcement points differ.
    pub fn check_experiment_of(&self, policy: &PolicyId, live: &Self) -> Result<(), PointMismatch> {
        match (self.enforcement_point(), live.enforcement_point()) {
            (Some(own), Some(live)) => own.check_experiment_of(policy, live),
            _ => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    #[test]
    fn an_experiment_has_the_enforcement_point_of_its_policy() {
        let spec = |sections: Value| -> PolicySpec {
            let mut spec = json!({"program": {"cel": {"validations": []}}});
            spec.as_object_mut().unwrap().extend(sections.as_object().unwrap().clone());
            serde_json::from_value(spec).unwrap()
        };
        let (admission, request) = (json!({"admission": {"rules": []}}), json!({"request": {"priority": 1}}));
        let (other, none) = (json!({"request": {"priority": 2, "user": "u"}}), json!({}));
        let policy = PolicyId::cluster("p").unwrap();
        for (experiment, live, error) in [
            (&admission, &admission, None),
            (&request, &other, None),
            (&request, &none, None),
            (&none, &admission, None),
            (&request, &admission, Some("has the section `request`, and cluster.p has `admission`")),
            (&admission, &request, Some("has the section `admission`, and cluster.p has `request`")),
        ] {
            let checked = spec(experiment.clone()).check_experiment_of(&policy, &spec(live.clone()));
            let found = checked.err().map(|error| error.to_string());
            assert_eq!(found.is_some(), error.is_some(), "{experiment} {live} {found:?}");
            assert!(found.unwrap_or_default().starts_with(error.unwrap_or_default()), "{experiment} {live}");
        }
    }
}
