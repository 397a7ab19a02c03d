//! The delays between attempts to notify a component.

use std::time::Duration;

/// The delay after the first failure, before the jitter.
pub const MIN_DELAY: Duration = Duration::from_secs(1);
/// The longest delay, before the jitter.
pub const MAX_DELAY: Duration = Duration::from_mins(5);

/// Returns the delay after the last of `failures` consecutive failures. Each failure doubles the delay, from [`MIN_DELAY`] to
/// [`MAX_DELAY`]; a random number from 0 to 1 reduces the delay by up to one half, so that components that failed together are not
/// called together. No failures mean no delay.
#[must_use]
pub fn delay(failures: u32, random: f64) -> Duration {
    let Some(doublings) = failures.checked_sub(1) else {
        return Duration::ZERO;
    };
    let longest = 2_u32.checked_pow(doublings).and_then(|factor| MIN_DELAY.checked_mul(factor)).unwrap_or(MAX_DELAY);
    let random = if random.is_finite() { random.clamp(0.0, 1.0) } else { 1.0 };
    longest.min(MAX_DELAY).mul_f64(1.0 - random / 2.0)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn each_failure_doubles_the_delay_up_to_five_minutes() {
        let seconds: Vec<_> = (0..12).map(|failures| delay(failures, 0.0).as_secs()).collect();
        assert_eq!(seconds, [0, 1, 2, 4, 8, 16, 32, 64, 128, 256, 300, 300]);
        assert_eq!(delay(u32::MAX, 0.0), MAX_DELAY);
        assert_eq!(delay(4, 1.0), Duration::from_secs(4));
        assert_eq!(delay(4, f64::NAN), Duration::from_secs(4));
    }

    proptest! {
        #[test]
        fn jitter_never_makes_a_delay_longer_nor_less_than_half(failures in 1_u32.., random: f64) {
            let longest = delay(failures, 0.0);
            let delay = delay(failures, random);
            prop_assert!(delay <= longest && delay >= longest / 2, "{delay:?} {longest:?}");
        }
    }
}
