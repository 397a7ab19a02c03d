//! kubelet and kube-proxy of a node: their configuration.

use std::path::Path;

use anyhow::Result;
use serde_json::{Value, json};

use super::address::{ADDRESS, DNS, NAME};
use super::runtime;
use crate::ControlPlane;
use crate::process::Invocation;

/// Writes kubelet's configuration and says how to run it.
pub(super) fn kubelet(programs: &Path, plane: &ControlPlane) -> Result<Invocation> {
    let folder = plane.folder().path();
    let authority = &plane.secrets().cluster;
    let server = authority.server("kubelet-server", &[NAME, &ADDRESS.to_string(), "127.0.0.1"])?;
    // Pods that ask for the DNS of their node ask nobody: there is no way out.
    let resolver = folder.join("resolv.conf");
    std::fs::write(&resolver, "nameserver 127.0.0.1\n")?;
    let file = write(
        &folder.join("kubelet.yaml"),
        &json!({
            "apiVersion": "kubelet.config.k8s.io/v1beta1",
            "kind": "KubeletConfiguration",
            "authentication": {
                "anonymous": {"enabled": false},
                "webhook": {"enabled": true},
                "x509": {"clientCAFile": authority.certificate()},
            },
            "authorization": {"mode": "Webhook"},
            "tlsCertFile": server.certificate,
            "tlsPrivateKeyFile": server.key,
            "containerRuntimeEndpoint": format!("unix://{}", runtime::SOCKET),
            "cgroupDriver": "cgroupfs",
            // Kubernetes has deprecated it; machines that still have it can run these tests.
            "failCgroupV1": false,
            "failSwapOn": false,
            "clusterDomain": "cluster.local",
            "clusterDNS": [DNS],
            "resolvConf": resolver,
            "serializeImagePulls": false,
            // A full disk of a developer is no reason to evict.
            "imageGCHighThresholdPercent": 100,
            "evictionHard": {"memory.available": "100Mi", "nodefs.available": "100Mi", "imagefs.available": "100Mi"},
            // Made if missing; the default is in the host's /usr.
            "volumePluginDir": "/run/kubelet-volume-plugins",
        }),
    )?;
    let login = plane.login("kubelet", &format!("system:node:{NAME}"), Some("system:nodes"))?;
    Ok(Invocation::new(programs.join("kubelet"))
        .flag("config", file)
        .flag("kubeconfig", login)
        .flag("hostname-override", NAME)
        .flag("node-ip", ADDRESS.to_string()))
}

/// Writes kube-proxy's configuration and says how to run it.
pub(super) fn kube_proxy(programs: &Path, plane: &ControlPlane) -> Result<Invocation> {
    let login = plane.login("kube-proxy", "system:kube-proxy", None)?;
    let file = write(
        &plane.folder().path().join("kube-proxy.yaml"),
        &json!({
            "apiVersion": "kubeproxy.config.k8s.io/v1alpha1",
            "kind": "KubeProxyConfiguration",
            "clientConnection": {"kubeconfig": login},
            "hostnameOverride": NAME,
            "mode": "iptables",
            "clusterCIDR": runtime::PODS,
            // Limits of connection tracking are the machine's: leave them alone.
            "conntrack": {"maxPerCore": 0, "min": 0, "tcpEstablishedTimeout": "0s", "tcpCloseWaitTimeout": "0s"},
            "iptables": {"minSyncPeriod": "100ms"},
        }),
    )?;
    Ok(Invocation::new(programs.join("kube-proxy")).flag("config", file))
}

fn write(file: &Path, content: &Value) -> Result<std::path::PathBuf> {
    std::fs::write(file, serde_yaml::to_string(content)?)?;
    Ok(file.to_owned())
}
