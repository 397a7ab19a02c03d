//! A proxy between an API server and a policy server that records the requests and answers. It uses TLS with the API server, and
//! plain HTTP with the policy server.

use std::sync::{Arc, Mutex};

use bytes::Bytes;
use http_body_util::{BodyExt as _, Full};
use hyper::body::Incoming;
use hyper::service::service_fn;
use hyper::{Method, Request, Response};
use hyper_util::rt::TokioIo;
use proviso_e2e::pki::Identity;
use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use serde_json::Value;
use tokio::net::TcpListener;
use tokio_rustls::TlsAcceptor;

use super::ask;

/// A recording proxy on a loopback port. It runs until the runtime ends.
pub struct RecordingProxy {
    pub port: u16,
    exchanges: Arc<Mutex<Vec<Exchange>>>,
}

/// A recorded request and its answer.
#[derive(Clone)]
pub struct Exchange {
    pub path: String,
    pub review: Bytes,
    pub answer: Value,
}

impl Exchange {
    /// Returns the `request` of the review.
    pub fn request(&self) -> Value {
        serde_json::from_slice::<Value>(&self.review).unwrap()["request"].take()
    }
}

impl RecordingProxy {
    /// Starts a proxy that forwards all requests to the server at this address.
    pub async fn start(server: &str, identity: &Identity) -> Self {
        let chain = CertificateDer::pem_file_iter(&identity.certificate).unwrap().map(Result::unwrap).collect();
        let key = PrivateKeyDer::from_pem_file(&identity.key).unwrap();
        let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
        let config = rustls::ServerConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .unwrap()
            .with_no_client_auth()
            .with_single_cert(chain, key)
            .unwrap();
        let acceptor = TlsAcceptor::from(Arc::new(config));
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let proxy = Self { port: listener.local_addr().unwrap().port(), exchanges: Arc::default() };
        let (exchanges, server) = (Arc::clone(&proxy.exchanges), server.to_owned());
        tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                let (acceptor, exchanges, server) = (acceptor.clone(), Arc::clone(&exchanges), server.clone());
                tokio::spawn(async move {
                    let Ok(stream) = acceptor.accept(stream).await else { return };
                    let service = service_fn(|request| forward(&server, &exchanges, request));
                    let _ = hyper::server::conn::http1::Builder::new()
                        .serve_connection(TokioIo::new(stream), service)
                        .await;
                });
            }
        });
        proxy
    }

    /// Returns the recorded exchanges of this path, in order.
    pub fn exchanges(&self, path: &str) -> Vec<Exchange> {
        self.exchanges.lock().unwrap().iter().filter(|exchange| exchange.path == path).cloned().collect()
    }
}

async fn forward(
    server: &str,
    exchanges: &Mutex<Vec<Exchange>>,
    request: Request<Incoming>,
) -> anyhow::Result<Response<Full<Bytes>>> {
    // The path without the query: the API server adds `?timeout=10s`.
    let path = request.uri().path().to_owned();
    let review = request.into_body().collect().await?.to_bytes();
    let answer = ask(server, Method::POST, &path, review.clone()).await?;
    exchanges.lock().unwrap().push(Exchange { path, review, answer: serde_json::from_str(&answer.text)? });
    Ok(Response::builder().status(answer.status).header("content-type", "application/json").body(answer.text.into())?)
}
