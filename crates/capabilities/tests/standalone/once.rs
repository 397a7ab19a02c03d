//! What many ask at once is asked once.
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use kube::{Client, Config};
use proviso_capabilities::Limits;
use proviso_engines::{Deadline, Host as _};
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpListener;

use crate::support::{MIB, ask, cluster, reading};

/// An API server that knows one answer, and how often it gave it.
async fn api_server(answer: String) -> (Client, Arc<AtomicUsize>) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let asked = Arc::<AtomicUsize>::default();
    let count = Arc::clone(&asked);
    tokio::spawn(async move {
        while let Ok((mut stream, _)) = listener.accept().await {
            let (answer, count) = (answer.clone(), Arc::clone(&count));
            tokio::spawn(async move {
                // Small requests come in one piece.
                let mut request = vec![0; 16 << 10];
                while stream.read(&mut request).await.is_ok_and(|read| read > 0) {
                    count.fetch_add(1, Ordering::Relaxed);
                    let head = "HTTP/1.1 200 OK\r\ncontent-type: application/json\r\nconnection: close";
                    let whole = format!("{head}\r\ncontent-length: {}\r\n\r\n{answer}", answer.len());
                    let _ = stream.write_all(whole.as_bytes()).await;
                    let _ = stream.shutdown().await;
                }
            });
        }
    });
    let config = Config::new(format!("http://{address}").parse().unwrap());
    (Client::try_from(config).unwrap(), asked)
}

fn allowed() -> String {
    let status = json!({"allowed": true});
    let (api_version, kind) = ("authorization.k8s.io/v1", "SubjectAccessReview");
    json!({"apiVersion": api_version, "kind": kind, "metadata": {}, "spec": {}, "status": status}).to_string()
}

fn review(user: &str, fresh: bool) -> Value {
    let attributes = json!({"verb": "get", "resource": "pods"});
    json!({"subject_access_review": {"user": user, "resource_attributes": attributes}, "disable_cache": fresh})
}

/// Previews are evaluated on a thread of low priority, whose runtime knows no network.
#[tokio::test(flavor = "multi_thread")]
async fn who_asks_needs_no_network_itself() {
    let (client, asked) = api_server(allowed()).await;
    let host = reading(&cluster(client, Limits::of(MIB)), &[], None);
    let asking = tokio::task::spawn_blocking(move || {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap();
        runtime.block_on(async {
            assert!(ask(&host, "kubernetes/can_i", review("ann", false)).await.is_ok());
            assert!(ask(&host, "net/v1/dns_lookup_host", json!("localhost")).await.is_ok());
            let image = ask(&host, "oci/v1/manifest_digest", json!("127.0.0.1:1/app")).await.unwrap_err();
            assert!(image.contains("cannot be reached"), "{image}");
            // The server knows no kinds.
            assert!(host.namespace("a", Deadline::after(Duration::from_secs(1))).await.is_err());
        });
    });
    asking.await.unwrap();
    assert!(asked.load(Ordering::Relaxed) > 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_question_of_many_is_asked_once() {
    let (client, asked) = api_server(allowed()).await;
    let host = reading(&cluster(client, Limits::of(MIB)), &[], None);
    let many = (0..100).map(|_| {
        let host = Arc::clone(&host);
        tokio::spawn(async move { ask(&host, "kubernetes/can_i", review("ann", false)).await.unwrap() })
    });
    for answer in many.collect::<Vec<_>>() {
        assert_eq!(answer.await.unwrap(), json!({"allowed": true}));
    }
    assert_eq!(asked.load(Ordering::Relaxed), 1);
    ask(&host, "kubernetes/can_i", review("bob", false)).await.unwrap();
    assert_eq!(asked.load(Ordering::Relaxed), 2, "another question");
    ask(&host, "kubernetes/can_i", review("ann", true)).await.unwrap();
    assert_eq!(asked.load(Ordering::Relaxed), 3, "what is true now");
    for (asks, what, value) in [(4, "uid", json!("id")), (5, "extra", json!({"scopes.example/only": ["pods"]}))] {
        let mut narrowed = review("ann", false);
        narrowed["subject_access_review"][what] = value;
        ask(&host, "kubernetes/can_i", narrowed).await.unwrap();
        assert_eq!(asked.load(Ordering::Relaxed), asks, "authorizers may narrow by {what}");
    }
}
