//! The sources file: servers that are trusted beyond the certificate authorities of the system, and mirrors. The operator
//! writes the file from the fields of the `PolicyServer`.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use rustls::pki_types::CertificateDer;
use rustls::pki_types::pem::PemObject as _;
use serde::Deserialize;

use crate::reference::{Artifact, ArtifactError, Host, HostError, Mirror};

/// The settings of servers. By default each server needs a certificate that the system trusts.
#[derive(Clone, Debug, Default)]
pub struct Sources {
    insecure: BTreeSet<Host>,
    authorities: BTreeMap<Host, Vec<CertificateDer<'static>>>,
    mirrors: BTreeMap<Host, Vec<Mirror>>,
}

/// The error of a sources file that cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum SourcesError {
    #[error("cannot be read: {0}")]
    File(#[from] std::io::Error),
    #[error("is malformed: {0}")]
    Yaml(#[from] serde_yaml::Error),
    #[error("{field}: {error}")]
    Host { field: &'static str, error: HostError },
    #[error("mirrors: {host}: {mirror:?}: {error}: give `host:port` or `host/path`")]
    Mirror { host: Host, mirror: String, error: ArtifactError },
    #[error("mirrors: {0}: has no mirror: name at least one, or remove the entry")]
    NoMirror(Host),
    #[error("sourceAuthorities: {host}: {error}: give certificates in PEM")]
    Pem { host: Host, error: rustls::pki_types::pem::Error },
    #[error("sourceAuthorities: {0}: holds no certificate: give certificates in PEM")]
    NoCertificate(Host),
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase", default, deny_unknown_fields)]
#[derive(Default)]
struct Document {
    insecure_sources: Vec<String>,
    source_authorities: BTreeMap<String, Vec<String>>,
    mirrors: BTreeMap<String, Vec<String>>,
}

impl Sources {
    /// Reads the file. Blocks on the disk.
    ///
    /// # Errors
    /// Returns an error if the file cannot be read or is malformed, or if a host, a mirror or a certificate is not valid.
    pub fn read(path: &Path) -> Result<Self, SourcesError> {
        Self::parse(&std::fs::read_to_string(path)?)
    }

    fn parse(text: &str) -> Result<Self, SourcesError> {
        let document: Document = serde_yaml::from_str::<Option<Document>>(text)?.unwrap_or_default();
        let host = |field, text: &str| text.parse::<Host>().map_err(|error| SourcesError::Host { field, error });
        let insecure = document.insecure_sources.iter().map(|text| host("insecureSources", text));
        let mut authorities = BTreeMap::new();
        for (name, pems) in &document.source_authorities {
            let host = host("sourceAuthorities", name)?;
            let certificates = CertificateDer::pem_slice_iter(pems.join("\n").as_bytes())
                .collect::<Result<Vec<_>, _>>()
                .map_err(|error| SourcesError::Pem { host: host.clone(), error })?;
            if certificates.is_empty() {
                return Err(SourcesError::NoCertificate(host));
            }
            authorities.insert(host, certificates);
        }
        let mut mirrors = BTreeMap::new();
        for (name, texts) in &document.mirrors {
            let host = host("mirrors", name)?;
            let mirror = |text: &String| {
                text.parse().map_err(|error| SourcesError::Mirror { host: host.clone(), mirror: text.clone(), error })
            };
            let parsed = texts.iter().map(mirror).collect::<Result<Vec<Mirror>, _>>()?;
            if parsed.is_empty() {
                return Err(SourcesError::NoMirror(host));
            }
            mirrors.insert(host, parsed);
        }
        Ok(Self { insecure: insecure.collect::<Result<_, _>>()?, authorities, mirrors })
    }

    /// Returns true if plain HTTP and every certificate are allowed for a server.
    pub(super) fn is_insecure(&self, host: &Host) -> bool {
        self.insecure.contains(host)
    }

    /// Returns true if the file has settings for a server, or names it as a mirror.
    pub(super) fn has(&self, host: &Host) -> bool {
        self.insecure.contains(host)
            || self.authorities.contains_key(host)
            || self.mirrors.contains_key(host)
            || self.mirrors.values().flatten().any(|mirror| mirror.host() == host)
    }

    /// Returns the locations of an artifact, in the order in which a fetch tries them.
    pub(super) fn locations(&self, artifact: &Artifact) -> Vec<Artifact> {
        let mirrors = self.mirrors.get(artifact.host());
        mirrors
            .map_or_else(|| vec![artifact.clone()], |mirrors| mirrors.iter().map(|it| artifact.at_mirror(it)).collect())
    }

    /// Returns the certificates of the private CAs of a server.
    pub(super) fn authorities(&self, host: &Host) -> &[CertificateDer<'static>] {
        self.authorities.get(host).map_or(&[], Vec::as_slice)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn settings_apply_to_a_host_and_port() {
        let pem = rcgen::generate_simple_self_signed(["a".to_owned()]).unwrap().cert.pem().replace('\n', "\n      ");
        let text = format!(
            "insecureSources: [registry.local, '127.0.0.1:5000']\nsourceAuthorities:\n  Example.com:443:\n    - |\n      {pem}"
        );
        let sources = Sources::parse(&text).unwrap();
        let host = |text: &str| text.parse::<Host>().unwrap();
        assert!(sources.is_insecure(&host("registry.local:443")) && sources.is_insecure(&host("127.0.0.1:5000")));
        assert!(!sources.is_insecure(&host("registry.local:5000")) && !sources.is_insecure(&host("127.0.0.1")));
        assert_eq!(sources.authorities(&host("example.com")).len(), 1);
        assert!(sources.authorities(&host("registry.local")).is_empty());
        let sources = Sources::parse("mirrors: {docker.io: [mirror:5000/hub, docker.io]}").unwrap();
        let locations = |text: &str| {
            let locations = sources.locations(&text.parse().unwrap());
            locations.iter().map(ToString::to_string).collect::<Vec<_>>()
        };
        assert_eq!(locations("docker.io/a/b:v1"), ["mirror:5000/hub/a/b:v1", "docker.io/a/b:v1"]);
        assert_eq!(locations("ghcr.io/a/b:v1"), ["ghcr.io/a/b:v1"]);
        assert!(sources.has(&host("mirror:5000")) && sources.has(&host("docker.io")) && !sources.has(&host("ghcr.io")));
        for empty in ["", "{}", "insecureSources: []\n"] {
            assert!(Sources::parse(empty).is_ok(), "{empty:?}");
        }
    }

    #[test]
    fn errors_of_a_malformed_file_name_the_field() {
        for (text, wanted) in [
            ("insecureSource: [a]", "insecureSource"),
            ("insecureSources: [https://a]", "insecureSources: \"https://a\" is not a host"),
            ("sourceAuthorities: {a b: []}", "sourceAuthorities: \"a b\" is not a host"),
            ("sourceAuthorities: {a: []}", "sourceAuthorities: a: holds no certificate"),
            ("sourceAuthorities: {a: [nothing]}", "sourceAuthorities: a: holds no certificate"),
            ("sourceAuthorities: {a: ['-----BEGIN CERTIFICATE-----']}", "sourceAuthorities: a: "),
            ("mirrors: {a b: [c]}", "mirrors: \"a b\" is not a host"),
            ("mirrors: {a: []}", "mirrors: a: has no mirror"),
            ("mirrors: {a: ['https://b']}", "mirrors: a: \"https://b\": "),
            ("- a", "is malformed"),
        ] {
            let error = Sources::parse(text).unwrap_err().to_string();
            assert!(error.contains(wanted), "{text}: {error}");
        }
    }
}
