//! TLS for `--listen`. The certificate and the key are read from files, and read again when the files change. If a new pair does
//! not work, the server keeps the old pair.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use proviso_http::{Certificate, CertificateError};
use tokio_rustls::TlsAcceptor;

use crate::config::TlsFiles;
use crate::metrics::Metrics;

/// The interval at which the files are read.
const POLL_INTERVAL: Duration = Duration::from_secs(1);

/// The error of a certificate and a key that do not work.
#[derive(Debug, thiserror::Error)]
pub enum TlsError {
    #[error("{path} cannot be read: {error}", path = path.display())]
    Read { path: PathBuf, error: io::Error },
    #[error("certificate {cert} and key {key}: {error}", cert = cert.display(), key = key.display())]
    Pair { cert: PathBuf, key: PathBuf, error: CertificateError },
    #[error("TLS cannot be set up: {0}")]
    Config(#[from] rustls::Error),
}

/// Reads the certificate and the key, and starts a task that follows their files.
///
/// # Errors
/// Returns an error if the certificate and the key cannot be read or do not work together.
pub fn acceptor(files: TlsFiles, metrics: Arc<Metrics>) -> Result<TlsAcceptor, TlsError> {
    let content = read_content(&files);
    let current = Arc::new(Certificate::default());
    replace(&current, &files, &content)?;
    metrics.tls_pair_valid.set(1);
    let acceptor = Arc::clone(&current).acceptor()?;
    proviso_tasks::spawn("certificate", follow(files, content, current, metrics));
    Ok(acceptor)
}

/// Replaces the certificate and the key when the files change. Established connections keep their certificate.
async fn follow(files: TlsFiles, mut last: Content, current: Arc<Certificate>, metrics: Arc<Metrics>) {
    let mut poll = tokio::time::interval(POLL_INTERVAL);
    poll.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    loop {
        poll.tick().await;
        let now = read_content(&files);
        if now == last {
            continue;
        }
        last = now;
        match replace(&current, &files, &last) {
            Ok(()) => {
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

/// The bytes of the certificate file and the key file. They are compared instead of modification times: the files are small, and
/// the comparison is exact.
type Content = (Result<Vec<u8>, io::ErrorKind>, Result<Vec<u8>, io::ErrorKind>);

fn read_content(files: &TlsFiles) -> Content {
    let read = |path: &Path| std::fs::read(path).map_err(|error| error.kind());
    (read(&files.cert), read(&files.key))
}

fn replace(current: &Certificate, TlsFiles { cert, key }: &TlsFiles, content: &Content) -> Result<(), TlsError> {
    let read = |path: &Path, content: &Result<Vec<u8>, io::ErrorKind>| {
        content.clone().map_err(|error| TlsError::Read { path: path.to_owned(), error: error.into() })
    };
    let pair = (read(cert, &content.0)?, read(key, &content.1)?);
    current.replace(&pair.0, &pair.1).map_err(|error| TlsError::Pair { cert: cert.clone(), key: key.clone(), error })
}
