//! Server-sent events and long polling.

use axum::body::Body;
use axum::http::{Request, Response};
use http_body_util::BodyExt as _;
use serde_json::{Value, json};

use crate::calls::{LIMIT, Server, request};
use crate::memory_store::{State, UPDATE, item, parts, policy};

const PATH: &str = "/service_component_all/gateway-1";

/// An event of a stream.
#[derive(Debug)]
struct Received {
    id: String,
    data: Value,
}

/// Stores version `generation` of `cluster.memory` for the gateway, with this update id.
fn store(state: &mut State, update: &str, generation: i64) {
    let body = item(&policy("cluster.memory", generation, "memory"), &json!({}));
    state.parts.insert("gateway".to_owned(), parts(update, &[("cluster.memory", &body)]));
}

fn streaming(user: &str, path: &str, last: Option<&str>) -> Request<Body> {
    let mut request = request(user, "GET", path, "");
    request.headers_mut().insert("accept", "text/event-stream".parse().unwrap());
    if let Some(last) = last {
        request.headers_mut().insert("last-event-id", last.parse().unwrap());
    }
    request
}

/// Returns the next event; `None` if the stream ends.
async fn next(response: &mut Response<Body>) -> Option<Received> {
    loop {
        let frame = tokio::time::timeout(LIMIT, response.body_mut().frame()).await.expect("no event")?.unwrap();
        let text = String::from_utf8(frame.into_data().unwrap().to_vec()).unwrap();
        let field = |name: &str| text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(": "));
        // A comment keeps the connection alive.
        if let (Some(id), Some(data)) = (field("id"), field("data")) {
            return Some(Received { id: id.to_owned(), data: serde_json::from_str(data).unwrap() });
        }
    }
}

fn version(received: &Received) -> &str {
    received.data["policies"]["items"][0]["policyVersion"].as_str().unwrap()
}

/// Waits until this number of watches is in progress.
async fn watches(server: &Server, count: usize) {
    let waiting = async {
        while server.store.watches() != count {
            tokio::task::yield_now().await;
        }
    };
    tokio::time::timeout(LIMIT, waiting).await.expect("the number of watches");
}

#[tokio::test]
async fn a_stream_has_the_state_now_and_after_each_change() {
    let server = Server::new();
    store(&mut server.store.state(), "u-1", 1);
    let mut response = server.begin(streaming("admin", PATH, None)).await;
    assert_eq!(response.headers()["content-type"], "text/event-stream");
    assert!(response.extensions().get::<proviso_http::Streamed>().is_some());
    let first = next(&mut response).await.unwrap();
    assert_eq!((first.id.as_str(), version(&first)), ("u-1", "1"));
    server.store.change(|state| store(state, "u-2", 2));
    let second = next(&mut response).await.unwrap();
    assert_eq!((second.id.as_str(), version(&second)), ("u-2", "2"));
    // A change that is none for this component has no event.
    server.store.change(|_| {});
    server.store.change(|state| store(state, "u-3", 3));
    assert_eq!(next(&mut response).await.unwrap().id, "u-3");
    drop(response);
    watches(&server, 0).await;
}

#[tokio::test]
async fn a_client_that_connects_again_gets_what_it_has_missed() {
    let server = Server::new();
    store(&mut server.store.state(), "u-2", 2);
    let mut missed = server.begin(streaming("admin", PATH, Some("u-1"))).await;
    assert_eq!(next(&mut missed).await.unwrap().id, "u-2");
    let mut current = server.begin(streaming("admin", PATH, Some("u-2"))).await;
    let receiving = tokio::spawn(async move { next(&mut current).await });
    watches(&server, 2).await;
    server.store.change(|state| store(state, "u-3", 3));
    assert_eq!(receiving.await.unwrap().unwrap().id, "u-3", "the state that the client has is not sent again");
}

#[tokio::test]
async fn a_change_of_the_application_records_is_an_event_with_another_id() {
    let server = Server::new();
    let path = "/service_component_all/team.collector";
    let mut response = server.begin(streaming("admin", path, None)).await;
    let first = next(&mut response).await.unwrap();
    assert!(first.id.starts_with(&format!("{UPDATE}.")), "{first:?}");
    server.store.change(|state| {
        let records = state.applications.get_mut("collector").unwrap();
        records.insert("note".to_owned(), "new".to_owned());
    });
    let second = next(&mut response).await.unwrap();
    assert_eq!(second.data["note"], "new");
    assert_ne!(first.id, second.id);
    let mut again = server.begin(streaming("admin", path, Some(&first.id))).await;
    assert_eq!(next(&mut again).await.unwrap().id, second.id);
}

#[tokio::test]
async fn stored_policies_and_events_that_were_edited_by_hand_do_not_break_a_stream() {
    let server = Server::new();
    store(&mut server.store.state(), "u-1\r\n\0", 1);
    {
        let mut state = server.store.state();
        let key = format!("{}cluster.memory", proviso_core::configuration::ITEM_PREFIX);
        let edited = "{\r\n\"policyVersion\":\r\"7\",\n\"config\": \"a\\r\\nb\"}\r\n";
        state.parts.get_mut("gateway").unwrap()[0].data.insert(key, edited.into());
    }
    let mut response = server.begin(streaming("admin", PATH, None)).await;
    let first = next(&mut response).await.unwrap();
    assert_eq!(version(&first), "7");
    assert_eq!(first.data["policies"]["items"][0]["config"], "a\r\nb");
    assert!(!first.id.is_empty() && first.id.bytes().all(|it| it.is_ascii_hexdigit()), "{first:?}");
    assert_eq!(server.get(PATH).await.headers["x-proviso-index"], first.id.as_str());
}

#[tokio::test]
async fn a_stream_ends_with_the_component_its_permission_and_the_server() {
    for end in ["component", "permission", "server"] {
        let server = Server::new();
        server.grant(&["get subscription edge/gateway"]);
        let mut response = server.begin(streaming("limited", PATH, None)).await;
        assert!(next(&mut response).await.is_some());
        match end {
            "component" => server.store.change(|state| state.subscriptions.clear()),
            "permission" => server.store.change(|state| state.grants.clear()),
            _ => server.shut_down(),
        }
        assert!(next(&mut response).await.is_none(), "{end}");
    }
}

#[tokio::test]
async fn a_stream_waits_while_the_state_cannot_be_read() {
    let server = Server::new();
    store(&mut server.store.state(), "u-1", 1);
    let mut response = server.begin(streaming("admin", PATH, None)).await;
    assert!(next(&mut response).await.is_some());
    server.store.change(|state| state.is_unavailable = true);
    server.store.change(|state| {
        state.is_unavailable = false;
        store(state, "u-2", 2);
    });
    assert_eq!(next(&mut response).await.unwrap().id, "u-2");
}

#[tokio::test]
async fn a_caller_with_too_many_watches_is_refused() {
    let server = Server::new();
    let mut streams = Vec::new();
    for _ in 0..50 {
        streams.push(server.begin(streaming("a", PATH, None)).await);
    }
    let refused = server.send(streaming("a", PATH, None)).await;
    assert_eq!((refused.status, &refused.headers["retry-after"]), (503, &"5".parse().unwrap()));
    assert_eq!(server.begin(streaming("b", PATH, None)).await.status(), 200);
    streams.pop();
    assert_eq!(server.begin(streaming("a", PATH, None)).await.status(), 200);
    // Reads without a wait have no limit.
    assert_eq!(server.send(request("a", "GET", PATH, "")).await.status, 200);
}

#[tokio::test]
async fn a_long_poll_answers_at_once_after_a_change_or_after_its_time() {
    let server = Server::new();
    store(&mut server.store.state(), "u-1", 1);
    let now = server.get(PATH).await;
    assert_eq!(now.headers["x-proviso-index"], "u-1");
    let other = server.get(&format!("{PATH}?index=u-0&wait=5m")).await;
    assert_eq!(other.headers["x-proviso-index"], "u-1", "another index is answered at once");
    let without_change = server.get(&format!("{PATH}?index=u-1&wait=10ms")).await;
    assert_eq!((without_change.status, &without_change.headers["x-proviso-index"]), (200, &"u-1".parse().unwrap()));
    let polling = {
        let server = server.clone();
        tokio::spawn(async move { server.get(&format!("{PATH}?index=u-1&wait=5m")).await })
    };
    watches(&server, 1).await;
    server.store.change(|state| store(state, "u-2", 2));
    let changed = polling.await.unwrap();
    assert_eq!(changed.headers["x-proviso-index"], "u-2");
    assert_eq!(changed.json()["policies"]["items"][0]["policyVersion"], "2");
    assert_eq!(server.get(&format!("{PATH}?index=u-2&wait=6m")).await.status, 400);
}

#[tokio::test]
async fn a_long_poll_ends_when_the_server_shuts_down() {
    let server = Server::new();
    store(&mut server.store.state(), "u-1", 1);
    let polling = {
        let server = server.clone();
        tokio::spawn(async move { server.get(&format!("{PATH}?index=u-1&wait=5m")).await })
    };
    watches(&server, 1).await;
    server.shut_down();
    let answer = polling.await.unwrap();
    assert_eq!((answer.status, &answer.headers["x-proviso-index"]), (200, &"u-1".parse().unwrap()));
}
