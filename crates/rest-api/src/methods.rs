//! The methods of the API. One table defines both the routes and the OpenAPI document, so that the document cannot miss a
//! route.

use axum::http::Method as Http;

/// The identifier of a method.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Rpc {
    CreatePolicy,
    ListPolicies,
    GetPolicy,
    UpdatePolicy,
    DeletePolicy,
    CreateExperiment,
    ListExperiments,
    GetExperiment,
    UpdateExperiment,
    DeleteExperiment,
    StartPreview,
    StopPreview,
    Commit,
    ListOperations,
    GetOperation,
    WaitOperation,
    Document,
}

/// A method of the API.
#[derive(Debug)]
pub(crate) struct Method {
    pub rpc: Rpc,
    /// The name of the method in the style of protobuf services, such as `ListPolicies`.
    pub id: &'static str,
    pub http: Http,
    /// The path, with variables in braces, and the name of a custom method after a colon.
    pub path: &'static str,
    /// The names of the query parameters, in camel case.
    pub query: &'static [&'static str],
    /// The name of the schema of the request body. `None` means that the method has no request body.
    pub request: Option<&'static str>,
    /// The name of the schema of the response body.
    pub response: &'static str,
    pub summary: &'static str,
}

const LIST: &[&str] = &["pageSize", "pageToken", "filter", "orderBy"];
const LIST_IN_NAMESPACE: &[&str] = &["pageSize", "pageToken", "filter", "orderBy", "namespace"];
/// AIP-133 derives the first name from the type of the resource. The second is its short form.
const EXPERIMENT_ID: &[&str] = &["policyExperimentId", "experimentId"];

macro_rules! method {
    ($http:ident $path:literal, $rpc:ident, $id:literal, $query:expr, $request:expr, $response:literal, $summary:literal) => {
        Method {
            rpc: Rpc::$rpc,
            id: $id,
            http: Http::$http,
            path: $path,
            query: $query,
            request: $request,
            response: $response,
            summary: $summary,
        }
    };
}

impl Method {
    /// Returns true if the method changes policies or experiments. It returns an operation.
    pub(crate) fn is_change(&self) -> bool {
        self.response == "Operation" && !matches!(self.rpc, Rpc::GetOperation | Rpc::WaitOperation)
    }
}

/// All methods of the API.
pub(crate) static METHODS: &[Method] = &[
    method!(GET "/v1/policies", ListPolicies, "ListPolicies", LIST_IN_NAMESPACE, None, "ListPoliciesResponse", "Lists the policies, ordered by name"),
    method!(POST "/v1/policies", CreatePolicy, "CreatePolicy", &["policyId"], Some("Policy"), "Operation", "Creates a policy"),
    method!(GET "/v1/policies/{policy}", GetPolicy, "GetPolicy", &[], None, "Policy", "Gets a policy"),
    method!(PATCH "/v1/policies/{policy}", UpdatePolicy, "UpdatePolicy", &["updateMask"], Some("Policy"), "Operation", "Updates a policy"),
    method!(DELETE "/v1/policies/{policy}", DeletePolicy, "DeletePolicy", &["etag"], None, "Operation", "Deletes a policy and its experiments"),
    method!(GET "/v1/policies/{policy}/experiments", ListExperiments, "ListPolicyExperiments", LIST_IN_NAMESPACE, None, "ListPolicyExperimentsResponse", "Lists the experiments of a policy, or of all policies if the policy is `-`, ordered by name"),
    method!(POST "/v1/policies/{policy}/experiments", CreateExperiment, "CreatePolicyExperiment", EXPERIMENT_ID, Some("PolicyExperiment"), "Operation", "Creates an experiment of a policy, which can have at most 10"),
    method!(GET "/v1/policies/{policy}/experiments/{experiment}", GetExperiment, "GetPolicyExperiment", &[], None, "PolicyExperiment", "Gets an experiment"),
    method!(PATCH "/v1/policies/{policy}/experiments/{experiment}", UpdateExperiment, "UpdatePolicyExperiment", &["updateMask"], Some("PolicyExperiment"), "Operation", "Updates an experiment, which suspends its preview"),
    method!(DELETE "/v1/policies/{policy}/experiments/{experiment}", DeleteExperiment, "DeletePolicyExperiment", &["etag"], None, "Operation", "Deletes an experiment"),
    method!(POST "/v1/policies/{policy}/experiments/{experiment}:startPreview", StartPreview, "StartPreviewPolicyExperiment", &[], Some("PreviewRequest"), "Operation", "Starts the preview of an experiment"),
    method!(POST "/v1/policies/{policy}/experiments/{experiment}:stopPreview", StopPreview, "StopPreviewPolicyExperiment", &[], Some("PreviewRequest"), "Operation", "Stops the preview of an experiment"),
    method!(POST "/v1/policies/{policy}/experiments/{experiment}:commit", Commit, "CommitPolicyExperiment", &[], Some("CommitRequest"), "Operation", "Replaces the spec of the policy by the spec of the experiment, and deletes the experiment"),
    method!(GET "/v1/operations", ListOperations, "ListOperations", LIST, None, "ListOperationsResponse", "Lists the operations of the last 24 hours, ordered by name"),
    method!(GET "/v1/operations/{operation}", GetOperation, "GetOperation", &[], None, "Operation", "Gets the current state of an operation"),
    method!(POST "/v1/operations/{operation}:wait", WaitOperation, "WaitOperation", &[], Some("WaitRequest"), "Operation", "Waits until an operation is done, or until the timeout of the request, and returns its state"),
    method!(GET "/v1/openapi.json", Document, "GetOpenApi", &[], None, "OpenApi", "Gets this document"),
];

/// Returns the method at this path, with the values of the path variables.
///
/// # Errors
/// Returns the allowed HTTP methods if the path does not have this one; an empty list if the path does not exist.
pub(crate) fn find(http: &Http, path: &str) -> Result<(&'static Method, Vec<String>), Vec<&'static Http>> {
    let found: Vec<_> = METHODS.iter().filter_map(|method| Some((method, variables(method.path, path)?))).collect();
    let allowed = found.iter().map(|(method, _)| &method.http).collect();
    found.into_iter().find(|(method, _)| method.http == *http).ok_or(allowed)
}

/// Returns the values of the variables of a path. `None` means that the path does not have this form.
fn variables(form: &str, path: &str) -> Option<Vec<String>> {
    let (form, custom) = form.split_once(':').map_or((form, None), |(form, custom)| (form, Some(custom)));
    let parts: Vec<&str> = path.split('/').collect();
    let forms: Vec<&str> = form.split('/').collect();
    if parts.len() != forms.len() {
        return None;
    }
    let mut values = Vec::new();
    for (index, (form, part)) in forms.iter().zip(&parts).enumerate() {
        let part = percent_encoding::percent_decode_str(part).decode_utf8().ok()?;
        let (part, called) = match part.rsplit_once(':') {
            Some((part, called)) if index + 1 == parts.len() => (part, Some(called)),
            _ => (part.as_ref(), None),
        };
        if index + 1 == parts.len() && called != custom {
            return None;
        }
        if form.starts_with('{') {
            values.push(part.to_owned());
        } else if *form != part {
            return None;
        }
    }
    Some(values)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn paths_resolve_to_their_methods() {
        for (http, path, wanted) in [
            (Http::GET, "/v1/policies", Ok((Rpc::ListPolicies, vec![]))),
            (Http::GET, "/v1/policies/cluster.a", Ok((Rpc::GetPolicy, vec!["cluster.a"]))),
            (Http::POST, "/v1/policies/-/experiments/e:commit", Ok((Rpc::Commit, vec!["-", "e"]))),
            (Http::POST, "/v1/policies/a/experiments/e%3AstopPreview", Ok((Rpc::StopPreview, vec!["a", "e"]))),
            (Http::POST, "/v1/operations/x:wait", Ok((Rpc::WaitOperation, vec!["x"]))),
            (Http::GET, "/v1/policies/a/experiments/e:commit", Err(1)),
            (Http::PUT, "/v1/policies", Err(2)),
            (Http::GET, "/v1/policies/", Ok((Rpc::GetPolicy, vec![""]))),
            (Http::POST, "/v1/policies:commit", Err(0)),
            (Http::GET, "/v1/policies/a:b", Err(0)),
            (Http::GET, "/v1/else", Err(0)),
            (Http::GET, "/v1/policies/%ff", Err(0)),
        ] {
            let found = find(&http, path).map(|(method, values)| (method.rpc, values)).map_err(|allowed| allowed.len());
            let wanted = wanted.map(|(rpc, values)| (rpc, values.into_iter().map(ToOwned::to_owned).collect()));
            assert_eq!(found, wanted, "{http} {path}");
        }
    }

    proptest! {
        #[test]
        fn resolving_a_path_never_panics(path in ".{0,60}") {
            let _ = find(&Http::GET, &path);
            let _ = find(&Http::POST, &format!("/v1/policies/{path}"));
        }
    }
}
