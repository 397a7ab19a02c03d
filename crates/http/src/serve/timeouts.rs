//! Timeouts of a connection: ends it if the client is idle, sends a request head too slowly, or does not read an answer.
//!
//! hyper has one timer for both the request head and the idle time between requests, and no timer for an idle HTTP/2 connection
//! whose client answers pings. The two limits must differ: API servers keep idle connections for 90 s, and a request head needs
//! less than 10 s.

use std::io;
use std::pin::Pin;
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll};
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::time::Instant;

use super::farewell::Farewell;

/// The timeouts of a connection.
#[derive(Clone, Copy, Debug)]
pub(super) struct Timeouts {
    /// The time limit for a request head, from its first byte.
    pub head: Duration,
    /// The time that a connection may wait for its first request, and that it may be idle between requests.
    ///
    /// API servers close idle connections after 90 s. The API server must close first, or it may send a request while this
    /// server closes the connection, and that request fails. A client such as an API server also opens connections that it does
    /// not need at once: while it connects for a request, another connection becomes idle and takes the request.
    pub idle: Duration,
    /// The time limit for a client to read an answer.
    pub answer: Duration,
    /// The time in which the client of an HTTP/2 connection ends the connection after the server has asked for that.
    pub goaway: Duration,
    /// The interval at which the timer is checked.
    pub poll: Duration,
}

impl Timeouts {
    pub(super) const DEFAULT: Self = Self {
        head: Duration::from_secs(10),
        idle: Duration::from_mins(2),
        answer: Duration::from_mins(1),
        goaway: Duration::from_secs(10),
        poll: Duration::from_secs(1),
    };
}

/// The protocol of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Protocol {
    Http1,
    Http2,
}

/// The way in which the server ends a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Ending {
    /// The server closes the connection.
    Close,
    /// The server tells the client of an HTTP/2 connection to send no more requests (GOAWAY), and still answers those that are on
    /// their way.
    GoAway,
}

/// The requests of a connection.
#[derive(Clone, Copy, Debug)]
enum Phase {
    /// The connection waits for the first byte of its first request since this time.
    New(Instant),
    /// The connection waits for the rest of a request head since this time.
    Head(Instant),
    /// The number of requests in flight.
    Busy(usize),
    /// The connection is idle since this time.
    Idle(Instant),
}

#[derive(Debug)]
struct State {
    phase: Phase,
    /// The numbers of the answers that the client has not read completely, and the times at which they began. The oldest comes
    /// first.
    answers: Vec<(u64, Instant)>,
    /// The number of answers so far.
    answered: u64,
    /// The time at which the server has sent a GOAWAY.
    going_away: Option<Instant>,
    timeouts: Timeouts,
}

impl State {
    /// Returns the way in which a connection must end now; `None` if it may go on.
    fn ending(&self, protocol: Protocol, now: Instant) -> Option<Ending> {
        let Timeouts { head, idle, answer, goaway, .. } = self.timeouts;
        let is_over = |since: Instant, limit: Duration| now.duration_since(since) >= limit;
        if self.answers.first().is_some_and(|(_, since)| is_over(*since, answer)) {
            return Some(Ending::Close);
        }
        match self.phase {
            Phase::Head(since) => is_over(since, head).then_some(Ending::Close),
            Phase::Busy(_) => None,
            Phase::New(since) | Phase::Idle(since) => match (protocol, self.going_away) {
                (Protocol::Http1, _) => is_over(since, idle).then_some(Ending::Close),
                (Protocol::Http2, None) => is_over(since, idle).then_some(Ending::GoAway),
                (Protocol::Http2, Some(told)) => is_over(since.max(told), goaway).then_some(Ending::Close),
            },
        }
    }
}

/// The timer of one connection. Clones share it.
#[derive(Clone, Debug)]
pub(super) struct ConnectionTimer {
    state: Arc<Mutex<State>>,
}

impl ConnectionTimer {
    pub(super) fn new(timeouts: Timeouts) -> Self {
        let phase = Phase::New(Instant::now());
        let state = State { phase, answers: Vec::new(), answered: 0, going_away: None, timeouts };
        Self { state: Arc::new(Mutex::new(state)) }
    }

    fn with<T>(&self, work: impl FnOnce(&mut State) -> T) -> T {
        work(&mut self.state.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// Records a request whose head has arrived.
    pub(super) fn begin(&self) {
        self.with(|state| {
            state.phase = match state.phase {
                Phase::Busy(requests) => Phase::Busy(requests + 1),
                _ => Phase::Busy(1),
            };
        });
    }

    /// Records the begin of an answer. Returns the number of the answer.
    pub(super) fn answer(&self) -> u64 {
        self.with(|state| {
            state.answered += 1;
            state.answers.push((state.answered, Instant::now()));
            state.answered
        })
    }

    /// Records that the client has read the parts of a streamed answer that were sent.
    pub(super) fn proceed(&self, answer: u64) {
        self.with(|state| {
            let before = state.answers.len();
            state.answers.retain(|(open, _)| *open != answer);
            // The others are older now, so the answer moves to the end.
            if state.answers.len() < before {
                state.answers.push((answer, Instant::now()));
            }
        });
    }

    /// Records the end of a request, and of its answer if that has begun.
    pub(super) fn end(&self, answer: Option<u64>) {
        self.with(|state| {
            state.phase = match state.phase {
                Phase::Busy(requests) if requests > 1 => Phase::Busy(requests - 1),
                _ => Phase::Idle(Instant::now()),
            };
            if let Some(number) = answer {
                state.answers.retain(|(open, _)| *open != number);
            }
        });
    }

    /// Records that the server has sent a GOAWAY.
    pub(super) fn go_away(&self) {
        self.with(|state| state.going_away = Some(Instant::now()));
    }

    /// Returns true if no request is in flight or arriving.
    fn is_idle(&self) -> bool {
        self.with(|state| matches!(state.phase, Phase::New(_) | Phase::Idle(_)))
    }

    /// Records that bytes have arrived.
    fn read(&self) {
        self.with(|state| {
            if let Phase::New(_) | Phase::Idle(_) = state.phase {
                state.phase = Phase::Head(Instant::now());
            }
        });
    }

    /// Waits until the connection must end.
    pub(super) async fn ending(&self, protocol: Protocol) -> Ending {
        let interval = self.with(|state| state.timeouts.poll);
        loop {
            tokio::time::sleep(interval).await;
            if let Some(ending) = self.with(|state| state.ending(protocol, Instant::now())) {
                return ending;
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

    const HEAD_TIMEOUT: Duration = Timeouts::DEFAULT.head;
    const IDLE_TIMEOUT: Duration = Timeouts::DEFAULT.idle;
    const ANSWER_TIMEOUT: Duration = Timeouts::DEFAULT.answer;
    const GOAWAY_TIMEOUT: Duration = Timeouts::DEFAULT.goaway;

    fn state(phase: Phase) -> State {
        State { phase, answers: Vec::new(), answered: 0, going_away: None, timeouts: Timeouts::DEFAULT }
    }

    #[test]
    fn api_servers_close_idle_connections_first() {
        assert!(IDLE_TIMEOUT > Duration::from_secs(90) && HEAD_TIMEOUT < IDLE_TIMEOUT);
    }

    #[test]
    fn new_and_idle_connections_and_slow_heads_end_at_their_time_limit() {
        use Protocol::{Http1, Http2};
        let start = Instant::now();
        for (phase, protocol, after, ending) in [
            (Phase::New(start), Http1, IDLE_TIMEOUT, Some(Ending::Close)),
            (Phase::New(start), Http2, IDLE_TIMEOUT, Some(Ending::GoAway)),
            (Phase::New(start), Http1, IDLE_TIMEOUT / 2, None),
            (Phase::Head(start), Http1, HEAD_TIMEOUT, Some(Ending::Close)),
            (Phase::Head(start), Http2, HEAD_TIMEOUT, Some(Ending::Close)),
            (Phase::Head(start), Http1, HEAD_TIMEOUT / 2, None),
            (Phase::Idle(start), Http1, IDLE_TIMEOUT, Some(Ending::Close)),
            (Phase::Idle(start), Http1, IDLE_TIMEOUT / 2, None),
            (Phase::Idle(start), Http2, IDLE_TIMEOUT, Some(Ending::GoAway)),
            (Phase::Idle(start), Http2, IDLE_TIMEOUT / 2, None),
            (Phase::Busy(1), Http1, 10 * IDLE_TIMEOUT, None),
            (Phase::Busy(1), Http2, 10 * IDLE_TIMEOUT, None),
        ] {
            assert_eq!(state(phase).ending(protocol, start + after), ending, "{phase:?}, {protocol:?}, {after:?}");
        }
    }

    #[test]
    fn a_connection_ends_after_its_goaway_when_it_is_idle() {
        let start = Instant::now();
        let told = start + IDLE_TIMEOUT;
        for (phase, after, ending) in [
            (Phase::Idle(start), GOAWAY_TIMEOUT / 2, None),
            (Phase::Idle(start), GOAWAY_TIMEOUT, Some(Ending::Close)),
            // Requests that were on their way are answered.
            (Phase::Busy(1), 10 * GOAWAY_TIMEOUT, None),
            (Phase::Idle(told + GOAWAY_TIMEOUT), GOAWAY_TIMEOUT, None),
        ] {
            let state = State { going_away: Some(told), ..state(phase) };
            assert_eq!(state.ending(Protocol::Http2, told + after), ending, "{phase:?}, {after:?}");
        }
    }

    #[test]
    fn a_connection_ends_whose_client_does_not_read_an_answer() {
        let timer = ConnectionTimer::new(Timeouts::DEFAULT);
        for _ in 0..3 {
            timer.begin();
        }
        let (first, second) = (timer.answer(), timer.answer());
        let at = |after: Duration| timer.with(|state| state.ending(Protocol::Http2, Instant::now() + after));
        assert_eq!((at(ANSWER_TIMEOUT / 2), at(ANSWER_TIMEOUT)), (None, Some(Ending::Close)));
        timer.end(Some(first));
        assert_eq!(at(ANSWER_TIMEOUT), Some(Ending::Close));
        timer.end(Some(second));
        // The third request has no answer yet.
        assert_eq!(at(10 * ANSWER_TIMEOUT), None);
    }

    #[test]
    fn a_streamed_answer_has_the_time_limit_for_each_part() {
        let timer = ConnectionTimer::new(Timeouts::DEFAULT);
        let (first, second) = (timer.answer(), timer.answer());
        timer.with(|state| state.answers.iter_mut().for_each(|(_, since)| *since -= ANSWER_TIMEOUT));
        let now = || timer.with(|state| state.ending(Protocol::Http2, Instant::now()));
        timer.proceed(first);
        assert_eq!(now(), Some(Ending::Close), "the client does not read the other answer");
        timer.proceed(second);
        assert_eq!(now(), None);
        timer.end(Some(first));
        timer.end(Some(second));
        timer.proceed(first);
        assert!(timer.with(|state| state.answers.is_empty()), "an answer that has ended stays so");
    }

    #[test]
    fn the_timer_starts_after_the_last_response_and_at_the_first_byte() {
        let timer = ConnectionTimer::new(Timeouts::DEFAULT);
        let phase = || timer.with(|state| state.phase);
        assert!(matches!(phase(), Phase::New(_)));
        timer.read();
        assert!(matches!(phase(), Phase::Head(_)));
        timer.begin();
        timer.begin();
        timer.end(None);
        assert!(matches!(phase(), Phase::Busy(1)));
        timer.end(None);
        assert!(matches!(phase(), Phase::Idle(_)));
        timer.read();
        assert!(matches!(phase(), Phase::Head(_)));
    }
}
