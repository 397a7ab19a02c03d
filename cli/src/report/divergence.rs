//! The counts of a preview as percentages and text.

use proviso_crds::DivergenceCounts;

/// The number of requests with one kind of divergence, and the meaning of that kind.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct VerdictCount {
    pub name: &'static str,
    pub count: u64,
    pub meaning: &'static str,
}

/// Returns the count of each kind of divergence; the first is the count of equal verdicts.
#[must_use]
pub fn verdict_counts(counts: &DivergenceCounts) -> [VerdictCount; 7] {
    let verdict = |name, count, meaning| VerdictCount { name, count, meaning };
    [
        verdict("Same", counts.same, "no difference"),
        verdict("NewlyDenied", counts.newly_denied, "allowed now, would be denied"),
        verdict("NewlyAllowed", counts.newly_allowed, "denied now, would be allowed"),
        verdict("MutationDiffers", counts.mutation_differs, "both allow; the objects differ"),
        verdict("MessageDiffers", counts.message_differs, "both deny; the messages differ"),
        verdict("DetailsDiffer", counts.details_differ, "same decision; the details differ"),
        verdict("ExperimentError", counts.errors, "the experiment failed to decide"),
    ]
}

/// Returns the number of requests whose verdicts differ in any way. The sum of the other counts may be higher: a failed
/// evaluation that would deny a request is in two of them.
fn differing(counts: &DivergenceCounts) -> u64 {
    counts.evaluated.saturating_sub(counts.same)
}

/// Returns a part of a whole in percent, with one digit after the point; `None` if the whole is 0. The result is 100% only if
/// the part is the whole, and a part that is not 0 is never 0.0%.
#[must_use]
pub fn percent(part: u64, whole: u64) -> Option<String> {
    if whole == 0 {
        return None;
    }
    let thousandth = u128::from(part) * 1000 / u128::from(whole);
    Some(match thousandth {
        0 if part > 0 => "<0.1%".to_owned(),
        1000 => "100%".to_owned(),
        _ => format!("{}.{}%", thousandth / 10, thousandth % 10),
    })
}

/// Returns the coverage of the chosen requests in percent: the share that was evaluated. `None` if there was no request.
#[must_use]
pub fn coverage(counts: &DivergenceCounts) -> Option<String> {
    percent(counts.evaluated, counts.evaluated.saturating_add(counts.dropped))
}

/// Returns the share of all requests that were evaluated, from 0 to 1. `sample_rate` is the share of the requests that the
/// experiment chooses. `None` if there was no request.
#[allow(clippy::cast_precision_loss, reason = "a ratio for people and their programs")]
#[must_use]
pub fn ratio(counts: &DivergenceCounts, sample_rate: f64) -> Option<f64> {
    let all = counts.evaluated.saturating_add(counts.dropped);
    (all > 0).then(|| sample_rate * counts.evaluated as f64 / all as f64)
}

/// Returns a share from 0 to 1 in percent, such as `12.5%`.
#[must_use]
pub fn share(share: f64) -> String {
    // Two digits after the point hide the rounding errors of binary fractions.
    let percent = format!("{:.2}", share * 100.0);
    match percent.trim_end_matches('0').trim_end_matches('.') {
        "0" if share > 0.0 => "<0.01%".to_owned(),
        percent => format!("{percent}%"),
    }
}

/// Returns the counts as a sentence.
#[must_use]
pub fn summary(counts: Option<&DivergenceCounts>) -> String {
    match counts.map(|counts| (counts.evaluated, differing(counts))) {
        None | Some((0, _)) => "no request was evaluated yet".to_owned(),
        Some((evaluated, 0)) => format!("its verdict is the same for all {}", requests(evaluated)),
        Some((evaluated, differing)) => format!("its verdict differs for {differing} of {}", requests(evaluated)),
    }
}

/// Returns a number of requests as text.
pub(super) fn requests(count: u64) -> String {
    format!("{count} request{}", if count == 1 { "" } else { "s" })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn percentages_do_not_claim_all_or_nothing() {
        for (part, whole, wanted) in [
            (0, 0, None),
            (0, 7, Some("0.0%")),
            (7, 7, Some("100%")),
            (1, 3, Some("33.3%")),
            (9999, 10_000, Some("99.9%")),
            (1, 100_000, Some("<0.1%")),
            (u64::MAX, u64::MAX, Some("100%")),
        ] {
            assert_eq!(percent(part, whole).as_deref(), wanted, "{part} of {whole}");
        }
    }

    #[test]
    fn shares_have_no_superfluous_digits() {
        for (part, wanted) in
            [(1.0, "100%"), (0.1, "10%"), (0.29, "29%"), (0.125, "12.5%"), (0.0005, "0.05%"), (0.000_01, "<0.01%")]
        {
            assert_eq!(share(part), wanted);
        }
    }
}
