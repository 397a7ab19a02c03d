//! Modules that come another way: from mirrors of a registry, and through proxies.
use std::sync::{Arc, Mutex};

use anyhow::{Result, ensure};
use proviso_artifacts::{Artifact, FetchError, Fetcher, ModuleReference, Proxies, Wanted};
use proviso_e2e::{Access, Registry};
use tokio::io::{AsyncBufReadExt as _, AsyncWriteExt as _, BufReader};
use tokio::net::{TcpListener, TcpStream};

use crate::support::{Server, ok};

const MODULE: &[u8] = b"\0asm module";

#[tokio::test]
async fn mirrors_are_asked_in_order_and_the_registry_only_if_it_is_among_them() -> Result<()> {
    let first = Registry::start("mirrors-first", Access::default()).await?;
    let second = Registry::start("mirrors-second", Access::default()).await?;
    second.push("cache/team/a", "v1", Registry::MODULE, MODULE).await?;
    let folder = tempfile::tempdir()?;
    let sources = folder.path().join("sources.yaml");
    let tell = |mirrors: &str| {
        let insecure = format!("insecureSources: ['{}', '{}']", first.address(), second.address());
        std::fs::write(&sources, format!("{insecure}\nmirrors: {{'nowhere.invalid': [{mirrors}]}}")).unwrap();
    };
    let fetcher = Fetcher::new(Some(sources.clone()), None, None);
    let reference = ModuleReference::parse("registry://nowhere.invalid/team/a:v1", folder.path())?;
    let fetch = async || fetcher.fetch(&reference, Wanted::default()).await;

    tell(&format!("'{}', '{}/cache'", first.address(), second.address()));
    ensure!(fetch().await?.bytes == MODULE, "the second has it");
    first.push("team/a", "v1", Registry::MODULE, b"\0asm first").await?;
    ensure!(fetch().await?.bytes == b"\0asm first"[..], "the first is asked first");

    tell(&format!("'{}/none'", second.address()));
    let error = fetch().await.unwrap_err();
    ensure!(matches!(error, FetchError::NotFound { .. }) && error.to_string().contains("/none/team/a:v1"), "{error}");
    tell(&format!("'{}/none', nowhere.invalid", second.address()));
    let error = fetch().await.unwrap_err();
    ensure!(matches!(error, FetchError::Mirrors { .. }) && error.reason().as_str() == "PullError", "{error}");
    ensure!(error.is_passing() && error.to_string().starts_with("nowhere.invalid cannot be reached"), "{error}");
    ensure!(error.to_string().contains("/none/team/a:v1"), "what the mirror said stands there, too: {error}");
    Ok(())
}

/// What policies ask about images comes from where modules come from.
#[tokio::test]
async fn images_are_looked_up_at_their_mirrors() -> Result<()> {
    let mirror = Registry::start("mirrors-images", Access::default()).await?;
    mirror.push("cache/team/a", "v1", Registry::MODULE, MODULE).await?;
    let folder = tempfile::tempdir()?;
    let sources = folder.path().join("sources.yaml");
    let tell = |mirrors: &str| {
        let insecure = format!("insecureSources: ['{}']", mirror.address());
        std::fs::write(&sources, format!("{insecure}\nmirrors: {{'nowhere.invalid': [{mirrors}]}}")).unwrap();
    };
    let fetcher = Fetcher::new(Some(sources.clone()), None, None);
    let image: Artifact = "nowhere.invalid/team/a:v1".parse()?;
    tell(&format!("'{0}/none', '{0}/cache'", mirror.address()));
    let found = fetcher.manifest(&image, &[]).await?;
    let (of_image, _) = fetcher.image(&image, &[]).await?;
    ensure!(found.digest == of_image.digest && found.content["layers"].is_array(), "{found:?}");
    tell(&format!("'{}/none', nowhere.invalid", mirror.address()));
    let error = fetcher.manifest(&image, &[]).await.unwrap_err();
    ensure!(matches!(error, FetchError::Mirrors { .. }) && error.to_string().contains("/none/team/a:v1"), "{error}");
    Ok(())
}

/// A proxy that lets who knows the password connect to anything on this machine, under whatever name.
struct Proxy {
    address: String,
    /// Every line that it was asked with.
    seen: Arc<Mutex<Vec<String>>>,
}

impl Proxy {
    async fn start() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap().to_string();
        let seen = Arc::<Mutex<Vec<String>>>::default();
        let log = Arc::clone(&seen);
        tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                tokio::spawn(serve(stream, Arc::clone(&log)));
            }
        });
        Self { address, seen }
    }

    fn seen(&self) -> Vec<String> {
        self.seen.lock().unwrap().clone()
    }
}

async fn serve(stream: TcpStream, log: Arc<Mutex<Vec<String>>>) -> std::io::Result<()> {
    let mut stream = BufReader::new(stream);
    let mut head = Vec::new();
    loop {
        let mut line = String::new();
        stream.read_line(&mut line).await?;
        if line.trim().is_empty() {
            break;
        }
        head.push(line.trim().to_owned());
    }
    log.lock().unwrap().push(head[0].clone());
    // user:p
    if !head.iter().any(|line| line.eq_ignore_ascii_case("proxy-authorization: Basic dXNlcjpw")) {
        return stream.write_all(b"HTTP/1.1 407 Proxy Authentication Required\r\ncontent-length: 0\r\n\r\n").await;
    }
    let port = head[0].split([' ', ':']).nth(2).unwrap_or_default();
    let mut server = TcpStream::connect(format!("127.0.0.1:{port}")).await?;
    stream.write_all(b"HTTP/1.1 200 Connection established\r\n\r\n").await?;
    tokio::io::copy_bidirectional(&mut stream, &mut server).await.map(drop)
}

#[tokio::test]
async fn modules_come_through_the_proxy_with_tls_from_end_to_end() -> Result<()> {
    let server = Server::https(|_| ok(MODULE)).await;
    let proxy = Proxy::start().await;
    let through = |user: &str, none: &str| {
        let url = format!("http://{user}{}", proxy.address);
        server.fetcher().through(Proxies::parse(Some(&url), None, Some(none)).unwrap())
    };
    let reference = server.reference("a.wasm");
    let module = through("user:p@", "").fetch(&reference, Wanted::default()).await?;
    ensure!(module.bytes == MODULE);
    ensure!(proxy.seen() == [format!("CONNECT {} HTTP/1.1", server.address)], "{:?}", proxy.seen());

    // The certificate is the server's, and is checked as without a proxy.
    let sources = std::fs::read_to_string(server.sources())?;
    std::fs::write(server.sources(), "{}")?;
    let error = through("user:p@", "").fetch(&reference, Wanted::default()).await.unwrap_err();
    ensure!(error.to_string().contains("TLS does not come about"), "{error}");
    std::fs::write(server.sources(), sources)?;

    let error = through("", "").fetch(&reference, Wanted::default()).await.unwrap_err();
    ensure!(error.is_passing() && error.to_string().contains("the proxy 127.0.0.1"), "{error}");
    ensure!(error.to_string().contains("407 Proxy Authentication Required"), "{error}");

    let before = proxy.seen().len();
    through("", "127.0.0.0/8").fetch(&reference, Wanted::default()).await?;
    ensure!(proxy.seen().len() == before, "who is excepted is reached without");
    Ok(())
}

#[tokio::test]
async fn names_are_the_proxys_to_resolve_and_addresses_are_limited_as_without() -> Result<()> {
    let server = Server::https(|_| ok(MODULE)).await;
    let proxy = Proxy::start().await;
    let port = server.address.rsplit(':').next().unwrap();
    std::fs::write(server.sources(), format!("insecureSources: ['registry.invalid:{port}']"))?;
    let url = format!("http://user:p@{}", proxy.address);
    let fetcher = server.fetcher().through(Proxies::parse(Some(&url), Some(&url), None)?);
    let reference = server.reference(&format!("https://registry.invalid:{port}/a.wasm"));
    ensure!(fetcher.fetch(&reference, Wanted::default()).await?.bytes == MODULE);
    let seen = proxy.seen();
    for address in ["https://169.254.169.254/a.wasm", "https://[fe80::1]/a.wasm"] {
        let error = fetcher.fetch(&server.reference(address), Wanted::default()).await.unwrap_err();
        ensure!(error.to_string().contains("link-local"), "{error}");
    }
    ensure!(proxy.seen() == seen, "the proxy was not even asked");
    Ok(())
}
