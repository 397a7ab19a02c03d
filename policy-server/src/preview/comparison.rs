//! The comparison of the answer of an experiment with that of the live policy.

use std::borrow::Cow;

use proviso_core::divergence::{differing_details, is_applicable};
use proviso_core::review::REDACTED;
use proviso_core::{Divergence, Failure, Review, Verdict, review};

use super::hypothetical::Answer;

/// Two answers to one request, and their difference.
#[derive(Debug)]
pub(super) struct Comparison<'a> {
    pub live: Cow<'a, Verdict>,
    pub preview: Verdict,
    /// The failure of the evaluation of the experiment; `None` if it did not fail.
    pub failure: Option<Failure>,
    pub divergence: Divergence,
    /// The names of the details that differ. Only if nothing else differs.
    pub details: Vec<&'static str>,
}

impl<'a> Comparison<'a> {
    pub(super) fn new(live: Cow<'a, Verdict>, answer: Answer, review: &Review) -> Self {
        let has_patch = live.patch.is_some() || answer.verdict.patch.is_some();
        let json = has_patch.then(|| review.object_json()).flatten();
        let object = json.and_then(|json| review::parse(json).ok());
        let Answer { verdict: preview, failure } = with_applicable_patch(answer, &live, object.as_ref());
        let result = if failure.is_none() { Ok(&preview) } else { Err(&preview) };
        let divergence = Divergence::between(&live, result, object.as_ref());
        let is_detail = divergence == Divergence::DetailsDiffer;
        let details = if is_detail { differing_details(&live, &preview) } else { Vec::new() };
        Self { live, preview, failure, divergence, details }
    }

    /// Returns the message of the denial: that of the live policy if only the live policy denies, otherwise that of the experiment.
    /// If only details differ, returns their names. The message about a confidential object is redacted.
    pub(super) fn message(&self, review: &Review) -> Option<Cow<'_, str>> {
        let message = self.unredacted_message()?;
        let is_redacted = review.is_confidential() && self.divergence != Divergence::DetailsDiffer;
        Some(if is_redacted { REDACTED.into() } else { message })
    }

    fn unredacted_message(&self) -> Option<Cow<'_, str>> {
        match (self.divergence, &self.failure) {
            (Divergence::NewlyAllowed, _) => self.live.message.as_deref().map(Cow::Borrowed),
            (Divergence::DetailsDiffer, _) => Some(self.details.join(", ").into()),
            (_, Some(failure)) => Some(failure.message.as_str().into()),
            (_, None) => self.preview.message.as_deref().map(Cow::Borrowed),
        }
    }
}

/// Returns the answer, or the denial by the API server if it cannot apply the patch of the answer. An answer that equals the live one
/// has the same effect in any case.
fn with_applicable_patch(answer: Answer, live: &Verdict, object: Option<&serde_json::Value>) -> Answer {
    if answer.failure.is_some() || answer.verdict == *live || is_applicable(&answer.verdict, object) {
        return answer;
    }
    let failure = Failure::new("InvalidAnswer", "the patch of the policy cannot be applied to the object");
    Answer::refused(failure, 500, None)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::preview::tests::review;

    fn compare(live: &Verdict, verdict: Verdict, failure: Option<Failure>) -> (Divergence, bool, Option<String>) {
        let comparison = Comparison::new(Cow::Borrowed(live), Answer { verdict, failure }, &review("u"));
        let message = comparison.message(&review("u")).map(Cow::into_owned);
        (comparison.divergence, comparison.failure.is_some(), message)
    }

    #[test]
    fn a_comparison_names_what_differs() {
        let (allow, deny) = (Verdict::allow(), Verdict::deny("live"));
        let failure = Failure::new("Failed", "it failed");
        let warning = Verdict { warnings: vec!["soon".to_owned()], ..Verdict::allow() };
        let coded = Verdict { code: Some(403), warnings: vec!["soon".to_owned()], ..Verdict::deny("live") };
        let patch = |patch| Verdict { patch: Some(serde_json::from_value(patch).unwrap()), ..Verdict::allow() };
        let broken = patch(json!([{"op": "remove", "path": "/nowhere"}]));
        let unpatched = "the patch of the policy cannot be applied to the object";
        for (live, experiment, failure, wanted) in [
            (&allow, Verdict::allow(), None, (Divergence::Same, false, None)),
            (&allow, Verdict::deny("new"), None, (Divergence::NewlyDenied, false, Some("new"))),
            (&deny, Verdict::allow(), None, (Divergence::NewlyAllowed, false, Some("live"))),
            (&allow, warning, None, (Divergence::DetailsDiffer, false, Some("warnings"))),
            (&deny, coded, None, (Divergence::DetailsDiffer, false, Some("code, warnings"))),
            (&allow, failure.verdict(), Some(&failure), (Divergence::NewlyDenied, true, Some("it failed"))),
            (&deny, failure.verdict(), Some(&failure), (Divergence::ExperimentError, true, Some("it failed"))),
            (&allow, Verdict::allow(), Some(&failure), (Divergence::ExperimentError, true, Some("it failed"))),
            // The API server denies a request whose patch it cannot apply.
            (&allow, broken.clone(), None, (Divergence::NewlyDenied, true, Some(unpatched))),
            (&deny, broken.clone(), None, (Divergence::ExperimentError, true, Some(unpatched))),
            (&broken, broken.clone(), None, (Divergence::Same, false, None)),
        ] {
            let (divergence, has_failed, message) = wanted;
            let wanted = (divergence, has_failed, message.map(ToOwned::to_owned));
            assert_eq!(compare(live, experiment.clone(), failure.cloned()), wanted, "{live:?} {experiment:?}");
        }
    }
}
