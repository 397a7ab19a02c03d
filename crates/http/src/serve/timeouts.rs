//! Timeouts of a connection: closes it if the client is idle or sends a request head too slowly.
//!
//! hyper has one timer for both the request head and the idle time between requests, and no timer before the first byte of
//! HTTP/2. The two limits must differ: API servers keep idle connections for 90 s, and a request head needs less than 10 s.

use std::io;
use std::pin::Pin;
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

use super::farewell::Farewell;

/// The time limit for a request head, from its first byte.
const HEAD_TIMEOUT: Duration = Duration::from_secs(10);
/// The time that a connection may wait for its first request, and that an HTTP/1.1 connection may be idle between requests.
///
/// API servers close idle connections after 90 s. The API server must close first, or it may send a request while this
/// server closes the connection, and that request fails. A client such as an API server also opens connections that it does not
/// need at once: while it connects for a request, another connection becomes idle and takes the request. HTTP/2 connections use
/// pings between requests.
const IDLE_TIMEOUT: Duration = Duration::from_mins(2);
/// The interval at which the timer is checked.
const POLL_INTERVAL: Duration = Duration::from_secs(1);

/// The state of a connection.
#[derive(Clone, Copy, Debug)]
enum State {
    /// The connection waits for the first byte of its first request since this time.
    New(Instant),
    /// The connection waits for the rest of a request head since this time.
    Head(Instant),
    /// The number of requests in flight.
    Busy(usize),
    /// The connection is idle since this time.
    Idle(Instant),
}

impl State {
    fn is_overdue(self, is_http2: bool, now: Instant) -> bool {
        match self {
            Self::New(since) => now.duration_since(since) >= IDLE_TIMEOUT,
            Self::Head(since) => now.duration_since(since) >= HEAD_TIMEOUT,
            Self::Idle(since) => !is_http2 && now.duration_since(since) >= IDLE_TIMEOUT,
            Self::Busy(_) => false,
        }
    }
}

/// The timer of one connection. Clones share it.
#[derive(Clone, Debug)]
pub(super) struct ConnectionTimer {
    state: Arc<Mutex<State>>,
}

impl ConnectionTimer {
    pub(super) fn new() -> Self {
        Self { state: Arc::new(Mutex::new(State::New(Instant::now()))) }
    }

    fn change(&self, change: impl FnOnce(State) -> State) {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        *state = change(*state);
    }

    /// Records a request whose head has arrived.
    pub(super) fn begin(&self) {
        self.change(|state| match state {
            State::Busy(requests) => State::Busy(requests + 1),
            _ => State::Busy(1),
        });
    }

    /// Records the end of a request.
    pub(super) fn end(&self) {
        self.change(|state| match state {
            State::Busy(requests) if requests > 1 => State::Busy(requests - 1),
            _ => State::Idle(Instant::now()),
        });
    }

    /// Returns true if no request is in flight or arriving.
    fn is_idle(&self) -> bool {
        matches!(*self.state.lock().unwrap_or_else(PoisonError::into_inner), State::New(_) | State::Idle(_))
    }

    /// Records that bytes have arrived.
    fn read(&self) {
        self.change(|state| match state {
            State::New(_) | State::Idle(_) => State::Head(Instant::now()),
            state => state,
        });
    }

    /// Waits until a request head or the next request takes too long.
    pub(super) async fn expired(&self, is_http2: bool) {
        loop {
            tokio::time::sleep(POLL_INTERVAL).await;
            let state = *self.state.lock().unwrap_or_else(PoisonError::into_inner);
            if state.is_overdue(is_http2, Instant::now()) {
                return;
            }
        }
    }
}

/// The stream of an HTTP/1.1 connection. It reports its reads to the timer, and ends with a [`Farewell`] if the connection is idle
/// when the server stops.
pub(super) struct Http1Stream<S> {
    stream: S,
    timer: ConnectionTimer,
    /// Ready when the server stops.
    stop: Pin<Box<dyn Future<Output = ()> + Send>>,
    /// True if no response is left to write.
    is_flushed: bool,
    /// True if a read waits, but not for the stop, because a response is left to write.
    is_blind: bool,
    farewell: Farewell,
}

impl<S> Http1Stream<S> {
    pub(super) fn new(stream: S, timer: ConnectionTimer, stop: impl Future<Output = ()> + Send + 'static) -> Self {
        Self { stream, timer, stop: Box::pin(stop), is_flushed: true, is_blind: false, farewell: Farewell::default() }
    }
}

impl<S: AsyncRead + AsyncWrite + Unpin> AsyncRead for Http1Stream<S> {
    fn poll_read(self: Pin<&mut Self>, cx: &mut Context<'_>, buffer: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        let this = self.get_mut();
        if !this.farewell.has_begun() {
            let before = buffer.filled().len();
            let poll = Pin::new(&mut this.stream).poll_read(cx, buffer);
            if buffer.filled().len() > before {
                this.timer.read();
                this.is_flushed = false;
            }
            this.is_blind = poll.is_pending() && !(this.is_flushed && this.timer.is_idle());
            // A request that has arrived is answered.
            if poll.is_ready() || this.is_blind || this.stop.as_mut().poll(cx).is_pending() {
                return poll;
            }
            this.farewell.begin();
        }
        // Then no byte is read: the end of the connection.
        this.farewell.poll(&mut this.stream, cx)
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for Http1Stream<S> {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write(cx, bytes)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let poll = Pin::new(&mut self.stream).poll_flush(cx);
        // hyper flushes the stream when all that it has to write is written. The timer is idle when the body of the response ended.
        if poll.is_ready() && self.timer.is_idle() {
            self.is_flushed = true;
            if std::mem::take(&mut self.is_blind) {
                cx.waker().wake_by_ref();
            }
        }
        poll
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
    fn only_new_connections_slow_heads_and_idle_http1_connections_are_overdue() {
        let start = Instant::now();
        for (state, is_http2, after, overdue) in [
            (State::New(start), false, IDLE_TIMEOUT, true),
            (State::New(start), true, IDLE_TIMEOUT, true),
            (State::New(start), false, IDLE_TIMEOUT / 2, false),
            (State::Head(start), false, HEAD_TIMEOUT, true),
            (State::Head(start), true, HEAD_TIMEOUT, true),
            (State::Head(start), false, HEAD_TIMEOUT / 2, false),
            (State::Idle(start), false, IDLE_TIMEOUT, true),
            (State::Idle(start), false, IDLE_TIMEOUT / 2, false),
            (State::Idle(start), true, 10 * IDLE_TIMEOUT, false),
            (State::Busy(1), false, 10 * IDLE_TIMEOUT, false),
        ] {
            assert_eq!(state.is_overdue(is_http2, start + after), overdue, "{state:?}, HTTP/2: {is_http2}, {after:?}");
        }
    }

    #[test]
    fn the_timer_starts_after_the_last_response_and_at_the_first_byte() {
        let timer = ConnectionTimer::new();
        let state = || *timer.state.lock().unwrap();
        assert!(matches!(state(), State::New(_)));
        timer.read();
        assert!(matches!(state(), State::Head(_)));
        timer.begin();
        timer.begin();
        timer.end();
        assert!(matches!(state(), State::Busy(1)));
        timer.end();
        assert!(matches!(state(), State::Idle(_)));
        timer.read();
        assert!(matches!(state(), State::Head(_)));
    }
}
