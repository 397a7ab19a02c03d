mod http2;
mod limits;

use http_body_util::Full;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::sync::{Notify, oneshot};
use tokio::task::JoinHandle;

use super::*;

const REQUEST: &[u8] = b"GET /fast HTTP/1.1\r\nhost: a\r\n\r\n";
const SLOW_REQUEST: &[u8] = b"GET /slow HTTP/1.1\r\nhost: a\r\n\r\n";
/// The beginning of the answer to a request that may be on its way while the server stops.
const FAREWELL: &str = "HTTP/1.1 503 Service Unavailable\r\nretry-after: 1\r\nconnection: close\r\n";
/// More than the server takes to stop.
const DRAIN: Duration = Duration::from_mins(1);

struct Server {
    address: std::net::SocketAddr,
    /// Notified when a request for `/slow` has arrived.
    arrived: Arc<Notify>,
    /// Lets the server answer `/slow`.
    slow: Arc<Notify>,
    stop: oneshot::Sender<()>,
    ended: JoinHandle<()>,
}

impl Server {
    async fn start() -> Self {
        Self::start_with(Limits::small()).await
    }

    async fn start_with(limits: Arc<Limits>) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let (stop, stopped) = oneshot::channel();
        let (arrived, slow) = (Arc::new(Notify::new()), Arc::new(Notify::new()));
        let notified = (Arc::clone(&arrived), Arc::clone(&slow));
        let service = service_fn(move |request: Request<Incoming>| {
            let (arrived, slow) = notified.clone();
            async move {
                if request.uri().path() == "/slow" {
                    arrived.notify_one();
                    slow.notified().await;
                }
                Ok::<_, Infallible>(Response::new(Full::new(Bytes::from_static(b"answer"))))
            }
        });
        let stopped = async move { drop(stopped.await) };
        let ended = tokio::spawn(serve(listener, None, limits, service, stopped, DRAIN));
        Self { address, arrived, slow, stop, ended }
    }

    async fn connect(&self) -> TcpStream {
        TcpStream::connect(self.address).await.unwrap()
    }
}

/// Reads until the answer to a request is complete, and no further.
async fn read_answer(stream: &mut TcpStream) {
    let mut read = Vec::new();
    while !read.ends_with(b"answer") {
        read.push(stream.read_u8().await.unwrap());
    }
}

async fn read_to_end(stream: &mut TcpStream) -> String {
    let mut rest = String::new();
    stream.read_to_string(&mut rest).await.unwrap();
    rest
}

// The client of an idle connection may be sending a request while the server stops. It gets an answer that lets it try again.
#[tokio::test]
async fn an_idle_connection_ends_with_an_answer_to_a_request_that_may_be_on_its_way() {
    let server = Server::start().await;
    let (mut used, mut unused) = (server.connect().await, server.connect().await);
    used.write_all(REQUEST).await.unwrap();
    read_answer(&mut used).await;
    // The server has accepted the other connection before this one, which it answers.
    let mut later = server.connect().await;
    later.write_all(REQUEST).await.unwrap();
    read_answer(&mut later).await;
    server.stop.send(()).unwrap();
    for mut stream in [used, later] {
        assert!(read_to_end(&mut stream).await.starts_with(FAREWELL));
    }
    // The data of a request that arrives too late does not destroy the answer.
    let mut first = [0];
    unused.read_exact(&mut first).await.unwrap();
    unused.write_all(&b"x".repeat(100_000)).await.unwrap();
    assert!(read_to_end(&mut unused).await.starts_with(&FAREWELL[1..]));
    drop(unused);
    server.ended.await.unwrap();
}

#[tokio::test]
async fn a_request_in_flight_is_answered_before_its_connection_ends() {
    let server = Server::start().await;
    let (mut stream, mut idle) = (server.connect().await, server.connect().await);
    idle.write_all(REQUEST).await.unwrap();
    read_answer(&mut idle).await;
    stream.write_all(SLOW_REQUEST).await.unwrap();
    server.arrived.notified().await;
    server.stop.send(()).unwrap();
    // The server stops now.
    assert!(read_to_end(&mut idle).await.starts_with(FAREWELL));
    assert!(!server.ended.is_finished(), "a request is in flight");
    server.slow.notify_one();
    read_answer(&mut stream).await;
    assert!(read_to_end(&mut stream).await.starts_with(FAREWELL));
    drop((stream, idle));
    server.ended.await.unwrap();
}
