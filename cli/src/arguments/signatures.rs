//! The arguments for the signatures that a module must have: of `proviso verify`, `proviso pull` and `proviso run`.

use std::path::PathBuf;

use clap::builder::NonEmptyStringValueParser;
use clap::{ArgGroup, Args};

/// The required signatures: those that a file names, or all those that the other options name.
#[derive(Args, Clone, Debug, Default)]
#[allow(clippy::doc_markdown, reason = "the doc comments are the help text that a terminal shows")]
#[command(
    next_help_heading = "Signatures",
    group = ArgGroup::new("signer").multiple(true),
    group = ArgGroup::new("signatures").multiple(true)
)]
pub struct Signatures {
    /// File with the required signatures, as for a policy server (Kubewarden's verification settings)
    #[arg(long, value_name = "FILE", conflicts_with = "signer", group = "signatures")]
    pub verification_config_path: Option<PathBuf>,

    /// File with a public key that the module must be signed with; may be repeated, and then each key is required
    #[arg(long = "verification-key", short = 'k', value_name = "FILE", groups = ["signer", "signatures"])]
    pub keys: Vec<PathBuf>,

    /// Email address that a keyless signature must have in its certificate
    #[arg(
        long,
        value_name = "EMAIL",
        value_parser = NonEmptyStringValueParser::new(),
        requires = "cert_oidc_issuer",
        groups = ["signer", "signatures"]
    )]
    pub cert_email: Option<String>,

    /// OIDC issuer that the certificate must have with --cert-email, such as https://accounts.google.com
    #[arg(long, value_name = "URL", value_parser = NonEmptyStringValueParser::new(), requires = "cert_email")]
    pub cert_oidc_issuer: Option<String>,

    /// GitHub owner with the repository whose workflow must have signed the module
    #[arg(
        long,
        value_name = "OWNER",
        value_parser = NonEmptyStringValueParser::new(),
        groups = ["signer", "signatures"]
    )]
    pub github_owner: Option<String>,

    /// Repository of --github-owner whose workflow must have signed the module
    #[arg(long, value_name = "REPOSITORY", value_parser = NonEmptyStringValueParser::new(), requires = "github_owner")]
    pub github_repo: Option<String>,

    /// Annotation that each signature must contain; may be repeated
    #[arg(
        long = "verification-annotation",
        visible_alias = "annotation",
        short = 'a',
        value_name = "KEY=VALUE",
        value_parser = annotation,
        requires = "signer"
    )]
    pub annotations: Vec<(String, String)>,

    /// File with Sigstore's trusted root (trusted_root.json), which keyless signatures are verified with
    #[arg(long, visible_alias = "trust-root", value_name = "FILE", requires = "signatures")]
    pub trusted_root: Option<PathBuf>,
}

impl Signatures {
    /// Returns true if a signature is required.
    #[must_use]
    pub fn is_any(&self) -> bool {
        self.verification_config_path.is_some() || self.names_signers()
    }

    /// Returns true if options other than the file name required signers.
    #[must_use]
    pub fn names_signers(&self) -> bool {
        !self.keys.is_empty() || self.cert_email.is_some() || self.github_owner.is_some()
    }
}

fn annotation(text: &str) -> Result<(String, String), String> {
    match text.split_once('=') {
        Some((key, value)) if !key.is_empty() => Ok((key.to_owned(), value.to_owned())),
        _ => Err("is not a key and a value, such as env=prod".to_owned()),
    }
}
