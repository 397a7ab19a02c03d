//! A response body that runs an action after the response is sent, or that streams the body of another service.

use std::pin::Pin;
use std::task::{Context, Poll};

use bytes::Bytes;
use hyper::body::{Body, Frame, SizeHint};

/// A response body in one frame, with an optional action that runs when the body is dropped. The connection drops the body when
/// it has taken the frame for writing, or when the client has closed the connection.
pub struct NotifyOnDropBody {
    content: Option<Bytes>,
    /// A body whose length is not known, in place of `content`.
    stream: Option<axum::body::Body>,
    action: Option<Box<dyn FnOnce() + Send>>,
}

impl NotifyOnDropBody {
    pub fn new(content: impl Into<Bytes>, action: impl FnOnce() + Send + 'static) -> Self {
        Self { content: Some(content.into()), stream: None, action: Some(Box::new(action)) }
    }

    /// Makes a body that streams another one, such as server-sent events. An error of it ends the response.
    pub fn stream(body: axum::body::Body) -> Self {
        Self { content: None, stream: Some(body), action: None }
    }
}

/// Makes a body without an action.
impl<T: Into<Bytes>> From<T> for NotifyOnDropBody {
    fn from(content: T) -> Self {
        Self { content: Some(content.into()), stream: None, action: None }
    }
}

impl std::fmt::Debug for NotifyOnDropBody {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("NotifyOnDropBody").field("content", &self.content).finish_non_exhaustive()
    }
}

impl Drop for NotifyOnDropBody {
    fn drop(&mut self) {
        if let Some(action) = self.action.take() {
            action();
        }
    }
}

impl Body for NotifyOnDropBody {
    type Data = Bytes;
    type Error = axum::Error;

    fn poll_frame(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, Self::Error>>> {
        let body = self.get_mut();
        match &mut body.stream {
            Some(stream) => Pin::new(stream).poll_frame(context),
            None => Poll::Ready(body.content.take().map(|content| Ok(Frame::data(content)))),
        }
    }

    fn is_end_stream(&self) -> bool {
        self.content.is_none() && self.stream.as_ref().is_none_or(Body::is_end_stream)
    }

    fn size_hint(&self) -> SizeHint {
        if let Some(stream) = &self.stream {
            return stream.size_hint();
        }
        SizeHint::with_exact(self.content.as_ref().map_or(0, |content| content.len() as u64))
    }
}
