//! The checks of the fuzz target on a few bodies: reviews as API servers send them, and the same reviews with changed bytes.

use proptest::prelude::*;

#[path = "../../fuzz/src/envelope.rs"]
mod envelope;

const REVIEWS: [&[u8]; 3] = [
    include_bytes!("../../../../examples/reviews/pod-create.json"),
    include_bytes!("../../../../examples/reviews/pod-create-untrusted-image.json"),
    include_bytes!("../../../../examples/reviews/deployment-create.json"),
];

#[test]
fn example_reviews_pass_the_checks_of_the_fuzz_target() {
    REVIEWS.into_iter().for_each(envelope::read);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(500))]

    #[test]
    fn reviews_with_changed_bytes_pass_the_checks_or_are_refused(
        index in 0..REVIEWS.len(),
        changes in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..6),
    ) {
        let mut body = REVIEWS[index].to_vec();
        for (place, byte) in changes {
            let place = place.index(body.len());
            body[place] = byte;
        }
        envelope::read(&body);
    }
}
