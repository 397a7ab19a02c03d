//! The chain of the policies that cover a request, as a state machine.

use std::sync::Arc;

use serde_json::{Map, Value};

use super::cache::ConstraintCache;
use super::constraints::{Breach, CheckError, Constraints, CostBudget};
use super::fragment::PatternBudget;
use super::input::{Input, ProviderConstraintsInput, ProviderInput, PublishedInput};
use super::limits::{
    MAX_CONSTRAINT_BYTES, MAX_CONSTRAINTS, MAX_PATH_BYTES, MAX_PAYLOAD_BYTES, MAX_PAYLOAD_VALUES, json_bytes,
    value_count,
};
use super::outcome::{Conflict, ConstrainedField, Decision, Outcome, TrailEntry};
use super::patch;
use super::path::{FieldPath, Located, shorten};
use super::payload::Request;
use super::policy::RequestPolicy;
use super::provider::{Provider, ProviderError};
use super::provider_field;
use super::result::{Constraint, PolicyResult};
use super::writers::Writers;
use crate::failure::{Failure, Reason};

/// The result of a policy cannot be read, or a constraint cannot be compiled.
const RESULT_INVALID: Reason = Reason::new("ResultInvalid");
/// The result of a policy exceeds a limit of the evaluation.
const LIMIT_EXCEEDED: Reason = Reason::new("LimitExceeded");

/// The state of a chain: the next policy to evaluate, and the results of the policies before.
#[derive(Debug)]
pub struct Chain {
    request: Request,
    /// The policies that cover the request, in their order.
    policies: Vec<RequestPolicy>,
    /// The entries of the policies that were evaluated. The position of a policy is the same in `policies`.
    trail: Vec<TrailEntry>,
    payload: Value,
    /// An upper bound of the size of the payload as JSON, in bytes.
    payload_bytes: usize,
    constraints: Constraints,
    cache: Arc<ConstraintCache>,
    /// The number of values in the payload, at most.
    payload_values: usize,
    /// The size that is left for the paths of the fields that policies patch, in bytes.
    path_budget: usize,
    /// The number and the size of the constraints of all policies so far.
    used: (usize, usize),
    patterns: PatternBudget,
    provider: Provider,
    writers: Writers,
}

/// The next step of a chain.
#[derive(Debug)]
pub enum Progress {
    /// The caller evaluates [`Chain::policy`], and passes its result to [`Chain::apply`].
    Next(Box<Chain>),
    Done(Box<Outcome>),
}

impl Chain {
    /// Starts the evaluation of a request: selects the policies that cover it, and orders them. The cache is shared among requests.
    #[must_use]
    pub fn start(
        request: Request,
        policies: impl IntoIterator<Item = RequestPolicy>,
        cache: Arc<ConstraintCache>,
    ) -> Progress {
        let mut policies: Vec<_> = policies.into_iter().filter(|policy| policy.criteria.cover(&request)).collect();
        policies.sort_by(RequestPolicy::cmp_place);
        let payload = request.payload.clone();
        let (payload_bytes, payload_values) = request.payload_size;
        let chain = Self {
            payload_bytes,
            payload_values,
            path_budget: MAX_PATH_BYTES,
            payload,
            provider: Provider::of_caller(request.provider.clone()),
            request,
            policies,
            trail: Vec::new(),
            constraints: Constraints::default(),
            cache,
            used: (0, 0),
            patterns: PatternBudget::default(),
            writers: Writers::default(),
        };
        chain.proceed()
    }

    /// Returns the policy to evaluate.
    #[must_use]
    pub fn policy(&self) -> &RequestPolicy {
        &self.policies[self.trail.len()]
    }

    /// Returns the entries of the policies that were evaluated, in their order.
    #[must_use]
    pub fn trail(&self) -> &[TrailEntry] {
        &self.trail
    }

    /// Returns the input of the policy, as the ADR has it.
    #[must_use]
    pub fn input(&self) -> Input<'_> {
        let constraints = self.provider.constraints();
        Input {
            original_payload: &self.request.payload,
            payload: &self.payload,
            constraints: self.constraints.merged(),
            user: self.request.user(),
            tenant: self.request.tenant(),
            service_provider: ProviderInput {
                value: self.provider.value(),
                constraints: ProviderConstraintsInput {
                    allow_list: constraints.allow_list.as_deref(),
                    patterns: &constraints.patterns,
                },
            },
        }
    }

    /// Returns the input of a policy that is written for the published API.
    #[must_use]
    pub fn published_input(&self) -> PublishedInput<'_> {
        let (merged, provider_constraints) = (self.constraints.merged(), self.provider.constraints());
        PublishedInput {
            spec: &self.payload,
            provider: self.provider.value().unwrap_or_default(),
            constraints: (!merged.is_empty()).then_some(merged),
            service_provider_constraints: (!provider_constraints.is_empty()).then_some(provider_constraints),
        }
    }

    /// Applies the result of the policy: `None` if the result is undefined. An error means that the evaluation failed, and ends the
    /// chain: a policy is never skipped because it fails.
    #[must_use]
    pub fn apply(mut self: Box<Self>, result: Result<Option<Value>, Failure>) -> Progress {
        self.trail.push(TrailEntry::new(&self.policies[self.trail.len()]));
        let applied = match result {
            Err(failure) => Err(self.failed(failure)),
            Ok(None) => {
                self.entry().is_undefined = true;
                Ok(())
            }
            Ok(Some(result)) => self.apply_result(result),
        };
        match applied {
            Ok(()) => self.proceed(),
            Err(decision) => self.end(decision),
        }
    }

    fn proceed(self) -> Progress {
        if self.trail.len() < self.policies.len() {
            return Progress::Next(Box::new(self));
        }
        let decision = match self.constraints.check_pending(&self.payload, &mut CostBudget::default()) {
            Err(error) => self.unsatisfied(error),
            Ok(()) => match self.provider.caller_violation() {
                Some((holder, reason)) => {
                    let (policy, field) = (self.trail[holder].revision.clone(), self.request.provider_field.clone());
                    Decision::Rejected { policy, reason, field }
                }
                None if self.payload == self.request.payload => Decision::Approved,
                None => Decision::Modified,
            },
        };
        self.end(decision)
    }

    fn end(self, decision: Decision) -> Progress {
        Progress::Done(Box::new(Outcome {
            decision,
            payload: self.payload,
            provider: self.provider.value().map(ToOwned::to_owned),
            provider_constraints: self.provider.constraints().clone(),
            constraints: self.constraints.merged().clone(),
            trail: self.trail,
        }))
    }

    /// Applies a result that is defined. An error is the decision that ends the chain.
    fn apply_result(&mut self, result: Value) -> Result<(), Decision> {
        let mut result = PolicyResult::parse(result).map_err(|error| self.invalid(&error))?;
        if let Some(reason) = result.rejection {
            return Err(Decision::Rejected { policy: self.entry().revision.clone(), reason, field: None });
        }
        if let Some(field) = &self.request.provider_field {
            provider_field::add_to_patch(field, &mut result).map_err(|error| self.invalid(&error))?;
        }
        let mut budget = CostBudget::default();
        if let Some(patch) = result.patch {
            self.apply_patch(patch, &mut budget)?;
        }
        self.apply_constraints(result.constraints, &mut budget)?;
        let (provider, constraints) = (self.provider_choice(result.provider)?, result.provider_constraints);
        let position = self.position();
        self.provider.apply(position, provider.as_deref(), &constraints).map_err(|error| match error {
            ProviderError::Invalid(error) => self.invalid(&error),
            ProviderError::Clash(clash) => self.conflict(position, clash.holder, None, clash.reason),
        })?;
        let entry = self.entry();
        (entry.provider, entry.provider_constraints) = (provider, constraints);
        Ok(())
    }

    /// Returns the provider that the policy chooses. A patch of the field with the provider is a choice, too.
    fn provider_choice(&mut self, choice: Option<String>) -> Result<Option<String>, Decision> {
        let Some(field) = self.request.provider_field.as_ref().filter(|_| choice.is_none()) else { return Ok(choice) };
        let value = provider_field::read(field, &self.payload)
            .map_err(|kind| self.invalid(&provider_field::wrong_kind(field, kind)))?;
        if value.as_deref() == self.provider.value() {
            return Ok(None);
        }
        if value.is_none() {
            self.provider.remove();
        }
        Ok(value)
    }

    fn apply_patch(&mut self, patch: Map<String, Value>, budget: &mut CostBudget) -> Result<(), Decision> {
        let position = self.position();
        self.constraints
            .check_parents(&self.payload, &patch)
            .map_err(|breach| self.conflict(position, breach.holder, Some(breach.field), breach.reason))?;
        let Ok(changed) = patch::changed_fields(&self.payload, &patch, &mut self.path_budget) else {
            let message = format!(
                "the paths of the fields that policies patch have more than {MAX_PATH_BYTES} bytes: patch fewer fields, or use \
                 shorter keys"
            );
            return Err(self.failed(Failure::new(LIMIT_EXCEEDED, message)));
        };
        let patch = Value::Object(patch);
        json_patch::merge(&mut self.payload, &patch);
        // The exact size is computed only if the sum of the sizes of all patches could exceed the limit.
        self.payload_bytes += json_bytes(&patch);
        if self.payload_bytes > MAX_PAYLOAD_BYTES {
            self.payload_bytes = json_bytes(&self.payload);
        }
        if self.payload_bytes > MAX_PAYLOAD_BYTES {
            let message = format!("the payload has more than {MAX_PAYLOAD_BYTES} bytes after the patch");
            return Err(self.failed(Failure::new(LIMIT_EXCEEDED, message)));
        }
        self.payload_values += value_count(&patch);
        if self.payload_values > MAX_PAYLOAD_VALUES {
            self.payload_values = value_count(&self.payload);
        }
        if self.payload_values > MAX_PAYLOAD_VALUES {
            let message = format!("the payload has more than {MAX_PAYLOAD_VALUES} values after the patch");
            return Err(self.failed(Failure::new(LIMIT_EXCEEDED, message)));
        }
        for field in &changed {
            self.writers.record(field.clone(), position);
        }
        let checked = self.constraints.check_changed(&self.payload, &changed, budget);
        self.entry().patched = changed;
        checked.map_err(|error| match error {
            CheckError::Breach(breach) => self.conflict(position, breach.holder, Some(breach.field), breach.reason),
            CheckError::Cost { field, .. } => self.too_expensive(&field),
        })
    }

    fn apply_constraints(
        &mut self,
        constraints: Vec<(FieldPath, Constraint)>,
        budget: &mut CostBudget,
    ) -> Result<(), Decision> {
        let position = self.position();
        let mut fields = Vec::with_capacity(constraints.len());
        for (field, constraint) in constraints {
            let schema = self.schema_of(&field, constraint);
            self.used = (self.used.0 + 1, self.used.1 + json_bytes(&schema));
            if self.used.0 > MAX_CONSTRAINTS || self.used.1 > MAX_CONSTRAINT_BYTES {
                let message = format!(
                    "all policies together may return at most {MAX_CONSTRAINTS} constraints of {MAX_CONSTRAINT_BYTES} bytes"
                );
                return Err(self.failed(Failure::new(LIMIT_EXCEEDED, message)));
            }
            self.entry().constrained.push(ConstrainedField::new(field.clone(), schema.clone()));
            let compiled = self.cache.compile(schema);
            let within_budget = compiled.and_then(|fragment| self.patterns.spend(&fragment).map(|()| fragment));
            let fragment = within_budget.map_err(|error| {
                let message = format!("the constraint of the field `{}` {error}", shorten(&field.to_string()));
                self.failed(Failure::new(RESULT_INVALID, message))
            })?;
            self.constraints.add(&field, fragment, position, budget).map_err(|error| match error {
                CheckError::Breach(breach) => self.conflict(position, breach.holder, Some(breach.field), breach.reason),
                CheckError::Cost { field, .. } => self.too_expensive(&field),
            })?;
            fields.push(field);
        }
        let writers = &self.writers;
        let checked = self.constraints.check_new(&self.payload, &fields, position, budget, |field| writers.of(field));
        checked.map_err(|error| self.unsatisfied(error))
    }

    /// Returns the schema of a constraint. An immutable field keeps its value; an immutable field without a value stays without one.
    fn schema_of(&self, field: &FieldPath, constraint: Constraint) -> Value {
        match constraint {
            Constraint::Schema(schema) => schema,
            Constraint::Immutable => match field.locate(&self.payload) {
                Located::Present(value) => Value::Object([("const".to_owned(), value.clone())].into_iter().collect()),
                Located::Absent | Located::Misplaced { .. } => Value::Bool(false),
            },
        }
    }

    /// Returns the decision for a value that violates a constraint: a conflict with the policy that set the value, or the rejection
    /// of a value of the caller.
    fn unsatisfied(&self, error: CheckError) -> Decision {
        match error {
            CheckError::Cost { field, .. } => self.too_expensive(&field),
            CheckError::Breach(Breach { field, at, holder, reason }) => {
                if let Some(writer) = self.writers.around(&at) {
                    return self.conflict(writer.max(holder), writer.min(holder), Some(field), reason);
                }
                Decision::Rejected { policy: self.trail[holder].revision.clone(), reason, field: Some(field) }
            }
        }
    }

    fn conflict(&self, policy: usize, other: usize, field: Option<FieldPath>, reason: String) -> Decision {
        let revision = |position: usize| self.trail[position].revision.clone();
        Decision::Conflict(Conflict { policy: revision(policy), other: revision(other), field, reason })
    }

    fn too_expensive(&self, field: &FieldPath) -> Decision {
        let message = format!(
            "the validation of the field `{}` would take too long; use simpler constraints",
            shorten(&field.to_string())
        );
        self.failed(Failure::new(LIMIT_EXCEEDED, message))
    }

    fn invalid(&self, error: &impl ToString) -> Decision {
        self.failed(Failure::new(RESULT_INVALID, error.to_string()))
    }

    fn failed(&self, failure: Failure) -> Decision {
        Decision::Failed { policy: self.trail[self.position()].revision.clone(), failure }
    }

    /// Returns the position of the policy whose result is applied.
    fn position(&self) -> usize {
        self.trail.len() - 1
    }

    fn entry(&mut self) -> &mut TrailEntry {
        let position = self.position();
        &mut self.trail[position]
    }
}
