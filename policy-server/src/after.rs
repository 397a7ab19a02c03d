//! A response body that does something once it has left.

use std::pin::Pin;
use std::task::{Context, Poll};

use axum::body::HttpBody;
use bytes::Bytes;
use hyper::body::{Frame, SizeHint};

/// The whole body in one frame. The action runs when the connection has taken it over for writing and needs it no more,
/// also for a client that went away.
pub struct After<F: FnOnce()> {
    content: Option<Bytes>,
    action: Option<F>,
}

impl<F: FnOnce()> After<F> {
    pub fn new(content: Bytes, action: F) -> Self {
        Self { content: Some(content), action: Some(action) }
    }
}

impl<F: FnOnce()> std::fmt::Debug for After<F> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("After").field("content", &self.content).finish_non_exhaustive()
    }
}

impl<F: FnOnce()> Drop for After<F> {
    fn drop(&mut self) {
        if let Some(action) = self.action.take() {
            action();
        }
    }
}

impl<F: FnOnce() + Unpin> HttpBody for After<F> {
    type Data = Bytes;
    type Error = std::convert::Infallible;

    fn poll_frame(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, Self::Error>>> {
        Poll::Ready(self.get_mut().content.take().map(|content| Ok(Frame::data(content))))
    }

    fn is_end_stream(&self) -> bool {
        self.content.is_none()
    }

    fn size_hint(&self) -> SizeHint {
        SizeHint::with_exact(self.content.as_ref().map_or(0, |content| content.len() as u64))
    }
}
