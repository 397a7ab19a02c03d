use std::net::SocketAddr;

use tokio::net::TcpSocket;

use super::*;

/// Connects from this address of the loopback network.
async fn connect_from(address: &str, server: SocketAddr) -> TcpStream {
    let socket = TcpSocket::new_v4().unwrap();
    socket.bind(format!("{address}:0").parse().unwrap()).unwrap();
    socket.connect(server).await.unwrap()
}

/// Returns true if the server answers a request on this connection, and false if it has closed the connection.
async fn is_served(stream: &mut TcpStream) -> bool {
    let answered = async {
        stream.write_all(REQUEST).await?;
        stream.read_u8().await
    };
    answered.await.is_ok()
}

#[tokio::test]
async fn a_client_with_its_share_of_the_connections_leaves_the_rest_to_others() {
    let limits = Limits::new(8, 1 << 20);
    let server = Server::start_with(Arc::clone(&limits)).await;
    let mut open = Vec::new();
    for _ in 0..6 {
        let mut stream = connect_from("127.0.0.1", server.address).await;
        assert!(is_served(&mut stream).await);
        open.push(stream);
    }
    for _ in 0..100 {
        assert!(!is_served(&mut connect_from("127.0.0.1", server.address).await).await);
    }
    for address in ["127.0.0.2", "127.0.0.3"] {
        let mut stream = connect_from(address, server.address).await;
        assert!(is_served(&mut stream).await, "{address}");
        open.push(stream);
    }
    assert_eq!((limits.connections(), limits.refused_connections()), (8, 100));
    drop(open);
    while limits.connections() > 0 {
        tokio::task::yield_now().await;
    }
    assert!(is_served(&mut connect_from("127.0.0.1", server.address).await).await);
}

#[tokio::test]
async fn a_request_without_memory_is_answered_503_and_other_clients_are_served() {
    // Three small requests of one client, and one of another client.
    let limits = Limits::new(8, 18_000);
    let server = Server::start_with(Arc::clone(&limits)).await;
    let mut waiting = Vec::new();
    for _ in 0..3 {
        let mut stream = connect_from("127.0.0.1", server.address).await;
        stream.write_all(SLOW_REQUEST).await.unwrap();
        server.arrived.notified().await;
        waiting.push(stream);
    }
    let mut surplus = connect_from("127.0.0.1", server.address).await;
    surplus.write_all(b"GET /fast HTTP/1.1\r\nhost: a\r\nconnection: close\r\n\r\n").await.unwrap();
    let answer = read_to_end(&mut surplus).await;
    assert!(answer.starts_with("HTTP/1.1 503 ") && answer.contains("retry-after: 1\r\n"), "{answer}");
    let mut other = connect_from("127.0.0.2", server.address).await;
    other.write_all(REQUEST).await.unwrap();
    read_answer(&mut other).await;
    for mut stream in waiting {
        server.slow.notify_one();
        read_answer(&mut stream).await;
    }
    assert!(limits.refused_requests() == 1 && is_served(&mut connect_from("127.0.0.1", server.address).await).await);
}

#[tokio::test]
async fn a_request_head_that_is_too_large_is_refused() {
    let server = Server::start().await;
    for headers in [format!("a: {}\r\n", "x".repeat(2 * MAX_HEAD)), "a: x\r\n".repeat(101)] {
        let mut stream = server.connect().await;
        let head = format!("GET /fast HTTP/1.1\r\nhost: a\r\n{headers}\r\n");
        // The server may close the connection before it has read everything.
        let _ = stream.write_all(head.as_bytes()).await;
        let mut answer = Vec::new();
        let _ = stream.read_to_end(&mut answer).await;
        let answer = String::from_utf8_lossy(&answer);
        assert!(answer.is_empty() || answer.starts_with("HTTP/1.1 431 "), "{answer}");
    }
    let mut stream = server.connect().await;
    let head = format!("GET /fast HTTP/1.1\r\nhost: a\r\na: {}\r\n\r\n", "x".repeat(MAX_HEAD / 2));
    stream.write_all(head.as_bytes()).await.unwrap();
    read_answer(&mut stream).await;
}
