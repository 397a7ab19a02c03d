//! The evidence of experiments comes from API servers only: a pod without a token can add nothing to it.

use anyhow::{Result, ensure};
use hyper::StatusCode;

use super::{Previews as _, candidate, make_live, until_loaded};
use crate::support::cluster::{POD, TestEnv, revision};
use crate::support::{forbid, pod};

const TOKEN: &str = "0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef";
const GUESSED: &str = "0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdee";

#[tokio::test]
async fn a_caller_without_a_token_gets_no_verdict_and_adds_no_evidence() -> Result<()> {
    let env = TestEnv::start("previews-callers").await?;
    let folder = tempfile::tempdir()?;
    let tokens = folder.path().join("tokens");
    std::fs::write(&tokens, format!("{TOKEN}\n"))?;
    let mut command = env.command(POD, "pod-1");
    command.arg("--caller-tokens").arg(&tokens);
    let server = TestEnv::run(command).await?;
    env.create(&revision("a", 1, &forbid("false", ""))).await?;
    env.create(&candidate("a", "stricter", &forbid("true", "two"))).await?;
    until_loaded(&server, "cluster.a-1").await;
    until_loaded(&server, "experiment.cluster.stricter-1").await;
    make_live(&env, &server, "cluster.a", 1).await?;

    let endpoints = ["/validate/cluster.a/1", "/audit/cluster.a/1", "/preview/cluster.a/stricter/1"];
    for endpoint in endpoints {
        for forged in [endpoint.to_owned(), format!("/t/{GUESSED}{endpoint}")] {
            let answer = server.post(&forged, pod("forged", "x").to_string()).await;
            ensure!(answer.status == StatusCode::UNAUTHORIZED, "{forged}: {}", answer.text);
        }
    }
    ensure!(server.count("proviso_requests_refused_total", &["unknown_caller"]).await == 6);
    // The request of an API server counts, and it is the only one.
    let answer = server.post(&format!("/t/{TOKEN}/validate/cluster.a/1"), pod("real", "x").to_string()).await;
    ensure!(answer.is_allowed(), "{}", answer.text);
    let counts = env.until_counted("experiment.cluster.stricter-1", |counts| counts.newly_denied > 0).await?.counts;
    ensure!(counts.newly_denied == 1, "{counts:?}");
    let previews = server.previews();
    ensure!(previews.iter().all(|line| line["request"]["uid"] == "real"), "{previews:#?}");
    Ok(())
}
