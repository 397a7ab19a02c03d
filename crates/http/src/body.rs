//! Reading of request bodies, with a limit of their size, of the time, and of the memory of all bodies together.

use std::error::Error;
use std::time::Duration;

use bytes::Bytes;
use http_body_util::BodyExt as _;
use hyper::body::Body;
use tokio::time::Instant;

use crate::limits::{Exhausted, Peer, Permit};

/// The maximum of the bytes that are read and discarded of a body that is too large, as a multiple of the limit. If the server
/// closed the connection while the client is still sending, the client would not read the answer.
const MAX_DISCARDED: usize = 8;
/// The maximum number of bytes that are kept of a body that was not read.
const MAX_PREFIX: usize = 64 * 1024;

/// The limits of one body.
#[derive(Clone, Copy, Debug)]
pub struct BodyLimits {
    /// The maximum size in bytes.
    pub size: usize,
    /// The time in which the body must arrive.
    pub timeout: Duration,
}

/// A body that arrived, with the memory that it holds.
#[derive(Debug, Default)]
pub struct ReceivedBody {
    pub bytes: Bytes,
    /// The memory of the bytes. It is free for other bodies when this is dropped.
    pub memory: Option<Permit>,
}

/// The error of a body that was not read.
#[derive(Debug, thiserror::Error)]
pub enum BodyError {
    #[error("the body is larger than {0} bytes ({mib} MiB)", mib = .0 >> 20)]
    TooLarge(usize),
    #[error("the body did not arrive within {} s", .0.as_secs())]
    Timeout(Duration),
    #[error("the body cannot be read: {0}")]
    Unreadable(Box<dyn Error + Send + Sync>),
    #[error("overloaded: there is no memory for the body: {0}")]
    Overloaded(Exhausted),
}

/// A body that was not read: the error, and the beginning of the body.
#[derive(Debug, thiserror::Error)]
#[error("{error}")]
pub struct BodyFailure {
    pub error: BodyError,
    /// At most the first 64 KiB.
    pub prefix: Vec<u8>,
}

/// Reads a body. Takes memory of the share of `peer` for the bytes that have arrived, whatever length the client has announced.
///
/// # Errors
///
/// Returns an error if the body is too large, arrives too late, finds no memory, or if the connection fails. The rest of a body that
/// is too large, or finds no memory, has been discarded then, within a limit of eight times the maximum size and of the timeout, so
/// that the client reads the answer.
pub async fn read_body<B>(mut body: B, limits: BodyLimits, peer: Option<&Peer>) -> Result<ReceivedBody, BodyFailure>
where
    B: Body<Data = Bytes, Error: Into<Box<dyn Error + Send + Sync>>> + Unpin,
{
    let BodyLimits { size, timeout } = limits;
    let deadline = Instant::now() + timeout;
    let mut buffer = Buffer { bytes: Vec::new(), memory: peer.map(Peer::memory) };
    // If the client announces a body that is too large, only its beginning is kept in memory.
    let is_announced_too_large = body.size_hint().lower() > size as u64;
    let max = if is_announced_too_large { MAX_PREFIX.min(size) } else { size };
    let reading = read(&mut body, &mut buffer, max);
    let error = match tokio::time::timeout_at(deadline, reading).await {
        Ok(Ok(Some(whole))) => return Ok(ReceivedBody { bytes: whole, memory: buffer.memory }),
        Ok(Ok(None)) => return Ok(ReceivedBody { bytes: buffer.bytes.into(), memory: buffer.memory }),
        Ok(Err(ReadError::Full)) => BodyError::TooLarge(size),
        Ok(Err(ReadError::Exhausted(exhausted))) => BodyError::Overloaded(exhausted),
        Ok(Err(ReadError::Failed(error))) => BodyError::Unreadable(error),
        Err(_) => BodyError::Timeout(timeout),
    };
    let prefix = buffer.bytes[..buffer.bytes.len().min(MAX_PREFIX)].to_vec();
    drop(buffer);
    if matches!(error, BodyError::TooLarge(_) | BodyError::Overloaded(_)) {
        // The answer is the same if the end of the body was not reached.
        let _ = tokio::time::timeout_at(deadline, discard(body, MAX_DISCARDED.saturating_mul(size))).await;
    }
    Err(BodyFailure { error, prefix })
}

enum ReadError {
    /// The buffer has its maximum size.
    Full,
    Exhausted(Exhausted),
    Failed(Box<dyn Error + Send + Sync>),
}

/// Reads a body of at most `max` bytes into the buffer. Returns the body instead if it arrived in one piece.
async fn read<B>(body: &mut B, buffer: &mut Buffer, max: usize) -> Result<Option<Bytes>, ReadError>
where
    B: Body<Data = Bytes, Error: Into<Box<dyn Error + Send + Sync>>> + Unpin,
{
    while let Some(frame) = body.frame().await {
        let frame = frame.map_err(|error| ReadError::Failed(error.into()))?;
        let Ok(data) = frame.into_data() else { continue };
        let is_whole = buffer.bytes.is_empty() && body.is_end_stream();
        if is_whole && data.len() <= max {
            buffer.take(data.len()).map_err(ReadError::Exhausted)?;
            return Ok(Some(data));
        }
        let kept = data.len().min(max - buffer.bytes.len());
        buffer.add(&data[..kept], max).map_err(ReadError::Exhausted)?;
        if kept < data.len() {
            return Err(ReadError::Full);
        }
    }
    Ok(None)
}

/// The bytes of a body that has not arrived completely. They are copied: a piece of a connection's buffer, however small, would keep
/// the whole buffer.
struct Buffer {
    bytes: Vec<u8>,
    memory: Option<Permit>,
}

impl Buffer {
    fn add(&mut self, data: &[u8], max: usize) -> Result<(), Exhausted> {
        let (len, capacity) = (self.bytes.len() + data.len(), self.bytes.capacity());
        if len > capacity {
            let wanted = len.max(capacity.saturating_mul(2).min(max));
            self.take(wanted - capacity)?;
            self.bytes.reserve_exact(wanted - self.bytes.len());
        }
        self.bytes.extend_from_slice(data);
        Ok(())
    }

    fn take(&mut self, bytes: usize) -> Result<(), Exhausted> {
        self.memory.as_mut().map_or(Ok(()), |memory| memory.grow(bytes))
    }
}

async fn discard<B: Body<Data = Bytes> + Unpin>(mut body: B, max: usize) {
    let mut discarded = 0;
    while let Some(Ok(frame)) = body.frame().await {
        discarded += frame.data_ref().map_or(0, Bytes::len);
        if discarded > max {
            return;
        }
    }
}

#[cfg(test)]
mod tests;
