//! Durations in the form of proto-JSON: seconds with up to nine decimal places, such as `3.5s`.

use std::time::Duration;

use k8s_openapi::jiff::SignedDuration;

/// The regular expression of a duration.
pub(crate) const PATTERN: &str = "^[0-9]{1,12}(\\.[0-9]{1,9})?s$";

/// Parses a duration. `None` means that the text is not a duration.
pub(crate) fn parse(text: &str) -> Option<Duration> {
    let text = text.strip_suffix('s')?;
    let (seconds, fraction) = text.split_once('.').unwrap_or((text, "0"));
    let is_number =
        |text: &str, digits: usize| (1..=digits).contains(&text.len()) && text.bytes().all(|it| it.is_ascii_digit());
    if !is_number(seconds, 12) || !is_number(fraction, 9) {
        return None;
    }
    Some(Duration::new(seconds.parse().ok()?, format!("{fraction:0<9}").parse().ok()?))
}

/// Formats a duration.
pub(crate) fn format(duration: Duration) -> String {
    let (seconds, fraction) = (duration.as_secs(), format!("{:09}", duration.subsec_nanos()));
    match fraction.trim_end_matches('0') {
        "" => format!("{seconds}s"),
        fraction => format!("{seconds}.{fraction}s"),
    }
}

/// Formats a duration as the custom resources have it, such as `336h`.
pub(crate) fn to_kubernetes(duration: Duration) -> String {
    // Durations of more than 292 billion years do not occur: `parse` accepts 12 digits.
    let duration = SignedDuration::try_from(duration).unwrap_or(SignedDuration::MAX);
    format!("{duration:#}")
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn durations_have_the_form_of_proto_json() {
        for (text, wanted) in [
            ("10s", Some(Duration::from_secs(10))),
            ("3.5s", Some(Duration::from_millis(3500))),
            ("0.000000001s", Some(Duration::from_nanos(1))),
            ("0s", Some(Duration::ZERO)),
            ("10", None),
            ("s", None),
            ("-1s", None),
            ("+1s", None),
            ("1e3s", None),
            (".5s", None),
            ("5.s", None),
            ("90m", None),
            ("1000000000000s", None),
            ("0.0000000001s", None),
        ] {
            assert_eq!(parse(text), wanted, "{text}");
        }
    }

    #[test]
    fn a_custom_resource_has_the_same_duration_as_text() {
        for (seconds, text) in [(1_209_600, "336h"), (5400, "1h 30m"), (60, "1m"), (90, "1m 30s")] {
            let duration = Duration::from_secs(seconds);
            assert_eq!(to_kubernetes(duration), text);
            assert_eq!(proviso_crds::time_to_live(text), Ok(duration));
        }
    }

    proptest! {
        #[test]
        fn a_formatted_duration_parses_to_the_same_duration(seconds in 0u64..999_999_999_999, nanos in 0u32..1_000_000_000) {
            let duration = Duration::new(seconds, nanos);
            prop_assert_eq!(parse(&format(duration)), Some(duration));
        }

        #[test]
        fn parsing_a_duration_never_panics(text in ".{0,30}", digits in "[0-9.s]{0,30}") {
            let _ = parse(&text);
            let _ = parse(&digits);
        }
    }
}
