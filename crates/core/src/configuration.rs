//! Configuration policies (the policy flow of ONAP DCAE): the policies that a subscription selects, the changes for a component, the
//! content of its `ConfigMap`s, and the order of its notifications. docs/adr/0031 has the exact meanings.

mod backoff;
mod body;
mod delivery;
mod delta;
mod notification;
mod parts;
mod policy;
mod policy_update;
mod resolution;
mod schema;
mod segments;
mod subscription;
#[cfg(test)]
mod testing;
mod text;

pub use backoff::{MAX_DELAY, MIN_DELAY, delay};
pub use body::{BodyError, Digest, DigestError, Item, MAX_BODY, MAX_DEPTH, StoredBodyError, reference};
pub use delivery::{
    Answer, Change, Delivery, LastKnown, MAX_CONSECUTIVE_REJECTIONS, Outcome, Record, Rejection, Reply, Step, Update,
};
pub use delta::{Delta, Desired, Entries, Entry, Items, Keep};
pub use notification::{Action, Event, MIN_MESSAGE, Notification};
pub use parts::{
    Assignment, Assignments, Contents, EVENT_KEY, ITEM_PREFIX, MAX_PART, PREVIOUS_PREFIX, Part, Place, StoredParts,
    part_index, part_name,
};
pub use policy::{Audience, Candidate, ConfigurationPolicy, Version, VersionError};
pub use policy_update::{DEFAULT_MESSAGE_LIMIT, MessageTooLarge, PolicyUpdateMessage};
pub use resolution::{
    CanaryOutcome, Catalog, MAX_POLICIES, NotSelected, Resolution, SelectionError, SelectorOutcome, resolve,
};
pub use schema::{ContentError, ContentSchema};
pub use subscription::{
    CanaryFor, CompiledFilter, CompiledSubscription, Criterion, Filter, FilterError, Selector, Subscription,
};
