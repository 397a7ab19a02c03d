//! Runs the commands of a how-to guide as they are written.

use std::path::Path;

use anyhow::{Context as _, Result, ensure};
use proviso_e2e::console::{Console, steps};

use crate::test_cluster::{TestCluster, WAIT_TIMEOUT};

pub async fn the_guide_of_experiments_as_written(cluster: &TestCluster) -> Result<()> {
    let repository = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
    let steps = steps(&std::fs::read_to_string(repository.join("docs/how-to/preview-a-change.md"))?);
    ensure!(steps.len() > 20, "only {} commands", steps.len());
    let kubectl = cluster.kubectl.program().parent().context("the folder of kubectl")?;
    let mut console = Console::new(&repository, &[&cluster.plugins, kubectl], WAIT_TIMEOUT)
        .variable("KUBECONFIG", cluster.node.kubeconfig().as_os_str());
    for step in &steps {
        console.run(step).await?;
    }
    Ok(())
}
