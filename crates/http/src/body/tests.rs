use std::convert::Infallible;
use std::net::IpAddr;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use http_body_util::Full;
use hyper::body::Frame;
use tokio::sync::mpsc;

use super::*;
use crate::limits::Limits;

const LIMITS: BodyLimits = BodyLimits { size: 100_000, timeout: Duration::from_secs(10) };

fn peer(limits: &Arc<Limits>, address: &str) -> Peer {
    Peer::new(address.parse::<IpAddr>().unwrap(), Arc::clone(limits))
}

/// A body of unknown length, which ends when its sender is dropped.
struct Pieces(mpsc::Receiver<Bytes>);

impl Body for Pieces {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        self.0.poll_recv(cx).map(|piece| piece.map(|bytes| Ok(Frame::data(bytes))))
    }
}

fn pieces() -> (mpsc::Sender<Bytes>, Pieces) {
    let (sender, receiver) = mpsc::channel(4);
    (sender, Pieces(receiver))
}

async fn send(sender: &mpsc::Sender<Bytes>, bytes: usize) {
    sender.send(vec![b'x'; bytes].into()).await.unwrap();
}

#[tokio::test]
async fn memory_is_taken_for_the_bytes_that_have_arrived() {
    let limits = Limits::new(8, 1 << 20);
    let peer = peer(&limits, "10.0.0.1");
    let (sender, body) = pieces();
    let reading = tokio::spawn(async move { read_body(body, LIMITS, Some(&peer)).await });
    let until = async |bytes: usize| {
        while limits.memory() < bytes {
            tokio::task::yield_now().await;
        }
        limits.memory()
    };
    send(&sender, 1_000).await;
    assert_eq!(until(1_000).await, 1_000);
    send(&sender, 1).await;
    assert_eq!(until(1_001).await, 2_000);
    send(&sender, 90_000).await;
    assert_eq!(until(91_001).await, 91_001);
    drop(sender);
    let body = reading.await.unwrap().unwrap();
    assert_eq!(body.bytes.len(), 91_001);
    drop(body);
    assert_eq!(limits.memory(), 0);
}

#[tokio::test]
async fn a_body_that_finds_no_memory_is_refused_and_other_clients_have_their_share() {
    let limits = Limits::new(8, 100_000);
    let full = |bytes: usize| Full::new(Bytes::from(vec![b'x'; bytes]));
    let first = read_body(full(75_000), LIMITS, Some(&peer(&limits, "10.0.0.1"))).await.unwrap();
    let refused = read_body(full(1), LIMITS, Some(&peer(&limits, "10.0.0.1"))).await.unwrap_err();
    assert!(matches!(refused.error, BodyError::Overloaded(Exhausted::Client)), "{refused}");
    let other = read_body(full(25_000), LIMITS, Some(&peer(&limits, "10.0.0.2"))).await.unwrap();
    let refused = read_body(full(1), LIMITS, Some(&peer(&limits, "10.0.0.2"))).await.unwrap_err();
    assert!(matches!(refused.error, BodyError::Overloaded(Exhausted::All)), "{refused}");
    drop((first, other));
    assert!(read_body(full(75_000), LIMITS, Some(&peer(&limits, "10.0.0.1"))).await.is_ok());
}

#[tokio::test]
async fn a_body_that_is_too_large_is_discarded_and_its_beginning_is_known() {
    let limits = Limits::new(8, 1 << 20);
    for is_announced in [true, false] {
        let peer = peer(&limits, "10.0.0.1");
        let error = if is_announced {
            let body = Full::new(Bytes::from(vec![b'x'; LIMITS.size + 1]));
            read_body(body, LIMITS, Some(&peer)).await.unwrap_err()
        } else {
            let (sender, body) = pieces();
            let reading = tokio::spawn(async move { read_body(body, LIMITS, Some(&peer)).await });
            for _ in 0..20 {
                send(&sender, 10_000).await;
            }
            drop(sender);
            reading.await.unwrap().unwrap_err()
        };
        assert!(matches!(error.error, BodyError::TooLarge(100_000)), "{error}");
        assert_eq!((error.prefix.len(), limits.memory()), (MAX_PREFIX, 0));
    }
    let exact = read_body(Full::new(Bytes::from(vec![b'x'; LIMITS.size])), LIMITS, None).await.unwrap();
    assert_eq!(exact.bytes.len(), LIMITS.size);
}

#[tokio::test]
async fn a_slow_body_times_out_and_its_beginning_is_known() {
    let limits = Limits::new(8, 1 << 20);
    let (sender, body) = pieces();
    send(&sender, 10).await;
    let short = BodyLimits { timeout: Duration::from_millis(50), ..LIMITS };
    let failure = read_body(body, short, Some(&peer(&limits, "10.0.0.1"))).await.unwrap_err();
    assert!(matches!(failure.error, BodyError::Timeout(_)), "{failure}");
    assert_eq!((failure.prefix, limits.memory()), (vec![b'x'; 10], 0));
    drop(sender);
}
