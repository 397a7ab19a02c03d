//! The sample of the requests that a preview evaluates.

use sha2::{Digest as _, Sha256};

/// The number of points to which requests are hashed.
const POINTS: f64 = 4_294_967_296.0;

/// Returns true if a preview with this sample rate evaluates the request with this uid. Every replica chooses the same requests, and
/// the sample of a rate is a part of the sample of each higher rate. A rate of 1 or more chooses all requests.
#[must_use]
pub fn is_sampled(uid: &str, rate: f64) -> bool {
    if rate >= 1.0 {
        return true;
    }
    let digest = Sha256::digest(uid);
    let point = u32::from_be_bytes([digest[0], digest[1], digest[2], digest[3]]);
    f64::from(point) < rate * POINTS
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sample(rate: f64) -> Vec<u32> {
        (0..10_000).filter(|number| is_sampled(&format!("7f0c-{number}"), rate)).collect()
    }

    #[test]
    fn a_sample_has_the_share_of_the_rate() {
        assert_eq!((sample(1.0).len(), sample(0.0).len()), (10_000, 0));
        for (rate, expected) in [(0.01, 100_usize), (0.1, 1_000), (0.5, 5_000), (0.9, 9_000)] {
            // Five standard deviations of a fair choice.
            let tolerance = 5.0 * (10_000.0_f64 * rate * (1.0 - rate)).sqrt();
            let size = sample(rate).len();
            let distance = u32::try_from(size.abs_diff(expected)).unwrap();
            assert!(f64::from(distance) <= tolerance, "{size} of 10,000 at the rate {rate}");
        }
    }

    #[test]
    fn a_uid_is_chosen_by_its_hash_alone() {
        // The hash must not change: replicas of two versions choose the same requests. Its first four bytes are bb9a589c.
        assert!(is_sampled("7f0c", 0.7329) && !is_sampled("7f0c", 0.7328));
    }

    #[test]
    fn a_higher_rate_adds_requests_to_the_sample() {
        let (few, many) = (sample(0.2), sample(0.3));
        assert!(few.len() < many.len() && few.iter().all(|number| many.contains(number)));
    }
}
