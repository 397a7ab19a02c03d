use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use proviso_core::Reason;
use proviso_core::configuration::{Audience, ConfigurationPolicy, Item, Keep, Rejection, Version};
use proviso_crds::Conditions as _;
use serde_json::json;

use super::*;

fn id(name: &str) -> PolicyId {
    format!("cluster.{name}").parse().unwrap()
}

fn item(name: &str, generation: i64) -> Item {
    let policy = ConfigurationPolicy {
        id: id(name),
        version: Version::of(generation),
        config_name: name.to_owned(),
        owner: None,
        attributes: BTreeMap::new(),
        is_confidential: false,
        audience: Audience::All,
    };
    Item::new(&policy, &json!({})).unwrap()
}

fn desired(policies: &[(&str, i64)]) -> Desired {
    let items = policies.iter().map(|(name, generation)| (id(name), item(name, *generation)));
    Desired { items: items.collect(), ..Desired::default() }
}

fn record(policies: &[(&str, i64)]) -> Record {
    let acknowledged = policies.iter().map(|(name, generation)| (id(name), item(name, *generation).entry()));
    Record { acknowledged: acknowledged.collect(), ..Record::default() }
}

fn view(policies: &[(&str, i64)]) -> View {
    View { generation: Some(1), desired: Some(desired(policies)), ..View::default() }
}

fn last(result: UpdateResult, message: &str) -> LastUpdate {
    let time = Time(Timestamp::UNIX_EPOCH);
    LastUpdate { id: "1".to_owned(), time, result: Some(result), message: Some(message.to_owned()) }
}

fn status(view: &View, record: &Record, last: Option<&LastUpdate>) -> PolicySubscriptionStatus {
    compute(view, record, last, &PolicySubscriptionStatus::default(), Timestamp::UNIX_EPOCH)
}

/// Returns status, reason and message of a condition.
fn condition(status: &PolicySubscriptionStatus, type_: ConditionType) -> (String, String, String) {
    let found = status.conditions.condition(type_).unwrap();
    (found.status.clone(), found.reason.clone(), found.message.clone())
}

fn pending_of(status: &PolicySubscriptionStatus) -> Vec<(&str, Option<&str>)> {
    status.pending.iter().map(|change| (change.id.as_str(), change.version.as_deref())).collect()
}

#[test]
fn pending_changes_and_the_summary_compare_the_desired_with_the_acknowledged_state() {
    let mut record = record(&[("a", 1), ("b", 1), ("c", 1), ("gone", 1), ("kept", 1)]);
    record.unconfirmed = [id("c"), id("stray")].into();
    let mut view = view(&[("a", 1), ("b", 2), ("c", 1), ("new", 1)]);
    if let Some(desired) = &mut view.desired {
        desired.keep = Keep::Only([id("kept")].into());
    }
    let status = status(&view, &record, None);
    assert_eq!(
        pending_of(&status),
        [
            ("cluster.b", Some("2")),
            ("cluster.c", Some("1")),
            ("cluster.gone", None),
            ("cluster.new", Some("1")),
            ("cluster.stray", None),
        ]
    );
    assert_eq!(status.summary.as_deref(), Some("1/4"));
    assert_eq!(status.record(), record);
    let (state, reason, message) = condition(&status, ConditionType::Delivered);
    assert_eq!((state.as_str(), reason.as_str()), ("False", "Delivering"));
    assert_eq!(message, "the component does not have 5 changes yet");
}

#[test]
fn the_condition_delivered_names_the_cause_and_the_remedy() {
    let (old, new) = (record(&[("a", 1)]), view(&[("a", 2)]));
    let rejected = |change| {
        let rejection = Rejection { change, message: "collector-0: exit code 3: too large".to_owned() };
        Record { rejected: [(id("a"), vec![rejection])].into(), ..old.clone() }
    };
    let failure = |reason: Reason, message: &str| Some(Failure { reason, message: message.to_owned() });
    let conflict = View { obstacle: failure(reasons::CONFIG_MAP_CONFLICT, "taken"), ..new.clone() };
    let container = View { cause: failure(reasons::CONTAINER_NOT_FOUND, "x"), ..new.clone() };
    let no_pods = View { note: Some("no pod is Ready".to_owned()), ..view(&[("a", 1)]) };
    let failed = last(UpdateResult::Failed, "collector-0: no answer within 30 s");
    let to = || Change::To(item("a", 2).entry());
    let cases = [
        (&view(&[("a", 1)]), old.clone(), None, "True", "Delivered", "the component has 1 policy"),
        (&no_pods, old.clone(), None, "True", "Delivered", "no pod is Ready"),
        (&new, old.clone(), None, "False", "Delivering", "does not have 1 change yet"),
        (
            &new,
            old.clone(),
            Some(&failed),
            "False",
            "DeliveryFailed",
            "no answer within 30 s. The update is sent again",
        ),
        (&container, old.clone(), Some(&failed), "False", "ContainerNotFound", "no answer within 30 s"),
        (&conflict, old.clone(), Some(&failed), "False", "ConfigMapConflict", "taken"),
        (&new, rejected(to()), None, "False", "Rejected", "rejected the policy cluster.a: collector-0: exit code 3"),
        (&view(&[]), rejected(Change::Removal), None, "False", "Rejected", "the removal of the policy cluster.a"),
        // A rejection of a change that is not desired any more.
        (&view(&[("a", 1)]), rejected(to()), None, "True", "Delivered", ""),
    ];
    for (view, record, last, state, reason, text) in cases {
        let found = condition(&status(view, &record, last), ConditionType::Delivered);
        assert_eq!((found.0.as_str(), found.1.as_str()), (state, reason), "{found:?}");
        assert!(found.2.contains(text), "{found:?}");
    }
}

#[test]
fn the_condition_resolved_has_failures_before_warnings() {
    let failure = |reason: &'static str| Failure::new(Reason::new(reason), format!("{reason} message"));
    let many: Vec<_> = (0..7).map(|_| failure("TooManyPolicies")).collect();
    for (failures, warnings, state, reason, text) in [
        (vec![], vec![], "True", "Resolved", "every selector works"),
        (vec![], vec![failure("NoPolicySelected")], "True", "NoPolicySelected", "NoPolicySelected message"),
        (many, vec![failure("NoPolicySelected")], "False", "TooManyPolicies", "; and 2 more. The component keeps"),
    ] {
        let view = View { failures, warnings, ..view(&[]) };
        let found = condition(&status(&view, &Record::default(), None), ConditionType::Resolved);
        assert_eq!((found.0.as_str(), found.1.as_str()), (state, reason));
        assert!(found.2.contains(text), "{found:?}");
    }
}

#[test]
fn a_start_keeps_the_conditions_until_the_first_resolution() {
    let known = status(&view(&[("a", 1)]), &record(&[("a", 1)]), None);
    let starting = View { observed_resend: Some("x".to_owned()), ..View::default() };
    let unconfirmed = Record { unconfirmed: [id("a")].into(), ..known.record() };
    let status = compute(&starting, &unconfirmed, None, &known, Timestamp::now());
    assert_eq!((&status.conditions, &status.summary), (&known.conditions, &known.summary));
    assert_eq!((status.unconfirmed.len(), status.observed_resend.as_deref()), (1, Some("x")));
}

#[test]
fn lists_and_messages_are_bounded() {
    let names: Vec<_> = (0..150).map(|number| format!("p{number:03}")).collect();
    let policies: Vec<_> = names.iter().map(|name| (name.as_str(), 1)).collect();
    let mut view = view(&policies);
    view.obstacle = Some(Failure { reason: reasons::CONFIG_MAP_CONFLICT, message: "ä".repeat(9000) });
    let status = status(&view, &Record::default(), None);
    assert_eq!((status.pending.len(), status.summary.as_deref()), (MAX_PENDING, Some("0/150")));
    assert_eq!(condition(&status, ConditionType::Delivered).2.len(), MAX_MESSAGE);
    assert_eq!(resend_value(&"ä".repeat(100)).len(), MAX_RESEND);
}
