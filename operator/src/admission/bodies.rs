//! The bodies of requests. Their bytes are limited for each request and for all requests together.

use std::sync::Arc;
use std::time::Duration;

use axum::body::Body;
use axum::http::StatusCode;
use axum::response::{IntoResponse as _, Response};
use futures_util::StreamExt as _;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

/// The maximum size of a request body, in bytes. The review of an update contains two objects.
const MAX_BODY: usize = 7 * 1024 * 1024;
/// The bytes of the bodies of all requests together, in KiB: two of the largest, or many of the usual size.
const MAX_BODIES_KIB: usize = 16 * 1024;
/// The time limit for a body. The API server waits for 10 s for the answer.
const READ_TIMEOUT: Duration = Duration::from_secs(5);

/// The memory for bodies that all requests share.
pub(super) struct Bodies(Arc<Semaphore>);

/// A body. Dropping it releases its memory.
#[allow(dead_code, reason = "the permits are held for their `Drop`")]
pub(super) struct ReadBody {
    pub bytes: Vec<u8>,
    permits: Vec<OwnedSemaphorePermit>,
}

impl Bodies {
    pub fn new() -> Self {
        Self(Arc::new(Semaphore::new(MAX_BODIES_KIB)))
    }

    /// Reads a body. Its memory is taken as its bytes arrive.
    ///
    /// # Errors
    /// Returns the answer if the body is too large or too slow, or if there is no memory for it.
    #[allow(clippy::result_large_err, reason = "an answer")]
    pub async fn read(&self, body: Body) -> Result<ReadBody, Response> {
        let answer = |status: StatusCode, text: &'static str| (status, text).into_response();
        let reading = async {
            let mut read = ReadBody { bytes: Vec::new(), permits: Vec::new() };
            let (mut chunks, mut free) = (body.into_data_stream(), 0_usize);
            while let Some(chunk) = chunks.next().await {
                let chunk = chunk.map_err(|_| answer(StatusCode::BAD_REQUEST, "the request body ended early"))?;
                let length = read.bytes.len() + chunk.len();
                if length > MAX_BODY {
                    return Err(answer(StatusCode::PAYLOAD_TOO_LARGE, "the request body is too large"));
                }
                if chunk.len() > free {
                    let kib = (chunk.len() - free).div_ceil(1024).max(16);
                    let permits = Arc::clone(&self.0).try_acquire_many_owned(u32::try_from(kib).unwrap_or(u32::MAX));
                    let permits = permits.map_err(|_| {
                        answer(StatusCode::SERVICE_UNAVAILABLE, "the operator reads many other requests now: try again")
                    })?;
                    read.permits.push(permits);
                    free += kib * 1024;
                }
                free -= chunk.len();
                read.bytes.extend_from_slice(&chunk);
            }
            Ok(read)
        };
        match tokio::time::timeout(READ_TIMEOUT, reading).await {
            Ok(read) => read,
            Err(_) => Err(answer(StatusCode::REQUEST_TIMEOUT, "the request body did not arrive in time")),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    async fn status(bodies: &Bodies, length: usize) -> Result<ReadBody, StatusCode> {
        bodies.read(Body::from(vec![b' '; length])).await.map_err(|answer| answer.status())
    }

    #[tokio::test]
    async fn bodies_are_limited_alone_and_together() {
        let bodies = Bodies::new();
        assert_eq!(status(&bodies, MAX_BODY + 1).await.err(), Some(StatusCode::PAYLOAD_TOO_LARGE));
        let mut held = Vec::new();
        for _ in 0..2 {
            held.push(status(&bodies, MAX_BODY).await.unwrap());
        }
        assert_eq!(status(&bodies, MAX_BODY).await.err(), Some(StatusCode::SERVICE_UNAVAILABLE));
        assert_eq!(status(&bodies, 1000).await.unwrap().bytes.len(), 1000, "small bodies still have memory");
        held.pop();
        assert!(status(&bodies, MAX_BODY).await.is_ok());
        drop(held);
        assert_eq!(bodies.0.available_permits(), MAX_BODIES_KIB);
    }
}
