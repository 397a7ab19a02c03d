//! Identical concurrent queries share one request.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use kube::{Client, Config};
use proviso_capabilities::Limits;
use proviso_engines::{Deadline, Host as _};
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpListener;

use crate::support::{MIB, call_host, cluster, host_for};

/// Starts a stub API server that always gives the same answer. Returns a client, and the number of requests.
async fn api_server(answer: String) -> (Client, Arc<AtomicUsize>) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let requests = Arc::<AtomicUsize>::default();
    let count = Arc::clone(&requests);
    tokio::spawn(async move {
        while let Ok((mut stream, _)) = listener.accept().await {
            let (answer, count) = (answer.clone(), Arc::clone(&count));
            tokio::spawn(async move {
                // One read is enough for a small request.
                let mut request = vec![0; 16 << 10];
                while stream.read(&mut request).await.is_ok_and(|read| read > 0) {
                    count.fetch_add(1, Ordering::Relaxed);
                    let head = "HTTP/1.1 200 OK\r\ncontent-type: application/json\r\nconnection: close";
                    let response = format!("{head}\r\ncontent-length: {}\r\n\r\n{answer}", answer.len());
                    let _ = stream.write_all(response.as_bytes()).await;
                    let _ = stream.shutdown().await;
                }
            });
        }
    });
    let config = Config::new(format!("http://{address}").parse().unwrap());
    (Client::try_from(config).unwrap(), requests)
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

/// Previews run on a thread of low priority, whose runtime has no I/O driver.
#[tokio::test(flavor = "multi_thread")]
async fn host_calls_work_from_a_runtime_without_io() {
    let (client, requests) = api_server(allowed()).await;
    let host = host_for(&cluster(client, Limits::of(MIB)), &[], None);
    let calls = tokio::task::spawn_blocking(move || {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap();
        runtime.block_on(async {
            assert!(call_host(&host, "kubernetes/can_i", review("ann", false)).await.is_ok());
            assert!(call_host(&host, "net/v1/dns_lookup_host", json!("localhost")).await.is_ok());
            let image = call_host(&host, "oci/v1/manifest_digest", json!("127.0.0.1:1/app")).await.unwrap_err();
            assert!(image.contains("cannot be reached"), "{image}");
            // The stub API server does not serve discovery.
            assert!(host.namespace("a", Deadline::after(Duration::from_secs(1))).await.is_err());
        });
    });
    calls.await.unwrap();
    assert!(requests.load(Ordering::Relaxed) > 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn identical_concurrent_reviews_send_one_request() {
    let (client, requests) = api_server(allowed()).await;
    let host = host_for(&cluster(client, Limits::of(MIB)), &[], None);
    let many = (0..100).map(|_| {
        let host = Arc::clone(&host);
        tokio::spawn(async move { call_host(&host, "kubernetes/can_i", review("ann", false)).await.unwrap() })
    });
    for answer in many.collect::<Vec<_>>() {
        assert_eq!(answer.await.unwrap(), json!({"allowed": true}));
    }
    assert_eq!(requests.load(Ordering::Relaxed), 1);
    call_host(&host, "kubernetes/can_i", review("bob", false)).await.unwrap();
    assert_eq!(requests.load(Ordering::Relaxed), 2, "another user needs another request");
    call_host(&host, "kubernetes/can_i", review("ann", true)).await.unwrap();
    assert_eq!(requests.load(Ordering::Relaxed), 3, "disable_cache bypasses the cache");
    for (count, field, value) in [(4, "uid", json!("id")), (5, "extra", json!({"scopes.example/only": ["pods"]}))] {
        let mut narrowed = review("ann", false);
        narrowed["subject_access_review"][field] = value;
        call_host(&host, "kubernetes/can_i", narrowed).await.unwrap();
        assert_eq!(requests.load(Ordering::Relaxed), count, "{field} is part of the cache key");
    }
}
