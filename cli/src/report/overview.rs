//! The report about many policies.

use serde::Serialize;

use super::policy::PolicyReport;
use crate::found::{Found, Omitted};
use crate::objects::PolicyObject;

/// The state of many policies.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Overview {
    pub policies: Vec<PolicyReport>,
    pub unseen: Vec<Omitted>,
}

impl Overview {
    /// Returns the report about the policies, sorted by kind, namespace and name.
    #[must_use]
    pub fn new(found: Found<PolicyObject>) -> Self {
        let mut policies: Vec<_> = found.items.iter().map(PolicyReport::new).collect();
        policies.sort_by(|a, b| (&a.namespace, &a.name).cmp(&(&b.namespace, &b.name)));
        Self { policies, unseen: found.unseen }
    }
}
