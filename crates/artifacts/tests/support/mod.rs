//! A server with the responses of a test, over HTTPS with a private CA or over plain HTTP.

#![allow(
    dead_code,
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "each test uses its own part; clippy knows only #[test] functions as tests"
)]

use std::convert::Infallible;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use bytes::Bytes;
use http_body_util::combinators::UnsyncBoxBody;
use http_body_util::{BodyExt as _, Full, StreamBody};
use hyper::body::{Frame, Incoming};
use hyper::service::service_fn;
use hyper::{Request, Response};
use hyper_util::rt::TokioIo;
use proviso_artifacts::{FetchError, FetchOptions, Fetcher, Module, ModuleReference};
use proviso_e2e::pki::Authority;
use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use tokio::net::TcpListener;
use tokio_rustls::TlsAcceptor;

pub type Body = UnsyncBoxBody<Bytes, std::io::Error>;
type Handler = Arc<dyn Fn(&Request<Incoming>) -> Response<Body> + Send + Sync>;

/// A server that runs until the end of the test.
pub struct Server {
    /// The address, `127.0.0.1:port`.
    pub address: String,
    /// The requests, each as `path authorization`.
    seen: Arc<Mutex<Vec<String>>>,
    folder: tempfile::TempDir,
}

impl Server {
    /// Starts a server over HTTPS, whose CA is in the sources.
    pub async fn https(handler: impl Fn(&Request<Incoming>) -> Response<Body> + Send + Sync + 'static) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let authority = Authority::new("own", folder.path()).unwrap();
        let identity = authority.server("server", &["127.0.0.1"]).unwrap();
        let chain = vec![CertificateDer::from_pem_file(&identity.certificate).unwrap()];
        let key = PrivateKeyDer::from_pem_file(&identity.key).unwrap();
        let config =
            rustls::ServerConfig::builder_with_provider(Arc::new(rustls::crypto::aws_lc_rs::default_provider()))
                .with_safe_default_protocol_versions()
                .unwrap()
                .with_no_client_auth()
                .with_single_cert(chain, key)
                .unwrap();
        let server = Self::start(folder, Some(TlsAcceptor::from(Arc::new(config))), Arc::new(handler)).await;
        let pem = std::fs::read_to_string(authority.certificate()).unwrap();
        let authorities = serde_json::json!({"sourceAuthorities": {server.address.clone(): [pem]}});
        std::fs::write(server.sources(), authorities.to_string()).unwrap();
        server
    }

    /// Starts a server over plain HTTP, which is an insecure source.
    pub async fn http(handler: impl Fn(&Request<Incoming>) -> Response<Body> + Send + Sync + 'static) -> Self {
        let server = Self::start(tempfile::tempdir().unwrap(), None, Arc::new(handler)).await;
        std::fs::write(server.sources(), format!("insecureSources: ['{}']", server.address)).unwrap();
        server
    }

    async fn start(folder: tempfile::TempDir, tls: Option<TlsAcceptor>, handler: Handler) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap().to_string();
        let seen = Arc::<Mutex<Vec<String>>>::default();
        let log = Arc::clone(&seen);
        tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                let (tls, handler, log) = (tls.clone(), Arc::clone(&handler), Arc::clone(&log));
                let service = service_fn(move |request: Request<Incoming>| {
                    let authorization = request.headers().get("authorization").and_then(|value| value.to_str().ok());
                    log.lock().unwrap().push(format!("{} {}", request.uri(), authorization.unwrap_or("-")));
                    std::future::ready(Ok::<_, Infallible>(handler(&request)))
                });
                tokio::spawn(async move {
                    let http = hyper::server::conn::http1::Builder::new();
                    match tls {
                        Some(tls) => {
                            if let Ok(stream) = tls.accept(stream).await {
                                let _ = http.serve_connection(TokioIo::new(stream), service).await;
                            }
                        }
                        None => {
                            let _ = http.serve_connection(TokioIo::new(stream), service).await;
                        }
                    }
                });
            }
        });
        Self { address, seen, folder }
    }

    pub fn sources(&self) -> PathBuf {
        self.folder.path().join("sources.yaml")
    }

    pub fn folder(&self) -> &Path {
        self.folder.path()
    }

    pub fn seen(&self) -> Vec<String> {
        self.seen.lock().unwrap().clone()
    }

    pub fn fetcher(&self) -> Fetcher {
        Fetcher::new(Some(self.sources()), Some(self.folder().join("pull-secrets")), None)
    }

    /// Fetches a module: a path on this server, or a complete reference.
    pub async fn fetch(&self, reference: &str, wanted: FetchOptions<'_>) -> Result<Module, FetchError> {
        self.fetcher().fetch(&self.reference(reference), wanted).await
    }

    /// Returns the error of a fetch that must fail.
    pub async fn refuse(&self, reference: &str) -> FetchError {
        self.fetch(reference, FetchOptions::default()).await.expect_err(reference)
    }

    pub fn reference(&self, text: &str) -> ModuleReference {
        let text = if text.contains("://") { text.to_owned() } else { format!("https://{}/{text}", self.address) };
        ModuleReference::parse(&text, Path::new("")).unwrap()
    }

    /// Writes a pull secret with credentials for a server.
    pub fn write_secret(&self, host: &str) {
        let folder = self.folder().join("pull-secrets/secret");
        std::fs::create_dir_all(&folder).unwrap();
        let auths = format!(r#"{{"auths": {{"{host}": {{"username": "ann", "password": "p"}}}}}}"#);
        std::fs::write(folder.join(".dockerconfigjson"), auths).unwrap();
    }
}

/// Returns a response with this status and no body.
pub fn status(status: u16) -> Response<Body> {
    Response::builder().status(status).body(whole("")).unwrap()
}

pub fn ok(content: impl Into<Bytes>) -> Response<Body> {
    Response::new(whole(content))
}

pub fn redirect(to: &str) -> Response<Body> {
    Response::builder().status(302).header("location", to).body(whole("")).unwrap()
}

/// Returns the response with another header.
pub fn with(mut answer: Response<Body>, name: &'static str, value: &str) -> Response<Body> {
    answer.headers_mut().insert(name, value.parse().unwrap());
    answer
}

fn whole(content: impl Into<Bytes>) -> Body {
    Full::new(content.into()).map_err(|never| match never {}).boxed_unsync()
}

/// Returns a response whose body never ends: pieces of `size` bytes with a pause before each.
pub fn endless(size: usize, pause: Duration) -> Response<Body> {
    let piece = Bytes::from(vec![0; size]);
    let pieces = futures_util::stream::unfold(piece, move |piece| async move {
        tokio::time::sleep(pause).await;
        Some((Ok(Frame::data(piece.clone())), piece))
    });
    Response::new(StreamBody::new(pieces).boxed_unsync())
}

/// Returns a response whose body breaks off.
pub fn broken() -> Response<Body> {
    let pieces = futures_util::stream::unfold(0, async |sent| {
        // The yield lets the server send the first piece.
        tokio::task::yield_now().await;
        match sent {
            0 => Some((Ok(Frame::data(Bytes::from_static(b"\0asm"))), 1)),
            _ => Some((Err(std::io::Error::other("broken off")), 2)),
        }
    });
    Response::new(StreamBody::new(pieces).boxed_unsync())
}
