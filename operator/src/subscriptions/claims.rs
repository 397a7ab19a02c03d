//! The names that subscriptions claim: of their ConfigMaps in the namespace, and their service component names in the cluster. Of two
//! subscriptions that do not have their objects yet, the older one gets them, and the other one waits.

use std::collections::{BTreeMap, HashMap};

use jiff::Timestamp;
use kube::ResourceExt as _;
use proviso_core::Failure;
use proviso_core::configuration::part_index;
use proviso_crds::{PolicySubscription, reasons};

use crate::cache::Name;

/// The names that one subscription claims.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Claim {
    rank: Rank,
    config_map: String,
    scn: String,
}

/// The order of claims: the lowest one has the name. A service component name that is derived from the own namespace and name comes before
/// one that somebody has chosen, so that nobody takes the name of a component in another namespace.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Rank {
    is_chosen: bool,
    created: Option<Timestamp>,
    uid: String,
}

#[derive(Debug, Default)]
pub(super) struct Claims {
    namespaces: HashMap<Option<String>, BTreeMap<String, Claim>>,
    scns: HashMap<String, BTreeMap<Rank, Name>>,
}

impl Claim {
    pub fn of(subscription: &PolicySubscription) -> Self {
        let (namespace, spec) = (subscription.namespace().unwrap_or_default(), &subscription.spec);
        let rank = Rank {
            is_chosen: spec.scn.is_some(),
            created: subscription.creation_timestamp().map(|time| time.0),
            uid: subscription.uid().unwrap_or_default(),
        };
        let scn = spec.service_component_name(&namespace, &subscription.name_any());
        Self { rank, config_map: spec.delivery.config_map.clone(), scn }
    }

    /// Returns true if the name of a ConfigMap of one subscription is the name of a ConfigMap of the other one.
    fn shares_config_map(&self, other: &Self) -> bool {
        part_index(&self.config_map, &other.config_map).is_some()
            || part_index(&other.config_map, &self.config_map).is_some()
    }

    /// Returns true if the subscription of this claim is the older one.
    fn is_older(&self, other: &Self) -> bool {
        (self.rank.created, &self.rank.uid) < (other.rank.created, &other.rank.uid)
    }
}

impl Claims {
    /// Sets the claim of a subscription, or removes it. Returns the other subscriptions whose conflicts may have changed.
    pub fn set(&mut self, name: &Name, claim: Option<&Claim>) -> Vec<Name> {
        let own = self.namespaces.entry(name.0.clone()).or_default();
        let old = match claim {
            Some(claim) => own.insert(name.1.clone(), claim.clone()),
            None => own.remove(&name.1),
        };
        if old.as_ref() == claim {
            return Vec::new();
        }
        if let Some(old) = &old
            && let Some(ranks) = self.scns.get_mut(&old.scn)
        {
            ranks.remove(&old.rank);
            if ranks.is_empty() {
                self.scns.remove(&old.scn);
            }
        }
        if let Some(claim) = claim {
            self.scns.entry(claim.scn.clone()).or_default().insert(claim.rank.clone(), name.clone());
        }
        let changed: Vec<_> = old.iter().chain(claim).collect();
        let others = self.namespaces.get(&name.0).into_iter().flatten();
        let others = others.filter(|(_, other)| changed.iter().any(|it| it.shares_config_map(other)));
        let others = others.map(|(other, _)| (name.0.clone(), other.clone()));
        let named = changed.iter().filter_map(|it| self.scns.get(&it.scn)).flat_map(BTreeMap::values).cloned();
        let mut affected: Vec<_> = others.chain(named).filter(|other| other != name).collect();
        affected.sort_unstable();
        affected.dedup();
        affected
    }

    /// Returns the failure of a subscription whose ConfigMaps belong to an older one.
    pub fn config_map_conflict(&self, name: &Name) -> Option<Failure> {
        let subscriptions = self.namespaces.get(&name.0)?;
        let own = subscriptions.get(&name.1)?;
        let mut others = subscriptions.iter().filter(|(other, _)| **other != name.1);
        let (other, claim) = others.find(|(_, claim)| claim.shares_config_map(own) && claim.is_older(own))?;
        let message = format!(
            "spec.delivery.configMap: the older subscription {other} has the ConfigMap {} and those whose names add a number to it: name \
             another ConfigMap",
            claim.config_map
        );
        Some(Failure::new(reasons::CONFIG_MAP_CONFLICT, message))
    }

    /// Returns the failure of a subscription whose service component name belongs to another one.
    pub fn scn_conflict(&self, name: &Name) -> Option<Failure> {
        let own = self.namespaces.get(&name.0)?.get(&name.1)?;
        let (_, holder) = self.scns.get(&own.scn)?.first_key_value()?;
        if holder == name {
            return None;
        }
        // Names in other namespaces are none of the owner's business.
        let other = if holder.0 == name.0 {
            format!("the subscription {}", holder.1)
        } else {
            "a subscription in another namespace".to_owned()
        };
        let message = format!(
            "spec.scn: {other} has the service component name {} already, and the REST API returns the policies of that one: choose \
             another name",
            own.scn
        );
        Some(Failure::new(reasons::SCN_CONFLICT, message))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn claim(created: i64, uid: &str, config_map: &str, scn: &str, is_chosen: bool) -> Claim {
        let rank = Rank { is_chosen, created: Timestamp::from_second(created).ok(), uid: uid.to_owned() };
        Claim { rank, config_map: config_map.to_owned(), scn: scn.to_owned() }
    }

    fn name(namespace: &str, name: &str) -> Name {
        (Some(namespace.to_owned()), name.to_owned())
    }

    #[test]
    fn the_older_subscription_has_the_config_maps() {
        let mut claims = Claims::default();
        let (old, new, free) = (name("team", "old"), name("team", "new"), name("team", "free"));
        assert!(claims.set(&old, Some(&claim(1, "b", "policies", "team.old", false))).is_empty());
        // The second part of the older one has this name.
        assert_eq!(claims.set(&new, Some(&claim(2, "a", "policies-1", "team.new", false))), std::slice::from_ref(&old));
        claims.set(&free, Some(&claim(3, "c", "policies-x", "team.free", false)));
        claims.set(&name("other", "old"), Some(&claim(0, "d", "policies", "other.old", false)));
        let message = claims.config_map_conflict(&new).unwrap().message;
        assert!(message.contains("the older subscription old has the ConfigMap policies "), "{message}");
        assert_eq!((claims.config_map_conflict(&old), claims.config_map_conflict(&free)), (None, None));
        // The newer one waits until the older one is gone, or has another name.
        assert_eq!(claims.set(&old, None), std::slice::from_ref(&new));
        assert_eq!(claims.config_map_conflict(&new), None);
    }

    #[test]
    fn a_chosen_name_does_not_take_the_name_of_a_component() {
        let mut claims = Claims::default();
        let (own, thief, late) = (name("team", "collector"), name("other", "thief"), name("other", "late"));
        claims.set(&thief, Some(&claim(1, "a", "x", "team.collector", true)));
        claims.set(&late, Some(&claim(2, "b", "y", "team.collector", true)));
        assert!(claims.scn_conflict(&thief).is_none());
        assert!(claims.scn_conflict(&late).unwrap().message.contains("the subscription thief has"));
        let affected = claims.set(&own, Some(&claim(3, "c", "z", "team.collector", false)));
        assert_eq!(affected, [late.clone(), thief.clone()]);
        assert!(claims.scn_conflict(&own).is_none());
        let message = claims.scn_conflict(&thief).unwrap().message;
        assert!(message.contains("a subscription in another namespace has"), "{message}");
        claims.set(&own, None);
        claims.set(&thief, None);
        assert!(claims.scn_conflict(&late).is_none());
        claims.set(&late, None);
        assert!(claims.scns.is_empty(), "{claims:?}");
    }
}
