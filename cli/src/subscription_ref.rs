//! The names of subscriptions in arguments.

use std::str::FromStr;

use proviso_core::policy_id::check_name;

/// The kinds before a name, as kubectl accepts them, without the API group.
const KINDS: [&str; 3] = ["policysubscription", "policysubscriptions", "pvsub"];
/// The API group of the kinds.
const GROUP: &str = ".proviso.dev";

/// The name of a `PolicySubscription` in an argument: `NAME` or `pvsub/NAME`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SubscriptionRef(pub String);

/// The error of a text that does not name a subscription.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SubscriptionRefError {
    #[error("{0:?} is not a kind of subscription: write NAME or pvsub/NAME, and the namespace as --namespace")]
    Kind(String),
    #[error(
        "{0:?} is not the name of a PolicySubscription: it needs characters of a-z, 0-9, '-' and '.', each part starting and ending with a \
         letter or digit"
    )]
    Name(String),
}

impl FromStr for SubscriptionRef {
    type Err = SubscriptionRefError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let name = match text.split_once('/') {
            None => text,
            Some((kind, name)) => {
                let lower = kind.to_ascii_lowercase();
                if !KINDS.contains(&lower.strip_suffix(GROUP).unwrap_or(&lower)) {
                    return Err(SubscriptionRefError::Kind(kind.to_owned()));
                }
                name
            }
        };
        check_name(name).map(|()| Self(name.to_owned())).map_err(|_| SubscriptionRefError::Name(name.to_owned()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_subscription_is_named_with_and_without_its_kind() {
        for text in ["a", "pvsub/a", "PolicySubscription/a", "policysubscriptions.proviso.dev/a"] {
            assert_eq!(text.parse(), Ok(SubscriptionRef("a".to_owned())), "{text}");
        }
        for (text, wanted) in [("team/a", "--namespace"), ("A", "name"), ("", "name")] {
            let error = text.parse::<SubscriptionRef>().unwrap_err().to_string();
            assert!(error.contains(wanted), "{text}: {error}");
        }
    }
}
