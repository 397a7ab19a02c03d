//! The rotation of the CA, certificates and keys every few seconds, with two operators. At every moment the API
//! server trusts the certificate of a replica, even if the replica reloads its files a moment later.

mod replica;

use std::cell::Cell;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};
use k8s_openapi::api::core::v1::Secret;
use proviso_e2e::until;
use rcgen::PublicKeyData as _;
use rustls_pki_types::pem::PemObject as _;
use rustls_pki_types::{CertificateDer, ServerName, UnixTime};
use serde_json::json;
use webpki::{ALL_VERIFICATION_ALGS, EndEntityCert, KeyUsage, anchor_from_trusted_cert};

use crate::test_cluster::{NAMESPACE, POD, TIMEOUT, TestCluster};
use replica::CalledReplica;

/// The delay after which a replica has loaded a new certificate, and an API server a new bundle. Less than a third of
/// the announcement time: on a busy machine the operator publishes a bundle some time after it has announced a CA.
const DELAY: Duration = Duration::from_millis(1500);
/// The time limit of the test: more than two lifetimes of a CA.
const ROTATION_TIMEOUT: Duration = Duration::from_mins(2);
/// The smallest number of requests of the API server to the replica, and of their connections, during the rotation.
const MIN_REQUESTS: u32 = 200;
const MIN_CONNECTIONS: usize = 20;

/// Checks that an API server with this bundle trusts a replica with this certificate, as the TLS of Kubernetes does.
pub fn verify(certificate: &str, bundle: &str) -> Result<()> {
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

/// The observed values in order, and the time of the last observation of each.
#[derive(Default)]
struct History(Vec<(Instant, String)>);

impl History {
    fn record(&mut self, text: &str) {
        match self.0.last_mut() {
            Some((at, last)) if last == text => *at = Instant::now(),
            _ => self.0.push((Instant::now(), text.to_owned())),
        }
    }

    /// Returns the values that a replica or an API server may still use.
    fn in_use(&self) -> impl Iterator<Item = &str> {
        self.0.iter().filter(|(at, _)| at.elapsed() < DELAY).map(|(_, text)| text.as_str())
    }
}

/// Splits a text into its PEM blocks.
fn blocks(text: &str) -> Vec<&str> {
    let ends = text.match_indices("-----END").filter_map(|(at, _)| Some(at + text[at..].find('\n')? + 1));
    let mut start = 0;
    ends.map(|end| &text[std::mem::replace(&mut start, end)..end]).collect()
}

/// The values of a rotation.
#[derive(Default)]
struct Rotation {
    certificates: History,
    bundles: History,
    signing_keys: History,
    caller_tokens: History,
}

/// Returns the certificates of the replica, the published bundles, the signing keys and the caller tokens of a rotation of all of them.
/// Checks that at each moment an API server trusts the replica.
async fn observe(cluster: &TestCluster, start: Instant) -> Result<Rotation> {
    let mut rotation = Rotation::default();
    let Rotation { certificates, bundles, signing_keys: keys, caller_tokens } = &mut rotation;
    while bundles.0.len() < 3 || certificates.0.len() < 4 || keys.0.len() < 4 || caller_tokens.0.len() < 4 {
        ensure!(start.elapsed() < ROTATION_TIMEOUT, "after {:?} not everything was replaced", start.elapsed());
        bundles.record(&cluster.published_bundle("a").await?);
        let tls = cluster.api::<Secret>().get("policy-server-default-tls").await?.data.context("data")?;
        let text = |key: &str| String::from_utf8(tls[key].0.clone());
        let (certificate, key) = (text("tls.crt")?, rcgen::KeyPair::from_pem(&text("tls.key")?)?);
        let der = CertificateDer::from_pem_slice(certificate.as_bytes())?;
        let (_, parsed) = x509_parser::parse_x509_certificate(&der)?;
        ensure!(parsed.public_key().raw == key.subject_public_key_info(), "the key is of another certificate");
        certificates.record(&certificate);
        for certificate in certificates.in_use() {
            for bundle in bundles.in_use() {
                let context = || format!("after {:?}: {certificate} by {bundle}", start.elapsed());
                verify(certificate, bundle).with_context(context)?;
            }
        }
        keys.record(&cluster.secret("policy-server-default-signing", "signing.key").await?);
        caller_tokens.record(&cluster.secret("policy-server-default-callers", "tokens").await?);
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    Ok(rotation)
}

#[tokio::test]
async fn rotation_never_breaks_trust_in_a_replica() -> Result<()> {
    let mut cluster = TestCluster::start("servers-rotation").await?;
    for _ in 0..2 {
        cluster.start_operator(&[
            "--authority-lifetime=24s",
            "--certificate-lifetime=9s",
            "--signing-key-lifetime=18s",
            "--caller-token-lifetime=18s",
            "--announcement=5s",
            "--authority-retirement=5s",
            "--signing-key-retirement=5s",
            "--caller-token-retirement=5s",
        ])?;
    }
    cluster.apply_server("default", json!({})).await?;
    until(POD, TIMEOUT, async || cluster.make_ready(POD).await).await?;
    cluster.apply_policy("a", "default", "true").await?;
    cluster.serve("cluster.a-1", POD).await?;
    until("a live policy", TIMEOUT, async || cluster.published_bundle("a").await).await?;

    let start = Instant::now();
    let replica = CalledReplica::start(&cluster).await?;
    let answered = Cell::new(0);
    let Rotation { certificates, bundles, signing_keys: keys, caller_tokens } = tokio::select! {
        observed = observe(&cluster, start) => observed?,
        // The API server verifies the certificate of the replica at each new connection, and the replica verifies its token.
        failed = replica.ask(&cluster, &answered) => return failed,
    };
    let (requests, connections) = (answered.get(), replica.connections());
    let is_enough = requests >= MIN_REQUESTS && connections >= MIN_CONNECTIONS;
    ensure!(is_enough, "{requests} requests on {connections} connections");

    // The bundle has one CA, then both, and then the other one.
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
    // A token is accepted before webhooks send it, and after that.
    let tokens: Vec<Vec<_>> = caller_tokens.0.iter().map(|(_, tokens)| tokens.lines().collect()).collect();
    let (old, new) = (tokens[0][0], tokens[1][1]);
    ensure!(tokens[..4] == [vec![old], vec![old, new], vec![new, old], vec![new]] && old != new, "{tokens:?}");
    ensure!(replica.tokens() >= 2, "the webhook has sent {} tokens", replica.tokens());
    ensure!(!cluster.log()?.contains(old) && !cluster.log()?.contains(new), "a token is in the log");
    // No certificate is renewed too early: a certificate lasts for 6 s.
    let most = 3 + start.elapsed().as_secs() / 4;
    ensure!(certificates.0.len() as u64 <= most, "{} certificates, not {most}", certificates.0.len());
    Ok(())
}

#[tokio::test]
async fn a_certificate_that_expired_without_an_operator_is_replaced() -> Result<()> {
    const SECRET: &str = "policy-server-default-tls";
    let mut cluster = TestCluster::start("servers-expired-certificate").await?;
    let short = "--certificate-lifetime=6s";
    cluster.start_operator(&[short])?;
    cluster.create_policy_server().await?;
    cluster.make_live("a", "true").await?;
    cluster.operators.clear();
    let (expired, bundle) = (cluster.secret(SECRET, "tls.crt").await?, cluster.published_bundle("a").await?);
    until("the end of the certificate", TIMEOUT, async || {
        let error = verify(&expired, &bundle).err().context("it is valid")?;
        ensure!(format!("{error:?}").contains("CertExpired"), "{error:?}");
        Ok(())
    })
    .await?;

    cluster.start_operator(&[short])?;
    until("a valid certificate", TIMEOUT, async || {
        let (certificate, bundle) = (cluster.secret(SECRET, "tls.crt").await?, cluster.published_bundle("a").await?);
        ensure!(certificate != expired, "the expired certificate");
        verify(&certificate, &bundle)?;
        // The key belongs to the certificate.
        let key = rcgen::KeyPair::from_pem(&cluster.secret(SECRET, "tls.key").await?)?;
        let der = CertificateDer::from_pem_slice(certificate.as_bytes())?;
        let (_, parsed) = x509_parser::parse_x509_certificate(&der)?;
        ensure!(parsed.public_key().raw == key.subject_public_key_info(), "the key is of another certificate");
        Ok(())
    })
    .await
}
