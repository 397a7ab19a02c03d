//! Informers list and watch kinds: tests with a stub API server.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use anyhow::{Result, ensure};
use kube::{Client, Config};
use proviso_capabilities::{HostCallError, Limits, PolicyHost};
use proviso_e2e::until;
use proviso_engines::Deadline;
use serde_json::{Value, json};
use tokio::io::{AsyncBufReadExt as _, AsyncReadExt as _, AsyncWriteExt as _, BufReader};
use tokio::net::{TcpListener, TcpStream};

use crate::support::{MIB, call_host, cluster, host_for, names};

const TIMEOUT: Duration = Duration::from_mins(1);
const CONFIG_MAP: (&str, &str) = ("v1", "ConfigMap");
const SECRET: (&str, &str) = ("v1", "Secret");
const ALL: &str = "kubernetes/list_resources_all";

/// Returns the status and the body of the response to a request with this path and query.
type Answers = Arc<dyn Fn(&str) -> (u16, Value) + Send + Sync>;

/// Starts a stub API server that serves two kinds. `answers` answers all requests except discovery.
async fn api_server(answers: impl Fn(&str) -> (u16, Value) + Send + Sync + 'static) -> Client {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let config = Config::new(format!("http://{}", listener.local_addr().unwrap()).parse().unwrap());
    let answers: Answers = Arc::new(answers);
    tokio::spawn(async move {
        while let Ok((stream, _)) = listener.accept().await {
            tokio::spawn(serve(stream, Arc::clone(&answers)));
        }
    });
    Client::try_from(config).unwrap()
}

async fn serve(stream: TcpStream, answers: Answers) -> std::io::Result<()> {
    let mut lines = BufReader::new(stream).lines();
    let mut path = String::new();
    while let Some(line) = lines.next_line().await? {
        if path.is_empty() {
            line.split(' ').nth(1).unwrap_or_default().clone_into(&mut path);
        } else if line.is_empty() {
            break;
        }
    }
    let (status, answer) = if path == "/api/v1" { (200, kinds()) } else { answers(&path) };
    let mut stream = lines.into_inner().into_inner();
    let head = format!("HTTP/1.1 {status} Stub\r\ncontent-type: application/json\r\nconnection: close\r\n");
    if status == 200 && path.contains("watch=") {
        // The watch sends no event until the client closes the connection.
        stream.write_all(format!("{head}\r\n").as_bytes()).await?;
        tokio::time::timeout(TIMEOUT, stream.read(&mut [0])).await??;
        return Ok(());
    }
    let answer = answer.to_string();
    stream.write_all(format!("{head}content-length: {}\r\n\r\n{answer}", answer.len()).as_bytes()).await
}

fn kinds() -> Value {
    let kind = |(_, kind): (&str, &str), name: &str| json!({"kind": kind, "name": name, "singularName": "", "namespaced": true, "verbs": ["get", "list", "watch"]});
    let resources = [kind(CONFIG_MAP, "configmaps"), kind(SECRET, "secrets")];
    json!({"kind": "APIResourceList", "groupVersion": "v1", "resources": resources})
}

/// Returns a page of a list, with objects of `size` bytes. An empty `continue_token` marks the last page.
fn list(names: &[String], size: usize, continue_token: &str) -> Value {
    let object = |name: &String| {
        let metadata = json!({"name": name, "namespace": "n", "resourceVersion": "1"});
        json!({"metadata": metadata, "data": {"key": "x".repeat(size)}})
    };
    let items: Vec<Value> = names.iter().map(object).collect();
    json!({"kind": "List", "apiVersion": "v1", "metadata": {"resourceVersion": "1", "continue": continue_token}, "items": items})
}

fn refusal(code: u16, reason: &str) -> (u16, Value) {
    (code, json!({"kind": "Status", "status": "Failure", "code": code, "reason": reason, "message": reason}))
}

async fn ready(host: &PolicyHost) -> Result<(), HostCallError> {
    host.ready(Deadline::after(TIMEOUT)).await.map_err(|(_, error)| error)
}

fn request_for(kind: (&str, &str), fields: Option<&str>) -> Value {
    json!({"api_version": kind.0, "kind": kind.1, "field_selector": fields})
}

#[tokio::test(flavor = "multi_thread")]
async fn an_expired_watch_leads_to_a_new_list() -> Result<()> {
    let lists = Arc::new(AtomicUsize::new(0));
    let listed = Arc::clone(&lists);
    let client = api_server(move |path| {
        let is_expired = listed.load(Ordering::Relaxed) < 2;
        match path.contains("watch=") {
            true if is_expired => refusal(410, "Expired"),
            true => (200, Value::Null),
            false => (200, list(&[format!("list-{}", listed.fetch_add(1, Ordering::Relaxed))], 1, "")),
        }
    })
    .await;
    let host = host_for(&cluster(client, Limits::of(MIB)), &[CONFIG_MAP], None);
    ready(&host).await?;
    until("a second list", TIMEOUT, async || {
        let found = call_host(&host, ALL, request_for(CONFIG_MAP, None)).await.map_err(anyhow::Error::msg)?;
        ensure!(names(&found) == ["list-1"], "{found}");
        Ok(())
    })
    .await?;
    ensure!(lists.load(Ordering::Relaxed) == 2, "the second watch works");
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_kind_without_watch_support_is_not_readable() -> Result<()> {
    let client = api_server(|path| {
        if path.contains("watch=") { refusal(405, "MethodNotAllowed") } else { (200, list(&["a".to_owned()], 1, "")) }
    })
    .await;
    let host = host_for(&cluster(client, Limits::of(MIB)), &[CONFIG_MAP], None);
    until("the refusal", TIMEOUT, async || {
        let error = ready(&host).await.err();
        ensure!(error.as_ref().is_some_and(|error| error.reason().as_str() == "ContextNotWatched"), "{error:?}");
        Ok(())
    })
    .await?;
    let error = call_host(&host, ALL, request_for(CONFIG_MAP, None)).await.unwrap_err();
    ensure!(error.contains("ConfigMap of v1: the API server does not support list and watch for this kind"), "{error}");
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn an_endless_list_stops_at_the_memory_limit() -> Result<()> {
    let pages = Arc::new(AtomicUsize::new(0));
    let page = Arc::clone(&pages);
    let client = api_server(move |path| {
        if path.contains("secrets") && !path.contains("fieldSelector") {
            return (200, list(&[], 0, ""));
        }
        let number = page.fetch_add(1, Ordering::Relaxed);
        let names: Vec<String> = (0..10).map(|index| format!("{number}-{index}")).collect();
        (200, list(&names, 10_000, "more"))
    })
    .await;
    let host_context = cluster(client, Limits::of(2 * MIB));
    let error = ready(&host_for(&host_context, &[CONFIG_MAP], None)).await.unwrap_err();
    ensure!(
        error.reason().as_str() == "ContextTooLarge"
            && error.to_string().contains("its objects take more than the limit of 1 MiB")
    );
    // 100 of these objects are about 1 MiB.
    let pages_read = pages.swap(0, Ordering::Relaxed);
    ensure!((10..=12).contains(&pages_read), "{pages_read} pages");
    let secrets = host_for(&host_context, &[SECRET], None);
    let error = call_host(&secrets, ALL, request_for(SECRET, Some("type=Opaque"))).await.unwrap_err();
    ensure!(error.contains("its objects take more than the limit of 1 MiB"), "{error}");
    let selected = pages.load(Ordering::Relaxed);
    ensure!((10..=12).contains(&selected), "{selected} pages");
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn selected_and_watched_objects_share_the_memory_limit() -> Result<()> {
    let is_large = Arc::new(AtomicBool::new(true));
    let large = Arc::clone(&is_large);
    let client = api_server(move |path| match path.contains("watch=") {
        true => (200, Value::Null),
        false if path.contains("secrets") && !path.contains("fieldSelector") => (200, list(&[], 0, "")),
        false => (200, list(&["a".to_owned()], if large.load(Ordering::Relaxed) { 700_000 } else { 100_000 }, "")),
    })
    .await;
    let host_context = cluster(client, Limits { kind: 2 * MIB, ..Limits::of(MIB) });
    let maps = host_for(&host_context, &[CONFIG_MAP], None);
    ready(&maps).await?;
    let secrets = host_for(&host_context, &[SECRET], None);
    let error = call_host(&secrets, ALL, request_for(SECRET, Some("type=a"))).await.unwrap_err();
    ensure!(error.contains("the objects that all policies read take more than the limit of 1 MiB"), "{error}");
    is_large.store(false, Ordering::Relaxed);
    let found = call_host(&secrets, ALL, request_for(SECRET, Some("type=a"))).await.map_err(anyhow::Error::msg)?;
    ensure!(names(&found) == ["a"], "{found}");
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn policies_of_one_namespace_leave_memory_for_others() -> Result<()> {
    let requested = Arc::<Mutex<Vec<String>>>::default();
    let log = Arc::clone(&requested);
    let client = api_server(move |path| {
        log.lock().unwrap().push(path.to_owned());
        if path.contains("watch=") {
            return (200, Value::Null);
        }
        let size = if path.contains("/namespaces/greedy/") { 200_000 } else { 100_000 };
        (200, list(&["a".to_owned()], size, ""))
    })
    .await;
    // The limit of one namespace is an eighth of the total.
    let host_context = cluster(client, Limits::of(2 * MIB));
    let greedy = host_for(&host_context, &[CONFIG_MAP, SECRET], Some("greedy"));
    let error = ready(&greedy).await.unwrap_err();
    let expected = "the objects that the policies of the namespace greedy read take more than the limit of 0 MiB";
    ensure!(error.reason().as_str() == "ContextTooLarge" && error.to_string().contains(expected), "{error}");
    for namespace in [Some("modest"), Some("other"), None] {
        ready(&host_for(&host_context, &[CONFIG_MAP, SECRET], namespace)).await?;
    }
    ensure!(requested.lock().unwrap().iter().any(|path| path.contains("/namespaces/modest/secrets")));
    Ok(())
}
