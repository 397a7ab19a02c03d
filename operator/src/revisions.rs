//! A `PolicyRevision` without its program. A cluster may have ten times as many revisions as policies. Their programs would
//! take most of the operator's memory, and no controller reads them.

use std::borrow::Cow;
use std::sync::Arc;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube::Resource;
use proviso_crds::names::{EXPERIMENT_LABEL, POLICY_LABEL};
use proviso_crds::uniqueness::UniqueFields;
use proviso_crds::{
    Admission, ConditionStatus, ConditionType, Conditions as _, Configuration, EnforcementPoint, PolicyRevision,
    PolicyRevisionSpec, PolicyRevisionStatus, RevisedExperiment, RevisedPolicy, RevisionRole,
};

use serde_json::{Map, Value};

use crate::cache::label_values;
use crate::malformed::{Keyed, MaybeMalformed};
use crate::uniqueness;

/// Messages of the conditions about replicas. The messages contain no counts: counts change with each probe, and each
/// change would be another write. The counts are in `status.replicas` of a policy or experiment.
pub(crate) const LOADED: &str = "every Ready replica has loaded it";
pub(crate) const NOT_LOADED: &str = "not every Ready replica has loaded it";

#[derive(Clone, Debug)]
pub(crate) struct Revision {
    pub metadata: ObjectMeta,
    pub policy_server: String,
    pub policy_ref: RevisedPolicy,
    pub role: RevisionRole,
    pub experiment_ref: Option<RevisedExperiment>,
    pub enabled: bool,
    /// `spec.data.admission`: the requests that the webhook of this revision covers. `None` for another enforcement point.
    pub admission: Option<Admission>,
    /// The enforcement point; `None` if the spec is not valid.
    pub point: Option<EnforcementPoint>,
    /// The display name and the priority of a request policy; `None` if its level is not valid.
    pub unique: Option<UniqueFields>,
    /// The section `configuration` and the settings of a configuration policy, until the revision is retired. `None` for other policies.
    pub configuration: Option<Arc<RevisedConfiguration>>,
    pub status: PolicyRevisionStatus,
}

/// The content of a configuration policy, or the template that computes it, in one generation.
#[derive(Debug, PartialEq)]
pub(crate) struct RevisedConfiguration {
    pub configuration: Configuration,
    pub settings: Map<String, Value>,
}

impl From<PolicyRevision> for Revision {
    fn from(PolicyRevision { metadata, spec, status }: PolicyRevision) -> Self {
        let PolicyRevisionSpec { policy_server, policy_ref, role, experiment_ref, enabled, preview: _, data } = spec;
        let unique = data.request.as_ref().and_then(|request| {
            UniqueFields::new(request, "spec.data.request", policy_ref.namespace.as_deref(), &policy_ref.name).ok()
        });
        let (point, admission) = (data.enforcement_point(), data.admission);
        let status = status.unwrap_or_default();
        // A retired generation never becomes live again, because only the newest one does, and its content may be large.
        let live = status.conditions.condition(ConditionType::Live);
        let is_retired = live.is_some_and(|live| live.status == ConditionStatus::False.as_str());
        let settings = data.settings;
        let revised = |configuration| Arc::new(RevisedConfiguration { configuration, settings });
        let configuration = data.configuration.filter(|_| !is_retired).map(revised);
        Self {
            metadata,
            policy_server,
            policy_ref,
            role,
            experiment_ref,
            enabled,
            admission,
            point,
            unique,
            configuration,
            status,
        }
    }
}

impl Revision {
    /// Returns whether the revision belongs to an experiment.
    pub fn is_candidate(&self) -> bool {
        self.role == RevisionRole::Candidate
    }

    /// Returns whether the revision configures components.
    pub fn is_configuration(&self) -> bool {
        self.point == Some(EnforcementPoint::Configuration)
    }

    /// Returns whether the operator has marked this revision as live.
    pub fn is_marked_live(&self) -> bool {
        self.status.conditions.is_true(ConditionType::Live)
    }
}

impl Keyed for Revision {
    type Sent = PolicyRevision;

    fn from_sent(sent: PolicyRevision) -> Self {
        sent.into()
    }

    fn keys(object: &MaybeMalformed<Self>) -> Vec<String> {
        // A live generation has its name and its priority also while a newer one is rolled out.
        let live = object.0.as_ref().ok().filter(|it| it.role == RevisionRole::Live);
        let unique =
            live.and_then(|it| Some(uniqueness::keys(it.unique.as_ref()?, it.policy_ref.namespace.as_deref())));
        let labels = label_values(object, &[POLICY_LABEL, EXPERIMENT_LABEL]);
        labels.into_iter().chain(unique.unwrap_or_default()).collect()
    }
}

impl Resource for Revision {
    type DynamicType = <PolicyRevision as Resource>::DynamicType;
    type Scope = <PolicyRevision as Resource>::Scope;

    fn kind(of: &Self::DynamicType) -> Cow<'_, str> {
        PolicyRevision::kind(of)
    }

    fn group(of: &Self::DynamicType) -> Cow<'_, str> {
        PolicyRevision::group(of)
    }

    fn version(of: &Self::DynamicType) -> Cow<'_, str> {
        PolicyRevision::version(of)
    }

    fn plural(of: &Self::DynamicType) -> Cow<'_, str> {
        PolicyRevision::plural(of)
    }

    fn meta(&self) -> &ObjectMeta {
        &self.metadata
    }

    fn meta_mut(&mut self) -> &mut ObjectMeta {
        &mut self.metadata
    }
}
