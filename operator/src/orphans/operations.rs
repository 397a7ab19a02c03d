//! Deletes old operations of the REST API. Each is a ConfigMap, which any replica of the operator creates.

use jiff::Timestamp;
use proviso_rest_api::kubernetes::operations;

use crate::context::Context;
use crate::objects::{RESYNC, RETRY};

/// Deletes old operations at the start and with each resync. Never returns.
pub(super) async fn delete_old(context: &Context) {
    loop {
        let pause = if sweep(context, Timestamp::now()).await { RESYNC } else { RETRY };
        tokio::time::sleep(pause).await;
    }
}

/// Deletes the operations that are old at this time. Returns whether no request failed.
async fn sweep(context: &Context, now: Timestamp) -> bool {
    match operations::delete_old(&context.client, &context.namespace, now).await {
        Ok(0) => true,
        Ok(count) => {
            tracing::info!(count, "deleted old operations of the REST API");
            true
        }
        Err(error) => {
            tracing::warn!(%error, "cannot delete old operations of the REST API; trying again");
            false
        }
    }
}

#[cfg(test)]
mod tests {
    use std::convert::Infallible;
    use std::sync::{Arc, Mutex};

    use http::{Method, Request, Response};
    use kube::Client;
    use kube::client::Body;
    use proviso_rest_api::kubernetes::operations::OPERATION;
    use serde_json::{Value, json};

    use super::*;
    use crate::mock_api::MockApi;

    fn operation(name: &str, created: &str) -> Value {
        let labels = json!({OPERATION: "true"});
        json!({"metadata": {"name": name, "uid": name, "labels": labels, "creationTimestamp": created}})
    }

    #[tokio::test]
    async fn old_operations_are_found_by_their_label_and_deleted() {
        let calls = Arc::new(Mutex::new(Vec::new()));
        let seen = Arc::clone(&calls);
        let service = tower::service_fn(move |request: Request<Body>| {
            let (is_list, uri) = (request.method() == Method::GET, request.uri());
            let is_selective = uri.query().is_some_and(|query| query.contains("proviso.dev%2Foperation%3Dtrue"));
            assert!(!is_list || is_selective, "{uri}");
            seen.lock().unwrap().push(format!("{} {}", request.method(), uri.path()));
            let items = [operation("a", "2026-11-01T00:00:00Z"), operation("b", "2026-11-21T08:00:00Z")];
            let list = json!({
                "apiVersion": "meta.k8s.io/v1", "kind": "PartialObjectMetadataList", "metadata": {}, "items": items,
            });
            let answer = if is_list { list } else { json!({"kind": "Status", "status": "Success"}) };
            async move { Ok::<_, Infallible>(Response::new(Body::from(answer.to_string().into_bytes()))) }
        });
        let mut context = MockApi::default().context();
        Arc::get_mut(&mut context).unwrap().client = Client::new(service, "proviso");
        assert!(sweep(&context, "2026-11-21T09:00:00Z".parse().unwrap()).await);
        let expected = ["GET /api/v1/namespaces/proviso/configmaps", "DELETE /api/v1/namespaces/proviso/configmaps/a"];
        assert_eq!(*calls.lock().unwrap(), expected);
    }
}
