//! The end of an idle HTTP/1.1 connection when the server stops.
//!
//! A client may send a request while the server closes the connection, and that request fails: an API server does not repeat it.
//! So the server first sends an answer that no request has asked for: 503 with `Retry-After`. A client that is sending a request
//! at this moment gets it as the answer, and API servers repeat such a call, on a connection to another server. A client that
//! sends nothing closes the connection.

use std::io;
use std::pin::Pin;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::time::Sleep;

/// The answer to a request that may be on its way.
const ANSWER: &[u8] =
    b"HTTP/1.1 503 Service Unavailable\r\nretry-after: 1\r\nconnection: close\r\ncontent-length: 0\r\n\r\n";
/// The time that the client has to read the answer and to close the connection. Data that arrives after a socket is closed would
/// destroy the answer.
const LINGER: Duration = Duration::from_secs(2);

/// The steps of the end of a connection.
#[derive(Debug, Default)]
pub(super) enum Farewell {
    #[default]
    NotBegun,
    /// The number of bytes of the answer that were written.
    Answering(usize),
    Flushing,
    ShuttingDown,
    /// Waits until the client closes the connection.
    Lingering(Pin<Box<Sleep>>),
    Over,
}

impl Farewell {
    pub(super) fn has_begun(&self) -> bool {
        !matches!(self, Self::NotBegun)
    }

    pub(super) fn begin(&mut self) {
        *self = Self::Answering(0);
    }

    /// Continues until the connection has ended. The data that still arrives is discarded.
    pub(super) fn poll<S: AsyncRead + AsyncWrite + Unpin>(
        &mut self,
        stream: &mut S,
        cx: &mut Context<'_>,
    ) -> Poll<io::Result<()>> {
        loop {
            match self {
                Self::Answering(written) => {
                    *written +=
                        ready!(Pin::new(&mut *stream).poll_write(cx, ANSWER.get(*written..).unwrap_or_default()))?;
                    if *written >= ANSWER.len() {
                        *self = Self::Flushing;
                    }
                }
                Self::Flushing => {
                    ready!(Pin::new(&mut *stream).poll_flush(cx))?;
                    *self = Self::ShuttingDown;
                }
                Self::ShuttingDown => {
                    ready!(Pin::new(&mut *stream).poll_shutdown(cx))?;
                    *self = Self::Lingering(Box::pin(tokio::time::sleep(LINGER)));
                }
                Self::Lingering(limit) => {
                    let mut discarded = [0; 1024];
                    let mut buffer = ReadBuf::new(&mut discarded);
                    match Pin::new(&mut *stream).poll_read(cx, &mut buffer) {
                        Poll::Ready(Ok(())) if !buffer.filled().is_empty() => {}
                        Poll::Ready(_) => *self = Self::Over,
                        Poll::Pending => {
                            ready!(limit.as_mut().poll(cx));
                            *self = Self::Over;
                        }
                    }
                }
                Self::NotBegun | Self::Over => return Poll::Ready(Ok(())),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::future::poll_fn;

    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _, duplex};

    use super::*;

    #[tokio::test]
    async fn a_client_that_is_sending_gets_an_answer_and_its_data_is_discarded() {
        // The stream is smaller than the answer, so that the writes are partial.
        let (mut client, mut server) = duplex(16);
        let mut farewell = Farewell::default();
        assert!(!farewell.has_begun());
        farewell.begin();
        let ended = tokio::spawn(async move {
            poll_fn(|cx| farewell.poll(&mut server, cx)).await.unwrap();
            farewell
        });
        let mut answer = Vec::new();
        client.read_to_end(&mut answer).await.unwrap();
        assert_eq!(answer, ANSWER);
        client.write_all(&[b'x'; 5000]).await.unwrap();
        client.shutdown().await.unwrap();
        assert!(matches!(ended.await.unwrap(), Farewell::Over));
    }

    #[tokio::test]
    async fn a_client_that_keeps_the_connection_open_is_not_waited_for() {
        let (_client, mut server) = duplex(1024);
        let mut farewell = Farewell::default();
        farewell.begin();
        poll_fn(|cx| farewell.poll(&mut server, cx)).await.unwrap();
    }
}
