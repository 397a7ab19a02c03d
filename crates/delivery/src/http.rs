//! A notification by HTTP: a POST request for each message, in their order.

use std::fmt;
use std::net::SocketAddr;
use std::pin::pin;
use std::time::Duration;

use bytes::Bytes;
use http::header::{CONTENT_TYPE, HOST, USER_AGENT};
use http::{Method, Request, Uri};
use http_body_util::{BodyExt as _, Full};
use hyper::client::conn::http1::handshake;
use hyper_util::rt::TokioIo;
use proviso_core::configuration::{Answer, Reply};
use tokio::net::TcpStream;
use tokio::time::{Instant, timeout_at};

use crate::output::{MAX_OUTPUT, with_output};

/// The endpoint of a component.
#[derive(Clone, Copy, Debug)]
pub struct Endpoint<'a> {
    /// The address to connect to.
    pub address: SocketAddr,
    /// The value of the header `Host`.
    pub host: &'a str,
    /// The path, which begins with a slash.
    pub path: &'a str,
}

/// Sends each message by a POST request, until an answer does not accept its message. Redirects are not followed: a status of 300 to 399
/// is an unknown answer. `limit` is the time limit of all requests together.
pub async fn post(endpoint: Endpoint<'_>, messages: &[String], limit: Duration) -> Reply {
    let end = Instant::now() + limit;
    for (accepted, message) in messages.iter().enumerate() {
        let expired = |_| Answer::Unknown(format!("no answer from {} within {} s", endpoint.address, limit.as_secs()));
        let answer = timeout_at(end, post_one(endpoint, message)).await.unwrap_or_else(expired);
        if answer != Answer::Accepted {
            return Reply { accepted, answer };
        }
    }
    Reply { accepted: messages.len(), answer: Answer::Accepted }
}

async fn post_one(endpoint: Endpoint<'_>, message: &str) -> Answer {
    let Endpoint { address, host, path } = endpoint;
    let failed = |at: &str, error: &dyn fmt::Display| Answer::Unknown(format!("{at}: {error}"));
    let request = Uri::builder().path_and_query(path).build().and_then(|uri| {
        let request = Request::builder().method(Method::POST).uri(uri).header(HOST, host);
        let request = request.header(CONTENT_TYPE, "application/json").header(USER_AGENT, "proviso");
        request.body(Full::new(Bytes::copy_from_slice(message.as_bytes())))
    });
    let request = match request {
        Ok(request) => request,
        Err(error) => return failed("the path or the host of the endpoint is not valid", &error),
    };
    let stream = match TcpStream::connect(address).await {
        Ok(stream) => stream,
        Err(error) => return failed(&format!("cannot connect to {address}"), &error),
    };
    let (mut sender, connection) = match handshake(TokioIo::new(stream)).await {
        Ok(connected) => connected,
        Err(error) => return failed("HTTP", &error),
    };
    let exchange = async {
        let response = sender.send_request(request).await?;
        let (status, mut body) = (response.status().as_u16(), response.into_body());
        let mut output = Vec::new();
        while output.len() < MAX_OUTPUT {
            // A response that breaks off has its status nevertheless.
            let Some(Ok(frame)) = body.frame().await else { break };
            output.extend_from_slice(frame.data_ref().map(|data| &**data).unwrap_or_default());
        }
        Ok::<_, hyper::Error>(with_output(Answer::of_http_status(status), &output))
    };
    let (mut exchange, connection) = (pin!(exchange), pin!(connection));
    // A server may close the connection before its response has been read.
    let answer = tokio::select! {
        answer = &mut exchange => answer,
        _ = connection => exchange.await,
    };
    answer.unwrap_or_else(|error| failed(&format!("no HTTP response from {address}"), &error))
}

#[cfg(test)]
mod tests {
    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
    use tokio::net::TcpListener;

    use super::*;

    const LIMIT: Duration = Duration::from_secs(20);

    /// Answers each connection with the next response, and returns the requests.
    async fn serve(listener: TcpListener, responses: Vec<String>) -> Vec<String> {
        let mut requests = Vec::new();
        for response in responses {
            let (mut stream, _) = listener.accept().await.unwrap();
            let (mut request, mut buffer) = (Vec::new(), [0; 4096]);
            // The messages of these tests end with a brace, and no header has one.
            while !request.ends_with(b"}") {
                let read = stream.read(&mut buffer).await.unwrap();
                assert!(read > 0, "{}", String::from_utf8_lossy(&request));
                request.extend_from_slice(&buffer[..read]);
            }
            requests.push(String::from_utf8(request).unwrap());
            // The client stops reading after the first kilobyte.
            let _ = stream.write_all(response.as_bytes()).await;
        }
        requests
    }

    fn response(status: &str, body: &str) -> String {
        format!("HTTP/1.1 {status}\r\ncontent-length: {}\r\nconnection: close\r\n\r\n{body}", body.len())
    }

    async fn exchange(messages: &[&str], responses: Vec<String>) -> (Reply, Vec<String>) {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let endpoint = Endpoint {
            address: listener.local_addr().unwrap(),
            host: "collector.team",
            path: "/policies?from=proviso",
        };
        let messages: Vec<_> = messages.iter().map(|message| (*message).to_owned()).collect();
        tokio::join!(post(endpoint, &messages, LIMIT), serve(listener, responses))
    }

    #[tokio::test]
    async fn messages_are_sent_in_order_until_one_is_not_accepted() {
        let responses = vec![response("200 OK", ""), response("409 Conflict", "min_memory is too large")];
        let (reply, requests) = exchange(&[r#"{"a":1}"#, r#"{"b":2}"#, r#"{"c":3}"#], responses).await;
        let answer = Answer::Rejected("HTTP status 409: min_memory is too large".to_owned());
        assert_eq!(reply, Reply { accepted: 1, answer });
        assert!(requests[0].starts_with("POST /policies?from=proviso HTTP/1.1\r\n"), "{}", requests[0]);
        assert!(requests[0].contains("host: collector.team\r\n"), "{}", requests[0]);
        assert!(requests[0].contains("content-type: application/json\r\n"), "{}", requests[0]);
        assert!(requests[0].ends_with("\r\n\r\n{\"a\":1}") && requests[1].ends_with("\r\n\r\n{\"b\":2}"));
    }

    #[tokio::test]
    async fn redirects_and_large_answers_are_not_followed() {
        let redirect = "HTTP/1.1 302 Found\r\nlocation: http://127.0.0.1:1/\r\ncontent-length: 0\r\n\r\n".to_owned();
        let (reply, _) = exchange(&["{}"], vec![redirect]).await;
        assert_eq!(reply.answer, Answer::Unknown("HTTP status 302".to_owned()));
        let (reply, _) = exchange(&["{}"], vec![response("400 Bad Request", &"x".repeat(1 << 20))]).await;
        assert_eq!(reply.answer, Answer::Rejected(format!("HTTP status 400: {}", "x".repeat(MAX_OUTPUT))));
    }

    #[tokio::test(start_paused = true)]
    async fn a_server_without_an_answer_is_left_after_the_time_limit() {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let endpoint = Endpoint { address, host: "collector.team", path: "/" };
        let reply = post(endpoint, &["{}".to_owned()], LIMIT).await;
        assert_eq!(reply.answer, Answer::Unknown(format!("no answer from {address} within 20 s")));
    }

    #[tokio::test]
    async fn an_invalid_path_is_reported() {
        let endpoint = Endpoint { address: "127.0.0.1:1".parse().unwrap(), host: "collector.team", path: "/a b" };
        let reply = post(endpoint, &["{}".to_owned()], LIMIT).await;
        assert!(matches!(&reply.answer, Answer::Unknown(message) if message.contains("is not valid")), "{reply:?}");
    }
}
