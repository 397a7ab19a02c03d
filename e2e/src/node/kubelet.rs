//! The configuration of kubelet and kube-proxy.

use std::path::Path;

use anyhow::Result;
use serde_json::{Value, json};

use super::address::{ADDRESS, DNS, NAME};
use super::runtime;
use crate::ControlPlane;
use crate::process::Invocation;

/// Writes the configuration of kubelet, and returns its invocation.
pub(super) fn kubelet(programs: &Path, plane: &ControlPlane) -> Result<Invocation> {
    let folder = plane.folder().path();
    let authority = &plane.secrets().cluster;
    let server = authority.server("kubelet-server", &[NAME, &ADDRESS.to_string(), "127.0.0.1"])?;
    // Pods with the DNS of the node cannot resolve names, because the node has no connection to other networks.
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
            // Kubernetes has deprecated cgroup v1, but machines that still have it can run these tests.
            "failCgroupV1": false,
            "failSwapOn": false,
            "clusterDomain": "cluster.local",
            "clusterDNS": [DNS],
            "resolvConf": resolver,
            "serializeImagePulls": false,
            // Pods are not evicted if the disk of a developer is almost full.
            "imageGCHighThresholdPercent": 100,
            "evictionHard": {"memory.available": "100Mi", "nodefs.available": "100Mi", "imagefs.available": "100Mi"},
            // The folder is created if it is missing; the default is in the host's /usr.
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

/// Writes the configuration of kube-proxy, and returns its invocation.
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
            // The limits of connection tracking apply to the whole machine, so they are not set.
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
