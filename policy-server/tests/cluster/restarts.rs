//! Replicas are restarted or killed under load, as in a rolling restart or after the loss of a node.

use std::ops::Range;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use anyhow::{Result, ensure};
use bytes::Bytes;
use futures_util::future::try_join_all;
use http_body_util::{BodyExt as _, Full};
use hyper::client::conn::http1::{SendRequest, handshake};
use hyper::{Method, Request, StatusCode};
use hyper_util::rt::TokioIo;
use proviso_e2e::until;
use rustix::process::Signal;
use serde_json::Value;
use tokio::net::TcpStream;
use tokio::task::JoinSet;

use crate::support::cluster::{TestEnv, revision, until_answered};
use crate::support::{self, Server, WAIT_TIMEOUT, forbid, pod};

/// The interval of readiness probes. A kubelet probes every few seconds.
const PROBE_INTERVAL: Duration = Duration::from_millis(100);
/// The time for which a replica answers after SIGTERM: several probe intervals, even on a busy machine.
const SHUTDOWN_DELAY: &str = "3s";
const CLIENTS: usize = 4;
const PATH: &str = "/validate/cluster.a/1";

/// A load balancer in place of a Service: it sends requests to the ready replicas in turn.
struct Balancer {
    /// The addresses of the replicas: of the admin port and of the port for reviews.
    replicas: Mutex<Vec<(String, String)>>,
    ready: Mutex<Vec<String>>,
    turn: AtomicUsize,
    answered: AtomicUsize,
    failed: Mutex<Vec<String>>,
    ended: AtomicBool,
}

impl Balancer {
    /// Starts the probes and the clients. Half of the clients keep their connections.
    fn start(servers: &[&Server]) -> (Arc<Self>, JoinSet<()>) {
        let balancer = Arc::new(Self {
            replicas: Mutex::default(),
            ready: Mutex::default(),
            turn: AtomicUsize::new(0),
            answered: AtomicUsize::new(0),
            failed: Mutex::default(),
            ended: AtomicBool::new(false),
        });
        for server in servers {
            balancer.add(server);
        }
        let mut tasks = JoinSet::new();
        tasks.spawn(Arc::clone(&balancer).probe());
        for client in 0..CLIENTS {
            tasks.spawn(Arc::clone(&balancer).ask(client % 2 == 0));
        }
        (balancer, tasks)
    }

    fn add(&self, server: &Server) {
        self.replicas.lock().unwrap().push((server.admin.clone(), server.listen.clone()));
    }

    fn remove(&self, listen: &str) {
        self.replicas.lock().unwrap().retain(|(_, it)| it != listen);
    }

    async fn probe(self: Arc<Self>) {
        while !self.ended.load(Ordering::Relaxed) {
            let replicas = self.replicas.lock().unwrap().clone();
            let mut ready = Vec::new();
            for (admin, listen) in replicas {
                let answer = support::ask(&admin, Method::GET, "/readyz", Bytes::new()).await;
                if answer.is_ok_and(|answer| answer.status == StatusCode::OK) {
                    ready.push(listen);
                }
            }
            *self.ready.lock().unwrap() = ready;
            tokio::time::sleep(PROBE_INTERVAL).await;
        }
    }

    async fn ask(self: Arc<Self>, keeps_connection: bool) {
        let mut kept: Option<(String, SendRequest<Full<Bytes>>)> = None;
        while !self.ended.load(Ordering::Relaxed) {
            let Some(listen) = self.next() else {
                tokio::time::sleep(PROBE_INTERVAL).await;
                continue;
            };
            // Reuse the connection while its replica is ready and has not closed it.
            let sender = match kept.take() {
                Some((address, sender)) if keeps_connection && sender.is_ready() && self.is_ready(&address) => {
                    Ok((address, sender))
                }
                _ => connect(&listen).await.map(|sender| (listen, sender)),
            };
            // If the connection fails, nothing was sent: try the next replica.
            let Ok((address, mut sender)) = sender else { continue };
            match answer(&mut sender).await {
                Ok(closes) => {
                    self.answered.fetch_add(1, Ordering::Relaxed);
                    // Wait until the connection can take the next request.
                    if !closes && sender.ready().await.is_ok() {
                        kept = Some((address, sender));
                    }
                }
                Err(error) => self.failed.lock().unwrap().push(format!("{address}: {error:#}")),
            }
        }
    }

    fn next(&self) -> Option<String> {
        let ready = self.ready.lock().unwrap();
        let turn = self.turn.fetch_add(1, Ordering::Relaxed);
        ready.get(turn.checked_rem(ready.len())?).cloned()
    }

    fn is_ready(&self, listen: &str) -> bool {
        self.ready.lock().unwrap().iter().any(|it| it == listen)
    }

    /// Waits until the clients have received this many more answers.
    async fn until_answers(&self, more: usize) -> Result<()> {
        let wanted = self.answered.load(Ordering::Relaxed) + more;
        until("answers", WAIT_TIMEOUT, async || {
            let answered = self.answered.load(Ordering::Relaxed);
            ensure!(answered >= wanted, "{answered} of {wanted}; failed: {:?}", self.failed.lock().unwrap());
            Ok(())
        })
        .await
    }

    /// Waits until exactly these servers receive requests.
    async fn until_ready(&self, servers: &[&Server]) -> Result<()> {
        until("endpoints", WAIT_TIMEOUT, async || {
            let ready = self.ready.lock().unwrap().clone();
            let is_right = ready.len() == servers.len() && servers.iter().all(|it| ready.contains(&it.listen));
            ensure!(is_right, "{ready:?}");
            Ok(())
        })
        .await
    }

    /// Stops the probes and the clients, and returns the failed requests.
    async fn end(&self, tasks: JoinSet<()>) -> Vec<String> {
        self.ended.store(true, Ordering::Relaxed);
        tasks.join_all().await;
        std::mem::take(&mut *self.failed.lock().unwrap())
    }
}

async fn connect(listen: &str) -> Result<SendRequest<Full<Bytes>>> {
    let (sender, connection) = handshake(TokioIo::new(TcpStream::connect(listen).await?)).await?;
    tokio::spawn(connection);
    Ok(sender)
}

/// Sends a review and checks the answer. Returns true if the server closes the connection after the answer.
async fn answer(sender: &mut SendRequest<Full<Bytes>>) -> Result<bool> {
    let body = Full::new(pod("u", "x").to_string().into());
    let answer = sender.send_request(Request::post(PATH).header("host", "a").body(body)?).await?;
    let (status, closes) = (answer.status(), answer.headers().contains_key("connection"));
    let body = answer.into_body().collect().await?.to_bytes();
    ensure!(status == StatusCode::OK, "{status}: {}", String::from_utf8_lossy(&body));
    let message = serde_json::from_slice::<Value>(&body)?["response"]["status"]["message"].take();
    ensure!(message == "one", "{message}");
    Ok(closes)
}

async fn replica(env: &TestEnv, pod: &str, number: u32) -> Result<Server> {
    let mut command = env.command(pod, &format!("uid-{number}"));
    command.args(["--shutdown-delay", SHUTDOWN_DELAY]);
    let server = TestEnv::run(command).await?;
    until_answered(&server, PATH, "one").await?;
    Ok(server)
}

/// Starts one replica for each number, all at the same time.
async fn group(env: &TestEnv, numbers: Range<u32>) -> Result<Vec<Server>> {
    try_join_all(numbers.map(|number| async move { replica(env, &format!("pod-{}", number % 10), number).await })).await
}

fn all<'a>(first: &'a [Server], second: &'a [Server]) -> Vec<&'a Server> {
    first.iter().chain(second).collect()
}

/// A restart takes longer than [`SHUTDOWN_DELAY`], so five replicas are restarted at the same time while five others serve.
#[tokio::test(flavor = "multi_thread")]
async fn twenty_restarts_under_load_lose_no_request() -> Result<()> {
    let env = TestEnv::start("restarts-under-load").await?;
    env.create(&revision("a", 1, &forbid("true", "one"))).await?;
    let (mut ending, mut serving) = tokio::try_join!(group(&env, 0..5), group(&env, 5..10))?;
    let (balancer, tasks) = Balancer::start(&all(&ending, &serving));
    for numbers in [10..15, 15..20, 20..25, 25..30] {
        balancer.until_ready(&all(&ending, &serving)).await?;
        balancer.until_answers(200).await?;
        for server in &ending {
            server.signal(Signal::TERM);
        }
        for server in &mut ending {
            ensure!(server.exit_code().await == Some(0), "{:#?}", server.stderr.all());
            balancer.remove(&server.listen);
        }
        let started = group(&env, numbers).await?;
        for server in &started {
            balancer.add(server);
        }
        // The replicas that served during this round are restarted in the next one.
        ending = std::mem::replace(&mut serving, started);
    }
    balancer.until_ready(&all(&ending, &serving)).await?;
    for server in &serving {
        until("requests at each new replica", WAIT_TIMEOUT, async || {
            let evaluated = server.count("proviso_evaluations_total", &["cluster.a"]).await;
            ensure!(evaluated > 10, "only {evaluated} requests came to {}", server.listen);
            Ok(())
        })
        .await?;
    }
    let failed = balancer.end(tasks).await;
    ensure!(failed.is_empty(), "{} failed: {failed:#?}", failed.len());
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_killed_replica_loses_only_its_running_requests() -> Result<()> {
    let env = TestEnv::start("killed-under-load").await?;
    env.create(&revision("a", 1, &forbid("true", "one"))).await?;
    let stays = replica(&env, "pod-0", 0).await?;
    let mut killed = replica(&env, "pod-1", 1).await?;
    let (balancer, tasks) = Balancer::start(&[&stays, &killed]);
    let mut lost = 0;
    for number in 2..7 {
        balancer.until_ready(&[&stays, &killed]).await?;
        balancer.until_answers(200).await?;
        killed.kill().await;
        balancer.until_ready(&[&stays]).await?;
        balancer.until_answers(200).await?;
        let failed = balancer.failed.lock().unwrap().clone();
        // Each client may lose the running request, and a request on a connection that the server has not accepted yet.
        ensure!(failed.len() - lost <= 2 * CLIENTS, "{failed:#?}");
        ensure!(failed.iter().skip(lost).all(|it| it.starts_with(&killed.listen)), "{failed:#?}");
        lost = failed.len();
        balancer.remove(&killed.listen);
        killed = replica(&env, "pod-1", number).await?;
        balancer.add(&killed);
    }
    balancer.until_ready(&[&stays, &killed]).await?;
    balancer.until_answers(200).await?;
    ensure!(balancer.end(tasks).await.len() == lost);
    Ok(())
}
