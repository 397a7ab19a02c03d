//! The containers of policy servers as processes: their arguments, and the folders of their volumes.

use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result};
use k8s_openapi::api::core::v1::{ConfigMap, Container, Pod, Secret, Volume};
use kube::{Api, Client};

use crate::objects::NAMESPACE;

/// A volume of a pod, and its folder on this machine.
#[derive(Debug, Clone)]
pub struct Mount {
    /// The path in the container.
    path: String,
    folder: PathBuf,
    source: Source,
}

/// The content of a volume.
#[derive(Debug, Clone)]
enum Source {
    Secret(String),
    ConfigMap(String),
    /// A folder that the container writes, or an empty folder.
    Folder,
}

/// Returns the volumes that the container mounts. The folders of the pod are in `own`; the claim of the cache is `cache`.
pub fn mounts(pod: &Pod, own: &Path, cache: &Path) -> Result<Vec<Mount>> {
    let spec = pod.spec.as_ref().context("a pod without spec")?;
    let container = spec.containers.first().context("a pod without containers")?;
    let volumes: Vec<_> = spec.volumes.iter().flatten().collect();
    let mounted = container.volume_mounts.iter().flatten().map(|mount| {
        let volume = volumes.iter().find(|volume| volume.name == mount.name).context("a mount without volume")?;
        let claims_cache = volume.persistent_volume_claim.is_some();
        let folder = if claims_cache { cache.to_owned() } else { own.join(&mount.name) };
        Ok(Mount { path: mount.mount_path.clone(), folder, source: source(volume) })
    });
    mounted.collect()
}

fn source(volume: &Volume) -> Source {
    let secret = volume.secret.as_ref().and_then(|secret| secret.secret_name.clone());
    let config = volume.config_map.as_ref().map(|config| config.name.clone());
    match (secret, config) {
        (Some(secret), _) => Source::Secret(secret),
        (None, Some(config)) => Source::ConfigMap(config),
        (None, None) => Source::Folder,
    }
}

impl Mount {
    /// Writes the current content of the volume. A file that has not changed is not written.
    pub async fn write(&self, client: &Client) -> Result<()> {
        std::fs::create_dir_all(&self.folder)?;
        match &self.source {
            Source::Folder => {}
            Source::Secret(name) => {
                let secret = Api::<Secret>::namespaced(client.clone(), NAMESPACE).get(name).await?;
                for (file, content) in secret.data.unwrap_or_default() {
                    replace(&self.folder.join(file), &content.0)?;
                }
            }
            Source::ConfigMap(name) => {
                let config = Api::<ConfigMap>::namespaced(client.clone(), NAMESPACE).get(name).await?;
                for (file, content) in config.data.unwrap_or_default() {
                    replace(&self.folder.join(file), content.as_bytes())?;
                }
            }
        }
        Ok(())
    }
}

/// Replaces a file atomically, unless it has this content.
fn replace(path: &Path, content: &[u8]) -> Result<()> {
    if std::fs::read(path).is_ok_and(|known| known == content) {
        return Ok(());
    }
    let temporary = path.with_extension("tmp");
    std::fs::write(&temporary, content)?;
    Ok(std::fs::rename(temporary, path)?)
}

/// The name, the uid and the addresses of a replica.
pub struct Identity<'a> {
    pub pod: &'a str,
    pub uid: &'a str,
    pub listen: &'a str,
    pub admin: &'a str,
}

/// Returns the arguments of a container, with the paths, the addresses and the identity of its process on this machine.
pub fn arguments(container: &Container, identity: &Identity<'_>, mounts: &[Mount]) -> Vec<String> {
    let mut arguments: Vec<String> = Vec::new();
    for argument in container.args.iter().flatten() {
        let argument = match arguments.last().map(String::as_str) {
            Some("--listen") => identity.listen.to_owned(),
            Some("--admin-listen") => identity.admin.to_owned(),
            _ => local(argument, identity, mounts),
        };
        arguments.push(argument);
    }
    arguments
}

fn local(argument: &str, identity: &Identity<'_>, mounts: &[Mount]) -> String {
    let mounted = mounts.iter().find_map(|mount| Some((mount, argument.strip_prefix(&mount.path)?)));
    match mounted {
        Some((mount, rest)) => format!("{}{rest}", mount.folder.display()),
        None => argument.replace("$(POD_NAME)", identity.pod).replace("$(POD_UID)", identity.uid),
    }
}
