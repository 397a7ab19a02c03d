//! The review that the benchmarks evaluate.

use bytes::Bytes;
use proviso_core::Review;
use serde_json::Value;

/// Returns the review of a Deployment, as an API server sends it, with this number of containers.
pub(crate) fn deployment(containers: usize) -> Review {
    let recorded = include_str!("../../../../examples/reviews/deployment-create.json");
    let mut review: Value = recorded.parse().expect("the recorded review");
    let all = &mut review["request"]["object"]["spec"]["template"]["spec"]["containers"];
    *all = (0..containers)
        .map(|number| {
            let mut container = all[0].clone();
            container["name"] = format!("c{number}").into();
            container
        })
        .collect();
    Review::admission(Bytes::from(review.to_string())).expect("a review")
}
