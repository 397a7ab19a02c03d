use serde_json::{Value, json};

use super::*;
use crate::objects::tests::subscription;

/// Returns the status of a subscription whose component has these policies.
fn status(delivered: &str, reason: &str, more: &Value) -> Value {
    let condition = |type_: &str, status: &str, reason: &str| {
        json!({
            "type": type_, "status": status, "reason": reason, "message": "m", "observedGeneration": 2,
            "lastTransitionTime": "2026-11-21T09:30:00Z",
        })
    };
    let mut status = json!({
        "observedGeneration": 2, "summary": "1/2",
        "conditions": [condition("Resolved", "True", "Resolved"), condition("Delivered", delivered, reason)],
    });
    for (key, value) in more.as_object().unwrap() {
        status[key] = value.clone();
    }
    status
}

fn delivered(version: &str) -> Value {
    let digest = format!("sha256:{}", "0".repeat(64));
    json!({"id": "cluster.memory", "version": version, "digest": digest})
}

#[test]
fn each_state_has_a_summary_and_a_problem() {
    let digest = format!("sha256:{}", "1".repeat(64));
    let rejected = json!({"rejected": [
        {"id": "cluster.memory", "version": "2", "digest": digest, "message": "exit code 3: too much"},
    ], "pending": [{"id": "cluster.memory", "version": "2"}]});
    let failed = json!({"lastUpdate": {
        "id": "u", "time": "2026-11-21T09:30:00Z", "result": "Failed", "message": "no connection",
    }});
    let mut unresolved = status("False", "NotResolved", &json!({}));
    unresolved["conditions"][0]["status"] = "False".into();
    unresolved["conditions"][0]["reason"] = "TooManyPolicies".into();
    let mut old = status("True", "Delivered", &json!({}));
    old["observedGeneration"] = 1.into();
    for (status, state, summary, reason) in [
        (json!(null), DeliveryState::Pending, "it has not been processed yet", None),
        (old, DeliveryState::Pending, "it has not been processed yet", None),
        (
            status("True", "Delivered", &json!({})),
            DeliveryState::Delivered,
            "the component has all its policies (1/2)",
            None,
        ),
        (status("False", "Delivering", &json!({})), DeliveryState::Pending, "the delivery goes on (1/2)", None),
        (status("False", "Pending", &json!({})), DeliveryState::Pending, "the delivery goes on (1/2)", None),
        (status("Unknown", "Resolving", &json!({})), DeliveryState::Pending, "the delivery goes on (1/2)", None),
        (
            status("False", "Rejected", &rejected),
            DeliveryState::Rejected,
            "the component keeps its last good policies (1/2)",
            Some("Rejected"),
        ),
        (
            status("False", "NotificationFailed", &failed),
            DeliveryState::Failed,
            "the last update failed, and is sent again (1/2)",
            Some("NotificationFailed"),
        ),
        (
            status("False", "ConfigMapConflict", &json!({})),
            DeliveryState::Failed,
            "the component keeps the policies that it has (1/2)",
            Some("ConfigMapConflict"),
        ),
        (
            unresolved,
            DeliveryState::Failed,
            "the component keeps the policies that it has (1/2)",
            Some("TooManyPolicies"),
        ),
    ] {
        let report = SubscriptionReport::new(&subscription(2, &status));
        assert_eq!((report.state, report.summary.as_str()), (state, summary), "{status}");
        assert_eq!(report.problem.map(|problem| problem.reason.to_string()).as_deref(), reason, "{status}");
    }
}

#[test]
fn each_policy_has_its_versions_and_its_state() {
    let digest = format!("sha256:{}", "1".repeat(64));
    let status = status(
        "False",
        "Rejected",
        &json!({
            "policies": [
                delivered("1"),
                {"id": "cluster.same", "version": "4", "digest": digest},
                {"id": "ns.team.gone", "version": "2", "digest": digest},
                {"id": "ns.team.kept", "version": "2", "digest": digest},
            ],
            "pending": [
                {"id": "cluster.memory", "version": "2"}, {"id": "ns.team.gone"}, {"id": "ns.team.kept"},
                {"id": "ns.team.new", "version": "1/trial/3"},
            ],
            "unconfirmed": ["ns.team.new"],
            "rejected": [
                {"id": "cluster.memory", "version": "2", "digest": digest, "message": "exit code 3"},
                {"id": "ns.team.kept", "message": "still needed"},
                // A rejection of the past: the policy has changed since.
                {"id": "ns.team.new", "version": "1", "digest": digest, "message": "old"},
            ],
        }),
    );
    let object = subscription(2, &status);
    let rows: Vec<_> = ItemReport::list(&object)
        .into_iter()
        .map(|it| (it.policy, it.has.unwrap_or_default(), it.should.unwrap_or_default(), it.state, it.message))
        .collect();
    let row = |id: &str, has: &str, should: &str, state, message: Option<&str>| {
        (id.to_owned(), has.to_owned(), should.to_owned(), state, message.map(str::to_owned))
    };
    assert_eq!(
        rows,
        [
            row("cluster.memory", "1", "2", ItemState::Rejected, Some("exit code 3")),
            row("cluster.same", "4", "4", ItemState::Current, None),
            row("ns.team.gone", "2", "", ItemState::Pending, None),
            row("ns.team.kept", "2", "", ItemState::Rejected, Some("still needed")),
            row("ns.team.new", "", "1/trial/3", ItemState::Unconfirmed, None),
        ]
    );
    let detail = SubscriptionDetail::new(&object, ItemReport::list(&object), None, Vec::new(), "proviso");
    let commands: Vec<_> = detail.next_steps.iter().filter_map(|step| step.command.as_deref()).collect();
    assert_eq!(
        commands,
        [
            "proviso subscriptions status collector -n team --diff",
            "proviso rollback cluster.memory",
            "proviso subscriptions resend collector -n team",
        ]
    );
    assert!(!detail.is_truncated);
}
