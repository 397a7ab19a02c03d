//! Context-aware policies over a folder: policies of each engine read other objects. Reading needs both permissions, the kind in
//! `contextAwareResources` and the call in `hostCapabilities`.

use serde_json::json;

use crate::support::{Folder, Server, cel, pod, policy, wasm, with};

/// A waPC module that accepts a request if the host returns the ConfigMap `switch`.
const ASKS: &str = r#"(module
    (import "wapc" "__guest_response" (func $respond (param i32 i32)))
    (import "wapc" "__host_call" (func $ask (param i32 i32 i32 i32 i32 i32 i32 i32) (result i32)))
    (memory (export "memory") 1)
    (data (i32.const 0) "{\"valid\":true}")
    (data (i32.const 64) "{\"accepted\":true}")
    (data (i32.const 128) "{\"accepted\":false,\"message\":\"off\"}")
    (data (i32.const 256) "kubewarden")
    (data (i32.const 320) "kubernetes")
    (data (i32.const 384) "get_resource")
    (data (i32.const 448) "{\"api_version\":\"v1\",\"kind\":\"ConfigMap\",\"name\":\"switch\",\"namespace\":\"default\",\"disable_cache\":false}")
    (func (export "__guest_call") (param $operation_length i32) (param i32) (result i32)
        (if (i32.eq (local.get $operation_length) (i32.const 17))
            (then (call $respond (i32.const 0) (i32.const 14)))
            (else (if (call $ask
                    (i32.const 256) (i32.const 10) (i32.const 320) (i32.const 10)
                    (i32.const 384) (i32.const 12) (i32.const 448) (i32.const 99))
                (then (call $respond (i32.const 64) (i32.const 17)))
                (else (call $respond (i32.const 128) (i32.const 34))))))
        (i32.const 1)))"#;
/// A Gatekeeper policy that denies a request unless the inventory contains the ConfigMap `switch`.
const LOOKS: &str = r#"package a
violation[{"msg": "off"}] { not data.inventory.namespace["default"].v1.ConfigMap["switch"] }"#;

fn object(kind: &str, name: &str) -> String {
    json!({"apiVersion": "v1", "kind": kind, "metadata": {"name": name, "labels": {"team": "a"}}}).to_string()
}

#[tokio::test]
async fn policies_read_the_objects_of_the_folder_as_they_are_now() {
    let folder = Folder::new();
    folder.write("asks.wasm", wat::parse_str(ASKS).unwrap());
    let maps = json!({"contextAwareResources": [{"apiVersion": "v1", "kind": "ConfigMap"}]});
    let may_call = json!({"hostCapabilities": ["kubernetes/get_resource"]});
    let asks = with(wasm("asks.wasm"), &maps);
    folder.write("asks.json", policy("asks", &with(asks.clone(), &may_call)));
    let looks = json!({"program": {"rego": {"dialect": "Gatekeeper", "source": LOOKS}}});
    folder.write("looks.json", policy("looks", &with(looks, &maps)));
    // One of the two permissions is not enough.
    folder.write("no-call.json", policy("no-call", &asks));
    folder.write("no-kind.json", policy("no-kind", &with(wasm("asks.wasm"), &may_call)));
    let namespace = "namespaceObject.metadata.labels.team == 'a'";
    folder.write("namespace.json", policy("namespace", &cel(namespace, "off")));
    let server = Server::start(folder, &[]).await;
    let verdict = async |name: &str| server.post(&format!("/validate/cluster.{name}"), pod("u", "x").to_string()).await;
    for off in ["asks", "looks"] {
        assert_eq!(verdict(off).await.message(), "off", "{off}");
    }
    server.folder.write("switch.yaml", object("ConfigMap", "switch"));
    server.folder.write("namespace.yaml", object("Namespace", "default"));
    for on in ["asks", "looks", "namespace"] {
        server.until(on, async || verdict(on).await.is_allowed()).await;
    }
    for gated in ["no-call", "no-kind"] {
        assert_eq!(verdict(gated).await.message(), "off", "{gated}");
    }
    server.folder.remove("switch.yaml");
    for off in ["asks", "looks"] {
        server.until(off, async || verdict(off).await.message() == "off").await;
    }
}
