//! Delivers the configuration policies of components. [`Deliveries`] performs the steps that `proviso_core::configuration` decides, in the
//! order of docs/adr/0031: the record, the stored policies, the notification, the record with the result, and the stored policies without
//! the previous bodies. A [`Component`] performs each of them in a cluster or in a folder.

mod deliveries;
pub mod http;
mod output;
pub mod status;

use std::fmt;

use proviso_core::configuration::{Notification, Outcome, Part, Place, Record, StoredParts};
use proviso_crds::LastUpdate;

pub use deliveries::{Deliveries, Next, random};
pub use output::{MAX_OUTPUT, with_output};

/// A component: its record, its stored policies, and its notification.
///
/// All methods may be called again after an error. No two methods run at the same time for one component.
pub trait Component: Send + Sync {
    type Error: fmt::Display + Send;

    /// Reads the record. `None` if the component has none yet.
    fn record(&self) -> impl Future<Output = Result<Record, Self::Error>> + Send;

    /// Reads the stored policies: the parts that belong to this component, and no others.
    fn stored(&self) -> impl Future<Output = Result<StoredParts, Self::Error>> + Send;

    /// Writes the record and the last update. It returns when a restart would read them.
    fn write_record(
        &self,
        record: &Record,
        last: Option<&LastUpdate>,
    ) -> impl Future<Output = Result<(), Self::Error>> + Send;

    /// Writes these parts in their order, and then deletes the stale objects.
    fn write_parts(
        &self,
        parts: &[&Part],
        stale: &[(Place, usize)],
    ) -> impl Future<Output = Result<(), Self::Error>> + Send;

    /// Notifies the component within its time limit, and returns the result. A component without notifications acknowledges at once.
    fn notify(&self, notification: &Notification) -> impl Future<Output = Outcome> + Send;
}
