//! Accepts connections and serves them until the caller stops the server.

mod farewell;
mod in_flight;
mod timeouts;

use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use hyper::body::{Body, Incoming};
use hyper::service::{Service, service_fn};
use hyper::{Request, Response};
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use hyper_util::server::conn::auto;
use hyper_util::server::graceful::{GracefulShutdown, Watcher};
use in_flight::{InFlight, InFlightBody};
use timeouts::{ConnectionTimer, Http1Stream};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{Semaphore, watch};
use tokio_rustls::TlsAcceptor;

use crate::client::ClientCertificates;

/// The time limit for a TLS handshake.
const HANDSHAKE_TIMEOUT: Duration = Duration::from_secs(10);
/// The maximum number of open connections; more wait in the kernel's backlog.
const MAX_CONNECTIONS: usize = 8192;
/// The maximum number of concurrent requests on one HTTP/2 connection.
const MAX_STREAMS: u32 = 250;
/// The interval of HTTP/2 pings, and the time limit for the reply of the client.
const PING_INTERVAL: Duration = Duration::from_secs(30);
/// The pause after a failed accept, for example when the process is out of file descriptors.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

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
pub async fn serve(
    listener: TcpListener,
    tls: Option<TlsAcceptor>,
    service: impl HttpService,
    stop: impl Future<Output = ()>,
    drain: Duration,
) {
    let mut stop = std::pin::pin!(stop);
    let graceful = GracefulShutdown::new();
    let (draining, is_draining) = watch::channel(false);
    let permits = Arc::new(Semaphore::new(MAX_CONNECTIONS));
    loop {
        let accepted = tokio::select! {
            accepted = accept(&listener, &permits) => accepted,
            () = &mut stop => break,
        };
        let Some((stream, permit)) = accepted else { continue };
        let (tls, service, stop) = (tls.clone(), service.clone(), Stop(graceful.watcher(), is_draining.clone()));
        tokio::spawn(async move {
            match tls {
                Some(tls) => {
                    // Failed handshakes are not logged: clients cause many of them.
                    if let Ok(Ok(stream)) = tokio::time::timeout(HANDSHAKE_TIMEOUT, tls.accept(stream)).await {
                        let session = stream.get_ref().1;
                        let is_http2 = session.alpn_protocol() == Some(b"h2");
                        let client = session
                            .peer_certificates()
                            .map(|chain| ClientCertificates(chain.iter().map(|it| it.clone().into_owned()).collect()));
                        connection(stream, is_http2, client, service, stop).await;
                    }
                }
                None => connection(stream, false, None, service, stop).await,
            }
            drop(permit);
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
) -> Option<(TcpStream, tokio::sync::OwnedSemaphorePermit)> {
    let permit = Arc::clone(permits).acquire_owned().await.ok()?;
    match listener.accept().await {
        Ok((stream, _)) => {
            // Responses are small: Nagle's algorithm would delay them.
            let _ = stream.set_nodelay(true);
            Some((stream, permit))
        }
        Err(error) => {
            tracing::warn!(%error, "a connection could not be accepted");
            tokio::time::sleep(ACCEPT_PAUSE).await;
            None
        }
    }
}

/// Tells a connection that the server stops: by the watcher for HTTP/2, by the channel for HTTP/1.1. The server waits until the
/// watcher is dropped.
struct Stop(Watcher, watch::Receiver<bool>);

async fn connection(
    stream: impl AsyncRead + AsyncWrite + Unpin + Send + 'static,
    is_http2: bool,
    client: Option<ClientCertificates>,
    service: impl HttpService,
    Stop(watcher, mut is_draining): Stop,
) {
    let mut builder = auto::Builder::new(TokioExecutor::new());
    // `ConnectionTimer` limits the time for a request head.
    builder.http1().header_read_timeout(None);
    builder
        .http2()
        .timer(TokioTimer::new())
        .max_concurrent_streams(MAX_STREAMS)
        .keep_alive_interval(PING_INTERVAL)
        .keep_alive_timeout(PING_INTERVAL);
    // ALPN alone selects the protocol: detection from the first bytes would wait for them without a time limit.
    let builder = if is_http2 { builder.http2_only() } else { builder.http1_only() };
    let timer = ConnectionTimer::new();
    let service = service_fn(|mut request: Request<Incoming>| {
        timer.begin();
        if let Some(client) = &client {
            request.extensions_mut().insert(client.clone());
        }
        let in_flight = InFlight::new(timer.clone());
        let response = service.call(request);
        async move { response.await.map(|response| response.map(|body| InFlightBody::new(body, in_flight))) }
    });
    let serving = async {
        if is_http2 {
            return watcher.watch(builder.serve_connection(TokioIo::new(stream), service)).await;
        }
        // The end of the process drops the sender only after this connection.
        let stop = async move { drop(is_draining.wait_for(|is_draining| *is_draining).await) };
        let stream = Http1Stream::new(stream, timer.clone(), stop);
        let served = builder.serve_connection(TokioIo::new(stream), service).await;
        drop(watcher);
        served
    };
    tokio::select! {
        ended = serving => {
            if let Err(error) = ended {
                tracing::debug!(%error, "connection closed");
            }
        }
        () = timer.expired(is_http2) => tracing::debug!("connection closed: no request arrived in time"),
    }
}

#[cfg(test)]
mod tests;
