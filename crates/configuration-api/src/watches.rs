//! Watches of components: server-sent events and long polling, with limits of their number and their time.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use axum::body::Body;
use axum::http::{HeaderName, HeaderValue, Response, StatusCode};
use axum::response::IntoResponse as _;
use axum::response::sse::{Event, KeepAlive, Sse};
use futures_util::stream;
use proviso_core::configuration::Digest;
use proviso_crds::PolicySubscription;
use proviso_http::Streamed;
use proviso_http::shutdown::Phase;
use tokio::time::{Instant, sleep_until, timeout_at};

use crate::answer::{Refusal, Result, json_text};
use crate::api::Api;
use crate::call::Call;
use crate::components::{ComponentState, all};
use crate::store::{Changes, ConfigurationStore};

/// The header of an answer with the index for the next long poll.
pub(crate) const INDEX: HeaderName = HeaderName::from_static("x-proviso-index");
/// The maximum number of watches of this server.
pub(crate) const MAX_WATCHES: usize = 200;
/// The maximum number of watches of one caller.
pub(crate) const MAX_WATCHES_OF_CALLER: usize = 50;
/// The time after which a client that exceeds the limit may try again, in seconds.
const RETRY_AFTER: u64 = 5;
/// The interval of comments on a stream without events.
const KEEP_ALIVE: Duration = Duration::from_secs(15);
/// The maximum time of a stream. A client connects again, and proves its identity again.
const MAX_STREAM: Duration = Duration::from_mins(10);
/// The pause after the state could not be read.
const RETRY_PAUSE: Duration = Duration::from_secs(2);
/// The default and the maximum time of a long poll.
const DEFAULT_WAIT: Duration = Duration::from_secs(30);
const MAX_WAIT: Duration = Duration::from_mins(5);

/// The watches in progress.
#[derive(Debug, Default)]
pub(crate) struct Watches(Mutex<Counts>);

#[derive(Debug, Default)]
struct Counts {
    total: usize,
    /// The watches of each caller that has some.
    callers: HashMap<String, usize>,
}

/// One watch. Its drop ends it.
#[derive(Debug)]
pub(crate) struct Permit {
    watches: Arc<Watches>,
    user: String,
}

impl Watches {
    /// Begins a watch of this user.
    pub(crate) fn begin(self: &Arc<Self>, user: &str) -> Result<Permit> {
        let mut counts = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if counts.total >= MAX_WATCHES {
            let message =
                format!("{MAX_WATCHES} watches are in progress, which is the limit of this server: try again later");
            return Err(Refusal::unavailable(message, RETRY_AFTER));
        }
        let of_caller = counts.callers.entry(user.to_owned()).or_default();
        if *of_caller >= MAX_WATCHES_OF_CALLER {
            let message = format!(
                "you have {MAX_WATCHES_OF_CALLER} watches in progress, which is the limit of a caller: end some of them"
            );
            return Err(Refusal::unavailable(message, RETRY_AFTER));
        }
        *of_caller += 1;
        counts.total += 1;
        Ok(Permit { watches: Arc::clone(self), user: user.to_owned() })
    }
}

impl Drop for Permit {
    fn drop(&mut self) {
        let mut counts = self.watches.0.lock().unwrap_or_else(PoisonError::into_inner);
        counts.total -= 1;
        if let Entry::Occupied(mut entry) = counts.callers.entry(std::mem::take(&mut self.user)) {
            *entry.get_mut() -= 1;
            if *entry.get() == 0 {
                entry.remove();
            }
        }
    }
}

/// A watch of one component.
struct Watch<S> {
    api: Arc<Api<S>>,
    call: Call,
    /// The service component name, and the namespace that the caller names.
    name: String,
    namespace: Option<String>,
    changes: Changes,
    /// The index that the client has, and the digest of the members if this watch has sent them.
    known: Option<(String, Option<Digest>)>,
    end: Instant,
    _permit: Permit,
}

/// A state that the client does not have yet.
struct News {
    index: String,
    members: String,
}

impl<S: ConfigurationStore> Watch<S> {
    async fn begin(
        api: Arc<Api<S>>,
        call: Call,
        (name, namespace): (String, Option<String>),
        subscription: &PolicySubscription,
        known: Option<String>,
        time: Duration,
    ) -> Result<Self> {
        let permit = api.watches.begin(call.user())?;
        // The watch begins before the first read, so that no change between the two is missed.
        let changes = api.store.watch(subscription).await?;
        let known = known.map(|index| (index, None));
        Ok(Self { api, call, name, namespace, changes, known, end: Instant::now() + time, _permit: permit })
    }

    /// Reads the state. The permissions of the caller are checked each time.
    async fn read(&self) -> Result<ComponentState> {
        let caller = self.call.caller();
        let subscription = self.api.component(caller, &self.name, self.namespace.as_deref()).await?;
        let state = self.api.state(caller, &subscription).await?;
        if state.misses_config() {
            return Err(Refusal::not_found(&format!("the configuration of {:?}", self.name)));
        }
        Ok(state)
    }

    /// Waits for a state that the client does not have. `None` if the watch ends: its time is over, the server shuts down, or the
    /// component or the permission of the caller is gone.
    async fn next(&mut self) -> Option<News> {
        loop {
            let retry = match self.read().await {
                Ok(state) => {
                    let (index, members) = (state.index.clone(), state.members());
                    let digest = Digest::of(&members);
                    let is_known = self
                        .known
                        .as_ref()
                        .is_some_and(|(known, sent)| *known == index && sent.is_none_or(|sent| sent == digest));
                    self.known = Some((index.clone(), Some(digest)));
                    if !is_known {
                        return Some(News { index, members });
                    }
                    None
                }
                Err(refusal) if refusal.status.is_server_error() => {
                    tracing::debug!(component = self.name, message = refusal.message, "a watch reads again");
                    Some(Instant::now() + RETRY_PAUSE)
                }
                Err(_) => return None,
            };
            if !self.wait(retry).await {
                return None;
            }
        }
    }

    /// Waits for a change, or until `retry`. Returns false if the watch ends.
    async fn wait(&mut self, retry: Option<Instant>) -> bool {
        let mut phase = self.api.phase.clone();
        let retrying = async {
            match retry {
                Some(retry) => sleep_until(retry).await,
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            has_changed = self.changes.changed() => has_changed,
            () = retrying => true,
            () = sleep_until(self.end) => false,
            _ = phase.wait_for(|phase| *phase != Phase::Serving) => false,
        }
    }
}

/// Answers with server-sent events: one with the whole state now, and one after each change. `known` is the id of the last event that
/// the client has (`Last-Event-ID`).
pub(crate) async fn stream_events<S: ConfigurationStore>(
    api: Arc<Api<S>>,
    call: Call,
    name: (String, Option<String>),
    subscription: &PolicySubscription,
    known: Option<String>,
) -> Result<Response<Body>> {
    let watch = Watch::begin(api, call, name, subscription, known, MAX_STREAM).await?;
    let events = stream::unfold(watch, async |mut watch| {
        let News { index, members } = watch.next().await?;
        let event = Event::default().id(index).data(all(&members, &watch.call.request_id));
        Some((Ok::<_, std::convert::Infallible>(event), watch))
    });
    let mut response = Sse::new(Box::pin(events)).keep_alive(KeepAlive::new().interval(KEEP_ALIVE)).into_response();
    response.extensions_mut().insert(Streamed);
    Ok(response)
}

/// Answers when the state has another index than `known`, or after `wait`.
pub(crate) async fn long_poll<S: ConfigurationStore>(
    api: Arc<Api<S>>,
    call: Call,
    name: (String, Option<String>),
    subscription: &PolicySubscription,
    (known, wait): (String, Duration),
) -> Result<Response<Body>> {
    let end = Instant::now() + wait;
    let mut watch = Watch::begin(api, call, name, subscription, Some(known), wait).await?;
    if let Ok(Some(News { index, members })) = timeout_at(end, watch.next()).await {
        return Ok(polled(&index, &all(&members, &watch.call.request_id)));
    }
    // The state as it is, or the reason why there is none any more.
    let state = watch.read().await?;
    Ok(polled(&state.index, &all(&state.members(), &watch.call.request_id)))
}

/// Returns the answer with this JSON and the index for the next long poll.
pub(crate) fn polled(index: &str, json: &str) -> Response<Body> {
    let mut response = json_text(StatusCode::OK, json.to_owned());
    if let Ok(index) = HeaderValue::from_str(index) {
        response.headers_mut().insert(INDEX, index);
    }
    response
}

/// Reads the time of a long poll, such as `30s`, `5m` or `500ms`: at most 5 minutes. Default: 30 s.
pub(crate) fn wait(text: Option<&str>) -> Result<Duration> {
    let Some(text) = text else { return Ok(DEFAULT_WAIT) };
    let digits = text.len() - text.trim_start_matches(|digit: char| digit.is_ascii_digit()).len();
    let (number, unit) = text.split_at(digits);
    let milliseconds = match unit {
        "ms" => Some(1),
        "s" => Some(1000),
        "m" => Some(60_000),
        _ => None,
    };
    let wait = number.parse::<u64>().ok().zip(milliseconds).and_then(|(number, unit)| number.checked_mul(unit));
    let wait = wait.map(Duration::from_millis).filter(|wait| *wait <= MAX_WAIT);
    wait.ok_or_else(|| Refusal::invalid("wait", "is not a time of at most 5m, such as 30s"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_of_long_polls_have_a_unit_and_a_limit() {
        let seconds = |text| wait(Some(text)).ok().map(|wait| wait.as_secs_f64());
        for (text, expected) in [("30s", 30.0), ("5m", 300.0), ("500ms", 0.5), ("0s", 0.0), ("300s", 300.0)] {
            assert_eq!(seconds(text), Some(expected), "{text}");
        }
        for text in ["", "30", "s", "301s", "6m", "-1s", "1h", "1.5s", "99999999999999999999s", "1ß"] {
            assert_eq!(seconds(text), None, "{text}");
        }
        assert_eq!(wait(None).ok(), Some(DEFAULT_WAIT));
    }

    #[test]
    fn watches_of_a_caller_and_of_the_server_have_a_limit() {
        let watches = Arc::<Watches>::default();
        let mut permits: Vec<_> = (0..MAX_WATCHES_OF_CALLER).map(|_| watches.begin("a").unwrap()).collect();
        let refusal = watches.begin("a").unwrap_err();
        assert_eq!((refusal.status, refusal.retry_after), (StatusCode::SERVICE_UNAVAILABLE, Some(RETRY_AFTER)));
        permits.pop();
        permits.push(watches.begin("a").unwrap());
        for other in 0..MAX_WATCHES - MAX_WATCHES_OF_CALLER {
            permits.push(watches.begin(&other.to_string()).unwrap());
        }
        assert_eq!(watches.begin("z").unwrap_err().retry_after, Some(RETRY_AFTER));
        permits.clear();
        assert!(watches.begin("z").is_ok());
        assert!(watches.0.lock().unwrap().callers.is_empty());
    }
}
