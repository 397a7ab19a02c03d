//! Accepts connections and serves them until the caller stops the server.

mod farewell;
mod in_flight;
mod timeouts;

use std::convert::Infallible;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use hyper::body::{Body, Incoming};
use hyper::header::{self, HeaderValue};
use hyper::service::{Service, service_fn};
use hyper::{Request, Response, StatusCode};
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use hyper_util::server::conn::auto;
use hyper_util::server::graceful::{GracefulShutdown, Watcher};
use in_flight::{InFlight, InFlightBody};
use timeouts::{ConnectionTimer, Ending, Http1Stream, Protocol, Timeouts};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{OwnedSemaphorePermit, Semaphore, watch};
use tokio_rustls::TlsAcceptor;

use crate::client::ClientCertificates;
use crate::limits::{Limits, MAX_HEAD, Peer};

const TIMEOUTS: Timeouts = Timeouts::DEFAULT;
/// The time limit for a TLS handshake.
const HANDSHAKE_TIMEOUT: Duration = Duration::from_secs(10);
/// The maximum number of concurrent requests on one HTTP/2 connection.
const MAX_STREAMS: u32 = 250;
/// The maximum size of the headers of an HTTP/2 request, in bytes: hyper's default. `h2` derives the maximum number of CONTINUATION
/// frames from it.
const MAX_HEADER_LIST: u32 = 16 * 1024;
/// The maximum number of requests that the client of an HTTP/2 connection has reset before the server accepted them. With more, the
/// connection ends: the client floods the server (rapid reset, CVE-2023-44487). The number is the default of `h2`.
const MAX_PENDING_RESETS: usize = 20;
/// The maximum number of streams that the server has reset because of errors of the client. With more, the connection ends
/// (CVE-2025-8671). The number is the default of `h2`.
const MAX_ERROR_RESETS: usize = 1024;
/// The interval of HTTP/2 pings, and the time limit for the reply of the client.
const PING_INTERVAL: Duration = Duration::from_secs(30);
/// The pause after a failed accept, for example when the process is out of file descriptors.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// The extension of a response whose body has no end in sight, such as server-sent events. The time limit for a client to read the
/// answer counts for each part of the body, and not for the whole body.
#[derive(Clone, Copy, Debug)]
pub struct Streamed;

/// A service that answers requests.
///
/// The bound is a plain hyper service, because the layers of a router take a tenth of the CPU time of a response.
pub trait HttpService:
    Service<Request<Incoming>, Response = Response<Self::Body>, Error = Infallible, Future: Send + 'static>
    + Clone
    + Send
    + Sync
    + 'static
{
    type Body: Body<Data = Bytes, Error: Into<Box<dyn std::error::Error + Send + Sync>>> + Send + 'static;
}

impl<S, B> HttpService for S
where
    S: Service<Request<Incoming>, Response = Response<B>, Error = Infallible, Future: Send + 'static>
        + Clone
        + Send
        + Sync
        + 'static,
    B: Body<Data = Bytes, Error: Into<Box<dyn std::error::Error + Send + Sync>>> + Send + 'static,
{
    type Body = B;
}

/// Serves until `stop` is ready, then waits for the requests in flight, for at most `drain`.
///
/// Each request has its [`Peer`] as an extension, so that the memory of its body counts for `limits`.
pub async fn serve(
    listener: TcpListener,
    tls: Option<TlsAcceptor>,
    limits: Arc<Limits>,
    service: impl HttpService,
    stop: impl Future<Output = ()>,
    drain: Duration,
) {
    let mut stop = std::pin::pin!(stop);
    let graceful = GracefulShutdown::new();
    let (draining, is_draining) = watch::channel(false);
    let permits = Arc::new(Semaphore::new(limits.connections.total()));
    loop {
        let accepted = tokio::select! {
            accepted = accept(&listener, &permits) => accepted,
            () = &mut stop => break,
        };
        let Some((stream, address, permit)) = accepted else { continue };
        let peer = Peer::new(address.ip(), Arc::clone(&limits));
        let Ok(share) = peer.connect() else {
            tracing::debug!(%address, "connection closed: its client has its share of the connections");
            continue;
        };
        let (tls, service, stop) = (tls.clone(), service.clone(), Stop(graceful.watcher(), is_draining.clone()));
        tokio::spawn(async move {
            match tls {
                Some(tls) => {
                    // Failed handshakes are not logged: clients cause many of them.
                    if let Ok(Ok(stream)) = tokio::time::timeout(HANDSHAKE_TIMEOUT, tls.accept(stream)).await {
                        let session = stream.get_ref().1;
                        let is_http2 = session.alpn_protocol() == Some(b"h2");
                        let protocol = if is_http2 { Protocol::Http2 } else { Protocol::Http1 };
                        let certificates = session
                            .peer_certificates()
                            .map(|chain| ClientCertificates(chain.iter().map(|it| it.clone().into_owned()).collect()));
                        connection(stream, (protocol, TIMEOUTS), (peer, certificates), service, stop).await;
                    }
                }
                None => connection(stream, (Protocol::Http1, TIMEOUTS), (peer, None), service, stop).await,
            }
            drop((share, permit));
        });
    }
    drop(listener);
    draining.send_replace(true);
    let ended = tokio::time::timeout(drain, graceful.shutdown()).await;
    if ended.is_err() {
        tracing::warn!("the drain deadline passed: requests in flight were cut off");
    }
}

async fn accept(
    listener: &TcpListener,
    permits: &Arc<Semaphore>,
) -> Option<(TcpStream, SocketAddr, OwnedSemaphorePermit)> {
    let permit = Arc::clone(permits).acquire_owned().await.ok()?;
    match listener.accept().await {
        Ok((stream, address)) => {
            // Responses are small: Nagle's algorithm would delay them.
            let _ = stream.set_nodelay(true);
            Some((stream, address, permit))
        }
        Err(error) => {
            tracing::warn!(%error, "a connection could not be accepted");
            tokio::time::sleep(ACCEPT_PAUSE).await;
            None
        }
    }
}

/// Tells a connection that the server stops: by the channel. The server waits until the watcher is dropped.
struct Stop(Watcher, watch::Receiver<bool>);

async fn connection(
    stream: impl AsyncRead + AsyncWrite + Unpin + Send + 'static,
    (protocol, timeouts): (Protocol, Timeouts),
    (peer, certificates): (Peer, Option<ClientCertificates>),
    service: impl HttpService,
    Stop(watcher, mut is_draining): Stop,
) {
    let builder = builder(protocol);
    let timer = ConnectionTimer::new(timeouts);
    let service = service_fn(|mut request: Request<Incoming>| {
        let memory = peer.request(&request).ok();
        let has_memory = memory.is_some();
        let in_flight = InFlight::new(timer.clone(), memory);
        request.extensions_mut().insert(peer.clone());
        if let Some(certificates) = &certificates {
            request.extensions_mut().insert(certificates.clone());
        }
        let response = has_memory.then(|| service.call(request));
        async move {
            let Some(response) = response else { return Ok(overloaded(in_flight)) };
            response.await.map(|response| {
                let is_streamed = response.extensions().get::<Streamed>().is_some();
                response.map(|body| InFlightBody::new(Some(body), in_flight).streamed(is_streamed))
            })
        }
    });
    // The end of the process drops the sender only after this connection.
    let stop = async move { drop(is_draining.wait_for(|is_draining| *is_draining).await) };
    let ended = match protocol {
        Protocol::Http1 => {
            let stream = Http1Stream::new(stream, timer.clone(), stop);
            let mut serving = std::pin::pin!(builder.serve_connection(TokioIo::new(stream), service));
            tokio::select! {
                ended = serving.as_mut() => ended,
                _ = timer.ending(protocol) => Err("no request arrived in time, or an answer was not read".into()),
            }
        }
        Protocol::Http2 => {
            let mut serving = std::pin::pin!(builder.serve_connection(TokioIo::new(stream), service));
            let mut stop = std::pin::pin!(stop);
            let mut is_stopping = false;
            loop {
                tokio::select! {
                    ended = serving.as_mut() => break ended,
                    () = &mut stop, if !is_stopping => {
                        is_stopping = true;
                        serving.as_mut().graceful_shutdown();
                    }
                    ending = timer.ending(protocol) => match ending {
                        Ending::GoAway => {
                            timer.go_away();
                            serving.as_mut().graceful_shutdown();
                        }
                        Ending::Close => break Err("idle, or an answer was not read".into()),
                    },
                }
            }
        }
    };
    if let Err(error) = ended {
        tracing::debug!(%error, "connection closed");
    }
    drop(watcher);
}

/// Returns the settings of connections. ALPN alone selects the protocol: detection from the first bytes would wait for them without
/// a time limit.
fn builder(protocol: Protocol) -> auto::Builder<TokioExecutor> {
    let mut builder = auto::Builder::new(TokioExecutor::new());
    // `ConnectionTimer` limits the time for a request head.
    builder.http1().header_read_timeout(None).max_buf_size(MAX_HEAD);
    builder
        .http2()
        .timer(TokioTimer::new())
        .max_concurrent_streams(MAX_STREAMS)
        .max_header_list_size(MAX_HEADER_LIST)
        .max_pending_accept_reset_streams(MAX_PENDING_RESETS)
        .max_local_error_reset_streams(MAX_ERROR_RESETS)
        .keep_alive_interval(PING_INTERVAL)
        .keep_alive_timeout(PING_INTERVAL);
    match protocol {
        Protocol::Http1 => builder.http1_only(),
        Protocol::Http2 => builder.http2_only(),
    }
}

/// Answers a request for which there is no memory. API servers repeat it.
fn overloaded<B>(in_flight: InFlight) -> Response<InFlightBody<B>> {
    let mut response = Response::new(InFlightBody::new(None, in_flight));
    *response.status_mut() = StatusCode::SERVICE_UNAVAILABLE;
    response.headers_mut().insert(header::RETRY_AFTER, HeaderValue::from_static("1"));
    response
}

#[cfg(test)]
mod tests;
