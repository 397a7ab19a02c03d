//! The discovery documents of the aggregated API: its group, its subresources, and their schemas.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::{
    APIGroup, APIGroupList, APIResource, APIResourceList, GroupVersionForDiscovery,
};
use proviso_crds::actions::{Action, GROUP, VERSION};
use serde_json::{Map, Value, json};

/// The path of the OpenAPI document of the group.
pub(super) const OPENAPI: &str = "/openapi/v3/apis/actions.proviso.dev/v1alpha1";

pub(super) fn groups() -> APIGroupList {
    APIGroupList { groups: vec![group()] }
}

pub(super) fn group() -> APIGroup {
    let version = GroupVersionForDiscovery { group_version: format!("{GROUP}/{VERSION}"), version: VERSION.to_owned() };
    APIGroup {
        name: GROUP.to_owned(),
        preferred_version: Some(version.clone()),
        versions: vec![version],
        ..APIGroup::default()
    }
}

/// Returns the subresources and their parents. The parents have no verbs in this group, but `kubectl auth can-i`
/// needs their names.
pub(super) fn resources() -> APIResourceList {
    let resource = |name: String, kind: &str, namespaced, verbs: &[&str]| APIResource {
        name,
        kind: kind.to_owned(),
        namespaced,
        verbs: verbs.iter().map(ToString::to_string).collect(),
        ..APIResource::default()
    };
    let mut resources = Vec::new();
    for (kind, of_cluster, action) in
        [("PolicyExperiment", "ClusterPolicyExperiment", Action::Start), ("Policy", "ClusterPolicy", Action::Rollback)]
    {
        let [namespaced, cluster] = action.resources();
        resources.push(resource(namespaced.to_owned(), kind, true, &[]));
        resources.push(resource(cluster.to_owned(), of_cluster, false, &[]));
    }
    for action in Action::ALL {
        for (parent, namespaced) in action.resources().into_iter().zip([true, false]) {
            resources.push(resource(format!("{parent}/{}", action.as_str()), action.kind(), namespaced, &["create"]));
        }
    }
    APIResourceList { group_version: format!("{GROUP}/{VERSION}"), resources }
}

pub(super) fn openapi_index() -> Value {
    json!({"paths": {format!("apis/{GROUP}/{VERSION}"): {"serverRelativeURL": OPENAPI}}})
}

pub(super) fn openapi() -> Value {
    let mut paths = Map::new();
    for action in Action::ALL {
        let [of_namespace, of_cluster] = action.resources();
        let at = format!("/apis/{GROUP}/{VERSION}");
        let name = parameter("name");
        let (of_namespace, of_cluster) = (
            format!("{at}/namespaces/{{namespace}}/{of_namespace}/{{name}}/{}", action.as_str()),
            format!("{at}/{of_cluster}/{{name}}/{}", action.as_str()),
        );
        paths.insert(of_namespace, path(action, "Namespaced", &json!([parameter("namespace"), name])));
        paths.insert(of_cluster, path(action, "Cluster", &json!([name])));
    }
    let schemas: Map<_, _> = Action::ALL.into_iter().map(|action| (action.kind().to_owned(), schema(action))).collect();
    json!({
        "openapi": "3.0.0",
        "info": {"title": "Proviso actions", "version": VERSION},
        "paths": paths,
        "components": {"schemas": schemas},
    })
}

fn parameter(name: &str) -> Value {
    json!({"name": name, "in": "path", "required": true, "schema": {"type": "string"}})
}

fn path(action: Action, scope: &str, parameters: &Value) -> Value {
    let kind = action.kind();
    json!({
        "parameters": parameters,
        "post": {
            "operationId": format!("create{scope}{kind}"),
            "x-kubernetes-action": "post",
            "x-kubernetes-group-version-kind": {"group": GROUP, "version": VERSION, "kind": kind},
            "requestBody": {"required": true, "content": {"application/json": {
                "schema": {"$ref": format!("#/components/schemas/{kind}")},
            }}},
            "responses": {"201": {"description": "Done"}},
        },
    })
}

fn schema(action: Action) -> Value {
    let (properties, required): (_, &[&str]) = match action {
        Action::Start | Action::Stop => (json!({}), &[]),
        Action::Commit => (
            json!({
                "etag": {"type": "string", "description": "status.etag of the version of the experiment to commit"},
                "parentEtag": {"type": "string", "description": "status.liveEtag: the version of the policy to replace. Default: any version"},
            }),
            &["etag"],
        ),
        Action::Rollback => (
            json!({"generation": {"type": "integer", "format": "int64", "description": "the generation whose spec is restored"}}),
            &["generation"],
        ),
    };
    let mut properties = properties;
    for field in ["apiVersion", "kind"] {
        properties[field] = json!({"type": "string"});
    }
    properties["metadata"] = json!({"type": "object"});
    json!({
        "type": "object",
        "properties": properties,
        "required": required,
        "x-kubernetes-group-version-kind": [{"group": GROUP, "version": VERSION, "kind": action.kind()}],
    })
}
