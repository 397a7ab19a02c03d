//! The token that callers of the API have: in a file, read again when it changes.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use arc_swap::ArcSwap;
use aws_lc_rs::constant_time::verify_slices_are_equal;

/// How often the file is looked at.
const LOOK_EVERY: Duration = Duration::from_secs(1);
/// The shortest token, in bytes: 128 bits in hexadecimal digits.
const SHORTEST: usize = 32;

/// A token that cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum TokenError {
    #[error("--api-token-file {path}: {error}", path = path.display())]
    Read { path: PathBuf, error: io::Error },
    #[error(
        "--api-token-file {path}: the token is shorter than {SHORTEST} characters: make one with `openssl rand -hex 32`",
        path = .0.display()
    )]
    Short(PathBuf),
}

/// The token as it is now.
pub struct Token(ArcSwap<Vec<u8>>);

impl std::fmt::Debug for Token {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Token")
    }
}

impl Token {
    /// Reads the token and starts following its file. One that cannot be used is refused, and the one before it kept.
    ///
    /// # Errors
    /// When it cannot be used at the start.
    pub fn follow(path: PathBuf) -> Result<Arc<Self>, TokenError> {
        let token = Arc::new(Self(ArcSwap::from_pointee(read(&path)?)));
        let weak = Arc::downgrade(&token);
        tokio::spawn(async move {
            let mut look = tokio::time::interval(LOOK_EVERY);
            look.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
            let mut is_refused = false;
            loop {
                look.tick().await;
                let Some(token) = weak.upgrade() else { return };
                match read(&path) {
                    Ok(new) if new == **token.0.load() => is_refused = false,
                    Ok(new) => {
                        token.0.store(Arc::new(new));
                        is_refused = false;
                        tracing::info!("the API's token was replaced");
                    }
                    Err(error) if !is_refused => {
                        is_refused = true;
                        tracing::warn!(%error, "new token refused, the old one stays");
                    }
                    Err(_) => {}
                }
            }
        });
        Ok(token)
    }

    /// Whether this is the token. Takes as long wherever they differ.
    #[must_use]
    pub fn is(&self, given: &str) -> bool {
        verify_slices_are_equal(&self.0.load(), given.as_bytes()).is_ok()
    }
}

fn read(path: &Path) -> Result<Vec<u8>, TokenError> {
    let text = std::fs::read_to_string(path).map_err(|error| TokenError::Read { path: path.to_owned(), error })?;
    let token = text.trim().as_bytes().to_vec();
    if token.len() < SHORTEST { Err(TokenError::Short(path.to_owned())) } else { Ok(token) }
}
