//! The deliveries of one subscription: resolves it after each change, and performs one update after the other.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;
use proviso_core::configuration::{
    CompiledSubscription, ConfigurationPolicy, Desired, Item, Keep, Resolution, delay, resolve,
};
use proviso_core::{Failure, PolicyId};
use proviso_crds::names::RESEND;
use proviso_crds::validation::FieldError;
use proviso_crds::{PolicySubscriptionStatus, reasons};
use proviso_delivery::status::{View, compute};
use proviso_delivery::{Deliveries, Next};
use proviso_programs::templates::{ComponentFacts, RenderError};
use tokio::sync::{mpsc, watch};
use tokio::time::{Instant, sleep_until, timeout};

use super::component::{ComponentRecord, FolderComponent, blocking};
use super::files::{ComponentFolder, FolderError};
use super::status::Findings;
use super::{Shared, Snapshot, component_facts, scn};
use crate::manifests::{Sourced, SubscriptionId, SubscriptionManifest};
use crate::table::Revision;

/// The time for which a change waits until the policies that changed with it are compiled, so that they are delivered together.
const SETTLE_TIMEOUT: Duration = Duration::from_secs(10);
/// The delay before a template is evaluated again that failed for a reason outside of the policy.
const RENDER_RETRY_DELAY: Duration = Duration::from_secs(30);

/// A request of a caller of the API.
#[derive(Debug)]
pub enum Request {
    /// Compare the state of the component with the policies that it should have.
    CatchUp,
    /// Send all policies again. `status.observedResend` then has this value.
    Resend(String),
}

/// The deliveries of one subscription.
pub struct Actor {
    pub shared: Arc<Shared>,
    pub id: SubscriptionId,
    pub scn: String,
    pub folder: Arc<ComponentFolder>,
    pub snapshots: watch::Receiver<Arc<Snapshot>>,
    pub requests: mpsc::UnboundedReceiver<Request>,
    /// The resend that a caller has requested, and that has not begun.
    pub resend: Option<String>,
}

/// The state of the deliveries between two steps.
struct Session {
    deliveries: Deliveries<FolderComponent>,
    compiled: CompiledSubscription,
    facts: Arc<ComponentFacts>,
    bodies: Bodies,
    findings: Findings,
    /// True if the component has every change that it can get.
    is_idle: bool,
    /// True if a body failed for a reason that may be gone at the next attempt.
    is_transient: bool,
    /// The last status that was written.
    written: PolicySubscriptionStatus,
    /// True if the record names another subscription, or another file of it.
    is_record_old: bool,
}

/// The bodies that templates computed for the component, with the revisions that computed them.
type Bodies = HashMap<PolicyId, (ConfigurationPolicy, Arc<Revision>, Arc<ComponentFacts>, Item)>;

/// The reason of a step.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Cause {
    /// The folder has changed. If the desired state is the same, the files need no check.
    Change,
    /// The start, a catch-up, a resend, or the end of a delay.
    Check,
}

impl Actor {
    /// Delivers until the task is aborted.
    pub async fn run(mut self) {
        let mut session = None;
        let mut cause = Cause::Check;
        let mut failures = 0;
        let mut checked = Instant::now();
        loop {
            let snapshot = Arc::clone(&self.snapshots.borrow_and_update());
            let subscription = snapshot.subscriptions.get(&self.id).filter(|it| scn(&self.id, it) == self.scn);
            let Some(subscription) = subscription else {
                // The supervisor aborts this task, unless the subscription is back in a newer snapshot.
                if self.snapshots.changed().await.is_err() {
                    return;
                }
                continue;
            };
            let result = self.step(&mut session, &snapshot, subscription, cause).await;
            if cause == Cause::Check {
                checked = Instant::now();
            }
            let catch_up = checked + self.shared.catch_up_interval;
            let wake = match result {
                Ok(Next::Again) => {
                    cause = Cause::Check;
                    continue;
                }
                Ok(next) => {
                    failures = 0;
                    let is_transient = session.as_ref().is_some_and(|session| session.is_transient);
                    let retry = is_transient.then_some(RENDER_RETRY_DELAY);
                    let after = if let Next::After(after) = next { Some(after) } else { None };
                    let retry = retry.into_iter().chain(after).min().map(|delay| Instant::now() + delay);
                    retry.map_or(catch_up, |retry| retry.min(catch_up))
                }
                Err(error) => {
                    failures += 1;
                    tracing::error!(subscription = %self.id, %error, "cannot deliver policies; trying again");
                    self.report(session.as_ref(), &error);
                    Instant::now() + delay(failures, 0.0)
                }
            };
            cause = tokio::select! {
                changed = self.snapshots.changed() => {
                    if changed.is_err() {
                        return;
                    }
                    // A change that is still being compiled after this time is delivered later.
                    let _ = timeout(SETTLE_TIMEOUT, self.snapshots.wait_for(|snapshot| snapshot.is_settled)).await;
                    if failures > 0 { Cause::Check } else { Cause::Change }
                }
                request = self.requests.recv() => {
                    match request {
                        None => return,
                        Some(Request::CatchUp) => {}
                        Some(Request::Resend(value)) => self.resend = Some(value),
                    }
                    Cause::Check
                }
                () = sleep_until(wake) => Cause::Check,
            };
        }
    }

    /// Computes the desired state, and performs the next update.
    async fn step(
        &mut self,
        session: &mut Option<Session>,
        snapshot: &Arc<Snapshot>,
        subscription: &Arc<Sourced<SubscriptionManifest>>,
        cause: Cause,
    ) -> Result<Next, FolderError> {
        let session = match session {
            Some(session) => session,
            None => session.insert(self.restore(subscription).await?),
        };
        if let Some(value) = self.resend.take() {
            session.resend(value, None).await?;
        }
        session.follow(&self.id, subscription).await?;
        let before = session.deliveries.desired().clone();
        session.want(snapshot).await?;
        let is_same = cause == Cause::Change && session.is_idle && before == *session.deliveries.desired();
        let next = if is_same { Next::Idle } else { session.deliveries.advance().await? };
        session.is_idle = next == Next::Idle;
        session.write_status(&self.id).await?;
        Ok(next)
    }

    /// Reads the state of the deliveries after a start.
    async fn restore(&self, subscription: &Arc<Sourced<SubscriptionManifest>>) -> Result<Session, FolderError> {
        let folder = Arc::clone(&self.folder);
        let record = blocking(move || ComponentRecord::read(&folder)).await?;
        let is_new = record.is_none();
        let ComponentRecord { namespace, name, manifest, resend, notify, status } = record.unwrap_or_default();
        let is_record_old =
            (&namespace, &name, &manifest) != (&self.id.namespace, &self.id.name, &subscription.place.file);
        let last = status.last_update.clone();
        let component = FolderComponent {
            shared: Arc::clone(&self.shared),
            id: self.id.clone(),
            folder: Arc::clone(&self.folder),
            subscription: Arc::clone(subscription),
            // A component that gets its policies for the first time has nothing to get again.
            resend: if is_new { subscription.annotations.get(RESEND).cloned() } else { resend },
            notify: if is_new { subscription.spec.spec.delivery.notify.clone() } else { notify },
            status: status.clone(),
        };
        Ok(Session {
            deliveries: Deliveries::restore(component, last).await?,
            compiled: compile(&self.id, subscription),
            facts: Arc::new(component_facts(&self.id, subscription)),
            bodies: Bodies::new(),
            findings: Findings::default(),
            is_idle: false,
            is_transient: false,
            written: status,
            is_record_old,
        })
    }

    /// Reports the error of a step. It is not written to the folder, which may be the cause.
    fn report(&self, session: Option<&Session>, error: &FolderError) {
        let Some(session) = session else {
            self.shared.reports.fail(&self.id, &error.to_string());
            return;
        };
        self.shared.reports.set(&self.id, session.status(Some(&error.to_string())));
    }
}

impl Session {
    /// Takes the newest version of the subscription, and its annotation for a resend.
    async fn follow(
        &mut self,
        id: &SubscriptionId,
        subscription: &Arc<Sourced<SubscriptionManifest>>,
    ) -> Result<(), FolderError> {
        if !Arc::ptr_eq(&self.deliveries.component().subscription, subscription) {
            self.compiled = compile(id, subscription);
            let facts = component_facts(id, subscription);
            if *self.facts != facts {
                self.facts = Arc::new(facts);
            }
            self.is_record_old |= self.deliveries.component().subscription.place.file != subscription.place.file;
            self.deliveries.component_mut().subscription = Arc::clone(subscription);
            // The change may have removed the cause of a failure, such as a command that does not exist.
            self.deliveries.retry();
            self.is_idle = false;
        }
        let notify = &subscription.spec.spec.delivery.notify;
        if *notify != self.deliveries.component().notify {
            self.deliveries.component_mut().notify.clone_from(notify);
            self.is_record_old = true;
            self.is_idle = false;
            // The component was told of no policy by the new way. After an error, the next step writes the record.
            if notify.is_some() {
                self.deliveries.resend().await?;
            }
        }
        let requested = subscription.annotations.get(RESEND);
        if requested.is_some() && requested != self.deliveries.component().resend.as_ref() {
            let value = requested.cloned().unwrap_or_default();
            self.resend(value.clone(), Some(value)).await?;
        }
        Ok(())
    }

    /// Makes the next update contain all policies. `annotation` is the annotation that requests it; `None` for a caller of the API.
    async fn resend(&mut self, value: String, annotation: Option<String>) -> Result<(), FolderError> {
        let component = self.deliveries.component_mut();
        component.status.observed_resend = Some(value);
        component.resend = annotation.or(component.resend.take());
        self.is_idle = false;
        // After an error, the next step writes the record.
        self.deliveries.resend().await
    }

    /// Sets the desired state: resolves the subscription, and computes the bodies.
    async fn want(&mut self, snapshot: &Arc<Snapshot>) -> Result<(), FolderError> {
        let mut resolution = resolve(&self.compiled, &snapshot.catalog);
        let has = self.deliveries.record().acknowledged.keys();
        let hidden: Vec<_> = has.filter(|id| snapshot.may_hide(id)).cloned().collect();
        if let Keep::Only(kept) = &mut resolution.keep {
            kept.extend(hidden.iter().cloned());
        }
        let (snapshot, facts, mut bodies) =
            (Arc::clone(snapshot), Arc::clone(&self.facts), std::mem::take(&mut self.bodies));
        let computed = blocking(move || {
            let (desired, errors) = resolution.desired(|policy| body(policy, &snapshot, &facts, &mut bodies));
            bodies.retain(|id, _| resolution.selected.contains_key(id));
            Ok((resolution, desired, errors, bodies))
        });
        let (resolution, desired, errors, bodies): (Resolution, Desired, Vec<_>, Bodies) = computed.await?;
        self.bodies = bodies;
        let findings = Findings::new(&resolution, &errors, &hidden);
        self.is_transient = errors.iter().any(|(_, error): &(_, RenderError)| error.is_transient());
        self.findings = findings;
        self.deliveries.want(desired);
        Ok(())
    }

    fn status(&self, error: Option<&str>) -> PolicySubscriptionStatus {
        let deliveries = &self.deliveries;
        let known = PolicySubscriptionStatus {
            conditions: self.written.conditions.clone(),
            ..deliveries.component().status.clone()
        };
        let Findings { failures, warnings } = self.findings.clone();
        let view = View {
            generation: None,
            desired: Some(deliveries.desired().clone()),
            failures,
            warnings,
            obstacle: error.map(|error| Failure::new(reasons::DELIVERY_FAILED, error)),
            cause: None,
            note: None,
            observed_resend: known.observed_resend.clone(),
        };
        compute(&view, deliveries.record(), deliveries.last(), &known, Timestamp::now())
    }

    /// Writes and logs the status if it has changed.
    async fn write_status(&mut self, id: &SubscriptionId) -> Result<(), FolderError> {
        let status = self.status(None);
        self.deliveries.component_mut().status = status.clone();
        if status == self.written && !self.is_record_old {
            self.deliveries.component().shared.reports.set(id, status);
            return Ok(());
        }
        self.deliveries.component().write_status(status.clone()).await?;
        self.is_record_old = false;
        log(id, &self.written, &status);
        self.written = status;
        Ok(())
    }
}

/// Returns the body of a policy, from the cache if the template has computed it for this component before.
fn body(
    policy: &ConfigurationPolicy,
    snapshot: &Snapshot,
    facts: &Arc<ComponentFacts>,
    bodies: &mut Bodies,
) -> Result<Item, RenderError> {
    let revision = snapshot.revisions.get(&(policy.id.clone(), policy.version.clone()));
    let Some((revision, content)) = revision.and_then(|revision| Some((revision, revision.configuration()?))) else {
        return Err(RenderError::Unavailable("the policy is not loaded".to_owned()));
    };
    if !content.is_template() {
        return content.item(policy, facts);
    }
    if let Some((of, by, component, item)) = bodies.get(&policy.id)
        && of == policy
        && Arc::ptr_eq(by, revision)
        && component == facts
    {
        return Ok(item.clone());
    }
    let item = content.item(policy, facts)?;
    bodies.insert(policy.id.clone(), (policy.clone(), Arc::clone(revision), Arc::clone(facts), item.clone()));
    Ok(item)
}

fn compile(id: &SubscriptionId, subscription: &Sourced<SubscriptionManifest>) -> CompiledSubscription {
    let read = subscription.spec.spec.subscription(&id.namespace);
    // The reader of the document has refused subscriptions that are not valid.
    let read = read.unwrap_or_else(|FieldError { field, message }| {
        tracing::error!(subscription = %id, field, error = message, "the subscription is not valid: it selects nothing");
        proviso_core::configuration::Subscription { namespace: id.namespace.clone(), ..Default::default() }
    });
    CompiledSubscription::new(&read)
}

/// Logs a condition that has changed.
fn log(id: &SubscriptionId, before: &PolicySubscriptionStatus, after: &PolicySubscriptionStatus) {
    for condition in &after.conditions {
        let is_same = |it: &&k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition| {
            (&it.type_, &it.status, &it.reason, &it.message)
                == (&condition.type_, &condition.status, &condition.reason, &condition.message)
        };
        if before.conditions.iter().any(|it| is_same(&it)) {
            continue;
        }
        let (type_, reason, message) = (&condition.type_, &condition.reason, &condition.message);
        let update = after.last_update.as_ref().map(|update| update.id.as_str());
        if condition.status == "True" {
            tracing::info!(subscription = %id, condition = type_, reason, message, update, "subscription");
        } else if *reason != *reasons::DELIVERING.as_str() {
            tracing::warn!(subscription = %id, condition = type_, reason, message, update, "subscription");
        }
    }
}
