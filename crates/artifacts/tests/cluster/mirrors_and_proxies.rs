//! Modules from mirrors of a registry, and through proxies.
use std::sync::{Arc, Mutex};

use anyhow::{Result, ensure};
use proviso_artifacts::{Artifact, FetchAccess, FetchError, FetchOptions, Fetcher, ModuleReference, Proxies};
use proviso_e2e::{Access, Registry};
use tokio::io::{AsyncBufReadExt as _, AsyncWriteExt as _, BufReader};
use tokio::net::{TcpListener, TcpStream};

use crate::support::{Server, ok};

const MODULE: &[u8] = b"\0asm module";

#[tokio::test]
async fn mirrors_are_tried_in_order_and_the_registry_only_if_listed() -> Result<()> {
    let first = Registry::start("mirrors-first", Access::default()).await?;
    let second = Registry::start("mirrors-second", Access::default()).await?;
    second.push("cache/team/a", "v1", Registry::MODULE, MODULE).await?;
    let folder = tempfile::tempdir()?;
    let sources = folder.path().join("sources.yaml");
    let write_mirrors = |mirrors: &str| {
        let insecure = format!("insecureSources: ['{}', '{}']", first.address(), second.address());
        std::fs::write(&sources, format!("{insecure}\nmirrors: {{'nowhere.invalid': [{mirrors}]}}")).unwrap();
    };
    let fetcher = Fetcher::new(Some(sources.clone()), None, None);
    let reference = ModuleReference::parse("registry://nowhere.invalid/team/a:v1", folder.path())?;
    let fetch = async || fetcher.fetch(&reference, FetchOptions::default()).await;

    write_mirrors(&format!("'{}', '{}/cache'", first.address(), second.address()));
    ensure!(fetch().await?.bytes == MODULE, "the second mirror has the module");
    first.push("team/a", "v1", Registry::MODULE, b"\0asm first").await?;
    ensure!(fetch().await?.bytes == b"\0asm first"[..], "the first mirror is tried first");

    write_mirrors(&format!("'{}/none'", second.address()));
    let error = fetch().await.unwrap_err();
    ensure!(matches!(error, FetchError::NotFound { .. }) && error.to_string().contains("/none/team/a:v1"), "{error}");
    write_mirrors(&format!("'{}/none', nowhere.invalid", second.address()));
    let error = fetch().await.unwrap_err();
    ensure!(matches!(error, FetchError::Mirrors { .. }) && error.reason().as_str() == "PullError", "{error}");
    ensure!(error.is_transient() && error.to_string().starts_with("nowhere.invalid cannot be reached"), "{error}");
    ensure!(error.to_string().contains("/none/team/a:v1"), "the error of the mirror is missing: {error}");
    Ok(())
}

/// Images for policies use the same mirrors as modules.
#[tokio::test]
async fn images_are_fetched_from_mirrors() -> Result<()> {
    let mirror = Registry::start("mirrors-images", Access::default()).await?;
    mirror.push("cache/team/a", "v1", Registry::MODULE, MODULE).await?;
    let folder = tempfile::tempdir()?;
    let sources = folder.path().join("sources.yaml");
    let write_mirrors = |mirrors: &str| {
        let insecure = format!("insecureSources: ['{}']", mirror.address());
        std::fs::write(&sources, format!("{insecure}\nmirrors: {{'nowhere.invalid': [{mirrors}]}}")).unwrap();
    };
    let fetcher = Fetcher::new(Some(sources.clone()), None, None);
    let image: Artifact = "nowhere.invalid/team/a:v1".parse()?;
    write_mirrors(&format!("'{0}/none', '{0}/cache'", mirror.address()));
    let found = fetcher.manifest(&image, FetchAccess::default()).await?;
    let (manifest, _) = fetcher.image(&image, FetchAccess::default()).await?;
    ensure!(found.digest == manifest.digest && found.content["layers"].is_array(), "{found:?}");
    write_mirrors(&format!("'{}/none', nowhere.invalid", mirror.address()));
    let error = fetcher.manifest(&image, FetchAccess::default()).await.unwrap_err();
    ensure!(matches!(error, FetchError::Mirrors { .. }) && error.to_string().contains("/none/team/a:v1"), "{error}");
    Ok(())
}

/// A proxy that connects to a port of this machine for each host name, and requires a password.
struct Proxy {
    address: String,
    /// The request lines.
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
    // The user name and password `user:p`.
    if !head.iter().any(|line| line.eq_ignore_ascii_case("proxy-authorization: Basic dXNlcjpw")) {
        return stream.write_all(b"HTTP/1.1 407 Proxy Authentication Required\r\ncontent-length: 0\r\n\r\n").await;
    }
    let port = head[0].split([' ', ':']).nth(2).unwrap_or_default();
    let mut server = TcpStream::connect(format!("127.0.0.1:{port}")).await?;
    stream.write_all(b"HTTP/1.1 200 Connection established\r\n\r\n").await?;
    tokio::io::copy_bidirectional(&mut stream, &mut server).await.map(drop)
}

#[tokio::test]
async fn modules_are_fetched_through_a_proxy_with_end_to_end_tls() -> Result<()> {
    let server = Server::https(|_| ok(MODULE)).await;
    let proxy = Proxy::start().await;
    let with_proxy = |user: &str, no_proxy: &str| {
        let url = format!("http://{user}{}", proxy.address);
        server.fetcher().with_proxies(Proxies::parse(Some(&url), None, Some(no_proxy)).unwrap())
    };
    let reference = server.reference("a.wasm");
    let module = with_proxy("user:p@", "").fetch(&reference, FetchOptions::default()).await?;
    ensure!(module.bytes == MODULE);
    ensure!(proxy.seen() == [format!("CONNECT {} HTTP/1.1", server.address)], "{:?}", proxy.seen());

    // The certificate of the server is verified as without a proxy.
    let sources = std::fs::read_to_string(server.sources())?;
    std::fs::write(server.sources(), "{}")?;
    let error = with_proxy("user:p@", "").fetch(&reference, FetchOptions::default()).await.unwrap_err();
    ensure!(error.to_string().contains("the TLS handshake failed"), "{error}");
    std::fs::write(server.sources(), sources)?;

    let error = with_proxy("", "").fetch(&reference, FetchOptions::default()).await.unwrap_err();
    ensure!(error.is_transient() && error.to_string().contains("the proxy 127.0.0.1"), "{error}");
    ensure!(error.to_string().contains("407 Proxy Authentication Required"), "{error}");

    let before = proxy.seen().len();
    with_proxy("", "127.0.0.0/8").fetch(&reference, FetchOptions::default()).await?;
    ensure!(proxy.seen().len() == before, "a server in NO_PROXY is reached without the proxy");
    Ok(())
}

#[tokio::test]
async fn the_proxy_resolves_names_and_refused_addresses_stay_refused() -> Result<()> {
    let server = Server::https(|_| ok(MODULE)).await;
    let proxy = Proxy::start().await;
    let port = server.address.rsplit(':').next().unwrap();
    std::fs::write(server.sources(), format!("insecureSources: ['registry.invalid:{port}']"))?;
    let url = format!("http://user:p@{}", proxy.address);
    let fetcher = server.fetcher().with_proxies(Proxies::parse(Some(&url), Some(&url), None)?);
    let reference = server.reference(&format!("https://registry.invalid:{port}/a.wasm"));
    ensure!(fetcher.fetch(&reference, FetchOptions::default()).await?.bytes == MODULE);
    let seen = proxy.seen();
    for address in ["https://169.254.169.254/a.wasm", "https://[fe80::1]/a.wasm"] {
        let error = fetcher.fetch(&server.reference(address), FetchOptions::default()).await.unwrap_err();
        ensure!(error.to_string().contains("link-local"), "{error}");
    }
    ensure!(proxy.seen() == seen, "the proxy received a request for a refused address");
    Ok(())
}
