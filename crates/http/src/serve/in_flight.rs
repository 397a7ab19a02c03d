//! Requests in flight: from their head until the end of the body of their response.

use std::pin::Pin;
use std::task::{Context, Poll};

use hyper::body::{Body, Frame, SizeHint};
use pin_project_lite::pin_project;

use super::timeouts::ConnectionTimer;
use crate::limits::Permit;

/// A request in flight. The drop also ends a request that its client cancelled.
#[derive(Debug)]
pub(super) struct InFlight {
    timer: ConnectionTimer,
    /// The number of the answer; `None` before the answer begins.
    answer: Option<u64>,
    /// The memory of the request without its body; `None` if there was none.
    _memory: Option<Permit>,
}

impl InFlight {
    /// The request has begun.
    pub(super) fn new(timer: ConnectionTimer, memory: Option<Permit>) -> Self {
        timer.begin();
        Self { timer, answer: None, _memory: memory }
    }
}

impl Drop for InFlight {
    fn drop(&mut self) {
        self.timer.end(self.answer);
    }
}

pin_project! {
    /// The body of a response. Its drop ends the request.
    #[derive(Debug)]
    pub(super) struct InFlightBody<B> {
        #[pin]
        body: Option<B>,
        in_flight: InFlight,
        is_streamed: bool,
    }
}

impl<B> InFlightBody<B> {
    /// The answer begins. `None` is an empty body.
    pub(super) fn new(body: Option<B>, mut in_flight: InFlight) -> Self {
        in_flight.answer = Some(in_flight.timer.answer());
        Self { body, in_flight, is_streamed: false }
    }

    /// Sets if the time limit counts for each part of the body ([`Streamed`](crate::Streamed)).
    pub(super) fn streamed(self, is_streamed: bool) -> Self {
        Self { is_streamed, ..self }
    }
}

impl<B: Body> Body for InFlightBody<B> {
    type Data = B::Data;
    type Error = B::Error;

    fn poll_frame(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<B::Data>, B::Error>>> {
        let this = self.project();
        if let (true, Some(answer)) = (*this.is_streamed, this.in_flight.answer) {
            // hyper asks for the next part when it has sent the parts before it, up to the size of its buffer.
            this.in_flight.timer.proceed(answer);
        }
        this.body.as_pin_mut().map_or(Poll::Ready(None), |body| body.poll_frame(cx))
    }

    fn is_end_stream(&self) -> bool {
        self.body.as_ref().is_none_or(Body::is_end_stream)
    }

    fn size_hint(&self) -> SizeHint {
        self.body.as_ref().map_or_else(|| SizeHint::with_exact(0), Body::size_hint)
    }
}
