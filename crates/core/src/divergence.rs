//! The difference between the verdict of an experiment and the live verdict. AIP-236: the user compares them in the logs.

use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::failure::Failure;
use crate::verdict::Verdict;

/// The difference between an experiment's verdict and the live verdict on the same request.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub enum Divergence {
    Same,
    /// The live policy allows the request, and the experiment denies it.
    NewlyDenied,
    /// The live policy denies the request, and the experiment allows it.
    NewlyAllowed,
    /// Both allow the request, and the patched objects differ.
    MutationDiffers,
    /// Both deny the request, with different messages.
    MessageDiffers,
    /// The evaluation of the experiment failed.
    ExperimentError,
}

impl Divergence {
    pub const ALL: [Self; 6] = [
        Self::Same,
        Self::NewlyDenied,
        Self::NewlyAllowed,
        Self::MutationDiffers,
        Self::MessageDiffers,
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
            Self::ExperimentError => "ExperimentError",
        }
    }

    /// Compares two verdicts after enforcement, on a request about `object`; `object` is `None` for a DELETE.
    /// Two patches are equal if they result in the same object, even with different operations.
    #[must_use]
    pub fn between(live: &Verdict, experiment: Result<&Verdict, &Failure>, object: Option<&Value>) -> Self {
        let Ok(experiment) = experiment else {
            return Self::ExperimentError;
        };
        match (live.allowed, experiment.allowed) {
            (true, false) => Self::NewlyDenied,
            (false, true) => Self::NewlyAllowed,
            (false, false) if live.message == experiment.message => Self::Same,
            (false, false) => Self::MessageDiffers,
            (true, true) if live.patch == experiment.patch => Self::Same,
            (true, true) => match (patched(live, object), patched(experiment, object)) {
                (Ok(live), Ok(experiment)) if live == experiment => Self::Same,
                (_, Err(())) => Self::ExperimentError,
                _ => Self::MutationDiffers,
            },
        }
    }
}

/// Returns the object after the verdict's patch.
fn patched(verdict: &Verdict, object: Option<&Value>) -> Result<Option<Value>, ()> {
    let Some(patch) = &verdict.patch else {
        return Ok(object.cloned());
    };
    let mut object = object.cloned().ok_or(())?;
    json_patch::patch(&mut object, patch).map_err(|_| ())?;
    Ok(Some(object))
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn mutated(patch: Value) -> Verdict {
        Verdict { patch: Some(serde_json::from_value(patch).unwrap()), ..Verdict::allow() }
    }

    #[test]
    fn divergence_is_classified_by_the_change_that_the_user_sees() {
        let object = json!({"metadata": {}});
        let add = mutated(json!([{"op": "add", "path": "/metadata/labels", "value": {"a": "b"}}]));
        let stepwise = mutated(json!([
            {"op": "add", "path": "/metadata/labels", "value": {}},
            {"op": "add", "path": "/metadata/labels/a", "value": "b"},
        ]));
        let no_op = mutated(json!([{"op": "replace", "path": "/metadata", "value": {}}]));
        let broken = mutated(json!([{"op": "remove", "path": "/nowhere"}]));
        let (allow, deny) = (Verdict::allow(), Verdict::deny("no"));
        for (live, experiment, wanted) in [
            (&allow, &allow, Divergence::Same),
            (&allow, &deny, Divergence::NewlyDenied),
            (&deny, &allow, Divergence::NewlyAllowed),
            (&deny, &Verdict::deny("no"), Divergence::Same),
            (&deny, &Verdict::deny("never"), Divergence::MessageDiffers),
            (&add, &deny, Divergence::NewlyDenied),
            (&add, &stepwise, Divergence::Same),
            (&add, &allow, Divergence::MutationDiffers),
            (&allow, &no_op, Divergence::Same),
            (&add, &broken, Divergence::ExperimentError),
        ] {
            assert_eq!(Divergence::between(live, Ok(experiment), Some(&object)), wanted, "{live:?} {experiment:?}");
        }
        let failure = Failure::new("Trap", "unreachable");
        assert_eq!(Divergence::between(&deny, Err(&failure), None), Divergence::ExperimentError);
    }
}
