//! The difference between the verdict of an experiment and the live verdict. AIP-236: the user compares them in the logs.

use std::borrow::Cow;

use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::verdict::Verdict;

/// The difference between an experiment's verdict and the live verdict on the same request.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub enum Divergence {
    Same,
    /// The live policy allows the request, and the experiment denies it, perhaps because its evaluation failed.
    NewlyDenied,
    /// The live policy denies the request, and the experiment allows it.
    NewlyAllowed,
    /// Both allow the request, and the patched objects differ.
    MutationDiffers,
    /// Both deny the request, with different messages.
    MessageDiffers,
    /// The decision, the message and the object are equal. The code, the reason, the causes, the warnings or the audit annotations
    /// differ.
    DetailsDiffer,
    /// The evaluation of the experiment failed, and this failure would not deny a request that the live policy allows.
    ExperimentError,
}

impl Divergence {
    pub const ALL: [Self; 7] = [
        Self::Same,
        Self::NewlyDenied,
        Self::NewlyAllowed,
        Self::MutationDiffers,
        Self::MessageDiffers,
        Self::DetailsDiffer,
        Self::ExperimentError,
    ];

    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Same => "Same",
            Self::NewlyDenied => "NewlyDenied",
            Self::NewlyAllowed => "NewlyAllowed",
            Self::MutationDiffers => "MutationDiffers",
            Self::MessageDiffers => "MessageDiffers",
            Self::DetailsDiffer => "DetailsDiffer",
            Self::ExperimentError => "ExperimentError",
        }
    }

    /// Compares the answers of the live policy and of an experiment to a request about `object`; `object` is `None` for a DELETE.
    /// `experiment` is an error if its evaluation failed, with the verdict that answers the request then. Two patches are equal if
    /// they result in the same object, even with different operations. The API server denies a request whose patch cannot be applied.
    #[must_use]
    pub fn between(live: &Verdict, experiment: Result<&Verdict, &Verdict>, object: Option<&Value>) -> Self {
        let live_object = patched(live, object);
        let is_live_allowed = live.allowed && live_object.is_ok();
        let experiment = match experiment {
            Ok(experiment) => experiment,
            Err(answer) if is_live_allowed && !answer.allowed => return Self::NewlyDenied,
            Err(_) => return Self::ExperimentError,
        };
        if live == experiment {
            return Self::Same;
        }
        let object = patched(experiment, object);
        match (is_live_allowed, experiment.allowed && object.is_ok()) {
            (true, false) => Self::NewlyDenied,
            (false, true) => Self::NewlyAllowed,
            (false, false) if message(live) != message(experiment) => Self::MessageDiffers,
            (true, true) if live_object != object => Self::MutationDiffers,
            _ if differing_details(live, experiment).is_empty() => Self::Same,
            _ => Self::DetailsDiffer,
        }
    }
}

/// Returns true if the patch of the verdict can be applied to the object, or if the verdict has no patch.
#[must_use]
pub fn is_applicable(verdict: &Verdict, object: Option<&Value>) -> bool {
    patched(verdict, object).is_ok()
}

/// Returns the names of the details in which two verdicts differ. Code, reason and causes count only if both verdicts deny: the
/// answer to an allowed request does not have them.
#[must_use]
pub fn differing_details(live: &Verdict, experiment: &Verdict) -> Vec<&'static str> {
    let are_denied = !live.allowed && !experiment.allowed;
    let details = [
        ("code", are_denied && code(live) != code(experiment)),
        ("reason", are_denied && live.reason != experiment.reason),
        ("causes", are_denied && live.causes != experiment.causes),
        ("warnings", live.warnings != experiment.warnings),
        ("auditAnnotations", live.audit_annotations != experiment.audit_annotations),
    ];
    details.into_iter().filter(|(_, differs)| *differs).map(|(name, _)| name).collect()
}

/// Returns the object after the verdict's patch. An error means that the patch cannot be applied.
fn patched<'a>(verdict: &Verdict, object: Option<&'a Value>) -> Result<Option<Cow<'a, Value>>, ()> {
    let Some(patch) = &verdict.patch else {
        return Ok(object.map(Cow::Borrowed));
    };
    let mut object = object.cloned().ok_or(())?;
    json_patch::patch(&mut object, patch).map_err(|_| ())?;
    Ok(Some(Cow::Owned(object)))
}

/// Returns the message of a denial. A message that is empty has the same effect as none.
fn message(verdict: &Verdict) -> &str {
    verdict.message.as_deref().unwrap_or_default()
}

/// Returns the code of a denial as the client of the API server sees it: see [`Verdict::code`].
fn code(verdict: &Verdict) -> u16 {
    const BAD_REQUEST: u16 = 400;
    verdict.code.filter(|code| *code >= BAD_REQUEST).unwrap_or(BAD_REQUEST)
}

#[cfg(test)]
mod tests;
