//! Graceful shutdown. After SIGTERM the server is not ready but still answers; after a delay it drains its connections and
//! exits. SIGINT drains at once.

use std::io;
use std::time::Duration;

use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::watch;

/// The phase of the server between start and exit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Phase {
    /// The server answers requests.
    Serving,
    /// The server is not ready, still answers, and closes each connection after its response.
    ShuttingDown,
    /// The server accepts no new connections and finishes the requests in flight.
    Draining,
}

/// Waits until the server is [`Phase::Draining`].
pub async fn draining(mut phase: watch::Receiver<Phase>) {
    // The sender lives as long as the process, so the channel is never closed early.
    let _ = phase.wait_for(|phase| *phase == Phase::Draining).await;
}

/// Starts a task that follows SIGTERM and SIGINT. `delay` is the time between SIGTERM and [`Phase::Draining`].
///
/// # Errors
/// Returns an error if the process cannot install signal handlers.
pub fn listen(delay: Duration) -> io::Result<watch::Receiver<Phase>> {
    let mut terminate = signal(SignalKind::terminate())?;
    let mut interrupt = signal(SignalKind::interrupt())?;
    let (sender, receiver) = watch::channel(Phase::Serving);
    proviso_tasks::spawn("signals", async move {
        tokio::select! {
            _ = terminate.recv() => {
                tracing::info!(delay_seconds = delay.as_secs_f64(), "SIGTERM: no longer ready, still answering requests");
                sender.send_replace(Phase::ShuttingDown);
                tokio::select! {
                    () = tokio::time::sleep(delay) => {}
                    _ = interrupt.recv() => {}
                }
            }
            _ = interrupt.recv() => {}
        }
        tracing::info!("draining connections");
        sender.send_replace(Phase::Draining);
        // A second Ctrl-C exits even if a connection does not drain.
        interrupt.recv().await;
        std::process::exit(130);
    });
    Ok(receiver)
}
