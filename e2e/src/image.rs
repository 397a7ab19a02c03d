//! Makes container images from files of this machine, without a registry and without a Dockerfile.

use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context as _, Result, bail, ensure};
use serde_json::{Value, json};
use sha2::{Digest as _, Sha256};

/// A container image with one layer.
///
/// ```
/// # use proviso_e2e::Image;
/// let image = Image::new("localhost/hello:1").file("/bin/true", "/hello").entrypoint(["/hello"]);
/// ```
#[derive(Debug, Clone)]
pub struct Image {
    reference: String,
    files: Vec<(PathBuf, PathBuf)>,
    entrypoint: Vec<String>,
}

impl Image {
    /// Returns an empty image with this name. Pods that use it with `imagePullPolicy: Never`, or with a tag that is not
    /// `latest`, need no registry.
    #[must_use]
    pub fn new(reference: impl Into<String>) -> Self {
        Self { reference: reference.into(), files: Vec::new(), entrypoint: Vec::new() }
    }

    #[must_use]
    pub fn reference(&self) -> &str {
        &self.reference
    }

    /// Adds a file of this machine at an absolute path of the image. For a program, its libraries are added too, as `ldd` names
    /// them.
    #[must_use]
    pub fn file(mut self, file: impl Into<PathBuf>, path: impl Into<PathBuf>) -> Self {
        self.files.push((file.into(), path.into()));
        self
    }

    /// Sets the entrypoint: the program and its arguments.
    #[must_use]
    pub fn entrypoint<A: Into<String>>(mut self, arguments: impl IntoIterator<Item = A>) -> Self {
        self.entrypoint = arguments.into_iter().map(Into::into).collect();
        self
    }

    /// Writes the image as a tar file with an OCI image layout, which `ctr`, `docker load`, `podman load` and `skopeo` read.
    ///
    /// # Errors
    /// If a file of the image cannot be read, or the tar file cannot be written.
    pub fn write(&self, tar: &Path) -> Result<()> {
        let layer = Blob::new("layer.v1.tar", self.layer()?);
        let config = json!({
            "architecture": architecture()?,
            "os": "linux",
            "config": {"Entrypoint": self.entrypoint, "Env": ["PATH=/usr/sbin:/usr/bin:/sbin:/bin"]},
            "rootfs": {"type": "layers", "diff_ids": [layer.digest()]},
        });
        let config = Blob::new("config.v1+json", serde_json::to_vec(&config)?);
        // The layer is not compressed, because the image stays on this machine.
        let manifest = json!({
            "schemaVersion": 2,
            "mediaType": "application/vnd.oci.image.manifest.v1+json",
            "config": config.descriptor(),
            "layers": [layer.descriptor()],
        });
        let manifest = Blob::new("manifest.v1+json", serde_json::to_vec(&manifest)?);
        let mut named = manifest.descriptor();
        named["annotations"] = json!({"io.containerd.image.name": self.reference});
        let index = serde_json::to_vec(&json!({
            "schemaVersion": 2,
            "mediaType": "application/vnd.oci.image.index.v1+json",
            "manifests": [named],
        }))?;
        let mut layout = tar::Builder::new(File::create(tar).with_context(|| tar.display().to_string())?);
        append(&mut layout, "oci-layout", br#"{"imageLayoutVersion":"1.0.0"}"#)?;
        append(&mut layout, "index.json", &index)?;
        for blob in [&config, &manifest, &layer] {
            append(&mut layout, &format!("blobs/sha256/{}", blob.sha256), &blob.content)?;
        }
        layout.finish()?;
        Ok(())
    }

    fn layer(&self) -> Result<Vec<u8>> {
        let mut layer = tar::Builder::new(Vec::new());
        let mut header = tar::Header::new_gnu();
        header.set_entry_type(tar::EntryType::Directory);
        header.set_size(0);
        header.set_mode(0o1777);
        layer.append_data(&mut header, "tmp", std::io::empty())?;
        for (file, path) in &self.files {
            let libraries = libraries(file)?.into_iter().map(|library| (library.clone(), library));
            for (file, path) in std::iter::once((file.clone(), path.clone())).chain(libraries) {
                let path = path.strip_prefix("/").context("paths in an image are absolute")?;
                layer.append_path_with_name(&file, path).with_context(|| file.display().to_string())?;
            }
        }
        Ok(layer.into_inner()?)
    }
}

/// Returns the paths of the libraries of a dynamically linked program; an empty list for any other file.
fn libraries(file: &Path) -> Result<Vec<PathBuf>> {
    let output = Command::new("ldd").arg(file).output().context("running ldd")?;
    // ldd fails for files that are not dynamically linked.
    let text = if output.status.success() { String::from_utf8(output.stdout)? } else { String::new() };
    ensure!(!text.contains("not found"), "{} lacks libraries on this machine:\n{text}", file.display());
    Ok(text.split_whitespace().filter(|word| word.starts_with('/')).map(PathBuf::from).collect())
}

fn append(tar: &mut tar::Builder<File>, path: &str, content: &[u8]) -> Result<()> {
    let mut header = tar::Header::new_gnu();
    header.set_size(content.len() as u64);
    header.set_mode(0o644);
    Ok(tar.append_data(&mut header, path, content)?)
}

/// Content that is addressed by its digest.
struct Blob {
    kind: &'static str,
    content: Vec<u8>,
    sha256: String,
}

impl Blob {
    fn new(kind: &'static str, content: Vec<u8>) -> Self {
        let sha256 = crate::hexadecimal(&Sha256::digest(&content));
        Self { kind, content, sha256 }
    }

    fn digest(&self) -> String {
        format!("sha256:{}", self.sha256)
    }

    fn descriptor(&self) -> Value {
        json!({
            "mediaType": format!("application/vnd.oci.image.{}", self.kind),
            "digest": self.digest(),
            "size": self.content.len(),
        })
    }
}

/// Returns the architecture of this machine, by its name in Go, which images use.
fn architecture() -> Result<&'static str> {
    match std::env::consts::ARCH {
        "x86_64" => Ok("amd64"),
        "aarch64" => Ok("arm64"),
        other => bail!("the architecture {other} is not supported for images"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_dynamically_linked_program_has_its_libraries() -> Result<()> {
        let layer = Image::new("localhost/test:1").file("/bin/sh", "/shell").layer()?;
        let mut archive = tar::Archive::new(&layer[..]);
        let paths: Vec<PathBuf> =
            archive.entries()?.map(|entry| Ok(entry?.path()?.into_owned())).collect::<Result<_>>()?;
        ensure!(paths.contains(&"shell".into()), "{paths:?}");
        ensure!(paths.iter().any(|path| path.to_string_lossy().contains("libc.")), "{paths:?}");
        Ok(())
    }
}
