//! The certificate authorities (CAs) of a run, and the certificates that they sign.

use std::path::{Path, PathBuf};

use anyhow::Result;
use rcgen::{
    BasicConstraints, CertificateParams, CertifiedIssuer, DnType, ExtendedKeyUsagePurpose, IsCa, KeyPair,
    KeyUsagePurpose,
};

/// A CA for one purpose, with its certificate and key in files.
#[derive(Debug)]
pub struct Authority {
    issuer: CertifiedIssuer<'static, KeyPair>,
    folder: PathBuf,
    name: String,
}

/// A certificate and its key, as files in PEM.
#[derive(Debug, Clone)]
pub struct Identity {
    pub certificate: PathBuf,
    pub key: PathBuf,
}

impl Authority {
    /// Creates a CA, and writes `<name>-ca.crt` and `<name>-ca.key` into the folder.
    ///
    /// # Errors
    /// If the files cannot be written.
    pub fn new(name: &str, folder: &Path) -> Result<Self> {
        let mut params = named(&format!("{name}-ca"));
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::DigitalSignature];
        let issuer = CertifiedIssuer::self_signed(params, KeyPair::generate()?)?;
        std::fs::create_dir_all(folder)?;
        let authority = Self { issuer, folder: folder.to_owned(), name: name.to_owned() };
        std::fs::write(authority.certificate(), authority.issuer.pem())?;
        std::fs::write(authority.key(), authority.issuer.key().serialize_pem())?;
        Ok(authority)
    }

    /// Returns the path of the CA's certificate.
    #[must_use]
    pub fn certificate(&self) -> PathBuf {
        self.folder.join(format!("{}-ca.crt", self.name))
    }

    /// Returns the path of the CA's key.
    #[must_use]
    pub fn key(&self) -> PathBuf {
        self.folder.join(format!("{}-ca.key", self.name))
    }

    /// Returns the CA's certificate in PEM.
    #[must_use]
    pub fn pem(&self) -> String {
        self.issuer.pem()
    }

    /// Signs the certificate of a client. Kubernetes reads the user from `CN` and the group from `O`.
    ///
    /// # Errors
    /// If the files cannot be written.
    pub fn client(&self, user: &str, group: Option<&str>) -> Result<Identity> {
        let mut params = named(user);
        if let Some(group) = group {
            params.distinguished_name.push(DnType::OrganizationName, group);
        }
        params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ClientAuth];
        self.issue(user, params)
    }

    /// Signs the certificate of a server with these names and addresses. The server may also be a client, as members of an
    /// etcd cluster are.
    ///
    /// # Errors
    /// If a name is invalid, or the files cannot be written.
    pub fn server(&self, name: &str, names: &[&str]) -> Result<Identity> {
        let mut params = CertificateParams::new(names.iter().map(ToString::to_string).collect::<Vec<_>>())?;
        params.distinguished_name = named(name).distinguished_name;
        params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ServerAuth, ExtendedKeyUsagePurpose::ClientAuth];
        self.issue(name, params)
    }

    fn issue(&self, name: &str, mut params: CertificateParams) -> Result<Identity> {
        params.use_authority_key_identifier_extension = true;
        params.key_usages = vec![KeyUsagePurpose::DigitalSignature];
        let key = KeyPair::generate()?;
        let file = name.replace([':', '/'], "-");
        let identity = Identity {
            certificate: self.folder.join(format!("{}-{file}.crt", self.name)),
            key: self.folder.join(format!("{}-{file}.key", self.name)),
        };
        std::fs::write(&identity.certificate, params.signed_by(&key, &self.issuer)?.pem())?;
        std::fs::write(&identity.key, key.serialize_pem())?;
        Ok(identity)
    }
}

fn named(common_name: &str) -> CertificateParams {
    let mut params = CertificateParams::default();
    params.distinguished_name = rcgen::DistinguishedName::new();
    params.distinguished_name.push(DnType::CommonName, common_name);
    params
}
