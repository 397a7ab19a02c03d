//! Properties of the parser of review envelopes: it does not panic on any body, and it passes the request to a guest as the
//! JSON that arrived, without null members.

use bytes::Bytes;
use proviso_core::Review;
use proviso_core::review::parse;
use serde_json::Value;

/// Parses a body as both kinds of review, and compares the result with the body.
///
/// # Panics
/// Panics if the parsed review differs from the body.
#[allow(clippy::expect_used, reason = "a panic is a finding of the fuzzer")]
pub fn read(body: &[u8]) {
    let body = Bytes::copy_from_slice(body);
    if let Ok(review) = Review::admission(body.clone()) {
        assert!(!review.uid().is_empty());
        let mut request: Value = parse(review.request_json()).expect("the request is JSON");
        request.as_object_mut().expect("an object").retain(|_, value| !value.is_null());
        let pieces: Vec<u8> = review.request_pieces().flatten().copied().collect();
        let text = std::str::from_utf8(&pieces).expect("the pieces are UTF-8");
        let joined: Value = parse(text).expect("the pieces are JSON");
        assert_eq!(joined, request);
        for object in [review.object_json(), review.old_object_json()].into_iter().flatten() {
            parse::<Value>(object).expect("the object is JSON");
        }
    }
    if let Ok(review) = Review::raw(body) {
        parse::<Value>(review.request_json()).expect("the request is JSON");
    }
}
