//! A response body that may do something once it has left.

use std::pin::Pin;
use std::task::{Context, Poll};

use bytes::Bytes;
use hyper::body::{Body, Frame, SizeHint};

/// The whole body in one frame. The action runs when the connection has taken it over for writing and needs it no more,
/// also for a client that went away.
pub struct After {
    content: Option<Bytes>,
    action: Option<Box<dyn FnOnce() + Send>>,
}

impl After {
    pub fn new(content: impl Into<Bytes>, action: impl FnOnce() + Send + 'static) -> Self {
        Self { content: Some(content.into()), action: Some(Box::new(action)) }
    }
}

/// A body that does nothing more.
impl<T: Into<Bytes>> From<T> for After {
    fn from(content: T) -> Self {
        Self { content: Some(content.into()), action: None }
    }
}

impl std::fmt::Debug for After {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("After").field("content", &self.content).finish_non_exhaustive()
    }
}

impl Drop for After {
    fn drop(&mut self) {
        if let Some(action) = self.action.take() {
            action();
        }
    }
}

impl Body for After {
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
