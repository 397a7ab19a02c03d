//! Requests in flight: from their head until the end of the body of their response.

use std::pin::Pin;
use std::task::{Context, Poll};

use hyper::body::{Body, Frame, SizeHint};
use pin_project_lite::pin_project;

use super::timeouts::ConnectionTimer;

/// A request in flight. The drop also ends a request that its client cancelled.
#[derive(Debug)]
pub(super) struct InFlight(ConnectionTimer);

impl InFlight {
    /// The request has begun.
    pub(super) fn new(timer: ConnectionTimer) -> Self {
        Self(timer)
    }
}

impl Drop for InFlight {
    fn drop(&mut self) {
        self.0.end();
    }
}

pin_project! {
    /// The body of a response. Its drop ends the request.
    #[derive(Debug)]
    pub(super) struct InFlightBody<B> {
        #[pin]
        body: B,
        in_flight: InFlight,
    }
}

impl<B> InFlightBody<B> {
    pub(super) fn new(body: B, in_flight: InFlight) -> Self {
        Self { body, in_flight }
    }
}

impl<B: Body> Body for InFlightBody<B> {
    type Data = B::Data;
    type Error = B::Error;

    fn poll_frame(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<B::Data>, B::Error>>> {
        self.project().body.poll_frame(cx)
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}
