//! The pins of modules: the module that the first leader pins is the module of the generation. A moved tag, a change of the leader
//! and a late write of a former leader do not change it.

use anyhow::{Result, ensure};
use proviso_artifacts::Digest;
use proviso_e2e::{Fault, Link, Registry};
use rustix::process::Signal;
use serde_json::{Value, json};

use crate::support::cluster::{TestEnv, condition, revision};
use crate::support::modules::{RegistryEnv, denying, until_answered};
use crate::support::{Server, forbid};

/// Two replicas without a common cache. The former leader has a network proxy to the API server.
struct TwoLeaders {
    env: RegistryEnv,
    former: Server,
    link: Link,
    next: Server,
}

impl TwoLeaders {
    async fn start(test: &str) -> Result<Self> {
        let env = Box::pin(RegistryEnv::start(test)).await?;
        let link = env.cluster.link("former").await?;
        let mut command = env.command("pod-0", &env.path("cache-0"));
        command.env("KUBECONFIG", &link.kubeconfig);
        let former = TestEnv::run(command).await?;
        ensure!(env.cluster.leader().await? == "pod-0");
        let next = env.replica("pod-1", &env.path("cache-1")).await?;
        Ok(Self { env, former, link, next })
    }

    /// Creates a revision with this module, and cuts the leader off from the API server while it fetches the module.
    async fn isolate_leader(&mut self, name: &str, message: &str) -> Result<()> {
        self.env.registry.push(name, "v1", Registry::MODULE, &denying(message)).await?;
        self.env.registry.process().freeze()?;
        self.env.create(name, &json!({"module": self.env.module(&format!("{name}:v1"))})).await?;
        self.former.until_details(&format!("[ ] cluster.{name}-1 is being loaded")).await;
        // The next leader does not take over before the test says so.
        self.next.signal(Signal::STOP);
        self.link.proxy.set(Fault::Hang);
        Ok(())
    }

    /// Waits until the next leader has pinned its module and serves the revision. Returns the pins and the condition `Initialized`.
    async fn until_led_by_next(&self, name: &str, message: &str) -> Result<(Value, Value)> {
        self.next.signal(Signal::CONT);
        self.env.cluster.expire_lease().await?;
        until_answered(&self.next, name, message).await?;
        self.status(name, "pod-1").await
    }

    /// Ends the isolation: the API server receives the late write of the former leader. Waits until the former leader serves the
    /// module of its successor. Returns the pins and the condition `Initialized`.
    async fn until_reunited(&self, name: &str, message: &str) -> Result<(Value, Value)> {
        self.link.proxy.set(Fault::None);
        until_answered(&self.former, name, message).await?;
        self.status(name, "pod-0").await
    }

    /// Waits until a replica serves the revision. Returns the pins and the condition `Initialized`.
    async fn status(&self, name: &str, uid: &str) -> Result<(Value, Value)> {
        let status = self.env.cluster.until_reported(&format!("cluster.{name}-1"), uid, "True", "Loaded").await?;
        Ok((status["modules"].clone(), condition(&status, "Initialized")?.clone()))
    }

    /// Returns the pins of a revision with this module.
    fn pins(&self, name: &str, message: &str) -> Value {
        let digest = Digest::of(&denying(message)).to_string();
        json!([{"module": self.env.module(&format!("{name}:v1")), "digest": digest}])
    }
}

#[tokio::test]
async fn a_replica_that_loaded_another_module_than_the_pinned_one_loads_the_pinned_one() -> Result<()> {
    let mut leaders = TwoLeaders::start("a-tag-moves-between-leaders").await?;
    leaders.isolate_leader("moved", "one").await?;
    leaders.env.registry.process().thaw()?;
    until_answered(&leaders.former, "moved", "one").await?;
    // The former leader has loaded a module and has not pinned it. The next leader fetches another module for the same tag.
    leaders.env.registry.push("moved", "v1", Registry::MODULE, &denying("two")).await?;
    let reported = leaders.until_led_by_next("moved", "two").await?;
    ensure!(reported.0 == leaders.pins("moved", "two"), "{}", reported.0);
    let after = leaders.until_reunited("moved", "two").await?;
    ensure!(after == reported, "the former leader changed {reported:?} to {after:?}");
    Ok(())
}

#[tokio::test]
async fn a_late_failure_of_a_former_leader_changes_nothing() -> Result<()> {
    let mut leaders = TwoLeaders::start("a-late-failure-of-a-leader").await?;
    leaders.isolate_leader("late", "late").await?;
    leaders.env.registry.process().kill();
    leaders.former.until_details("[-] cluster.late-1 is not served: PullError").await;
    leaders.env.registry.process().restart()?;
    let reported = leaders.until_led_by_next("late", "late").await?;
    ensure!(reported.0 == leaders.pins("late", "late") && reported.1["status"] == "True", "{reported:?}");
    let after = leaders.until_reunited("late", "late").await?;
    ensure!(after == reported, "the former leader changed {reported:?} to {after:?}");
    Ok(())
}

#[tokio::test]
async fn the_api_server_refuses_to_change_a_pin() -> Result<()> {
    let env = TestEnv::start("pins-are-immutable").await?;
    env.create(&revision("a", 1, &forbid("true", "one"))).await?;
    let pin =
        |module: &str, content: &str| json!({"module": module, "digest": Digest::of(content.as_bytes()).to_string()});
    let set = async |pins: Value| env.patch_status("cluster.a-1", &json!({"modules": pins})).await;
    set(json!([pin("a", "one")])).await?;
    set(json!([pin("a", "one"), pin("b", "two")])).await?;
    let refused = set(json!([pin("a", "one"), pin("b", "three")])).await.err().map(|error| format!("{error:#}"));
    ensure!(refused.as_ref().is_some_and(|error| error.contains("a pinned module is immutable")), "{refused:?}");
    let status = env.revisions.get("cluster.a-1").await?.data["status"].clone();
    ensure!(status["modules"] == json!([pin("a", "one"), pin("b", "two")]), "{status:#}");
    Ok(())
}
