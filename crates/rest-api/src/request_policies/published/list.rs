//! Lists of the published form (AEP-132): filter, order and pages.

use std::cmp::Ordering;

use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use super::Result;
use super::resource::{PolicyType, Resource};
use crate::error::Error;
use crate::page::Page;

const DEFAULT_SIZE: usize = 50;
const MAX_SIZE: usize = 1000;

/// The arguments of a list.
#[derive(Debug)]
pub(super) struct Query {
    size: usize,
    page: Page,
    filter: Filter,
    order: Vec<Term>,
}

/// The conditions that the policies of a list meet.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Filter {
    policy_type: Option<PolicyType>,
    enabled: Option<bool>,
}

/// One field by which a list is ordered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Term {
    field: Field,
    is_descending: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Field {
    PolicyType,
    Priority,
    DisplayName,
    CreateTime,
}

/// The value of a field in the order of a list.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Deserialize, Serialize)]
#[serde(untagged)]
enum SortValue {
    Number(i64),
    /// The text in lower case, then the text.
    Text(String, String),
}

/// The position of a policy in a list: the values of the fields of the order, and the id.
type Position = (Vec<SortValue>, String);

impl Query {
    pub(super) fn parse(
        size: Option<&str>,
        token: Option<&str>,
        filter: Option<&str>,
        order: Option<&str>,
    ) -> Result<Self> {
        let size = size.map_or(Ok(DEFAULT_SIZE), |text| {
            let size = text.parse().ok().filter(|size| (1..=MAX_SIZE).contains(size));
            size.ok_or_else(|| Error::invalid("max_page_size", format!("must be a number from 1 to {MAX_SIZE}")))
        })?;
        let (filter, order) = (filter.unwrap_or_default(), order.unwrap_or_default());
        let page = Page::new(None, token, &["request policies", filter, order]);
        let page = page.map_err(|error| error.with_field_names(&[("pageToken", "page_token")]))?;
        Ok(Self { size, page, filter: Filter::parse(filter)?, order: parse_order(order)? })
    }

    /// Returns the response: the page of these policies.
    pub(super) fn page(&self, policies: Vec<Resource>) -> Value {
        let policies = policies.into_iter().filter(|policy| self.filter.matches(policy));
        let mut policies: Vec<_> = policies.map(|policy| (self.position(&policy), policy)).collect();
        policies.sort_by(|(one, _), (other, _)| self.compare(one, other));
        if let Some(after) = self.page.after().and_then(|text| serde_json::from_str::<Position>(text).ok()) {
            policies.retain(|(position, _)| self.compare(position, &after) == Ordering::Greater);
        }
        let is_last = policies.len() <= self.size;
        policies.truncate(self.size);
        let last = policies.last().filter(|_| !is_last).map(|(position, _)| json!(position).to_string());
        let mut response = json!({"policies": policies.iter().map(|(_, policy)| policy.to_json()).collect::<Vec<_>>()});
        if let Some(last) = last {
            response["next_page_token"] = self.page.token(&last).into();
        }
        response
    }

    fn position(&self, policy: &Resource) -> Position {
        let value = |term: &Term| match term.field {
            Field::PolicyType => SortValue::Number((policy.content.policy_type == PolicyType::User).into()),
            Field::Priority => SortValue::Number(policy.content.priority.into()),
            Field::DisplayName => {
                let name = &policy.content.display_name;
                SortValue::Text(name.to_lowercase(), name.clone())
            }
            Field::CreateTime => {
                SortValue::Number(policy.create_time.as_ref().map_or(0, |time| time.0.as_microsecond()))
            }
        };
        (self.order.iter().map(value).collect(), policy.id.clone())
    }

    fn compare(&self, one: &Position, other: &Position) -> Ordering {
        let terms = self.order.iter().zip(one.0.iter().zip(&other.0));
        let by_terms = terms.map(|(term, (one, other))| {
            let order = one.cmp(other);
            if term.is_descending { order.reverse() } else { order }
        });
        by_terms.fold(Ordering::Equal, Ordering::then).then_with(|| one.1.cmp(&other.1))
    }
}

impl Filter {
    /// Parses `policy_type='GLOBAL'`, `enabled=true`, or both with `AND`, in either order. An empty text is met by every policy.
    fn parse(text: &str) -> Result<Self> {
        let mut filter = Self::default();
        if text.trim().is_empty() {
            return Ok(filter);
        }
        let conditions: Vec<_> = text.split(" AND ").collect();
        if conditions.len() > 2 {
            return Err(Error::invalid("filter", "has more than one AND"));
        }
        for condition in conditions {
            let known = condition.split_once('=').and_then(|(field, value)| filter.add(field.trim(), value.trim()));
            known.ok_or_else(|| {
                let condition: String = condition.trim().chars().take(100).collect();
                let message = format!(
                    "has the condition {condition:?}: the conditions are policy_type='GLOBAL', policy_type='USER', enabled=true and \
                     enabled=false, each field once, joined by AND"
                );
                Error::invalid("filter", message)
            })?;
        }
        Ok(filter)
    }

    /// Adds a condition. `None` if it is unknown, or if the filter has one about this field.
    fn add(&mut self, field: &str, value: &str) -> Option<()> {
        let is_repeated = match field {
            "policy_type" => {
                let value = match value {
                    "'GLOBAL'" => PolicyType::Global,
                    "'USER'" => PolicyType::User,
                    _ => return None,
                };
                self.policy_type.replace(value).is_some()
            }
            "enabled" => self.enabled.replace(value.parse().ok()?).is_some(),
            _ => return None,
        };
        (!is_repeated).then_some(())
    }

    fn matches(self, policy: &Resource) -> bool {
        self.policy_type.is_none_or(|expected| policy.content.policy_type == expected)
            && self.enabled.is_none_or(|expected| policy.content.enabled == expected)
    }
}

/// Parses fields such as `create_time desc, priority`. Default: the policy type, then the priority.
fn parse_order(text: &str) -> Result<Vec<Term>> {
    let ascending = |field| Term { field, is_descending: false };
    if text.trim().is_empty() {
        return Ok(vec![ascending(Field::PolicyType), ascending(Field::Priority)]);
    }
    let terms = text.split(',').map(|term| {
        let words: Vec<_> = term.split_whitespace().collect();
        let (field, direction) = match words[..] {
            [field] => (field, "asc"),
            [field, direction] => (field, direction),
            _ => return Err(invalid_order(term)),
        };
        let field = match field {
            "priority" => Field::Priority,
            "display_name" => Field::DisplayName,
            "create_time" => Field::CreateTime,
            _ => return Err(invalid_order(term)),
        };
        let is_descending = direction.eq_ignore_ascii_case("desc");
        if !is_descending && !direction.eq_ignore_ascii_case("asc") {
            return Err(invalid_order(term));
        }
        Ok(Term { field, is_descending })
    });
    let mut order: Vec<Term> = Vec::new();
    for (term, text) in terms.zip(text.split(',')) {
        let term = term?;
        // A repeated field has no effect, and a long list of them would cost memory for each policy.
        if order.iter().any(|known| known.field == term.field) {
            return Err(invalid_order(text));
        }
        order.push(term);
    }
    Ok(order)
}

fn invalid_order(term: &str) -> Error {
    let term: String = term.trim().chars().take(100).collect();
    let message = format!(
        "has {term:?}: must be a list of priority, display_name and create_time, each at most once and followed by asc, desc or nothing"
    );
    Error::invalid("order_by", message)
}

#[cfg(test)]
mod tests;
