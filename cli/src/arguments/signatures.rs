//! Which signatures a module must have: the arguments of `proviso verify`, `proviso pull` and `proviso run`.

use std::path::PathBuf;

use clap::builder::NonEmptyStringValueParser;
use clap::{ArgGroup, Args};

/// What is wanted, each in one of two ways: by a file, or by these options, all of which must then be met.
#[derive(Args, Clone, Debug, Default)]
#[allow(clippy::doc_markdown, reason = "the doc comments are the help text that a terminal shows")]
#[command(
    next_help_heading = "Signatures",
    group = ArgGroup::new("signer").multiple(true),
    group = ArgGroup::new("signatures").multiple(true)
)]
pub struct Signatures {
    /// File with the signatures that the module needs, as of a policy server (Kubewarden's verification settings)
    #[arg(long, value_name = "FILE", conflicts_with = "signer", group = "signatures")]
    pub verification_config_path: Option<PathBuf>,

    /// File with a public key that the module must be signed with; may be repeated: each of them
    #[arg(long = "verification-key", short = 'k', value_name = "FILE", groups = ["signer", "signatures"])]
    pub keys: Vec<PathBuf>,

    /// Who must have signed, as the certificate names them
    #[arg(
        long,
        value_name = "EMAIL",
        value_parser = NonEmptyStringValueParser::new(),
        requires = "cert_oidc_issuer",
        groups = ["signer", "signatures"]
    )]
    pub cert_email: Option<String>,

    /// Who vouches for --cert-email, such as https://accounts.google.com
    #[arg(long, value_name = "URL", value_parser = NonEmptyStringValueParser::new(), requires = "cert_email")]
    pub cert_oidc_issuer: Option<String>,

    /// A workflow in a repository of this GitHub owner must have signed
    #[arg(
        long,
        value_name = "OWNER",
        value_parser = NonEmptyStringValueParser::new(),
        groups = ["signer", "signatures"]
    )]
    pub github_owner: Option<String>,

    /// A workflow in this repository of --github-owner
    #[arg(long, value_name = "REPOSITORY", value_parser = NonEmptyStringValueParser::new(), requires = "github_owner")]
    pub github_repo: Option<String>,

    /// What each signature must have signed along; may be repeated
    #[arg(
        long = "verification-annotation",
        visible_alias = "annotation",
        short = 'a',
        value_name = "KEY=VALUE",
        value_parser = annotation,
        requires = "signer"
    )]
    pub annotations: Vec<(String, String)>,

    /// Sigstore's trusted_root.json, which vouches for names and certificates
    #[arg(long, visible_alias = "trust-root", value_name = "FILE", requires = "signatures")]
    pub trusted_root: Option<PathBuf>,
}

impl Signatures {
    /// Whether any is wanted.
    #[must_use]
    pub fn is_any(&self) -> bool {
        self.verification_config_path.is_some() || self.names_signers()
    }

    /// Whether options other than the file say who must have signed.
    #[must_use]
    pub fn names_signers(&self) -> bool {
        !self.keys.is_empty() || self.cert_email.is_some() || self.github_owner.is_some()
    }
}

fn annotation(text: &str) -> Result<(String, String), String> {
    match text.split_once('=') {
        Some((key, value)) if !key.is_empty() => Ok((key.to_owned(), value.to_owned())),
        _ => Err("is not like env=prod".to_owned()),
    }
}
