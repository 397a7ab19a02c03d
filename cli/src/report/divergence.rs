//! What the counts of a preview say.

use proviso_crds::DivergenceCounts;

/// One of the ways in which verdicts differ, or do not, with what it means.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Verdicts {
    pub name: &'static str,
    pub count: u64,
    pub meaning: &'static str,
}

/// The counts one by one.
#[must_use]
pub fn verdicts(counts: &DivergenceCounts) -> [Verdicts; 6] {
    let of = |name, count, meaning| Verdicts { name, count, meaning };
    [
        of("Same", counts.same, "nothing changes"),
        of("NewlyDenied", counts.newly_denied, "allowed now, would be denied"),
        of("NewlyAllowed", counts.newly_allowed, "denied now, would be allowed"),
        of("MutationDiffers", counts.mutation_differs, "both allow; the objects differ"),
        of("MessageDiffers", counts.message_differs, "both deny, in other words"),
        of("ExperimentError", counts.errors, "the experiment came to no decision"),
    ]
}

/// How many requests the experiment decided otherwise, in any way.
fn differing(counts: &DivergenceCounts) -> u64 {
    verdicts(counts).iter().skip(1).map(|verdicts| verdicts.count).sum()
}

/// A part of a whole in percent, with a digit after the point; never 100 % or 0 % of what is not all or nothing.
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

/// The sample coverage: evaluated of all that there was to evaluate.
#[must_use]
pub fn coverage(counts: &DivergenceCounts) -> Option<String> {
    percent(counts.evaluated, counts.evaluated.saturating_add(counts.dropped))
}

#[allow(clippy::cast_precision_loss, reason = "a ratio for people and their programs")]
/// The same from 0 to 1.
#[must_use]
pub fn ratio(counts: &DivergenceCounts) -> Option<f64> {
    let all = counts.evaluated.saturating_add(counts.dropped);
    (all > 0).then(|| counts.evaluated as f64 / all as f64)
}

/// What the counts say.
#[must_use]
pub fn told(counts: Option<&DivergenceCounts>) -> String {
    match counts.map(|counts| (counts.evaluated, differing(counts))) {
        None | Some((0, _)) => "no request was evaluated yet".to_owned(),
        Some((evaluated, 0)) => format!("it decided all {} as the policy did", requests(evaluated)),
        Some((evaluated, differing)) => format!("it decided {differing} of {} otherwise", requests(evaluated)),
    }
}

fn requests(count: u64) -> String {
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
}
