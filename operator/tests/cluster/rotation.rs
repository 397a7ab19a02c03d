//! Authority, certificates and keys that are replaced every few seconds, with two operators at work: at every moment the
//! API server trusts what a replica shows, also a replica that reads its files a moment later.

use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};
use k8s_openapi::api::core::v1::Secret;
use proviso_e2e::until;
use rcgen::PublicKeyData as _;
use rustls_pki_types::pem::PemObject as _;
use rustls_pki_types::{CertificateDer, ServerName, UnixTime};
use serde_json::json;
use webpki::{ALL_VERIFICATION_ALGS, EndEntityCert, KeyUsage, anchor_from_trusted_cert};

use crate::stage::{NAMESPACE, PATIENCE, Stage};

/// A replica may notice a new certificate, and an API server a new bundle, so much later. Less than a third of the time that
/// is left for that: on a busy machine the operator publishes a bundle some time after it has announced an authority.
const DELAY: Duration = Duration::from_millis(1500);
/// More than two lives of an authority.
const PATIENCE_WITH_ALL: Duration = Duration::from_mins(2);

/// Whether an API server with this bundle talks to a replica with this certificate, as Kubernetes' own TLS judges.
fn verify(certificate: &str, bundle: &str) -> Result<()> {
    let certificate = CertificateDer::from_pem_slice(certificate.as_bytes())?;
    let authorities = CertificateDer::pem_slice_iter(bundle.as_bytes()).collect::<Result<Vec<_>, _>>()?;
    let anchors = authorities.iter().map(anchor_from_trusted_cert).collect::<Result<Vec<_>, _>>()?;
    let certificate = EndEntityCert::try_from(&certificate)?;
    let (now, usage) = (UnixTime::now(), KeyUsage::server_auth());
    certificate.verify_for_usage(ALL_VERIFICATION_ALGS, &anchors, &[], now, usage, None, None)?;
    for name in [
        format!("policy-server-default.{NAMESPACE}.svc"),
        format!("policy-server-default-0.policy-server-default-replicas.{NAMESPACE}.svc"),
    ] {
        certificate.verify_is_valid_for_subject_name(&ServerName::try_from(name)?)?;
    }
    Ok(())
}

/// What was seen one after the other, and when each was seen last.
#[derive(Default)]
struct Seen(Vec<(Instant, String)>);

impl Seen {
    fn see(&mut self, text: &str) {
        match self.0.last_mut() {
            Some((at, last)) if last == text => *at = Instant::now(),
            _ => self.0.push((Instant::now(), text.to_owned())),
        }
    }

    /// Those that somebody may still go by.
    fn in_use(&self) -> impl Iterator<Item = &str> {
        self.0.iter().filter(|(at, _)| at.elapsed() < DELAY).map(|(_, text)| text.as_str())
    }
}

/// A text of several PEM blocks as these.
fn blocks(text: &str) -> Vec<&str> {
    let ends = text.match_indices("-----END").filter_map(|(at, _)| Some(at + text[at..].find('\n')? + 1));
    let mut start = 0;
    ends.map(|end| &text[std::mem::replace(&mut start, end)..end]).collect()
}

#[tokio::test]
async fn nobody_is_refused_while_everything_is_replaced() -> Result<()> {
    let mut stage = Stage::start("servers-rotation").await?;
    for _ in 0..2 {
        stage.start_operator(&[
            "--authority-lifetime=24s",
            "--certificate-lifetime=9s",
            "--signing-key-lifetime=18s",
            "--announcement=5s",
            "--authority-retirement=5s",
            "--signing-key-retirement=5s",
        ])?;
    }
    stage.server("default", json!({})).await?;
    let pod = "policy-server-default-0";
    until(pod, PATIENCE, async || stage.ready(pod).await).await?;
    stage.policy("a", "default", "true").await?;
    stage.serve("cluster.a-1", pod).await?;
    until("a live policy", PATIENCE, async || stage.published("a").await).await?;

    let (mut certificates, mut bundles, mut keys) = (Seen::default(), Seen::default(), Seen::default());
    let start = Instant::now();
    while bundles.0.len() < 3 || certificates.0.len() < 4 || keys.0.len() < 4 {
        ensure!(start.elapsed() < PATIENCE_WITH_ALL, "after {:?} not everything was replaced", start.elapsed());
        bundles.see(&stage.published("a").await?);
        let tls = stage.api::<Secret>().get("policy-server-default-tls").await?.data.context("data")?;
        let text = |key: &str| String::from_utf8(tls[key].0.clone());
        let (certificate, key) = (text("tls.crt")?, rcgen::KeyPair::from_pem(&text("tls.key")?)?);
        let der = CertificateDer::from_pem_slice(certificate.as_bytes())?;
        let (_, parsed) = x509_parser::parse_x509_certificate(&der)?;
        ensure!(parsed.public_key().raw == key.subject_public_key_info(), "the key is of another certificate");
        certificates.see(&certificate);
        for certificate in certificates.in_use() {
            for bundle in bundles.in_use() {
                let context = || format!("after {:?}: {certificate} by {bundle}", start.elapsed());
                verify(certificate, bundle).with_context(context)?;
            }
        }
        keys.see(&stage.secret("policy-server-default-signing", "signing.key").await?);
        tokio::time::sleep(Duration::from_millis(20)).await;
    }

    // An authority is one, then two, then the other one.
    let authorities: Vec<_> = bundles.0.iter().map(|(_, bundle)| blocks(bundle)).collect();
    let (first, both, second) = (&authorities[0], &authorities[1], &authorities[2]);
    ensure!((first.len(), both.len(), second.len()) == (1, 2, 1), "{authorities:?}");
    ensure!(both.contains(&first[0]) && both.contains(&second[0]) && first != second, "{authorities:?}");
    // A key verifies before it signs and after it signed.
    let keys: Vec<_> = keys.0.iter().map(|(_, keys)| blocks(keys)).collect();
    let (old, new) = (keys[0][0], keys[1][1]);
    ensure!(keys[..4] == [vec![old], vec![old, new], vec![new, old], vec![new]] && old != new, "the keys' order");
    for key in [old, new] {
        rcgen::KeyPair::from_pem_and_sign_algo(key, &rcgen::PKCS_ED25519)?;
    }
    // Nobody is busy with nothing: a certificate lasts for 6 s.
    let most = 3 + start.elapsed().as_secs() / 4;
    ensure!(certificates.0.len() as u64 <= most, "{} certificates, not {most}", certificates.0.len());
    Ok(())
}
