//! Quantities, such as `500m` and `1Gi`.

use k8s_openapi::apimachinery::pkg::util::intstr::IntOrString;

/// Returns the quantity as Kubernetes writes it.
pub(super) fn text(quantity: &IntOrString) -> String {
    match quantity {
        IntOrString::Int(number) => number.to_string(),
        IntOrString::String(text) => text.clone(),
    }
}
