//! Modules in a real registry: references, credentials, TLS, tags that move, and pushes.

use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result, ensure};
use proviso_artifacts::{Cache, Digest, FetchError, FetchOptions, Fetcher, Module, ModuleReference, Volume};
use proviso_e2e::pki::Authority;
use proviso_e2e::{Access, Registry};

const MODULE: &[u8] = b"\0asm module";

/// A registry, and a folder with the configuration files of a fetcher.
struct Stage {
    registry: Registry,
    folder: tempfile::TempDir,
}

impl Stage {
    async fn start(test: &str, access: Access) -> Result<Self> {
        let stage = Self { registry: Registry::start(test, access).await?, folder: tempfile::tempdir()? };
        stage.write_sources(&format!("insecureSources: ['{}']", stage.registry.address()))?;
        Ok(stage)
    }

    fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    fn write_sources(&self, sources: &str) -> Result<()> {
        Ok(std::fs::write(self.path("sources.yaml"), sources)?)
    }

    fn write_secret(&self, name: &str, password: &str) -> Result<()> {
        let folder = self.path("pull-secrets").join(name);
        std::fs::create_dir_all(&folder)?;
        let (host, user) = (self.registry.address(), Registry::USER);
        let auths = format!(r#"{{"auths": {{"{host}": {{"username": "{user}", "password": "{password}"}}}}}}"#);
        Ok(std::fs::write(folder.join(".dockerconfigjson"), auths)?)
    }

    fn fetcher(&self, cache: Option<Volume>) -> Fetcher {
        Fetcher::new(Some(self.path("sources.yaml")), Some(self.path("pull-secrets")), cache)
    }

    fn reference(&self, rest: &str) -> ModuleReference {
        ModuleReference::parse(&format!("registry://{}/{rest}", self.registry.address()), Path::new("")).unwrap()
    }

    async fn fetch(&self, rest: &str, wanted: FetchOptions<'_>) -> Result<Module, FetchError> {
        self.fetcher(None).fetch(&self.reference(rest), wanted).await
    }

    async fn refuse(&self, rest: &str, wanted: FetchOptions<'_>) -> Result<FetchError> {
        self.fetch(rest, wanted).await.err().with_context(|| format!("{rest}: the module was fetched"))
    }
}

#[tokio::test]
async fn a_reference_names_a_tag_a_digest_or_the_latest() -> Result<()> {
    let stage = Stage::start("registry-references", Access::default()).await?;
    let manifest = stage.registry.push("team/a", "v1", Registry::MODULE, MODULE).await?;
    stage.registry.push("team/a", "latest", Registry::MODULE, b"\0asm newest").await?;
    for (rest, module) in [("team/a:v1", MODULE), (&format!("team/a@{manifest}"), MODULE), ("team/a", b"\0asm newest")]
    {
        let fetched = stage.fetch(rest, FetchOptions::default()).await?;
        ensure!(fetched.bytes == module && fetched.digest == Digest::of(module), "{rest}");
    }

    let digest = Some(Digest::of(MODULE));
    ensure!(stage.fetch("team/a:v1", FetchOptions { digest, ..FetchOptions::default() }).await.is_ok());
    let error = stage.refuse("team/a", FetchOptions { digest, ..FetchOptions::default() }).await?;
    ensure!(matches!(error, FetchError::Digest { .. }) && error.reason().as_str() == "VerificationError", "{error}");

    // A missing tag is transient, because it may be pushed later. A missing digest is permanent.
    for (rest, may_appear) in [
        ("team/a:v2".to_owned(), true),
        ("team/none:v1".to_owned(), true),
        (format!("team/a@{}", Digest::of(b"nothing")), false),
    ] {
        let error = stage.refuse(&rest, FetchOptions::default()).await?;
        ensure!(matches!(error, FetchError::NotFound { .. }) && error.is_transient() == may_appear, "{rest}: {error}");
        ensure!(error.reason().as_str() == "PullError" && error.to_string().contains(&rest), "{rest}: {error}");
    }
    stage.registry.push("team/readme", "v1", "text/markdown", b"# Read me").await?;
    let error = stage.refuse("team/readme:v1", FetchOptions::default()).await?;
    ensure!(error.to_string().contains("text/markdown") && !error.is_transient(), "{error}");
    Ok(())
}

#[tokio::test]
async fn a_pinned_module_does_not_change_when_its_tag_moves() -> Result<()> {
    let stage = Stage::start("registry-tag-moves", Access::default()).await?;
    stage.registry.push("a", "v1", Registry::MODULE, MODULE).await?;
    let pin = Some(stage.fetch("a:v1", FetchOptions::default()).await?.digest);
    let pinned = FetchOptions { pin, ..FetchOptions::default() };

    stage.registry.push("a", "v1", Registry::MODULE, b"\0asm moved").await?;
    ensure!(stage.fetch("a:v1", FetchOptions::default()).await?.bytes == &b"\0asm moved"[..]);
    ensure!(stage.fetch("a:v1", pinned).await?.bytes == MODULE, "the registry still has it");
    let digest = Some(Digest::of(b"\0asm moved"));
    let error = stage.refuse("a:v1", FetchOptions { digest, ..pinned }).await?;
    ensure!(matches!(error, FetchError::Digest { .. }), "{error}");

    stage.registry.delete_blob("a", MODULE).await?;
    let error = stage.refuse("a:v1", pinned).await?;
    ensure!(matches!(error, FetchError::Moved { .. }) && error.reason().as_str() == "VerificationError", "{error}");
    ensure!(!error.is_transient() && error.to_string().contains("has moved"), "{error}");

    let cache = Cache::open(&stage.path("cache"))?;
    cache.put_module(&Digest::of(MODULE), MODULE)?;
    let fetched = stage.fetcher(Some(Volume::new(cache))).fetch(&stage.reference("a:v1"), pinned).await?;
    ensure!(fetched.bytes == MODULE, "the cache has it");
    Ok(())
}

#[tokio::test]
async fn a_pinned_module_comes_from_the_cache_without_the_registry() -> Result<()> {
    let mut stage = Stage::start("registry-down", Access::default()).await?;
    stage.registry.push("a", "v1", Registry::MODULE, MODULE).await?;
    let volume = Volume::new(Cache::open(&stage.path("cache"))?);
    let digest = Digest::of(MODULE);
    volume.run(move |cache| cache.put_module(&digest, MODULE)).await?;
    stage.registry.process().kill();
    let fetcher = stage.fetcher(Some(volume));
    let reference = stage.reference("a:v1");
    let pinned = FetchOptions { pin: Some(digest), ..FetchOptions::default() };
    ensure!(fetcher.fetch(&reference, pinned).await?.bytes == MODULE);
    let error = fetcher.fetch(&reference, FetchOptions::default()).await.unwrap_err();
    ensure!(matches!(error, FetchError::Connect { .. }) && error.is_transient(), "{error}");
    ensure!(error.to_string().contains(&stage.registry.address()), "{error}");

    stage.registry.process().restart()?;
    proviso_e2e::until("the registry to answer again", std::time::Duration::from_secs(30), async || {
        Ok(fetcher.fetch(&reference, FetchOptions::default()).await.map(drop)?)
    })
    .await
}

#[tokio::test]
async fn credentials_come_from_the_named_pull_secrets() -> Result<()> {
    let stage = Stage::start("registry-credentials", Access { password: true, ..Access::default() }).await?;
    stage.registry.push("a", "v1", Registry::MODULE, MODULE).await?;
    let error = stage.refuse("a:v1", FetchOptions::default()).await?;
    ensure!(matches!(error, FetchError::Unauthorized { secret: None, .. }) && error.is_transient(), "{error}");
    ensure!(error.to_string().contains("401 Unauthorized and wants credentials"), "{error}");

    // Each fetch reads the pull secrets again, without a restart.
    stage.write_secret("wrong", "guessed")?;
    let error = stage.refuse("a:v1", FetchOptions::default()).await?;
    ensure!(error.to_string().contains("the credentials of the Secret \"wrong\""), "{error}");
    ensure!(!error.to_string().contains("guessed"), "{error}");
    stage.write_secret("right", Registry::PASSWORD)?;
    ensure!(
        stage.fetch("a:v1", FetchOptions::default()).await?.bytes == MODULE,
        "without names all Secrets are used, the first by name wins"
    );
    for (name, fetched) in [("right", true), ("wrong", false), ("other", false)] {
        let wanted = FetchOptions { pull_secrets: &[name.to_owned()], ..FetchOptions::default() };
        let result = stage.fetch("a:v1", wanted).await;
        ensure!(result.is_ok() == fetched, "{name}: {result:?}");
        if let Err(error) = result {
            ensure!(error.is_transient() && error.to_string().contains(name), "{error}");
        }
    }
    Ok(())
}

#[tokio::test]
async fn a_certificate_of_a_private_ca_needs_source_authorities() -> Result<()> {
    let folder = tempfile::tempdir()?;
    let authority = Authority::new("own", folder.path())?;
    let tls = Some(authority.server("registry", &["127.0.0.1"])?);
    let stage = Stage::start("registry-tls", Access { tls, ..Access::default() }).await?;
    stage.registry.push("a", "v1", Registry::MODULE, MODULE).await?;
    let (address, pem) = (stage.registry.address(), std::fs::read_to_string(authority.certificate())?);

    ensure!(
        stage.fetch("a:v1", FetchOptions::default()).await?.bytes == MODULE,
        "an insecure source needs no trusted certificate"
    );
    let authorities = |pem: &str| format!("sourceAuthorities: {{'{address}': [{}]}}", serde_json::json!(pem));
    stage.write_sources(&authorities(&pem))?;
    ensure!(stage.fetch("a:v1", FetchOptions::default()).await?.bytes == MODULE);

    let other = std::fs::read_to_string(Authority::new("other", folder.path())?.certificate())?;
    for sources in ["{}".to_owned(), authorities(&other)] {
        stage.write_sources(&sources)?;
        let error = stage.refuse("a:v1", FetchOptions::default()).await?;
        ensure!(error.is_transient() && error.reason().as_str() == "PullError", "{error}");
        ensure!(error.to_string().contains(&address) && error.to_string().contains("sourceAuthorities"), "{error}");
    }
    stage.write_sources("insecureSource: []")?;
    let error = stage.refuse("a:v1", FetchOptions::default()).await?;
    ensure!(matches!(error, FetchError::Sources { .. }) && error.is_transient(), "{error}");
    ensure!(error.to_string().contains("sources.yaml"), "{error}");
    Ok(())
}

#[tokio::test]
async fn plain_http_is_for_insecure_sources_only() -> Result<()> {
    let stage = Stage::start("registry-plain", Access::default()).await?;
    stage.registry.push("a", "v1", Registry::MODULE, MODULE).await?;
    ensure!(stage.fetch("a:v1", FetchOptions::default()).await.is_ok());
    stage.write_sources("{}")?;
    let error = stage.refuse("a:v1", FetchOptions::default()).await?;
    ensure!(matches!(error, FetchError::Connect { .. }) && error.is_transient(), "{error}");
    ensure!(error.to_string().contains("the TLS handshake failed"), "{error}");
    Ok(())
}

#[tokio::test]
async fn a_pushed_module_can_be_fetched() -> Result<()> {
    let stage = Stage::start("registry-push", Access { password: true, ..Access::default() }).await?;
    let module = Module::new(Digest::of(MODULE), MODULE.into());
    let artifact = |rest: &str| format!("{}/{rest}", stage.registry.address()).parse().unwrap();
    let error = stage.fetcher(None).push(&artifact("team/pushed:v1"), &module).await.unwrap_err();
    ensure!(error.to_string().contains("401"), "a push without credentials is refused: {error}");

    stage.write_secret("mine", Registry::PASSWORD)?;
    let manifest = stage.fetcher(None).push(&artifact("team/pushed:v1"), &module).await?;
    for rest in ["team/pushed:v1".to_owned(), format!("team/pushed@{manifest}")] {
        ensure!(stage.fetch(&rest, FetchOptions::default()).await?.bytes == MODULE, "{rest}");
    }
    ensure!(stage.fetcher(None).push(&artifact("team/pushed:v1"), &module).await? == manifest, "again");
    let error = stage.fetcher(None).push(&artifact(&format!("team/pushed@{manifest}")), &module).await.unwrap_err();
    ensure!(error.to_string().contains("names a digest"), "{error}");
    Ok(())
}
