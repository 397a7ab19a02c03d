//! Reading of request bodies, with a limit of their size and of the time.

use std::error::Error;
use std::time::Duration;

use bytes::Bytes;
use http_body_util::{BodyExt as _, LengthLimitError, Limited};
use hyper::body::Body;

/// The maximum of the bytes that are read and discarded of a body that is too large, as a multiple of the limit. If the server
/// closed the connection while the client is still sending, the client would not read the answer.
const MAX_DISCARDED: usize = 8;

/// The error of a body that was not read.
#[derive(Debug, thiserror::Error)]
pub enum BodyError {
    #[error("the body is larger than {0} bytes ({mib} MiB)", mib = .0 >> 20)]
    TooLarge(usize),
    #[error("the body did not arrive within {} s", .0.as_secs())]
    Timeout(Duration),
    #[error("the body cannot be read: {0}")]
    Unreadable(Box<dyn Error + Send + Sync>),
}

/// Reads a body of at most `limit` bytes, which must arrive within `timeout`.
///
/// # Errors
///
/// Returns an error if the body is larger, arrives too late, or if the connection fails. The rest of a larger body has been
/// discarded then, within a limit of eight times `limit` and of `timeout`, so that the client reads the answer.
pub async fn read_body<B>(mut body: B, limit: usize, timeout: Duration) -> Result<Bytes, BodyError>
where
    B: Body<Data = Bytes, Error: Into<Box<dyn Error + Send + Sync>>> + Unpin,
{
    // If the length is known, none of a body that is too large is kept in memory.
    if body.size_hint().lower() > limit as u64 {
        discard(body, limit, timeout).await;
        return Err(BodyError::TooLarge(limit));
    }
    let reading = Limited::new(&mut body, limit).collect();
    match tokio::time::timeout(timeout, reading).await {
        Ok(Ok(body)) => Ok(body.to_bytes()),
        Ok(Err(error)) if error.is::<LengthLimitError>() => {
            discard(body, limit, timeout).await;
            Err(BodyError::TooLarge(limit))
        }
        Ok(Err(error)) => Err(BodyError::Unreadable(error)),
        Err(_) => Err(BodyError::Timeout(timeout)),
    }
}

async fn discard<B: Body<Data = Bytes> + Unpin>(mut body: B, limit: usize, timeout: Duration) {
    let reading = async {
        let mut discarded = 0;
        while let Some(Ok(frame)) = body.frame().await {
            discarded += frame.data_ref().map_or(0, Bytes::len);
            if discarded > MAX_DISCARDED * limit {
                return;
            }
        }
    };
    // The answer is the same if the end of the body was not reached.
    let _ = tokio::time::timeout(timeout, reading).await;
}
