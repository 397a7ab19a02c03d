//! HTTP/2 connections with a client that writes single frames (RFC 9113).

use tokio::io::DuplexStream;

use super::*;

const SHORT: Duration = Duration::from_secs(1);
/// The time limit of a test, whose condition is never met if the server has an error.
const WAIT: Duration = Duration::from_mins(1);

const DATA: u8 = 0;
const HEADERS: u8 = 1;
const RST_STREAM: u8 = 3;
const SETTINGS: u8 = 4;
const PING: u8 = 6;
const GOAWAY: u8 = 7;
const CONTINUATION: u8 = 9;
/// The flags `END_STREAM` and `ACK` have the same number.
const END_STREAM: u8 = 1;
const ACK: u8 = 1;
const END_HEADERS: u8 = 4;
const ENHANCE_YOUR_CALM: u8 = 11;
/// `GET https://a/`, in HPACK.
const REQUEST: &[u8] = &[0x82, 0x87, 0x84, 0x41, 1, b'a'];

struct Frame {
    kind: u8,
    flags: u8,
    stream: u32,
    payload: Vec<u8>,
}

impl Frame {
    fn ends(&self, stream: u32) -> bool {
        self.stream == stream && [DATA, HEADERS].contains(&self.kind) && self.flags & END_STREAM != 0
    }
}

fn frame(kind: u8, flags: u8, stream: u32, payload: &[u8]) -> Vec<u8> {
    let length = u32::try_from(payload.len()).unwrap().to_be_bytes();
    [&length[1..], &[kind, flags], &stream.to_be_bytes(), payload].concat()
}

fn request(stream: u32) -> Vec<u8> {
    frame(HEADERS, END_STREAM | END_HEADERS, stream, REQUEST)
}

struct Client {
    stream: DuplexStream,
    ended: JoinHandle<()>,
}

impl Client {
    /// Starts a server of one connection, and sends these settings to it.
    async fn connect(timeouts: Timeouts, settings: &[u8]) -> Self {
        let (stream, server) = tokio::io::duplex(1 << 20);
        let service = service_fn(async |_: Request<Incoming>| {
            Ok::<_, Infallible>(Response::new(Full::new(Bytes::from_static(b"answer"))))
        });
        let peer = Peer::new([127, 0, 0, 1].into(), Limits::small());
        let ended = tokio::spawn(async move {
            let (graceful, (_draining, is_draining)) = (GracefulShutdown::new(), watch::channel(false));
            let stop = Stop(graceful.watcher(), is_draining);
            connection(server, (Protocol::Http2, timeouts), (peer, None), service, stop).await;
        });
        let mut client = Self { stream, ended };
        client.send(&[b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", &*frame(SETTINGS, 0, 0, settings)].concat()).await;
        client
    }

    async fn send(&mut self, bytes: &[u8]) {
        self.stream.write_all(bytes).await.unwrap();
    }

    /// Reads a frame; `None` at the end of the connection.
    async fn read(&mut self) -> Option<Frame> {
        let mut head = [0; 9];
        self.stream.read_exact(&mut head).await.ok()?;
        let [a, b, c, kind, flags, stream @ ..] = head;
        let mut payload = vec![0; u32::from_be_bytes([0, a, b, c]) as usize];
        self.stream.read_exact(&mut payload).await.ok()?;
        Some(Frame { kind, flags, stream: u32::from_be_bytes(stream), payload })
    }

    async fn read_until(&mut self, wanted: impl Fn(&Frame) -> bool) -> Option<Frame> {
        let reading = async {
            loop {
                let frame = self.read().await?;
                if wanted(&frame) {
                    return Some(frame);
                }
            }
        };
        tokio::time::timeout(WAIT, reading).await.unwrap()
    }

    async fn until_closed(mut self) {
        assert!(self.read_until(|_| false).await.is_none());
        tokio::time::timeout(WAIT, self.ended).await.unwrap().unwrap();
    }
}

#[tokio::test]
async fn an_idle_connection_ends_with_goaway_and_answers_a_request_on_its_way() {
    let timeouts = Timeouts { idle: SHORT, poll: SHORT / 50, ..Timeouts::DEFAULT };
    let mut client = Client::connect(timeouts, &[]).await;
    client.send(&request(1)).await;
    client.read_until(|frame| frame.ends(1)).await.unwrap();
    let goaway = client.read_until(|frame| frame.kind == GOAWAY).await.unwrap();
    // The last stream that the server will answer is the largest possible one, and there is no error.
    assert_eq!(goaway.payload[..8], [0x7f, 0xff, 0xff, 0xff, 0, 0, 0, 0]);
    let ping = client.read_until(|frame| frame.kind == PING && frame.flags & ACK == 0).await.unwrap();
    // The client has sent this request before it read the GOAWAY.
    client.send(&request(3)).await;
    client.read_until(|frame| frame.ends(3)).await.unwrap();
    client.send(&frame(PING, ACK, 0, &ping.payload)).await;
    let goaway = client.read_until(|frame| frame.kind == GOAWAY).await.unwrap();
    assert_eq!(goaway.payload[..8], [0, 0, 0, 3, 0, 0, 0, 0]);
    client.until_closed().await;
}

#[tokio::test]
async fn pings_alone_do_not_keep_a_connection() {
    let timeouts = Timeouts { idle: SHORT, goaway: SHORT, poll: SHORT / 50, ..Timeouts::DEFAULT };
    let mut client = Client::connect(timeouts, &[]).await;
    let pinging = async {
        // The client ignores the GOAWAY, and does not reply to the ping that follows it.
        while client.stream.write_all(&frame(PING, 0, 0, b"12345678")).await.is_ok() {
            while let Ok(Some(_)) = tokio::time::timeout(Duration::from_millis(20), client.read()).await {}
        }
    };
    tokio::time::timeout(WAIT, pinging).await.unwrap();
    client.ended.await.unwrap();
}

#[tokio::test]
async fn a_client_that_does_not_read_its_answer_is_closed() {
    let timeouts = Timeouts { answer: SHORT, poll: SHORT / 50, ..Timeouts::DEFAULT };
    // `SETTINGS_INITIAL_WINDOW_SIZE` is 0.
    let mut client = Client::connect(timeouts, &[0, 4, 0, 0, 0, 0]).await;
    client.send(&request(1)).await;
    client.until_closed().await;
}

#[tokio::test]
async fn a_flood_of_resets_ends_the_connection() {
    let mut client = Client::connect(Timeouts::DEFAULT, &[]).await;
    let flood: Vec<u8> = (0..1_000)
        .flat_map(|number| [request(2 * number + 1), frame(RST_STREAM, 0, 2 * number + 1, &[0, 0, 0, 8])].concat())
        .collect();
    client.send(&flood).await;
    let goaway = client.read_until(|frame| frame.kind == GOAWAY).await.unwrap();
    assert_eq!(goaway.payload[7], ENHANCE_YOUR_CALM);
    client.until_closed().await;
}

#[tokio::test]
async fn a_flood_of_continuations_ends_the_connection() {
    let mut client = Client::connect(Timeouts::DEFAULT, &[]).await;
    // A header without indexing, again and again.
    let headers = [0, 1, b'a', 1, b'b'].repeat(3_000);
    client.send(&frame(HEADERS, END_STREAM, 1, REQUEST)).await;
    let flood = async {
        // Without a limit, this flood would never end.
        while client.stream.write_all(&frame(CONTINUATION, 0, 1, &headers)).await.is_ok() {}
    };
    tokio::time::timeout(WAIT, flood).await.unwrap();
    client.ended.await.unwrap();
}
