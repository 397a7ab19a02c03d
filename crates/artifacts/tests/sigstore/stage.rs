//! A test environment with a registry, a module in it, and the configuration files of a fetcher that verifies signatures.

use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result, ensure};
use proviso_artifacts::{Cache, FetchError, FetchOptions, Fetcher, Module, ModuleReference, Volume};
use proviso_e2e::{Access, Registry};
use rcgen::KeyPair;
use serde_json::{Value, json};

use super::{ISSUER, Layer, attach};

pub const MODULE: &[u8] = b"\0asm module";
pub const SUBJECT: &str = "https://github.com/org/repo/.github/workflows/a.yml@refs/tags/v1";
pub const SIGNATURE: &str = "https://sigstore.dev/cosign/sign/v1";

/// A registry with a module, and a folder with the configuration files of a fetcher.
pub struct Stage {
    pub registry: Registry,
    pub folder: tempfile::TempDir,
    /// The digest of the module's manifest.
    pub image: String,
}

impl Stage {
    pub async fn start(test: &str) -> Result<Self> {
        let registry = Registry::start(test, Access::default()).await?;
        let image = registry.push("a", "v1", Registry::MODULE, MODULE).await?;
        let stage = Self { registry, folder: tempfile::tempdir()?, image };
        let sources = format!("insecureSources: ['{}']", stage.registry.address());
        std::fs::write(stage.path("sources.yaml"), sources)?;
        Ok(stage)
    }

    pub fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    /// Writes the verification settings.
    pub fn want(&self, wanted: &Value) {
        std::fs::write(self.path("verification.yaml"), wanted.to_string()).unwrap();
    }

    pub fn want_key(&self, key: &KeyPair) {
        self.want(&all_of(&json!({"kind": "pubKey", "key": key.public_key_pem()})));
    }

    pub fn trust(&self, root: &Value) {
        std::fs::write(self.path("trusted_root.json"), root.to_string()).unwrap();
    }

    pub fn fetcher(&self, cache: Option<&Path>) -> Fetcher {
        let cache = cache.map(|folder| Volume::new(Cache::open(folder).unwrap()));
        let root = Some(self.path("trusted_root.json")).filter(|path| path.exists());
        Fetcher::new(Some(self.path("sources.yaml")), None, cache)
            .with_verification(Some(self.path("verification.yaml")), root)
    }

    pub fn reference(&self) -> ModuleReference {
        ModuleReference::parse(&format!("registry://{}/a:v1", self.registry.address()), Path::new("")).unwrap()
    }

    pub async fn fetch(&self) -> Result<Module, FetchError> {
        self.fetcher(None).fetch(&self.reference(), FetchOptions::default()).await
    }

    pub async fn attach(&self, signatures: &[Layer]) -> Result<()> {
        attach(&self.registry, "a", &self.image, signatures).await
    }

    /// Checks that the module with these signatures is fetched.
    pub async fn accept(&self, case: &str, signatures: &[Layer]) -> Result<()> {
        self.attach(signatures).await?;
        let module = self.fetch().await.with_context(|| case.to_owned())?;
        ensure!(module.bytes == MODULE, "{case}");
        Ok(())
    }

    /// Checks that the module with these signatures is refused: see [`Self::refused`].
    pub async fn refuse(&self, case: &str, signatures: &[Layer], message: &str) -> Result<()> {
        self.attach(signatures).await?;
        self.refused(case, message).await
    }

    /// Checks that the module is refused with an error that has the image, the required signature and `message`.
    pub async fn refused(&self, case: &str, message: &str) -> Result<()> {
        let error = self.fetch().await.err().with_context(|| format!("{case}: the module was fetched"))?;
        ensure!(
            matches!(error, FetchError::Unverified(_)) && error.reason().as_str() == "VerificationError",
            "{case}: {error}"
        );
        ensure!(error.is_transient(), "a signature may come later");
        let text = error.to_string();
        ensure!(
            text.contains(&self.image) && text.contains("wanted a signature") && text.contains(message),
            "{case}: {text}"
        );
        Ok(())
    }
}

pub fn all_of(signature: &Value) -> Value {
    json!({"apiVersion": "v1", "allOf": [signature]})
}

pub fn identity(subject: &Value) -> Value {
    all_of(&json!({"kind": "genericIssuer", "issuer": ISSUER, "subject": subject}))
}
