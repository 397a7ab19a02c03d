//! What the fuzzer checks of every body, for some: reviews as API servers send them, and these with bytes changed.
use proptest::prelude::*;

#[path = "../../fuzz/src/envelope.rs"]
mod envelope;

const REVIEWS: [&[u8]; 3] = [
    include_bytes!("../../../../examples/reviews/pod-create.json"),
    include_bytes!("../../../../examples/reviews/pod-create-untrusted-image.json"),
    include_bytes!("../../../../examples/reviews/deployment-create.json"),
];

#[test]
fn reviews_are_read_as_they_are() {
    REVIEWS.into_iter().for_each(envelope::read);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(500))]

    #[test]
    fn changed_reviews_are_read_as_they_are_or_not_at_all(
        which in 0..REVIEWS.len(),
        changes in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..6),
    ) {
        let mut body = REVIEWS[which].to_vec();
        for (place, byte) in changes {
            let place = place.index(body.len());
            body[place] = byte;
        }
        envelope::read(&body);
    }
}
