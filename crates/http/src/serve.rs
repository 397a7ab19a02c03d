//! Accepts connections, and serves them until it is told to stop.

mod watch;

use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use hyper::body::{Body, Incoming};
use hyper::service::{Service, service_fn};
use hyper::{Request, Response};
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use hyper_util::server::conn::auto;
use hyper_util::server::graceful::GracefulShutdown;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Semaphore;
use tokio_rustls::TlsAcceptor;
use watch::{Watch, Watched};

use crate::client::ClientCertificates;

/// How long a client may take for its TLS handshake.
const HANDSHAKE_DEADLINE: Duration = Duration::from_secs(10);
/// Connections at the same time; more wait in the kernel's queue.
const MAX_CONNECTIONS: usize = 8192;
/// Requests at the same time on one HTTP/2 connection.
const MAX_STREAMS: u32 = 250;
/// How long a client of HTTP/2 may leave a ping unanswered, and how often it is asked.
const PING: Duration = Duration::from_secs(30);
/// How long to wait when the process is out of file descriptors.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// What answers requests: any service of hyper's, because the layers of a router take a tenth of the CPU time of an
/// answer.
pub trait Answers:
    Service<Request<Incoming>, Response = Response<Self::Body>, Error = Infallible, Future: Send + 'static>
    + Clone
    + Send
    + Sync
    + 'static
{
    type Body: Body<Data = Bytes, Error: Into<Box<dyn std::error::Error + Send + Sync>>> + Send + 'static;
}

impl<S, B> Answers for S
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

/// Serves until `stop` is ready, then waits for the requests that are under way, at most as long as `drain`.
pub async fn serve(
    listener: TcpListener,
    tls: Option<TlsAcceptor>,
    service: impl Answers,
    stop: impl Future<Output = ()>,
    drain: Duration,
) {
    let mut stop = std::pin::pin!(stop);
    let graceful = GracefulShutdown::new();
    let places = Arc::new(Semaphore::new(MAX_CONNECTIONS));
    loop {
        let accepted = tokio::select! {
            accepted = accept(&listener, &places) => accepted,
            () = &mut stop => break,
        };
        let Some((stream, place)) = accepted else { continue };
        let (tls, service, watcher) = (tls.clone(), service.clone(), graceful.watcher());
        tokio::spawn(async move {
            match tls {
                Some(tls) => {
                    // A handshake that fails is the client's business, and there are many.
                    if let Ok(Ok(stream)) = tokio::time::timeout(HANDSHAKE_DEADLINE, tls.accept(stream)).await {
                        let session = stream.get_ref().1;
                        let is_http2 = session.alpn_protocol() == Some(b"h2");
                        let client = session
                            .peer_certificates()
                            .map(|chain| ClientCertificates(chain.iter().map(|it| it.clone().into_owned()).collect()));
                        connection(stream, is_http2, client, service, watcher).await;
                    }
                }
                None => connection(stream, false, None, service, watcher).await,
            }
            drop(place);
        });
    }
    drop(listener);
    let ended = tokio::time::timeout(drain, graceful.shutdown()).await;
    if ended.is_err() {
        tracing::warn!("requests that did not end in time were cut off");
    }
}

async fn accept(
    listener: &TcpListener,
    places: &Arc<Semaphore>,
) -> Option<(TcpStream, tokio::sync::OwnedSemaphorePermit)> {
    let place = Arc::clone(places).acquire_owned().await.ok()?;
    match listener.accept().await {
        Ok((stream, _)) => {
            // Answers are small: they must not wait for more to come.
            let _ = stream.set_nodelay(true);
            Some((stream, place))
        }
        Err(error) => {
            tracing::warn!(%error, "a connection could not be accepted");
            tokio::time::sleep(ACCEPT_PAUSE).await;
            None
        }
    }
}

async fn connection(
    stream: impl AsyncRead + AsyncWrite + Unpin + Send + 'static,
    is_http2: bool,
    client: Option<ClientCertificates>,
    service: impl Answers,
    watcher: hyper_util::server::graceful::Watcher,
) {
    let mut builder = auto::Builder::new(TokioExecutor::new());
    // The watch has clocks of its own.
    builder.http1().header_read_timeout(None);
    builder
        .http2()
        .timer(TokioTimer::new())
        .max_concurrent_streams(MAX_STREAMS)
        .keep_alive_interval(PING)
        .keep_alive_timeout(PING);
    // Deciding by ALPN alone: to read the protocol from the first bytes would wait for them without a deadline.
    let builder = if is_http2 { builder.http2_only() } else { builder.http1_only() };
    let watch = Watch::new();
    let stream = Watched { stream, watch: (!is_http2).then(|| watch.clone()) };
    let service = service_fn(|mut request: Request<Incoming>| {
        watch.begin();
        if let Some(client) = &client {
            request.extensions_mut().insert(client.clone());
        }
        let answering = Answering(watch.clone());
        let response = service.call(request);
        async move {
            let response = response.await;
            drop(answering);
            response
        }
    });
    let serving = builder.serve_connection(TokioIo::new(stream), service);
    tokio::select! {
        ended = watcher.watch(serving) => {
            if let Err(error) = ended {
                tracing::debug!(%error, "connection ended");
            }
        }
        () = watch.expired(is_http2) => tracing::debug!("connection ended: no request in time"),
    }
}

/// A request that is being answered, also one that its client gave up.
struct Answering(Watch);

impl Drop for Answering {
    fn drop(&mut self) {
        self.0.end();
    }
}
