//! Commits: a commit succeeds completely or changes nothing, also if its caller stalls or stops between any two steps.

use std::time::Duration;

use axum::http::Method;
use kube::ResourceExt as _;
use kube::api::{DeleteParams, Patch, PatchParams};
use proviso_crds::names::COMMITTED_EXPERIMENT;
use proviso_rest_api::kubernetes::commit::Commit;
use proviso_rest_api::kubernetes::{Access, Authorizer};
use proviso_rest_api::{Caller, Code, CommitPreconditions, Error, PolicyStore};
use serde_json::{Value, json};

use crate::test_api::{TestApi, caller, spec};

/// A time in which an experiment that is not prepared stays so.
const SHORT: Duration = Duration::from_millis(100);
const LONG: Duration = Duration::from_secs(30);

#[tokio::test]
async fn a_commit_succeeds_completely_or_changes_nothing() {
    let api = TestApi::start("api-commits").await;
    let store = &*api.store;

    // A commit with a stale etag or a stale parentEtag changes nothing.
    let (name, right) = api.create_prepared_pair("stale").await;
    let wrong = CommitPreconditions { etag: "\"0\"".into(), parent_etag: None };
    assert_eq!(store.commit(None, &name, &wrong).await.unwrap_err().code, Code::Aborted);
    let wrong = CommitPreconditions { parent_etag: Some("\"0\"".into()), ..right.clone() };
    assert_eq!(store.commit(None, &name, &wrong).await.unwrap_err().code, Code::Aborted);
    assert_eq!((api.intent(&name).await, api.message(&name).await.as_str()), (None, "old"));

    // A commit with the current etags records the experiment in the policy. A second commit fails with NOT_FOUND.
    let object = api.experiments().get("stale").await.unwrap();
    let parent = api.get("/v1/policies/cluster.stale").await["etag"].as_str().unwrap().to_owned();
    let right = CommitPreconditions { parent_etag: Some(parent), ..right };
    store.commit(None, &name, &right).await.unwrap();
    assert_eq!(api.message(&name).await, "new");
    let policy = api.policies().get("stale").await.unwrap();
    let mut committed: Value = serde_json::from_str(&policy.annotations()[COMMITTED_EXPERIMENT]).unwrap();
    let id = committed.as_object_mut().unwrap().remove("commit").unwrap();
    assert!(id.as_str().is_some_and(|id| id.len() == 32), "{id}");
    assert_eq!(committed, json!({"name": "stale", "uid": object.uid(), "generation": 1, "etag": right.etag}));
    assert!(api.experiments().get_opt("stale").await.unwrap().is_none());
    assert_eq!(store.commit(None, &name, &right).await.unwrap_err().code, Code::NotFound);

    // An edit before the commit makes another version, and the commit is refused.
    let (name, right) = api.create_prepared_pair("edited").await;
    api.edit(&name, "edited").await;
    assert_eq!(store.commit(None, &name, &right).await.unwrap_err().reason(), "ETAG_MISMATCH");
    assert_eq!((api.intent(&name).await, api.message(&name).await.as_str()), (None, "old"));
}

#[tokio::test]
async fn an_experiment_that_does_not_work_is_not_committed() {
    let api = TestApi::start("api-commits-unprepared").await;
    let store = &*api.store;

    // The candidate fails: the error has the cause, and nothing has changed.
    let (name, right) = api.create_pair("failing").await;
    let policy = api.policies().get("failing").await.unwrap();
    api.report_initialized(&name, "False", "CompileError", "line 1: unknown function").await;
    let refused = store.commit(None, &name, &right).await.unwrap_err();
    assert_eq!((refused.code, refused.reason()), (Code::FailedPrecondition, "DOES_NOT_WORK"));
    assert!(refused.message.contains("CompileError: line 1: unknown function"), "{refused}");
    assert_eq!(api.intent(&name).await, None);
    let unchanged = api.policies().get("failing").await.unwrap();
    assert_eq!(unchanged.resource_version(), policy.resource_version());

    // The candidate is not prepared, or only another version of it.
    let (name, right) = api.create_prepared_pair("unprepared").await;
    api.edit(&name, "newer").await;
    let etag = api.get(&format!("/v1/{name}")).await["etag"].as_str().unwrap().to_owned();
    let right = CommitPreconditions { etag, ..right };
    let commit = Commit::new(store, None, &name, &right);
    let marked = commit.mark().await.unwrap();
    let refused = commit.prepare(&marked, SHORT).await.unwrap_err();
    assert_eq!((refused.code, refused.reason()), (Code::FailedPrecondition, "NOT_PREPARED"));
    api.report_condition(&name, "Accepted", "False", "TooMany", "there are 10 older experiments").await;
    let refused = commit.prepare(&marked, SHORT).await.unwrap_err();
    assert!(refused.message.ends_with(": there are 10 older experiments"), "{refused}");
    assert_eq!(api.message(&name).await, "old");

    // The operator prepares the candidate while the commit waits for it.
    let (prepared, ()) = tokio::join!(commit.prepare(&marked, LONG), async {
        api.report_initialized(&name, "True", "Prepared", "it works").await;
    });
    prepared.unwrap();
    commit.copy(&marked).await.unwrap();
    commit.delete(&marked).await.unwrap();
    assert_eq!(api.message(&name).await, "newer");
    assert!(api.experiments().get_opt(&name.name).await.unwrap().is_none());
}

#[tokio::test]
async fn a_stalled_commit_does_not_overwrite_a_newer_policy() {
    let api = TestApi::start("api-commits-policy").await;
    let store = &*api.store;

    // The policy changes after step (a), and after step (b). The caller gave no parentEtag.
    for stall in ["a", "b"] {
        let (name, right) = api.create_prepared_pair(&format!("policy-{stall}")).await;
        let commit = Commit::new(store, None, &name, &right);
        let marked = commit.mark().await.unwrap();
        if stall == "b" {
            commit.prepare(&marked, LONG).await.unwrap();
        }
        api.edit_policy(&name, "other").await;
        commit.prepare(&marked, LONG).await.unwrap();
        assert_eq!(commit.copy(&marked).await.unwrap_err().reason(), "POLICY_CHANGED");
        assert_eq!(api.message(&name).await, "other");
        assert!(api.experiments().get_opt(&name.name).await.unwrap().is_some());
    }

    // With a parentEtag, the error names it.
    let (name, right) = api.create_prepared_pair("parent").await;
    let parent = api.get("/v1/policies/cluster.parent").await["etag"].as_str().unwrap().to_owned();
    let strict = CommitPreconditions { parent_etag: Some(parent), ..right };
    let commit = Commit::new(store, None, &name, &strict);
    let marked = commit.mark().await.unwrap();
    api.edit_policy(&name, "other").await;
    assert_eq!(commit.copy(&marked).await.unwrap_err().reason(), "ETAG_MISMATCH");
    assert_eq!(api.message(&name).await, "other");

    // Another policy of the same name has the same generation.
    let (name, right) = api.create_prepared_pair("renewed").await;
    let commit = Commit::new(store, None, &name, &right);
    let marked = commit.mark().await.unwrap();
    api.policies().delete("renewed", &DeleteParams::default()).await.unwrap();
    api.ok(Method::POST, "/v1/policies?policyId=cluster.renewed", json!({"spec": spec("renewed")})).await;
    assert_eq!(commit.copy(&marked).await.unwrap_err().reason(), "POLICY_CHANGED");
    assert_eq!(api.message(&name).await, "renewed");

    // A change of the status is no newer version.
    let (name, right) = api.create_prepared_pair("status").await;
    let commit = Commit::new(store, None, &name, &right);
    let marked = commit.mark().await.unwrap();
    api.report_policy(&name, json!({"liveGeneration": 1})).await;
    commit.copy(&marked).await.unwrap();
    assert_eq!(api.message(&name).await, "new");
}

#[tokio::test]
async fn a_stalled_commit_does_not_delete_an_edited_experiment() {
    let api = TestApi::start("api-commits-experiment").await;
    let store = &*api.store;

    // The experiment is edited after step (a), and after step (b): nothing is committed.
    for stall in ["a", "b"] {
        let (name, right) = api.create_prepared_pair(&format!("edited-{stall}")).await;
        let commit = Commit::new(store, None, &name, &right);
        let marked = commit.mark().await.unwrap();
        if stall == "b" {
            commit.prepare(&marked, LONG).await.unwrap();
        }
        api.edit(&name, "too late").await;
        assert_eq!(commit.prepare(&marked, LONG).await.unwrap_err().reason(), "ETAG_MISMATCH");
        assert_eq!(commit.copy(&marked).await.unwrap_err().reason(), "ETAG_MISMATCH");
        assert_eq!(api.message(&name).await, "old");
    }

    // The experiment is edited after step (c): it stays, and can be committed in its turn.
    let (name, right) = api.create_prepared_pair("copied").await;
    let commit = Commit::new(store, None, &name, &right);
    let marked = commit.mark().await.unwrap();
    commit.copy(&marked).await.unwrap();
    api.edit(&name, "next").await;
    commit.delete(&marked).await.unwrap();
    assert_eq!((api.intent(&name).await, api.message(&name).await.as_str()), (None, "new"));
    let etag = api.get(&format!("/v1/{name}")).await["etag"].as_str().unwrap().to_owned();
    api.report_initialized(&name, "True", "Prepared", "it works").await;
    store.commit(None, &name, &CommitPreconditions { etag, parent_etag: None }).await.unwrap();
    assert_eq!(api.message(&name).await, "next");

    // The experiment is deleted and created again after step (c): the new experiment stays.
    let (name, right) = api.create_prepared_pair("renewed").await;
    let commit = Commit::new(store, None, &name, &right);
    let marked = commit.mark().await.unwrap();
    commit.copy(&marked).await.unwrap();
    api.ok(Method::DELETE, &format!("/v1/{name}"), Value::Null).await;
    let again = format!("/v1/policies/{}/experiments?experimentId=renewed", name.policy);
    api.ok(Method::POST, &again, json!({"policy": {"spec": spec("next")}})).await;
    commit.delete(&marked).await.unwrap();
    assert!(api.experiments().get_opt("renewed").await.unwrap().is_some());
}

#[tokio::test]
async fn a_commit_that_the_operator_has_aborted_changes_nothing() {
    let api = TestApi::start("api-commits-aborted").await;
    let store = &*api.store;
    // The operator writes the policy first, and then the experiment. It may stop in between.
    for (round, is_policy_written, is_intent_removed) in [(0, true, false), (1, true, true), (2, false, true)] {
        let (name, right) = api.create_prepared_pair(&format!("r{round}")).await;
        let commit = Commit::new(store, None, &name, &right);
        let marked = commit.mark().await.unwrap();
        commit.prepare(&marked, LONG).await.unwrap();
        let intent = api.intent(&name).await.unwrap();
        assert_eq!((intent.generation, intent.policy_generation), (1, 1));
        if is_policy_written {
            api.report_policy(&name, json!({"abortedCommit": intent.id})).await;
        }
        if is_intent_removed {
            api.report(&name, json!({"commit": null})).await;
            assert_eq!(commit.prepare(&marked, LONG).await.unwrap_err().reason(), "COMMIT_ABORTED");
        }
        let aborted = commit.copy(&marked).await.unwrap_err();
        assert_eq!((aborted.code, aborted.reason()), (Code::Aborted, "COMMIT_ABORTED"), "round {round}");
        assert_eq!(api.message(&name).await, "old");
        assert!(api.experiments().get_opt(&name.name).await.unwrap().is_some());
        // Another commit succeeds after the operator has removed the intent.
        api.report(&name, json!({"commit": null})).await;
        store.commit(None, &name, &right).await.unwrap();
        assert_eq!(api.message(&name).await, "new");
    }
}

#[tokio::test]
async fn only_one_of_two_concurrent_commits_succeeds() {
    let api = TestApi::start("api-commits-at-once").await;
    for round in 0..5 {
        let (name, right) = api.create_prepared_pair(&format!("r{round}")).await;
        let (one, two) = tokio::join!(api.store.commit(None, &name, &right), api.store.commit(None, &name, &right));
        let (won, lost): (Vec<_>, Vec<_>) = [one, two].into_iter().partition(Result::is_ok);
        assert_eq!((won.len(), lost.len()), (1, 1), "{won:?} {lost:?}");
        let code = lost.into_iter().next().unwrap().unwrap_err().code;
        assert!([Code::NotFound, Code::Aborted].contains(&code), "{code:?}");
        assert_eq!(api.message(&name).await, "new");
        assert!(api.experiments().get_opt(&name.name).await.unwrap().is_none());
    }
}

#[tokio::test]
async fn a_commit_interrupted_after_any_step_can_be_finished() {
    let api = TestApi::start("api-commits-broken-off").await;
    let store = &*api.store;

    // Interrupted after (a): the policy has not changed. Another call waits for the operator, whatever the age of the intent.
    let (name, right) = api.create_prepared_pair("marked").await;
    Commit::new(store, None, &name, &right).mark().await.unwrap();
    assert_eq!(api.message(&name).await, "old");
    assert_eq!(api.get(&format!("/v1/{name}")).await["etag"], right.etag, "a mark is not a new version");
    api.report(&name, json!({"commit": {"since": "2020-01-01T00:00:00Z"}})).await;
    let refused = store.commit(None, &name, &right).await.unwrap_err();
    assert_eq!((refused.code, refused.reason()), (Code::Aborted, "COMMIT_UNDER_WAY"));
    api.report(&name, json!({"commit": null})).await;
    store.commit(None, &name, &right).await.unwrap();
    assert_eq!(api.message(&name).await, "new");

    // Interrupted after (c): the experiment is committed. Another call deletes the experiment, and fails with NOT_FOUND.
    let (name, right) = api.create_prepared_pair("copied").await;
    let commit = Commit::new(store, None, &name, &right);
    let marked = commit.mark().await.unwrap();
    commit.copy(&marked).await.unwrap();
    assert!(api.experiments().get_opt("copied").await.unwrap().is_some());
    assert_eq!(store.commit(None, &name, &right).await.unwrap_err().code, Code::NotFound);
    assert!(api.experiments().get_opt("copied").await.unwrap().is_none());
    assert_eq!(api.message(&name).await, "new");

    // Interrupted after (c), and edited: another call does not delete the new version, and commits it.
    let (name, right) = api.create_prepared_pair("edited").await;
    let commit = Commit::new(store, None, &name, &right);
    let marked = commit.mark().await.unwrap();
    commit.copy(&marked).await.unwrap();
    api.edit(&name, "next").await;
    assert_eq!(store.commit(None, &name, &right).await.unwrap_err().reason(), "ETAG_MISMATCH");
    assert!(api.experiments().get_opt("edited").await.unwrap().is_some());
    let etag = api.get(&format!("/v1/{name}")).await["etag"].as_str().unwrap().to_owned();
    api.report_initialized(&name, "True", "Prepared", "it works").await;
    store.commit(None, &name, &CommitPreconditions { etag, parent_etag: None }).await.unwrap();
    assert_eq!(api.message(&name).await, "next");

    // The annotation of the policy alone makes nobody delete an experiment.
    let (name, right) = api.create_prepared_pair("forged").await;
    let object = api.experiments().get("forged").await.unwrap();
    let forged = json!({"name": "forged", "uid": object.uid(), "generation": 1, "etag": right.etag, "commit": ""});
    let annotation = format!("{COMMITTED_EXPERIMENT}={forged}");
    api.kubectl.run(&["annotate", "clusterpolicy", "forged", &annotation]).await.unwrap();
    let wrong = CommitPreconditions { etag: "\"0\"".into(), parent_etag: None };
    assert_eq!(store.commit(None, &name, &wrong).await.unwrap_err().reason(), "ETAG_MISMATCH");
    assert!(api.experiments().get_opt("forged").await.unwrap().is_some());

    // The policy is deleted: nothing can be committed, and the experiment has no intent.
    api.policies().delete("forged", &DeleteParams::default()).await.unwrap();
    assert_eq!(store.commit(None, &name, &right).await.unwrap_err().code, Code::NotFound);
    assert_eq!(api.intent(&name).await, None);
}

#[tokio::test]
async fn a_forged_record_of_a_commit_deletes_no_experiment() {
    let api = TestApi::start("api-commits-forged").await;
    let store = &*api.store;
    let (name, right) = api.create_prepared_pair("a").await;
    let commit = Commit::new(store, None, &name, &right);
    let marked = commit.mark().await.unwrap();
    // A user who may read the experiment and annotate the policy copies the id of the commit.
    let (object, intent) = (api.experiments().get("a").await.unwrap(), api.intent(&name).await.unwrap());
    let forged = json!({"name": "a", "uid": object.uid(), "generation": 1, "etag": right.etag, "commit": intent.id});
    api.kubectl.run(&["annotate", "clusterpolicy", "a", &format!("{COMMITTED_EXPERIMENT}={forged}")]).await.unwrap();
    assert_eq!(store.commit(None, &name, &right).await.unwrap_err().reason(), "COMMIT_UNDER_WAY");
    assert!(api.experiments().get_opt("a").await.unwrap().is_some());
    assert_eq!(api.message(&name).await, "old");

    // The commit in progress succeeds: it replaces the annotation.
    commit.prepare(&marked, LONG).await.unwrap();
    commit.copy(&marked).await.unwrap();
    commit.delete(&marked).await.unwrap();
    assert_eq!(api.message(&name).await, "new");
    assert!(api.experiments().get_opt("a").await.unwrap().is_none());
}

#[tokio::test]
async fn a_write_of_the_policy_that_is_sent_again_is_no_conflict() {
    let api = TestApi::start("api-commits-repeated").await;
    let (name, right) = api.create_prepared_pair("a").await;
    let store = &*api.store;
    let commit = Commit::new(store, None, &name, &right);
    let marked = commit.mark().await.unwrap();
    let first = commit.copy(&marked).await.unwrap();
    // The policy has a newer generation now.
    let second = commit.copy(&marked).await.unwrap();
    assert_eq!((first.meta.revision, first.meta.version), (second.meta.revision, second.meta.version));
    assert!(api.intent(&name).await.is_some());
    commit.delete(&marked).await.unwrap();
    assert_eq!(api.message(&name).await, "new");
    assert!(api.experiments().get_opt("a").await.unwrap().is_none());
}

#[tokio::test]
async fn an_experiment_that_is_being_deleted_cannot_be_committed() {
    let api = TestApi::start("api-commits-deleted").await;
    let store = &*api.store;
    let finalizers = Patch::Merge(json!({"metadata": {"finalizers": ["proviso.dev/preview"]}}));
    // The experiment waits for the finalizer of the operator, after a commit and after a deletion.
    for is_committed in [true, false] {
        let (name, right) = api.create_prepared_pair(&format!("committed-{is_committed}")).await;
        api.experiments().patch(&name.name, &PatchParams::default(), &finalizers).await.unwrap();
        if is_committed {
            store.commit(None, &name, &right).await.unwrap();
        } else {
            api.experiments().delete(&name.name, &DeleteParams::default()).await.unwrap();
        }
        let object = api.experiments().get(&name.name).await.unwrap();
        assert!(object.metadata.deletion_timestamp.is_some(), "{object:?}");
        assert_eq!(store.commit(None, &name, &right).await.unwrap_err().code, Code::NotFound);
        assert_eq!(api.intent(&name).await.is_some(), is_committed, "a refused commit leaves no intent");
        assert_eq!(api.message(&name).await, if is_committed { "new" } else { "old" });
    }
}

/// An authorizer that denies one verb on one resource and subresource, and allows everything else.
#[derive(Clone)]
struct DenyOne(&'static str, &'static str, Option<&'static str>);

impl Authorizer for DenyOne {
    async fn authorize(&self, caller: Option<&Caller>, access: &Access) -> Result<(), Error> {
        assert_eq!(caller.map(|caller| caller.user.as_str()), Some("ann"));
        if (access.verb, access.resource, access.subresource) == (self.0, self.1, self.2) {
            return Err(Error::new(Code::PermissionDenied, "FORBIDDEN", "no"));
        }
        Ok(())
    }
}

#[tokio::test]
async fn a_commit_checks_every_permission_before_any_change() {
    let api = TestApi::start("api-authorization").await;
    let (name, right) = api.create_prepared_pair("a").await;
    let ann = caller("ann");
    for authorizer in [
        DenyOne("create", "clusterpolicyexperiments", Some("commit")),
        DenyOne("delete", "clusterpolicyexperiments", None),
        DenyOne("update", "clusterpolicies", None),
    ] {
        let store = api.store_with(authorizer, false);
        assert_eq!(store.commit(Some(&ann), &name, &right).await.unwrap_err().code, Code::PermissionDenied);
    }
    assert_eq!((api.intent(&name).await, api.message(&name).await.as_str()), (None, "old"));
    let store = api.store_with(DenyOne("delete", "clusterpolicyexperiments", None), false);
    let denied = store.delete_policy(Some(&ann), &name.policy, None).await.unwrap_err();
    assert_eq!(denied.code, Code::PermissionDenied);
    assert!(
        api.policies().get_opt("a").await.unwrap().is_some(),
        "the policy must stay if its experiments cannot be deleted"
    );
}
