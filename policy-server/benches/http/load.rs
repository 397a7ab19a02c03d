//! A closed-loop load generator: each connection sends its next request after the answer to the last one.

use std::fmt;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::Bytes;
use http_body_util::{BodyExt as _, Full};
use hyper::Request;
use hyper::client::conn::http1::SendRequest;
use hyper_util::rt::TokioIo;
use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, ServerName};
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;

pub struct Load {
    runtime: tokio::runtime::Runtime,
    tls: TlsConnector,
    body: Bytes,
    connections: usize,
    /// The pause of a client between an answer and its next request.
    pub pause: Duration,
}

/// The latencies of the answers of a measurement.
#[derive(Default)]
pub struct Sample {
    latencies: Vec<Duration>,
    duration: Duration,
    /// The CPU time of the server.
    pub cpu: Duration,
}

impl Sample {
    pub fn per_second(&self) -> f64 {
        self.latencies.len() as f64 / self.duration.as_secs_f64()
    }

    pub fn p99(&self) -> Duration {
        self.latency(0.99)
    }

    fn latency(&self, share: f64) -> Duration {
        let mut latencies = self.latencies.clone();
        latencies.sort_unstable();
        latencies[((latencies.len() - 1) as f64 * share) as usize]
    }

    pub fn cpu_per_answer(&self) -> f64 {
        self.cpu.as_secs_f64() / self.latencies.len() as f64
    }
}

impl<'a> std::iter::Sum<&'a Sample> for Sample {
    fn sum<I: Iterator<Item = &'a Sample>>(samples: I) -> Self {
        samples.fold(Self::default(), |mut sum, sample| {
            sum.latencies.extend(&sample.latencies);
            sum.duration += sample.duration;
            sum.cpu += sample.cpu;
            sum
        })
    }
}

impl fmt::Display for Sample {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{:>7.0} requests/s   p50 {:>6} µs   p99 {:>6} µs   cpu {:>6.1} µs",
            self.per_second(),
            self.latency(0.5).as_micros(),
            self.p99().as_micros(),
            self.cpu_per_answer() * 1e6
        )
    }
}

impl Load {
    pub fn new(folder: &Path, body: Vec<u8>, connections: usize) -> Self {
        let mut roots = rustls::RootCertStore::empty();
        let certificate = CertificateDer::from_pem_file(folder.join("tls.crt")).expect("tls.crt");
        roots.add(certificate).expect("a trust anchor");
        let config =
            rustls::ClientConfig::builder_with_provider(Arc::new(rustls::crypto::aws_lc_rs::default_provider()))
                .with_safe_default_protocol_versions()
                .expect("protocol versions")
                .with_root_certificates(roots)
                .with_no_client_auth();
        let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build().expect("a runtime");
        Self {
            runtime,
            tls: TlsConnector::from(Arc::new(config)),
            body: body.into(),
            connections,
            pause: Duration::ZERO,
        }
    }

    /// Waits until the server allows the review, which means that its policy is loaded.
    pub fn until_allowed(&self, address: &str, path: &str) {
        self.until(address, path, "\"allowed\":true");
    }

    /// Waits until the answer contains these words.
    pub fn until(&self, address: &str, path: &str, words: &str) {
        let deadline = Instant::now() + Duration::from_mins(1);
        self.runtime.block_on(async {
            loop {
                let mut client = Client::connect(self, address, path).await;
                let answer = client.ask().await;
                let answer = String::from_utf8_lossy(&answer);
                if answer.contains(words) {
                    return;
                }
                assert!(Instant::now() < deadline, "not {words}: {answer}");
            }
        });
    }

    /// Sends requests on an additional connection until the returned value is dropped. The answers are not checked.
    pub fn in_background(&self, address: &str, path: &str) -> Background {
        let mut client = self.runtime.block_on(Client::connect(self, address, path));
        let asking = self.runtime.spawn(async move {
            loop {
                client.ask().await;
            }
        });
        Background(asking.abort_handle())
    }

    pub fn run(&self, address: &str, path: &str, duration: Duration) -> Sample {
        self.runtime.block_on(async {
            let mut clients = Vec::new();
            for _ in 0..self.connections {
                clients.push(Client::connect(self, address, path).await);
            }
            let (start, pause) = (Instant::now(), self.pause);
            let end = start + duration;
            let tasks: Vec<_> = clients
                .into_iter()
                .enumerate()
                .map(|(index, mut client)| {
                    // Without the stagger, the pauses would end together, and the clients would wait for each other.
                    let stagger = pause * index as u32 / self.connections as u32;
                    tokio::spawn(async move {
                        let mut latencies = Vec::new();
                        tokio::time::sleep(stagger).await;
                        while Instant::now() < end {
                            let sent = Instant::now();
                            let answer = client.ask().await;
                            latencies.push(sent.elapsed());
                            assert!(!answer.is_empty());
                            if !pause.is_zero() {
                                tokio::time::sleep(pause).await;
                            }
                        }
                        latencies
                    })
                })
                .collect();
            let mut latencies = Vec::new();
            for task in tasks {
                latencies.extend(task.await.expect("a client"));
            }
            Sample { latencies, duration: start.elapsed(), cpu: Duration::ZERO }
        })
    }
}

pub struct Background(tokio::task::AbortHandle);

impl Drop for Background {
    fn drop(&mut self) {
        self.0.abort();
    }
}

struct Client {
    sender: SendRequest<Full<Bytes>>,
    path: String,
    body: Bytes,
}

impl Client {
    async fn connect(load: &Load, address: &str, path: &str) -> Self {
        let stream = TcpStream::connect(address).await.expect("a connection");
        stream.set_nodelay(true).expect("a socket option");
        let name = ServerName::try_from("localhost").expect("a name");
        let stream = load.tls.connect(name, stream).await.expect("a handshake");
        let (sender, connection) = hyper::client::conn::http1::handshake(TokioIo::new(stream)).await.expect("HTTP");
        tokio::spawn(connection);
        Self { sender, path: path.to_owned(), body: load.body.clone() }
    }

    async fn ask(&mut self) -> Bytes {
        let request = Request::post(&self.path)
            .header("host", "localhost")
            .header("content-type", "application/json")
            .body(Full::new(self.body.clone()))
            .expect("a request");
        let response = self.sender.send_request(request).await.expect("an answer");
        response.into_body().collect().await.expect("a body").to_bytes()
    }
}
