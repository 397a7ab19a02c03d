//! The way out: SIGTERM makes the server not ready while it keeps answering, then it drains, then it ends. SIGINT
//! drains at once.

use std::io;
use std::time::Duration;

use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::watch;

/// How far the server is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Phase {
    Serving,
    /// Not ready any more, still answering, and closing each connection after its answer.
    Leaving,
    /// No new connections; requests under way are answered.
    Draining,
}

/// Waits until the server is [`Phase::Draining`].
pub async fn draining(mut phase: watch::Receiver<Phase>) {
    // The sender lives as long as the process: this never ends early.
    let _ = phase.wait_for(|phase| *phase == Phase::Draining).await;
}

/// Follows the signals of the process.
///
/// # Errors
/// When the process cannot listen to signals.
pub fn listen(delay: Duration) -> io::Result<watch::Receiver<Phase>> {
    let mut terminate = signal(SignalKind::terminate())?;
    let mut interrupt = signal(SignalKind::interrupt())?;
    let (sender, receiver) = watch::channel(Phase::Serving);
    tokio::spawn(async move {
        tokio::select! {
            _ = terminate.recv() => {
                tracing::info!(delay_seconds = delay.as_secs_f64(), "SIGTERM: not ready any more, still answering");
                sender.send_replace(Phase::Leaving);
                tokio::select! {
                    () = tokio::time::sleep(delay) => {}
                    _ = interrupt.recv() => {}
                }
            }
            _ = interrupt.recv() => {}
        }
        tracing::info!("draining");
        sender.send_replace(Phase::Draining);
        // A second Ctrl-C ends what does not end by itself.
        interrupt.recv().await;
        std::process::exit(130);
    });
    Ok(receiver)
}
