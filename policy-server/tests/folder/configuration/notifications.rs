//! The results of notifications: rejections, commands that do not end, and HTTP.

use hyper::Method;
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpListener;

use super::{Components, changes, folder, policy, subscribe, subscription};
use crate::support::{Folder, ask, manifest};

#[tokio::test]
async fn a_rejected_body_is_held_back_and_the_last_good_one_stays() {
    let folder = folder();
    folder.write("memory.json", policy("memory", &json!({"mib": 256})));
    folder.write("disk.json", policy("disk", &json!({"gib": 1})));
    subscribe(&folder, &json!([{"filter": {"owner": "DCAE"}}]));
    let components = Components::start(folder).await;
    components.until_acknowledged(2).await;

    // One of two changes is rejected: the other one is delivered.
    components.server.folder.write("memory.json", policy("memory", &json!({"mib": "reject-me"})));
    components.server.folder.write("disk.json", policy("disk", &json!({"gib": 2})));
    let message = components.until_delivered("Rejected").await;
    assert!(message.contains("cluster.memory: exit code 3: not enough memory"), "{message}");
    components.server.until("disk", async || components.config("cluster.disk") == json!({"gib": 2})).await;
    components.server.until("memory", async || components.config("cluster.memory") == json!({"mib": 256})).await;
    let status = components.status("meter");
    assert_eq!((&status["summary"], &status["rejected"][0]["id"]), (&json!("1/2"), &json!("cluster.memory")));
    assert_eq!(
        (&status["pending"][0]["id"], &status["pending"][0]["version"]),
        (&json!("cluster.memory"), &json!("2"))
    );

    // A rejected body is not sent again by a restart.
    let before = components.messages().len();
    let components = Components::start(components.server.stop().await).await;
    components
        .server
        .until("the status", async || components.server.metric("proviso_subscriptions", &["false"]).await > 0.5)
        .await;
    assert_eq!(components.messages().len(), before);

    components.server.folder.write("memory.json", policy("memory", &json!({"mib": 300})));
    components.until_acknowledged(2).await;
    assert_eq!(components.config("cluster.memory"), json!({"mib": 300}));
    assert_eq!(components.status("meter")["rejected"], json!(null));
}

#[tokio::test]
async fn a_hanging_command_is_ended_and_its_update_is_sent_again() {
    let folder = folder();
    std::fs::write(folder.root().join("hang"), "").unwrap();
    folder.write("memory.json", policy("memory", &json!({"name": "hang-me"})));
    folder.write("disk.json", policy("disk", &json!({})));
    let mut spec = subscription(&folder, &json!([{"id": "cluster.memory"}]));
    spec["delivery"]["notify"]["timeoutSeconds"] = json!(1);
    folder.write("meter.json", manifest("PolicySubscription", "meter", &spec));
    let other = json!({"scn": "probe", "policies": [{"id": "cluster.disk"}], "delivery": {"configMap": "probe"}});
    folder.write("probe.json", manifest("PolicySubscription", "probe", &other));
    let components = Components::start(folder).await;
    let message = components.until_delivered("DeliveryFailed").await;
    assert!(message.contains("not done within 1 s"), "{message}");
    assert_eq!(components.status("meter")["unconfirmed"], json!(["cluster.memory"]));
    components
        .server
        .until("the other component", async || components.condition("probe", "Delivered")[0] == "True")
        .await;

    std::fs::remove_file(components.server.folder.root().join("hang")).unwrap();
    components.until_acknowledged(1).await;
    assert_eq!(components.last_changes(), changes(&["memory"], &[]));
    assert!(components.server.count("proviso_deliveries_total", &["failed"]).await > 0);
}

#[tokio::test]
async fn a_command_that_does_not_exist_is_reported_and_a_repaired_subscription_is_delivered() {
    let folder = folder();
    folder.write("memory.json", policy("memory", &json!({})));
    let mut spec = subscription(&folder, &json!([{"id": "cluster.memory"}]));
    spec["delivery"]["notify"]["exec"]["command"] = json!(["/nowhere/reconfigure"]);
    folder.write("meter.json", manifest("PolicySubscription", "meter", &spec));
    let components = Components::start(folder).await;
    let message = components.until_delivered("DeliveryFailed").await;
    assert!(message.contains("cannot run /nowhere/reconfigure: No such file"), "{message}");
    subscribe(&components.server.folder, &json!([{"id": "cluster.memory"}]));
    components.until_acknowledged(1).await;
    assert_eq!(components.last_changes(), changes(&["memory"], &[]));
}

#[tokio::test]
async fn a_component_that_is_notified_in_another_way_gets_all_policies_again() {
    let folder = folder();
    folder.write("memory.json", policy("memory", &json!({"mib": 256})));
    folder.write("disk.json", policy("disk", &json!({"gib": 1})));
    let mut spec = subscription(&folder, &json!([{"filter": {"owner": "DCAE"}}]));
    let notify = spec["delivery"]["notify"].take();
    spec["delivery"].as_object_mut().unwrap().remove("notify");
    let subscribe = |folder: &Folder, spec: &Value| {
        folder.write("meter.json", manifest("PolicySubscription", "meter", spec));
    };
    subscribe(&folder, &spec);
    let components = Components::start(folder).await;
    components.until_acknowledged(2).await;
    assert_eq!(components.messages().len(), 0, "nothing notifies the component");

    spec["delivery"]["notify"] = notify;
    subscribe(&components.server.folder, &spec);
    components.server.until("the message", async || components.messages().len() == 1).await;
    components.until_acknowledged(2).await;
    assert_eq!(components.last_changes(), changes(&["disk", "memory"], &[]));

    // A change while the server does not run is found too, and the same way is no reason for another message.
    let folder = components.server.stop().await;
    spec["delivery"]["notify"]["timeoutSeconds"] = json!(45);
    subscribe(&folder, &spec);
    let components = Components::start(folder).await;
    components.server.until("the second message", async || components.messages().len() == 2).await;
    components.until_acknowledged(2).await;
    let components = Components::start(components.server.stop().await).await;
    components.server.folder.write("disk.json", policy("disk", &json!({"gib": 2})));
    components.server.until("the change", async || components.messages().len() > 2).await;
    assert_eq!((components.messages().len(), components.last_changes()), (3, changes(&["disk"], &[])));
}

#[tokio::test]
async fn a_component_is_notified_by_http() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let port = listener.local_addr().unwrap().port();
    let endpoint = tokio::spawn(async move {
        let mut requests = Vec::new();
        // The probe of the address has no request.
        while requests.len() < 2 {
            let (mut stream, _) = listener.accept().await.unwrap();
            let (mut request, mut buffer) = (Vec::new(), [0; 4096]);
            while !request.ends_with(b"}") {
                match stream.read(&mut buffer).await.unwrap() {
                    0 => break,
                    count => request.extend_from_slice(&buffer[..count]),
                }
            }
            if request.is_empty() {
                continue;
            }
            let status = if requests.is_empty() { "422 Unprocessable Content" } else { "200 OK" };
            let response = format!("HTTP/1.1 {status}\r\ncontent-length: 2\r\nconnection: close\r\n\r\nno");
            stream.write_all(response.as_bytes()).await.unwrap();
            requests.push(String::from_utf8(request).unwrap());
        }
        requests
    });
    let folder = folder();
    folder.write("memory.json", policy("memory", &json!({"mib": 256})));
    let mut spec = subscription(&folder, &json!([{"id": "cluster.memory"}]));
    spec["delivery"]["notify"] = json!({"http": {"service": "localhost", "path": "/policies", "port": port}});
    folder.write("meter.json", manifest("PolicySubscription", "meter", &spec));
    let components = Components::start(folder).await;
    let message = components.until_delivered("Rejected").await;
    assert!(message.contains("HTTP status 422: no"), "{message}");
    assert_eq!(components.items(), [""; 0]);
    components.server.folder.write("memory.json", policy("memory", &json!({"mib": 512})));
    components.until_acknowledged(1).await;
    let requests = endpoint.await.unwrap();
    assert!(requests[1].starts_with("POST /policies HTTP/1.1\r\n"), "{}", requests[1]);
    assert!(requests[1].contains(r#""config":{"mib":512}"#), "{}", requests[1]);
}

#[tokio::test]
async fn a_resend_sends_all_policies_again() {
    let folder = folder();
    folder.write("memory.json", policy("memory", &json!({"name": "reject-me"})));
    folder.write("disk.json", policy("disk", &json!({})));
    subscribe(&folder, &json!([{"filter": {"owner": "DCAE"}}]));
    let components = Components::start(folder).await;
    components.until_delivered("Rejected").await;
    components.server.until("disk", async || components.status("meter")["summary"] == "1/2").await;
    let before = components.messages().len();
    let path = "/api/v1alpha1/subscriptions/default/meter:resend";
    let answer = ask(&components.server.listen, Method::POST, path, bytes::Bytes::new()).await.unwrap();
    assert!(answer.status.is_success(), "{}", answer.text);
    components.server.until("the resend", async || components.messages().len() > before).await;
    let [updated, _] = components.last_changes();
    assert!(updated.contains(&"disk".to_owned()) || components.messages().len() > before + 1, "{updated:?}");

    // The annotation in the manifest requests a resend once.
    components.until_delivered("Rejected").await;
    let mut object: serde_json::Value = serde_json::from_str(&manifest(
        "PolicySubscription",
        "meter",
        &subscription(&components.server.folder, &json!([{"filter": {"owner": "DCAE"}}])),
    ))
    .unwrap();
    object["metadata"]["annotations"] = json!({"proviso.dev/resend": "monday"});
    components.server.folder.write("meter.json", object.to_string());
    let is_observed = async || components.status("meter")["observedResend"] == "monday";
    components.server.until("the annotation", is_observed).await;
}
