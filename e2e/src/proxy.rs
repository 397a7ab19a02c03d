//! A TCP proxy that delays, holds back or closes connections, to simulate a bad network between two processes.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use anyhow::Result;
use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;
use tokio::task::{JoinHandle, JoinSet};

/// A fault of the network. It applies to all connections, also to open ones.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Fault {
    /// The network works.
    #[default]
    None,
    /// Bytes arrive later by this time, in both directions.
    Delay(Duration),
    /// Bytes and new connections wait until the fault ends, as on a half-open connection.
    Hang,
    /// Open connections and new connections are closed.
    Cut,
}

/// A proxy that listens on loopback, and forwards connections to one address. It ends when this value is dropped.
#[derive(Debug)]
pub struct Proxy {
    address: SocketAddr,
    fault: watch::Sender<Fault>,
    /// The number of calls of [`Self::abandon`].
    abandoned: watch::Sender<u32>,
    connections: Arc<AtomicUsize>,
    task: JoinHandle<()>,
}

impl Proxy {
    /// Starts a proxy for this address on a free port.
    ///
    /// # Errors
    /// If no port is free.
    pub async fn start(target: SocketAddr) -> Result<Self> {
        Self::listen("127.0.0.1:0", Arc::new(move || Box::pin(TcpStream::connect(target)))).await
    }

    /// Starts a proxy at an address. `connect` connects to its target.
    pub(crate) async fn listen(address: &str, connect: Connect) -> Result<Self> {
        let listener = TcpListener::bind(address).await?;
        let address = listener.local_addr()?;
        let (fault, faults) = watch::channel(Fault::None);
        let (abandoned, abandonments) = watch::channel(0);
        let connections = Arc::new(AtomicUsize::new(0));
        let network = Network { faults, abandonments, connections: Arc::clone(&connections) };
        let task = tokio::spawn(accept(listener, connect, network));
        Ok(Self { address, fault, abandoned, connections, task })
    }

    #[must_use]
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Sets the fault of the network.
    pub fn set(&self, fault: Fault) {
        self.fault.send_replace(fault);
    }

    /// Drops all bytes on the open connections from now on, without closing them, so that neither side sees an error. New
    /// connections work.
    pub fn abandon(&self) {
        self.abandoned.send_modify(|times| *times += 1);
    }

    /// Returns the number of connections since the start.
    #[must_use]
    pub fn connections(&self) -> usize {
        self.connections.load(Ordering::Relaxed)
    }
}

impl Drop for Proxy {
    fn drop(&mut self) {
        self.task.abort();
    }
}

/// A function that connects a proxy to its target.
pub(crate) type Connect =
    Arc<dyn Fn() -> std::pin::Pin<Box<dyn Future<Output = std::io::Result<TcpStream>> + Send>> + Send + Sync>;

/// The state of the proxy that its connections share.
#[derive(Clone)]
struct Network {
    faults: watch::Receiver<Fault>,
    abandonments: watch::Receiver<u32>,
    connections: Arc<AtomicUsize>,
}

async fn accept(listener: TcpListener, connect: Connect, network: Network) {
    // The set ends all connections when the proxy ends.
    let mut connections = JoinSet::new();
    loop {
        while connections.try_join_next().is_some() {}
        let Ok((client, _)) = listener.accept().await else { continue };
        network.connections.fetch_add(1, Ordering::Relaxed);
        connections.spawn(pass(client, Arc::clone(&connect), network.clone()));
    }
}

/// Forwards one connection until a side or a cut ends it.
async fn pass(client: TcpStream, connect: Connect, Network { mut faults, mut abandonments, .. }: Network) {
    // Calls of `abandon` before this connection do not apply to it.
    abandonments.mark_unchanged();
    let cut = {
        let mut faults = faults.clone();
        async move { faults.wait_for(|fault| *fault == Fault::Cut).await.map(drop) }
    };
    let through = async {
        let _ = faults.wait_for(|fault| *fault != Fault::Hang).await;
        let server = connect().await?;
        let _ = (client.set_nodelay(true), server.set_nodelay(true));
        let (from_client, to_client) = client.into_split();
        let (from_server, to_server) = server.into_split();
        tokio::try_join!(copy(from_client, to_server, faults.clone()), copy(from_server, to_client, faults.clone()))
    };
    // After an abandonment, `through` is not polled, but its sockets stay open.
    tokio::pin!(through);
    tokio::select! {
        _ = cut => {}
        _ = &mut through => {}
        Ok(()) = abandonments.changed() => std::future::pending().await,
    }
}

/// Forwards one direction of a connection.
async fn copy(
    mut from: impl AsyncRead + Unpin,
    mut to: impl AsyncWrite + Unpin,
    mut faults: watch::Receiver<Fault>,
) -> std::io::Result<()> {
    let mut buffer = vec![0; 64 * 1024];
    loop {
        let read = from.read(&mut buffer).await?;
        let fault = *faults.borrow_and_update();
        match fault {
            Fault::Delay(delay) => tokio::time::sleep(delay).await,
            Fault::Hang => {
                let _ = faults.wait_for(|fault| *fault != Fault::Hang).await;
            }
            Fault::None | Fault::Cut => {}
        }
        if read == 0 {
            return to.shutdown().await;
        }
        to.write_all(&buffer[..read]).await?;
    }
}

#[cfg(test)]
mod tests {
    use std::time::Instant;

    use super::*;

    /// Starts a server that echoes all bytes, and a proxy for it.
    async fn echo() -> Result<Proxy> {
        let listener = TcpListener::bind("127.0.0.1:0").await?;
        let address = listener.local_addr()?;
        tokio::spawn(async move {
            while let Ok((mut stream, _)) = listener.accept().await {
                tokio::spawn(async move {
                    let (mut from, mut to) = stream.split();
                    tokio::io::copy(&mut from, &mut to).await
                });
            }
        });
        Proxy::start(address).await
    }

    async fn round_trip(stream: &mut TcpStream) -> std::io::Result<[u8; 4]> {
        stream.write_all(b"ping").await?;
        let mut answer = [0; 4];
        stream.read_exact(&mut answer).await?;
        Ok(answer)
    }

    #[tokio::test]
    async fn bytes_arrive_later_with_a_delay() -> Result<()> {
        let proxy = echo().await?;
        let mut stream = TcpStream::connect(proxy.address()).await?;
        assert_eq!(&round_trip(&mut stream).await?, b"ping");
        let delay = Duration::from_millis(100);
        proxy.set(Fault::Delay(delay));
        let start = Instant::now();
        assert_eq!(&round_trip(&mut stream).await?, b"ping");
        assert!(start.elapsed() >= 2 * delay, "the round trip took {:?}", start.elapsed());
        Ok(())
    }

    #[tokio::test]
    async fn a_hanging_connection_continues_after_the_fault() -> Result<()> {
        let proxy = echo().await?;
        let mut stream = TcpStream::connect(proxy.address()).await?;
        round_trip(&mut stream).await?;
        proxy.set(Fault::Hang);
        stream.write_all(b"ping").await?;
        let mut answer = [0; 4];
        let early = tokio::time::timeout(Duration::from_millis(100), stream.read_exact(&mut answer)).await;
        assert!(early.is_err(), "bytes arrived: {answer:?}");
        proxy.set(Fault::None);
        stream.read_exact(&mut answer).await?;
        assert_eq!(&answer, b"ping");
        Ok(())
    }

    #[tokio::test]
    async fn an_abandoned_connection_is_silent_and_new_ones_work() -> Result<()> {
        let proxy = echo().await?;
        let mut open = TcpStream::connect(proxy.address()).await?;
        round_trip(&mut open).await?;
        proxy.abandon();
        open.write_all(b"ping").await?;
        assert_eq!(&round_trip(&mut TcpStream::connect(proxy.address()).await?).await?, b"ping");
        let early = tokio::time::timeout(Duration::from_millis(100), open.read(&mut [0; 4])).await;
        assert!(early.is_err(), "bytes arrived: {early:?}");
        assert_eq!(proxy.connections(), 2);
        Ok(())
    }

    #[tokio::test]
    async fn a_cut_ends_open_connections_and_new_ones() -> Result<()> {
        let proxy = echo().await?;
        let mut open = TcpStream::connect(proxy.address()).await?;
        round_trip(&mut open).await?;
        proxy.set(Fault::Cut);
        assert!(!matches!(open.read(&mut [0; 4]).await, Ok(1..)));
        let mut new = TcpStream::connect(proxy.address()).await?;
        assert!(round_trip(&mut new).await.is_err());
        proxy.set(Fault::None);
        assert_eq!(&round_trip(&mut TcpStream::connect(proxy.address()).await?).await?, b"ping");
        Ok(())
    }
}
