//! Requests to the API server, for messages about permissions.

use std::fmt;

/// A request to the API server.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Access {
    pub verb: &'static str,
    /// The resource, such as `policies.proviso.dev`.
    pub resource: &'static str,
    /// The subresource, such as `start`; `None` for a request for the object itself.
    pub subresource: Option<&'static str>,
    /// The namespace; `None` for all namespaces, or for a cluster-scoped resource.
    pub namespace: Option<String>,
}

impl fmt::Display for Access {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}", self.verb, self.resource)?;
        if let Some(subresource) = self.subresource {
            write!(f, "/{subresource}")?;
        }
        match &self.namespace {
            Some(namespace) => write!(f, " in the namespace {namespace}"),
            None => Ok(()),
        }
    }
}

impl Access {
    /// Returns the `kubectl` command that checks the permission for this request.
    #[must_use]
    pub fn can_i(&self) -> String {
        let place = self.namespace.as_ref().map_or_else(|| " -A".to_owned(), |namespace| format!(" -n {namespace}"));
        let part = self.subresource.map_or_else(String::new, |it| format!(" --subresource={it}"));
        format!("kubectl auth can-i {} {}{part}{place}", self.verb, self.resource)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn kubectl_checks_the_permission_for_a_subresource() {
        let namespace = Some("team".to_owned());
        let resource = "policyexperiments.actions.proviso.dev";
        let access = Access { verb: "create", resource, subresource: Some("commit"), namespace };
        assert_eq!(access.to_string(), "create policyexperiments.actions.proviso.dev/commit in the namespace team");
        let command = "kubectl auth can-i create policyexperiments.actions.proviso.dev --subresource=commit -n team";
        assert_eq!(access.can_i(), command);
    }
}
