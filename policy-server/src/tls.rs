//! TLS for `--listen`: certificate and key from files, read again when they change. A pair that does not work is
//! refused and the old one kept.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use proviso_http::{Certificate, CertificateError};
use tokio_rustls::TlsAcceptor;

use crate::config::TlsFiles;
use crate::metrics::Metrics;

/// How often the files are looked at.
const LOOK_EVERY: Duration = Duration::from_secs(1);

/// A certificate and a key that do not work.
#[derive(Debug, thiserror::Error)]
pub enum TlsError {
    #[error("{path} cannot be read: {error}", path = path.display())]
    Read { path: PathBuf, error: io::Error },
    #[error("certificate {cert} and key {key}: {error}", cert = cert.display(), key = key.display())]
    Pair { cert: PathBuf, key: PathBuf, error: CertificateError },
    #[error("TLS cannot be set up: {0}")]
    Config(#[from] rustls::Error),
}

/// Reads the pair and starts following its files.
///
/// # Errors
/// When the pair does not work.
pub fn acceptor(files: TlsFiles, metrics: Arc<Metrics>) -> Result<TlsAcceptor, TlsError> {
    let seen = content(&files);
    let current = Arc::new(Certificate::default());
    replace(&current, &files, &seen)?;
    metrics.tls_pair_valid.set(1);
    let acceptor = Arc::clone(&current).acceptor()?;
    tokio::spawn(follow(files, seen, current, metrics));
    Ok(acceptor)
}

/// Puts a new pair in place whenever the files change. Connections that stand are not touched.
async fn follow(files: TlsFiles, mut seen: Content, current: Arc<Certificate>, metrics: Arc<Metrics>) {
    let mut look = tokio::time::interval(LOOK_EVERY);
    look.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    loop {
        look.tick().await;
        let now = content(&files);
        if now == seen {
            continue;
        }
        seen = now;
        match replace(&current, &files, &seen) {
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

/// Certificate and key as they stand in their files, which are small: comparing them is surer than comparing times.
type Content = (Result<Vec<u8>, io::ErrorKind>, Result<Vec<u8>, io::ErrorKind>);

fn content(files: &TlsFiles) -> Content {
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
