//! TLS for `--listen`. The certificate and the key are read from files, and read again when the files change. If a new pair does
//! not work, or is not valid now, the server keeps the old pair. The same holds for the authorities of client certificates.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use proviso_http::{Certificate, CertificateError, ClientCa, ClientCaError, ValidityError};
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
    #[error("--client-ca {path}: {error}", path = path.display())]
    ClientCa { path: PathBuf, error: ClientCaError },
}

/// Reads the certificate and the key, and starts a task that follows their files. Returns the current certificate.
///
/// # Errors
/// Returns an error if the certificate and the key cannot be read or do not work together.
pub fn certificate(files: TlsFiles, metrics: Arc<Metrics>) -> Result<Arc<Certificate>, TlsError> {
    let content = read_content(&files);
    let current = Arc::new(Certificate::default());
    replace(&current, &files, &content)?;
    let mut follower =
        Follower { files, content, current: Arc::clone(&current), metrics, refused: None, invalid: None };
    follower.report();
    proviso_tasks::spawn("certificate", follower.run());
    Ok(current)
}

/// Returns the acceptor of `--listen`. If `client_ca` names a file, each client needs a certificate of an authority in the file, and a
/// task follows the file.
///
/// # Errors
/// Returns an error if the authorities cannot be read.
pub fn acceptor(certificate: Arc<Certificate>, client_ca: Option<PathBuf>) -> Result<TlsAcceptor, TlsError> {
    let Some(path) = client_ca else { return Ok(certificate.acceptor()?) };
    let refused = |error| TlsError::ClientCa { path: path.clone(), error };
    let read = |path: &Path| std::fs::read(path).map_err(|error| TlsError::Read { path: path.to_owned(), error });
    let content = read(&path)?;
    let authorities = Arc::new(ClientCa::new(&content).map_err(refused)?);
    let acceptor = certificate.acceptor_for_clients_of(Arc::clone(&authorities))?;
    proviso_tasks::spawn("client CA", follow_client_ca(path, authorities, content));
    Ok(acceptor)
}

/// Replaces the authorities of client certificates when their file changes. Established connections stay.
async fn follow_client_ca(path: PathBuf, authorities: Arc<ClientCa>, mut content: Vec<u8>) {
    let mut poll = tokio::time::interval(POLL_INTERVAL);
    poll.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    loop {
        poll.tick().await;
        // A file that is missing for a moment is being replaced.
        let Ok(new) = std::fs::read(&path) else { continue };
        if new == content {
            continue;
        }
        content = new;
        match authorities.replace(&content) {
            Ok(()) => tracing::info!(path = %path.display(), "client CA replaced"),
            Err(error) => tracing::warn!(path = %path.display(), %error, "new client CA refused, the old one stays"),
        }
    }
}

/// Replaces the certificate and the key when the files change. Established connections keep their certificate.
struct Follower {
    files: TlsFiles,
    content: Content,
    current: Arc<Certificate>,
    metrics: Arc<Metrics>,
    /// The error of the pair in the files; `None` if the server uses this pair.
    refused: Option<TlsError>,
    /// The reason why the pair in use is not valid now, as reported last.
    invalid: Option<ValidityError>,
}

impl Follower {
    async fn run(mut self) {
        let mut poll = tokio::time::interval(POLL_INTERVAL);
        poll.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
        loop {
            poll.tick().await;
            let content = read_content(&self.files);
            let is_changed = content != self.content;
            self.content = content;
            if is_changed || self.is_refused_for_now() {
                self.replace(is_changed);
            }
            self.report();
        }
    }

    /// Returns true if the pair in the files may work later: it becomes valid, or the pair in use expires.
    fn is_refused_for_now(&self) -> bool {
        matches!(self.refused, Some(TlsError::Pair { error: CertificateError::Validity(_), .. }))
    }

    fn replace(&mut self, is_changed: bool) {
        self.refused = replace(&self.current, &self.files, &self.content).err();
        match &self.refused {
            None => tracing::info!(cert = %self.files.cert.display(), "certificate replaced"),
            Some(error) if is_changed => tracing::warn!(%error, "new certificate refused, the old one stays"),
            // The log has this error since the files changed.
            Some(_) => {}
        }
    }

    /// Sets the metric, and logs why clients refuse the pair in use.
    fn report(&mut self) {
        let invalid = self.current.validity_error();
        if let Some(error) = &invalid
            && self.invalid != invalid
        {
            tracing::error!(%error, cert = %self.files.cert.display(), "clients refuse the certificate in use");
        }
        self.invalid = invalid;
        self.metrics.tls_pair_valid.set(i64::from(self.refused.is_none() && self.invalid.is_none()));
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
