//! How kinds are listed and followed, with an API server that answers as a test says.
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use anyhow::{Result, ensure};
use kube::{Client, Config};
use proviso_capabilities::{AskError, Limits, ProgramHost};
use proviso_e2e::until;
use proviso_engines::Deadline;
use serde_json::{Value, json};
use tokio::io::{AsyncBufReadExt as _, AsyncReadExt as _, AsyncWriteExt as _, BufReader};
use tokio::net::{TcpListener, TcpStream};

use crate::support::{MIB, ask, cluster, names, reading};

const PATIENCE: Duration = Duration::from_mins(1);
const MAP: (&str, &str) = ("v1", "ConfigMap");
const SECRET: (&str, &str) = ("v1", "Secret");
const ALL: &str = "kubernetes/list_resources_all";

/// What a request with this path and query is answered, and with which status.
type Answers = Arc<dyn Fn(&str) -> (u16, Value) + Send + Sync>;

/// An API server that knows two kinds.
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
    let head = format!("HTTP/1.1 {status} Said\r\ncontent-type: application/json\r\nconnection: close\r\n");
    if status == 200 && path.contains("watch=") {
        // A watch on which nothing happens, until the client hangs up.
        stream.write_all(format!("{head}\r\n").as_bytes()).await?;
        tokio::time::timeout(PATIENCE, stream.read(&mut [0])).await??;
        return Ok(());
    }
    let answer = answer.to_string();
    stream.write_all(format!("{head}content-length: {}\r\n\r\n{answer}", answer.len()).as_bytes()).await
}

fn kinds() -> Value {
    let kind = |(_, kind): (&str, &str), name: &str| json!({"kind": kind, "name": name, "singularName": "", "namespaced": true, "verbs": ["get", "list", "watch"]});
    let resources = [kind(MAP, "configmaps"), kind(SECRET, "secrets")];
    json!({"kind": "APIResourceList", "groupVersion": "v1", "resources": resources})
}

/// A list of objects of this size, which goes on if there is more of it.
fn list(names: &[String], size: usize, rest: &str) -> Value {
    let object = |name: &String| {
        let metadata = json!({"name": name, "namespace": "n", "resourceVersion": "1"});
        json!({"metadata": metadata, "data": {"key": "x".repeat(size)}})
    };
    let items: Vec<Value> = names.iter().map(object).collect();
    json!({"kind": "List", "apiVersion": "v1", "metadata": {"resourceVersion": "1", "continue": rest}, "items": items})
}

fn refusal(code: u16, reason: &str) -> (u16, Value) {
    (code, json!({"kind": "Status", "status": "Failure", "code": code, "reason": reason, "message": reason}))
}

async fn ready(host: &ProgramHost) -> Result<(), AskError> {
    host.ready(Deadline::after(PATIENCE)).await.map_err(|(_, error)| error)
}

fn of(kind: (&str, &str), fields: Option<&str>) -> Value {
    json!({"api_version": kind.0, "kind": kind.1, "field_selector": fields})
}

#[tokio::test(flavor = "multi_thread")]
async fn a_place_that_the_api_server_has_forgotten_leads_to_a_new_list() -> Result<()> {
    let lists = Arc::new(AtomicUsize::new(0));
    let listed = Arc::clone(&lists);
    let client = api_server(move |path| {
        let first = listed.load(Ordering::Relaxed) < 2;
        match path.contains("watch=") {
            true if first => refusal(410, "Expired"),
            true => (200, Value::Null),
            false => (200, list(&[format!("list-{}", listed.fetch_add(1, Ordering::Relaxed))], 1, "")),
        }
    })
    .await;
    let host = reading(&cluster(client, Limits::of(MIB)), &[MAP], None);
    ready(&host).await?;
    until("a second list", PATIENCE, async || {
        let found = ask(&host, ALL, of(MAP, None)).await.map_err(anyhow::Error::msg)?;
        ensure!(names(&found) == ["list-1"], "{found}");
        Ok(())
    })
    .await?;
    ensure!(lists.load(Ordering::Relaxed) == 2, "the second watch works");
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_kind_that_cannot_be_watched_is_not_read() -> Result<()> {
    let client = api_server(|path| {
        if path.contains("watch=") { refusal(405, "MethodNotAllowed") } else { (200, list(&["a".to_owned()], 1, "")) }
    })
    .await;
    let host = reading(&cluster(client, Limits::of(MIB)), &[MAP], None);
    until("the refusal", PATIENCE, async || {
        let error = ready(&host).await.err();
        ensure!(error.as_ref().is_some_and(|error| error.reason() == "ContextNotWatched"), "{error:?}");
        Ok(())
    })
    .await?;
    let error = ask(&host, ALL, of(MAP, None)).await.unwrap_err();
    ensure!(
        error.contains("ConfigMap of v1: the API server does not let its objects be listed and watched"),
        "{error}"
    );
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_list_that_does_not_end_ends_at_its_limit() -> Result<()> {
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
    let world = cluster(client, Limits::of(2 * MIB));
    let error = ready(&reading(&world, &[MAP], None)).await.unwrap_err();
    ensure!(error.reason() == "ContextTooLarge" && error.to_string().contains("its objects take more than 1 MiB"));
    // A mebibyte is a hundred of these objects.
    let of_kind = pages.swap(0, Ordering::Relaxed);
    ensure!((10..=12).contains(&of_kind), "{of_kind} pages");
    let secrets = reading(&world, &[SECRET], None);
    let error = ask(&secrets, ALL, of(SECRET, Some("type=Opaque"))).await.unwrap_err();
    ensure!(error.contains("its objects take more than 1 MiB"), "{error}");
    let selected = pages.load(Ordering::Relaxed);
    ensure!((10..=12).contains(&selected), "{selected} pages");
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_selected_and_what_is_followed_count_together() -> Result<()> {
    let is_large = Arc::new(AtomicBool::new(true));
    let large = Arc::clone(&is_large);
    let client = api_server(move |path| match path.contains("watch=") {
        true => (200, Value::Null),
        false if path.contains("secrets") && !path.contains("fieldSelector") => (200, list(&[], 0, "")),
        false => (200, list(&["a".to_owned()], if large.load(Ordering::Relaxed) { 700_000 } else { 100_000 }, "")),
    })
    .await;
    let world = cluster(client, Limits { kind: 2 * MIB, ..Limits::of(MIB) });
    let maps = reading(&world, &[MAP], None);
    ready(&maps).await?;
    let secrets = reading(&world, &[SECRET], None);
    let error = ask(&secrets, ALL, of(SECRET, Some("type=a"))).await.unwrap_err();
    ensure!(error.contains("the objects that all policies read take more than 1 MiB"), "{error}");
    is_large.store(false, Ordering::Relaxed);
    let found = ask(&secrets, ALL, of(SECRET, Some("type=a"))).await.map_err(anyhow::Error::msg)?;
    ensure!(names(&found) == ["a"], "{found}");
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_namespace_cannot_use_up_what_others_need() -> Result<()> {
    let seen = Arc::<Mutex<Vec<String>>>::default();
    let log = Arc::clone(&seen);
    let client = api_server(move |path| {
        log.lock().unwrap().push(path.to_owned());
        if path.contains("watch=") {
            return (200, Value::Null);
        }
        let size = if path.contains("/namespaces/greedy/") { 200_000 } else { 100_000 };
        (200, list(&["a".to_owned()], size, ""))
    })
    .await;
    // An eighth of it for one namespace.
    let world = cluster(client, Limits::of(2 * MIB));
    let greedy = reading(&world, &[MAP, SECRET], Some("greedy"));
    let error = ready(&greedy).await.unwrap_err();
    let said = "the objects that the policies of the namespace greedy read take more than 0 MiB";
    ensure!(error.reason() == "ContextTooLarge" && error.to_string().contains(said), "{error}");
    for namespace in [Some("modest"), Some("other"), None] {
        ready(&reading(&world, &[MAP, SECRET], namespace)).await?;
    }
    ensure!(seen.lock().unwrap().iter().any(|path| path.contains("/namespaces/modest/secrets")));
    Ok(())
}
