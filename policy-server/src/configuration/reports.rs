//! The statuses of the subscriptions, for the API and the metrics.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use proviso_core::Failure;
use proviso_crds::{PolicySubscriptionStatus, reasons};
use tokio::sync::watch;

use super::status::{is_delivered, undelivered};
use crate::manifests::SubscriptionId;
use crate::metrics::Metrics;

/// The statuses of the subscriptions.
#[derive(Debug)]
pub struct Reports {
    reports: Mutex<BTreeMap<SubscriptionId, Report>>,
    metrics: Arc<Metrics>,
}

#[derive(Debug, Default)]
struct Report {
    status: PolicySubscriptionStatus,
    /// The number of changes of the status and of the stored policies.
    changes: watch::Sender<u64>,
}

impl Reports {
    #[must_use]
    pub fn new(metrics: Arc<Metrics>) -> Self {
        Self { reports: Mutex::default(), metrics }
    }

    /// Sets the status of a subscription.
    pub fn set(&self, id: &SubscriptionId, status: PolicySubscriptionStatus) {
        let mut reports = self.lock();
        let report = reports.entry(id.clone()).or_default();
        if report.status != status {
            report.status = status;
            report.changes.send_modify(|count| *count += 1);
            self.count(&reports);
        }
    }

    /// Sets the condition `Delivered` of a subscription whose deliveries fail before their state is known.
    pub fn fail(&self, id: &SubscriptionId, error: &str) {
        self.refuse(id, &Failure::new(reasons::DELIVERY_FAILED, error));
    }

    /// Sets the condition `Delivered` of a subscription that has no deliveries. Returns true if the condition is new.
    pub fn refuse(&self, id: &SubscriptionId, failure: &Failure) -> bool {
        let before = self.status(id).unwrap_or_default();
        let status = undelivered(&before, failure);
        let is_new = status != before;
        self.set(id, status);
        is_new
    }

    /// Returns the status of a subscription; `None` before the first one.
    #[must_use]
    pub fn status(&self, id: &SubscriptionId) -> Option<PolicySubscriptionStatus> {
        self.lock().get(id).map(|report| report.status.clone())
    }

    /// Begins to watch a subscription.
    #[must_use]
    pub fn watch(&self, id: &SubscriptionId) -> watch::Receiver<u64> {
        self.lock().entry(id.clone()).or_default().changes.subscribe()
    }

    /// Reports a change of the stored policies of a subscription.
    pub fn report_change(&self, id: &SubscriptionId) {
        if let Some(report) = self.lock().get(id) {
            report.changes.send_modify(|count| *count += 1);
        }
    }

    /// Reports a change of each subscription: of its manifest, or of the policies that it should have.
    pub fn touch(&self) {
        for report in self.lock().values() {
            report.changes.send_modify(|count| *count += 1);
        }
    }

    /// Removes the statuses of other subscriptions.
    pub fn retain(&self, ids: &BTreeSet<&SubscriptionId>) {
        let mut reports = self.lock();
        reports.retain(|id, _| ids.contains(id));
        self.count(&reports);
    }

    fn count(&self, reports: &BTreeMap<SubscriptionId, Report>) {
        let delivered = reports.values().filter(|report| is_delivered(&report.status)).count();
        self.metrics.set_subscriptions(delivered, reports.len() - delivered);
    }

    fn lock(&self) -> MutexGuard<'_, BTreeMap<SubscriptionId, Report>> {
        self.reports.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
