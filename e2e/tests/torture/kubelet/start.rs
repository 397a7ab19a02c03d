//! The starts of processes: their programs, arguments, networks and ports.

use anyhow::{Context as _, Result};
use k8s_openapi::api::core::v1::Pod;
use kube::api::{Patch, PatchParams};
use proviso_e2e::torture::plan::Version;
use proviso_e2e::{Invocation, Port};
use serde_json::json;

use super::instance::{Instance, Invocations, Role, Setup, probe_client};
use super::pods::{self, Identity, Mount};
use super::{FINALIZER, OPERATOR_SERVICE, Programs, State};
use crate::objects::NAMESPACE;
use crate::recorder::lock;

impl State {
    /// Starts the process of a pod. The image of its container names its version.
    pub(super) async fn start_replica(&self, pod: &Pod, name: &str, uid: &str) -> Result<()> {
        let finalizers = Patch::Merge(json!({"metadata": {"uid": uid, "finalizers": [FINALIZER]}}));
        self.objects.pods.patch(name, &PatchParams::default(), &finalizers).await?;
        let own = self.settings.volumes.join(uid);
        let mounts = pods::mounts(pod, &own, &self.settings.cache)?;
        for mount in &mounts {
            mount.write(&self.client).await?;
        }
        let container = pod.spec.as_ref().and_then(|spec| spec.containers.first()).context("no container")?;
        let is_other = container.image.as_ref() == Some(&self.settings.other_image);
        let version = if is_other { Version::Other } else { Version::This };
        let role = Role::Replica { uid: uid.to_owned() };
        let setup = self.setup(name, role, &self.settings.server, mounts).await?;
        let (listen, admin) = self.addresses(&setup);
        let identity = Identity { pod: name, uid, listen: &listen, admin: &admin };
        let arguments = pods::arguments(container, &identity, &setup.mounts);
        let variables = container.env.iter().flatten();
        let variables = variables.filter_map(|variable| Some((variable.name.as_str(), variable.value.as_deref()?)));
        // At the idle priority, previews would not run on a busy machine.
        let variables: Vec<_> = variables.chain([("PROVISO_PREVIEW_PRIORITY", "normal")]).collect();
        let invocations = setup.invocations.map(|invocation| {
            let invocation = invocation.arguments(&arguments);
            variables.iter().fold(invocation, |all, (name, value)| all.variable(name, value))
        });
        self.add(name, Setup { invocations, ..setup }, version)
    }

    pub(super) async fn start_operator(&self, number: u64, version: Version) -> Result<()> {
        let name = format!("operator-{number}");
        let setup = self.setup(&name, Role::Operator, &self.settings.operator, Vec::new()).await?;
        let (listen, admin) = self.addresses(&setup);
        let retire_after = format!("{}s", self.settings.retire_after.as_secs());
        let arguments = [
            ("--namespace", NAMESPACE),
            ("--identity", &name),
            ("--log-format", "json"),
            ("--policy-server-image", "registry.example.com/policy-server:1"),
            ("--service", OPERATOR_SERVICE),
            ("--listen", &listen),
            ("--admin-listen", &admin),
            ("--retire-after", &retire_after),
            ("--shutdown-delay", "1s"),
        ];
        let arguments = arguments.into_iter().flat_map(|(name, value)| [name, value]);
        let arguments: Vec<_> = arguments.collect();
        let invocations = setup.invocations.map(|invocation| invocation.arguments(&arguments));
        self.add(&name, Setup { invocations, ..setup }, version)
    }

    /// Prepares the network, the ports and the log of a process. The invocations have no arguments yet.
    async fn setup(&self, name: &str, role: Role, programs: &Programs, mounts: Vec<Mount>) -> Result<Setup> {
        let link = self.links.create(name).await?;
        let ports = [Port::reserve()?, Port::reserve()?];
        let invocations =
            Invocations { this: Invocation::new(&programs.this), other: Invocation::new(&programs.other) };
        Ok(Setup {
            name: name.to_owned(),
            role,
            invocations: invocations.map(|invocation| invocation.variable("KUBECONFIG", &link.kubeconfig)),
            log: self.settings.logs.join(format!("{name}.log")),
            link,
            probe: probe_client(&ports[1])?,
            ports,
            mounts,
        })
    }

    /// Returns the addresses of a process for reviews and for probes.
    fn addresses(&self, setup: &Setup) -> (String, String) {
        let [listen, admin] = &setup.ports;
        (format!("{}:{}", self.settings.host, listen.number()), format!("127.0.0.1:{}", admin.number()))
    }

    fn add(&self, name: &str, setup: Setup, version: Version) -> Result<()> {
        let instance = Instance::start(setup, version)?;
        lock(&self.instances).insert(name.to_owned(), instance);
        Ok(())
    }
}
