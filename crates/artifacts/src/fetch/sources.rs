//! Which servers are trusted beyond the system's authorities: the file that the operator writes from the fields of
//! the `PolicyServer`.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use rustls::pki_types::CertificateDer;
use rustls::pki_types::pem::PemObject as _;
use serde::Deserialize;

use crate::reference::{Artifact, ArtifactError, Host, HostError, Mirror};

/// What is known of servers. By default nothing: all need a certificate that the system trusts.
#[derive(Clone, Debug, Default)]
pub struct Sources {
    insecure: BTreeSet<Host>,
    authorities: BTreeMap<Host, Vec<CertificateDer<'static>>>,
    mirrors: BTreeMap<Host, Vec<Mirror>>,
}

/// A file of sources that cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum SourcesError {
    #[error("cannot be read: {0}")]
    File(#[from] std::io::Error),
    #[error("is not as it should be: {0}")]
    Yaml(#[from] serde_yaml::Error),
    #[error("{field}: {error}")]
    Host { field: &'static str, error: HostError },
    #[error("mirrors: {host}: {mirror:?}: {error}: give `host:port` or `host/path`")]
    Mirror { host: Host, mirror: String, error: ArtifactError },
    #[error("mirrors: {0}: has none: name at least one, or leave it out")]
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
    /// When it cannot be read, or something in it is no host or no certificate.
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
            let places = texts.iter().map(mirror).collect::<Result<Vec<Mirror>, _>>()?;
            if places.is_empty() {
                return Err(SourcesError::NoMirror(host));
            }
            mirrors.insert(host, places);
        }
        Ok(Self { insecure: insecure.collect::<Result<_, _>>()?, authorities, mirrors })
    }

    /// Whether plain HTTP and certificates of unknown origin will do.
    pub(super) fn is_insecure(&self, host: &Host) -> bool {
        self.insecure.contains(host)
    }

    /// Where an artifact may be, in the order in which that is tried.
    pub(super) fn places(&self, artifact: &Artifact) -> Vec<Artifact> {
        let mirrors = self.mirrors.get(artifact.host());
        mirrors.map_or_else(|| vec![artifact.clone()], |mirrors| mirrors.iter().map(|it| artifact.at(it)).collect())
    }

    /// The authorities of its own that a server has.
    pub(super) fn authorities(&self, host: &Host) -> &[CertificateDer<'static>] {
        self.authorities.get(host).map_or(&[], Vec::as_slice)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn servers_are_known_by_host_and_port() {
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
        let places = |text: &str| {
            let places = sources.places(&text.parse().unwrap());
            places.iter().map(ToString::to_string).collect::<Vec<_>>()
        };
        assert_eq!(places("docker.io/a/b:v1"), ["mirror:5000/hub/a/b:v1", "docker.io/a/b:v1"]);
        assert_eq!(places("ghcr.io/a/b:v1"), ["ghcr.io/a/b:v1"]);
        for empty in ["", "{}", "insecureSources: []\n"] {
            assert!(Sources::parse(empty).is_ok(), "{empty:?}");
        }
    }

    #[test]
    fn a_file_that_is_not_understood_is_refused_with_the_field() {
        for (text, wanted) in [
            ("insecureSource: [a]", "insecureSource"),
            ("insecureSources: [https://a]", "insecureSources: \"https://a\" is no host"),
            ("sourceAuthorities: {a b: []}", "sourceAuthorities: \"a b\" is no host"),
            ("sourceAuthorities: {a: []}", "sourceAuthorities: a: holds no certificate"),
            ("sourceAuthorities: {a: [nothing]}", "sourceAuthorities: a: holds no certificate"),
            ("sourceAuthorities: {a: ['-----BEGIN CERTIFICATE-----']}", "sourceAuthorities: a: "),
            ("mirrors: {a b: [c]}", "mirrors: \"a b\" is no host"),
            ("mirrors: {a: []}", "mirrors: a: has none"),
            ("mirrors: {a: ['https://b']}", "mirrors: a: \"https://b\": "),
            ("- a", "is not as it should be"),
        ] {
            let error = Sources::parse(text).unwrap_err().to_string();
            assert!(error.contains(wanted), "{text}: {error}");
        }
    }
}
