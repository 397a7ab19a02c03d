//! A TCP proxy that delays, swallows or resets what passes: a bad network between two processes.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use anyhow::Result;
use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;
use tokio::task::{JoinHandle, JoinSet};

/// What the network does to the bytes of all connections, those that are open included.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Fault {
    /// Nothing.
    #[default]
    None,
    /// Every chunk arrives this much later, in both directions.
    Delay(Duration),
    /// Bytes and new connections wait until the fault ends: a half-open connection.
    Hang,
    /// Connections are closed, new ones at once.
    Cut,
}

/// Listens on loopback and passes everything on to one address; ends with this value.
#[derive(Debug)]
pub struct Proxy {
    address: SocketAddr,
    fault: watch::Sender<Fault>,
    /// How often all connections were abandoned.
    abandoned: watch::Sender<u32>,
    connections: Arc<AtomicUsize>,
    task: JoinHandle<()>,
}

impl Proxy {
    /// Starts a proxy before this address on a port of its own.
    ///
    /// # Errors
    /// If no port is free.
    pub async fn start(target: SocketAddr) -> Result<Self> {
        Self::listen("127.0.0.1:0", Arc::new(move || Box::pin(TcpStream::connect(target)))).await
    }

    /// Starts a proxy at an address that reaches its target by `connect`.
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

    /// From now on the network does this.
    pub fn set(&self, fault: Fault) {
        self.fault.send_replace(fault);
    }

    /// Swallows from now on what passes on the connections that are open, and closes none: neither side learns that
    /// nothing arrives. New ones work.
    pub fn abandon(&self) {
        self.abandoned.send_modify(|times| *times += 1);
    }

    /// How many connections there were so far.
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

/// How a proxy reaches its target.
pub(crate) type Connect =
    Arc<dyn Fn() -> std::pin::Pin<Box<dyn Future<Output = std::io::Result<TcpStream>> + Send>> + Send + Sync>;

/// What a connection has to know of its proxy.
#[derive(Clone)]
struct Network {
    faults: watch::Receiver<Fault>,
    abandonments: watch::Receiver<u32>,
    connections: Arc<AtomicUsize>,
}

async fn accept(listener: TcpListener, connect: Connect, network: Network) {
    // Ends every connection when the proxy ends.
    let mut connections = JoinSet::new();
    loop {
        while connections.try_join_next().is_some() {}
        let Ok((client, _)) = listener.accept().await else { continue };
        network.connections.fetch_add(1, Ordering::Relaxed);
        connections.spawn(pass(client, Arc::clone(&connect), network.clone()));
    }
}

/// One connection, until either side or a cut ends it.
async fn pass(client: TcpStream, connect: Connect, Network { mut faults, mut abandonments, .. }: Network) {
    // Those before its time are not its own.
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
    // Both ends stay open while it is not polled any more.
    tokio::pin!(through);
    tokio::select! {
        _ = cut => {}
        _ = &mut through => {}
        Ok(()) = abandonments.changed() => std::future::pending().await,
    }
}

/// One direction.
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

    /// A server that sends back what it gets, and a proxy before it.
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
    async fn bytes_pass_and_arrive_later_under_a_delay() -> Result<()> {
        let proxy = echo().await?;
        let mut stream = TcpStream::connect(proxy.address()).await?;
        assert_eq!(&round_trip(&mut stream).await?, b"ping");
        let delay = Duration::from_millis(100);
        proxy.set(Fault::Delay(delay));
        let start = Instant::now();
        assert_eq!(&round_trip(&mut stream).await?, b"ping");
        assert!(start.elapsed() >= 2 * delay, "there and back took {:?}", start.elapsed());
        Ok(())
    }

    #[tokio::test]
    async fn a_hanging_connection_goes_on_where_it_was() -> Result<()> {
        let proxy = echo().await?;
        let mut stream = TcpStream::connect(proxy.address()).await?;
        round_trip(&mut stream).await?;
        proxy.set(Fault::Hang);
        stream.write_all(b"ping").await?;
        let mut answer = [0; 4];
        let early = tokio::time::timeout(Duration::from_millis(100), stream.read_exact(&mut answer)).await;
        assert!(early.is_err(), "something came through: {answer:?}");
        proxy.set(Fault::None);
        stream.read_exact(&mut answer).await?;
        assert_eq!(&answer, b"ping");
        Ok(())
    }

    #[tokio::test]
    async fn an_abandoned_connection_says_nothing_and_new_ones_work() -> Result<()> {
        let proxy = echo().await?;
        let mut open = TcpStream::connect(proxy.address()).await?;
        round_trip(&mut open).await?;
        proxy.abandon();
        open.write_all(b"ping").await?;
        assert_eq!(&round_trip(&mut TcpStream::connect(proxy.address()).await?).await?, b"ping");
        let early = tokio::time::timeout(Duration::from_millis(100), open.read(&mut [0; 4])).await;
        assert!(early.is_err(), "something came through: {early:?}");
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
