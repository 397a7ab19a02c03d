//! A value that is read from a file, and read again when the file changes. If the new content cannot be used, the old value stays.

use std::fmt::Display;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use arc_swap::ArcSwap;

/// The interval at which the file is read.
const POLL_INTERVAL: Duration = Duration::from_secs(1);

/// Reads the value, and starts a task that follows the file until the value is dropped. `what` names the value in the log.
///
/// # Errors
/// Returns an error if the file cannot be read, or has no value that can be used.
pub fn follow<T, E, R>(what: &'static str, read: R) -> Result<Arc<ArcSwap<T>>, E>
where
    T: PartialEq + Send + Sync + 'static,
    E: Display + Send,
    R: Fn() -> Result<T, E> + Send + 'static,
{
    let value = Arc::new(ArcSwap::from_pointee(read()?));
    let weak = Arc::downgrade(&value);
    proviso_tasks::spawn(what, async move {
        let mut poll = tokio::time::interval(POLL_INTERVAL);
        poll.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
        let mut is_refused = false;
        loop {
            poll.tick().await;
            let Some(value) = weak.upgrade() else { return };
            match read() {
                Ok(new) if new == **value.load() => is_refused = false,
                Ok(new) => {
                    value.store(Arc::new(new));
                    is_refused = false;
                    tracing::info!(what, "replaced, because its file has changed");
                }
                Err(error) if !is_refused => {
                    is_refused = true;
                    tracing::warn!(what, %error, "new content of its file refused, the old one stays");
                }
                Err(_) => {}
            }
        }
    });
    Ok(value)
}

/// Reads a file as text.
///
/// # Errors
/// Returns an error that names the flag and the path.
pub fn read_text(flag: &str, path: &Path) -> Result<String, String> {
    std::fs::read_to_string(path).map_err(|error| format!("{flag} {}: {error}", path.display()))
}
