//! A notification by HTTP to the cluster IP of a Service in the namespace of the subscription.

use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use k8s_openapi::api::core::v1::Service;
use kube::{Api, ResourceExt as _};
use proviso_core::Failure;
use proviso_core::configuration::{DEFAULT_MESSAGE_LIMIT, Notification, Outcome};
use proviso_crds::{NotifyHttp, reasons};
use proviso_delivery::http::{Endpoint, post};

use super::Notified;
use crate::subscriptions::Shared;

pub(super) async fn notify(
    shared: &Shared,
    namespace: &str,
    endpoint: &NotifyHttp,
    limit: Duration,
    notification: &Notification,
) -> Notified {
    let name = &endpoint.service;
    let service = match Api::<Service>::namespaced(shared.context.client.clone(), namespace).get_opt(name).await {
        Ok(Some(service)) => service,
        Ok(None) => {
            let message = format!(
                "there is no Service {name} in this namespace: create it, or correct spec.delivery.notify.http.service"
            );
            return Notified::failed(Failure::new(reasons::SERVICE_NOT_FOUND, message));
        }
        Err(error) => {
            let message = format!("cannot read the Service {name}: {error}");
            return Notified::of(Outcome::Failed { message });
        }
    };
    let address = match address(&service, endpoint.port) {
        Ok(address) => address,
        Err(message) => return Notified::failed(Failure::new(reasons::SERVICE_NOT_USABLE, message)),
    };
    let host = format!("{name}.{namespace}.svc:{}", endpoint.port);
    let messages = notification.messages(DEFAULT_MESSAGE_LIMIT);
    let _permit = shared.notifications.acquire(namespace).await;
    let reply = post(Endpoint { address, host: &host, path: &endpoint.path }, &messages, limit).await;
    Notified::of(Outcome::from_replies([(&*format!("Service {name}"), reply)]))
}

/// Returns the address of a Service: its cluster IP. An external name, or the endpoints of a Service without a selector, could be any host,
/// also one that only the operator can reach.
fn address(service: &Service, port: i32) -> Result<SocketAddr, String> {
    let name = service.name_any();
    let spec = service.spec.clone().unwrap_or_default();
    if spec.type_.as_deref() == Some("ExternalName") {
        return Err(format!("the Service {name} has the type ExternalName: name a Service with a cluster IP"));
    }
    let ip = spec.cluster_ip.filter(|ip| !ip.is_empty() && ip != "None");
    let ip: Option<IpAddr> = ip.and_then(|ip| ip.parse().ok());
    let Some(ip) = ip else {
        return Err(format!("the Service {name} is headless: name a Service with a cluster IP"));
    };
    if spec.selector.is_none_or(|selector| selector.is_empty()) {
        return Err(format!(
            "the Service {name} has no selector, so that its endpoints may be any address: set its spec.selector to the labels of the pods of \
             the component"
        ));
    }
    let found =
        spec.ports.iter().flatten().any(|it| it.port == port && it.protocol.as_deref().unwrap_or("TCP") == "TCP");
    let number = u16::try_from(port).ok().filter(|_| found);
    let number = number
        .ok_or_else(|| format!("the Service {name} has no TCP port {port}: correct spec.delivery.notify.http.port"))?;
    Ok(SocketAddr::new(ip, number))
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    #[test]
    fn only_a_cluster_ip_with_the_port_is_called() {
        let valid = json!({
            "clusterIP": "10.0.0.9", "selector": {"app": "collector"}, "ports": [{"port": 8080, "protocol": "TCP"}],
        });
        let of = |field: &str, value: Value, port: i32| {
            let mut spec = valid.clone();
            spec[field] = value;
            let service = json!({"metadata": {"name": "collector"}, "spec": spec});
            address(&serde_json::from_value(service).unwrap(), port).map(|address| address.to_string())
        };
        assert_eq!(of("type", json!("ClusterIP"), 8080), Ok("10.0.0.9:8080".to_owned()));
        assert_eq!(of("clusterIP", json!("fd00::1"), 8080), Ok("[fd00::1]:8080".to_owned()));
        for (field, value, port, text) in [
            ("type", json!("ExternalName"), 8080, "ExternalName"),
            ("clusterIP", json!("None"), 8080, "headless"),
            ("clusterIP", Value::Null, 8080, "headless"),
            ("selector", Value::Null, 8080, "no selector"),
            ("selector", json!({}), 8080, "no selector"),
            ("type", json!("ClusterIP"), 8081, "no TCP port 8081"),
            ("ports", json!([{"port": 8080, "protocol": "UDP"}]), 8080, "no TCP port 8080"),
        ] {
            let error = of(field, value, port).unwrap_err();
            assert!(error.contains("collector") && error.contains(text), "{error}");
        }
    }
}
