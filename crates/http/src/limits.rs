//! The limits of a server: the number of its connections, and the memory of its requests. One client cannot use all of either: a
//! quarter is always left for other clients.
//!
//! API servers have few addresses and open many connections, and the API servers of a managed cluster may all have the address of
//! one proxy. So the limit of a client is a large share, and not a small number.

mod share;

use std::net::{IpAddr, Ipv6Addr};
use std::sync::Arc;

use rustix::process::{Resource, getrlimit};

use share::Share;

pub use share::Exhausted;

/// The maximum number of connections; more wait in the kernel's backlog.
const MAX_CONNECTIONS: usize = 8192;
/// The maximum size of the head of a request, and of the buffer of an HTTP/1.1 connection, in bytes.
pub(crate) const MAX_HEAD: usize = 32 * 1024;
/// The memory of a request in addition to its head and its body, in bytes: its task and the state of its stream.
const REQUEST_BYTES: usize = 4 * 1024;
/// The memory of the requests of a program without a limit, in bytes. Also the maximum.
const MAX_MEMORY: usize = 512 << 20;
/// The minimum of the memory of requests, in bytes: three of the largest reviews.
const MIN_MEMORY: usize = 64 << 20;

/// The limits of a server.
#[derive(Debug)]
pub struct Limits {
    pub(crate) connections: Share,
    memory: Share,
}

impl Limits {
    /// Makes limits of these numbers of connections, and of bytes of the memory of requests.
    #[must_use]
    pub fn new(connections: usize, memory: usize) -> Arc<Self> {
        Arc::new(Self { connections: Share::new(connections), memory: Share::new(memory) })
    }

    /// Makes limits with this memory of requests, in bytes. The number of connections follows from the memory and from the limit of
    /// open files.
    #[must_use]
    pub fn within(memory: usize) -> Arc<Self> {
        Self::new(max_connections(memory, getrlimit(Resource::Nofile).current), memory)
    }

    /// Makes limits for a port with small requests only, such as `/metrics`.
    #[must_use]
    pub fn small() -> Arc<Self> {
        Self::new(256, 16 << 20)
    }

    /// Returns the number of open connections.
    #[must_use]
    pub fn connections(&self) -> usize {
        self.connections.used()
    }

    /// Returns the memory of the requests in flight, in bytes.
    #[must_use]
    pub fn memory(&self) -> usize {
        self.memory.used()
    }

    /// Returns the number of connections that were closed at once because their client had its share.
    #[must_use]
    pub fn refused_connections(&self) -> u64 {
        self.connections.refused()
    }

    /// Returns the number of requests that were refused because there was no memory for them.
    #[must_use]
    pub fn refused_requests(&self) -> u64 {
        self.memory.refused()
    }
}

/// Returns the memory of requests by default, in bytes: a quarter of the memory of the container, but at least 64 MiB and at most
/// 512 MiB.
#[must_use]
pub fn default_request_memory(container: Option<u64>) -> usize {
    let quarter = container.map_or(usize::MAX, |bytes| usize::try_from(bytes / 4).unwrap_or(usize::MAX));
    quarter.clamp(MIN_MEMORY, MAX_MEMORY)
}

/// Returns the maximum number of connections. The buffers of all connections take at most as much memory as their requests. A
/// quarter of the open files is left for other uses.
fn max_connections(memory: usize, open_files: Option<u64>) -> usize {
    let files = open_files.map_or(usize::MAX, |files| usize::try_from(files / 4 * 3).unwrap_or(usize::MAX));
    MAX_CONNECTIONS.min(memory / MAX_HEAD).min(files).max(4)
}

/// The client of a connection. Each request of the connection has it as an extension.
#[derive(Clone, Debug)]
pub struct Peer {
    address: IpAddr,
    limits: Arc<Limits>,
}

impl Peer {
    #[must_use]
    pub fn new(address: IpAddr, limits: Arc<Limits>) -> Self {
        Self { address: client(address), limits }
    }

    /// Returns the address that stands for the client; a client with IPv6 stands for its network of 64 bits.
    #[must_use]
    pub fn address(&self) -> IpAddr {
        self.address
    }

    /// Takes a connection of the share of this client.
    pub(crate) fn connect(&self) -> Result<Permit, Exhausted> {
        Permit::new(self.clone(), Kind::Connection).add(1)
    }

    /// Returns a permit for the memory of one request, which holds none yet.
    #[must_use]
    pub fn memory(&self) -> Permit {
        Permit::new(self.clone(), Kind::Memory)
    }

    /// Takes the memory of a request without its body.
    pub(crate) fn request<B>(&self, request: &hyper::Request<B>) -> Result<Permit, Exhausted> {
        let headers = request.headers().iter().map(|(name, value)| name.as_str().len() + value.len());
        self.memory().add(REQUEST_BYTES + headers.sum::<usize>() + request.uri().path().len())
    }
}

/// Returns the address that stands for a client. A client with IPv6 usually has a whole network of 64 bits.
fn client(address: IpAddr) -> IpAddr {
    match address.to_canonical() {
        IpAddr::V6(address) => {
            let [a, b, c, d, ..] = address.segments();
            Ipv6Addr::new(a, b, c, d, 0, 0, 0, 0).into()
        }
        address @ IpAddr::V4(_) => address,
    }
}

#[derive(Clone, Copy, Debug)]
enum Kind {
    Connection,
    Memory,
}

/// A part of a limit. Dropping the permit returns it.
#[derive(Debug)]
pub struct Permit {
    peer: Peer,
    kind: Kind,
    held: usize,
}

impl Permit {
    fn new(peer: Peer, kind: Kind) -> Self {
        Self { peer, kind, held: 0 }
    }

    fn add(mut self, amount: usize) -> Result<Self, Exhausted> {
        self.grow(amount)?;
        Ok(self)
    }

    fn share(&self) -> &Share {
        match self.kind {
            Kind::Connection => &self.peer.limits.connections,
            Kind::Memory => &self.peer.limits.memory,
        }
    }

    /// Adds an amount to this permit.
    ///
    /// # Errors
    /// Returns an error, and adds nothing, if all clients together, or this client, would hold more than their limit.
    pub fn grow(&mut self, amount: usize) -> Result<(), Exhausted> {
        self.share().take(self.peer.address, amount)?;
        self.held += amount;
        Ok(())
    }

    /// Returns the whole amount to the limit.
    pub fn clear(&mut self) {
        let held = std::mem::take(&mut self.held);
        if held > 0 {
            self.share().put_back(self.peer.address, held);
        }
    }
}

impl Drop for Permit {
    fn drop(&mut self) {
        self.clear();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: usize = 1 << 20;

    #[test]
    fn the_memory_of_requests_is_a_quarter_of_the_container() {
        let of = |mib: u64| default_request_memory(Some(mib << 20)) / MIB;
        assert_eq!([of(64), of(512), of(1024), of(65_536)], [64, 128, 256, 512]);
        assert_eq!(default_request_memory(None), 512 * MIB);
    }

    #[test]
    fn connections_are_limited_by_memory_and_open_files() {
        assert_eq!(max_connections(512 * MIB, None), 8192);
        assert_eq!(max_connections(64 * MIB, None), 2048);
        assert_eq!(max_connections(512 * MIB, Some(1024)), 768);
        assert_eq!(max_connections(0, Some(0)), 4);
    }

    #[test]
    fn addresses_of_one_client_share_its_limit() {
        let limits = Limits::new(8, 0);
        let peer = |address: &str| Peer::new(address.parse().unwrap(), Arc::clone(&limits));
        let mut open: Vec<_> = (0..6).map(|last| peer(&format!("fd00:0:0:1::{last}")).connect().unwrap()).collect();
        assert_eq!(peer("fd00:0:0:1:ffff::1").connect().unwrap_err(), Exhausted::Client);
        open.push(peer("fd00:0:0:2::1").connect().unwrap());
        // An IPv4 client of an IPv6 socket.
        open.push(peer("::ffff:10.0.0.1").connect().unwrap());
        assert_eq!(peer("10.0.0.2").connect().unwrap_err(), Exhausted::All);
        assert_eq!((limits.connections(), limits.refused_connections()), (8, 2));
        drop(open);
        assert_eq!(limits.connections(), 0);
        assert!(peer("fd00:0:0:1::1").connect().is_ok());
    }

    #[test]
    fn a_permit_grows_and_returns_what_it_holds() {
        let limits = Limits::new(0, 100);
        let peer = |address: &str| Peer::new(address.parse().unwrap(), Arc::clone(&limits));
        let mut memory = peer("10.0.0.1").memory();
        memory.grow(75).unwrap();
        assert_eq!(memory.grow(1), Err(Exhausted::Client));
        let mut other = peer("10.0.0.2").memory();
        other.grow(25).unwrap();
        assert_eq!((other.grow(1), limits.memory()), (Err(Exhausted::All), 100));
        memory.clear();
        assert_eq!((other.grow(1), limits.memory()), (Ok(()), 26));
        drop((memory, other));
        assert_eq!((limits.memory(), limits.refused_requests()), (0, 2));
    }
}
