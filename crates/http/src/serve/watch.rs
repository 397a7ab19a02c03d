//! Ends connections whose clients send nothing, or a request's head too slowly. hyper has one clock for both the
//! head and the idle time between requests, which it sets for each request anew, and none before the first byte of
//! HTTP/2: API servers keep idle connections for 90 s, and nobody needs 10 s for a head.

use std::io;
use std::pin::Pin;
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

/// How long a client may take for the head of a request, from its first byte; for the first request, from the
/// beginning of the connection.
const HEAD: Duration = Duration::from_secs(10);
/// How long a connection of HTTP/1.1 may be idle. API servers give theirs up after 90 s: they must be the first, or a
/// request may meet the end of its connection. One of HTTP/2 is asked whether its client is still there.
const IDLE: Duration = Duration::from_mins(2);
/// How often the clock is looked at.
const LOOK_EVERY: Duration = Duration::from_secs(1);

/// What a connection is doing.
#[derive(Clone, Copy, Debug)]
enum State {
    /// Part of a head is here, or is waited for, since then.
    Head(Instant),
    /// Requests that are being answered.
    Busy(usize),
    /// Since then.
    Idle(Instant),
}

impl State {
    fn is_overdue(self, is_http2: bool, now: Instant) -> bool {
        match self {
            Self::Head(since) => now.duration_since(since) >= HEAD,
            Self::Idle(since) => !is_http2 && now.duration_since(since) >= IDLE,
            Self::Busy(_) => false,
        }
    }
}

/// The clock of one connection.
#[derive(Clone, Debug)]
pub(super) struct Watch {
    state: Arc<Mutex<State>>,
}

impl Watch {
    pub(super) fn new() -> Self {
        Self { state: Arc::new(Mutex::new(State::Head(Instant::now()))) }
    }

    fn change(&self, change: impl FnOnce(State) -> State) {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        *state = change(*state);
    }

    /// Takes note of a request whose head has come.
    pub(super) fn begin(&self) {
        self.change(|state| match state {
            State::Busy(requests) => State::Busy(requests + 1),
            _ => State::Busy(1),
        });
    }

    /// Takes note of an answer.
    pub(super) fn end(&self) {
        self.change(|state| match state {
            State::Busy(requests) if requests > 1 => State::Busy(requests - 1),
            _ => State::Idle(Instant::now()),
        });
    }

    fn read(&self) {
        self.change(|state| match state {
            State::Idle(_) => State::Head(Instant::now()),
            state => state,
        });
    }

    /// Ends when a head or the next request has taken too long.
    pub(super) async fn expired(&self, is_http2: bool) {
        loop {
            tokio::time::sleep(LOOK_EVERY).await;
            let state = *self.state.lock().unwrap_or_else(PoisonError::into_inner);
            if state.is_overdue(is_http2, Instant::now()) {
                return;
            }
        }
    }
}

/// A stream whose reads the clock sees.
#[derive(Debug)]
pub(super) struct Watched<S> {
    pub stream: S,
    /// None where a read says nothing about heads: HTTP/2 has frames of its own between requests.
    pub watch: Option<Watch>,
}

impl<S: AsyncRead + Unpin> AsyncRead for Watched<S> {
    fn poll_read(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buffer: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        let before = buffer.filled().len();
        let poll = Pin::new(&mut self.stream).poll_read(cx, buffer);
        if buffer.filled().len() > before
            && let Some(watch) = &self.watch
        {
            watch.read();
        }
        poll
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for Watched<S> {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write(cx, bytes)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(cx)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        slices: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write_vectored(cx, slices)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_client_that_is_waited_for_is_overdue() {
        let start = Instant::now();
        for (state, is_http2, after, overdue) in [
            (State::Head(start), false, HEAD, true),
            (State::Head(start), true, HEAD, true),
            (State::Head(start), false, HEAD / 2, false),
            (State::Idle(start), false, IDLE, true),
            (State::Idle(start), false, IDLE / 2, false),
            (State::Idle(start), true, 10 * IDLE, false),
            (State::Busy(1), false, 10 * IDLE, false),
        ] {
            assert_eq!(state.is_overdue(is_http2, start + after), overdue, "{state:?}, HTTP/2: {is_http2}, {after:?}");
        }
    }

    #[test]
    fn the_clock_starts_with_the_last_answer_and_with_the_first_byte() {
        let watch = Watch::new();
        let state = || *watch.state.lock().unwrap();
        watch.begin();
        watch.begin();
        watch.end();
        assert!(matches!(state(), State::Busy(1)));
        watch.end();
        assert!(matches!(state(), State::Idle(_)));
        watch.read();
        assert!(matches!(state(), State::Head(_)));
    }
}
