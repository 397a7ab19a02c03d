//! TLS for `--listen`: certificate and key from files, read again when they change. A pair that does not work is
//! refused and the old one kept.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use arc_swap::ArcSwap;
use rustls::crypto::aws_lc_rs;
use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::server::{ClientHello, ResolvesServerCert};
use rustls::sign::CertifiedKey;
use tokio_rustls::TlsAcceptor;

use crate::config::TlsFiles;
use crate::metrics::Metrics;

/// How often the files are looked at.
const LOOK_EVERY: Duration = Duration::from_secs(1);

/// A certificate and a key that do not work.
#[derive(Debug, thiserror::Error)]
pub enum TlsError {
    #[error("{path}: {error}", path = path.display())]
    Pem { path: PathBuf, error: rustls::pki_types::pem::Error },
    #[error("{path} holds no certificate", path = .0.display())]
    NoCertificate(PathBuf),
    #[error("certificate {cert} and key {key} do not work together: {error}", cert = cert.display(), key = key.display())]
    Pair { cert: PathBuf, key: PathBuf, error: rustls::Error },
    #[error("TLS cannot be set up: {0}")]
    Config(#[from] rustls::Error),
}

#[derive(Debug)]
struct Current(ArcSwap<CertifiedKey>);

impl ResolvesServerCert for Current {
    fn resolve(&self, _: ClientHello<'_>) -> Option<Arc<CertifiedKey>> {
        Some(self.0.load_full())
    }
}

/// Reads the pair and starts following its files.
///
/// # Errors
/// When the pair does not work.
pub fn acceptor(files: TlsFiles, metrics: Arc<Metrics>) -> Result<TlsAcceptor, TlsError> {
    let seen = content(&files);
    let current = Arc::new(Current(ArcSwap::from_pointee(load(&files)?)));
    metrics.tls_pair_valid.set(1);
    let provider = Arc::new(aws_lc_rs::default_provider());
    let mut config = rustls::ServerConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()?
        .with_no_client_auth()
        .with_cert_resolver(Arc::clone(&current) as Arc<dyn ResolvesServerCert>);
    config.alpn_protocols = vec![b"h2".to_vec(), b"http/1.1".to_vec()];
    tokio::spawn(follow(files, seen, current, metrics));
    Ok(TlsAcceptor::from(Arc::new(config)))
}

/// Puts a new pair in place whenever the files change. Connections that stand are not touched.
async fn follow(files: TlsFiles, mut seen: Content, current: Arc<Current>, metrics: Arc<Metrics>) {
    let mut look = tokio::time::interval(LOOK_EVERY);
    look.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    loop {
        look.tick().await;
        let now = content(&files);
        if now == seen {
            continue;
        }
        seen = now;
        match load(&files) {
            Ok(key) => {
                current.0.store(Arc::new(key));
                metrics.tls_pair_valid.set(1);
                tracing::info!(cert = %files.cert.display(), "certificate replaced");
            }
            Err(error) => {
                metrics.tls_pair_valid.set(0);
                tracing::warn!(%error, "new certificate refused, the old one stays");
            }
        }
    }
}

/// Certificate and key as they stand in their files, which are small: comparing them is surer than comparing times.
type Content = (Option<Vec<u8>>, Option<Vec<u8>>);

fn content(files: &TlsFiles) -> Content {
    let read = |path: &Path| std::fs::read(path).ok();
    (read(&files.cert), read(&files.key))
}

fn load(TlsFiles { cert, key }: &TlsFiles) -> Result<CertifiedKey, TlsError> {
    let pem = |path: &Path| {
        let path = path.to_owned();
        move |error| TlsError::Pem { path, error }
    };
    let chain: Vec<_> = CertificateDer::pem_file_iter(cert).and_then(Iterator::collect).map_err(pem(cert))?;
    if chain.is_empty() {
        return Err(TlsError::NoCertificate(cert.clone()));
    }
    let private = PrivateKeyDer::from_pem_file(key).map_err(pem(key))?;
    CertifiedKey::from_der(chain, private, &aws_lc_rs::default_provider()).map_err(|error| TlsError::Pair {
        cert: cert.clone(),
        key: key.clone(),
        error,
    })
}
