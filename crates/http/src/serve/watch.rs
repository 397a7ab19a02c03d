//! Ends connections whose clients send nothing, or a request's head too slowly. hyper has one clock for both the
//! head and the idle time between requests, and none before the first byte of HTTP/2: API servers keep idle
//! connections for 90 s, and nobody needs 10 s for a head.

use std::io;
use std::pin::Pin;
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

/// How long a client may take for the head of a request, from its first byte; for the first request, from the
/// beginning of the connection.
const HEAD: Duration = Duration::from_secs(10);
/// How often the clock is looked at.
const LOOK_EVERY: Duration = Duration::from_secs(1);

/// What a connection is doing.
#[derive(Clone, Copy, Debug)]
enum State {
    /// Part of a head is here, or is waited for, since then.
    Head(Instant),
    /// Requests that are being answered.
    Busy(usize),
    Idle,
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
            _ => State::Idle,
        });
    }

    fn read(&self) {
        self.change(|state| match state {
            State::Idle => State::Head(Instant::now()),
            state => state,
        });
    }

    /// Ends when a head has taken too long.
    pub(super) async fn expired(&self) {
        loop {
            tokio::time::sleep(LOOK_EVERY).await;
            let state = *self.state.lock().unwrap_or_else(PoisonError::into_inner);
            if matches!(state, State::Head(since) if since.elapsed() >= HEAD) {
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
