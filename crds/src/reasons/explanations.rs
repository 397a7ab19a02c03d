//! The causes and remedies of the reasons. `docs/reference/reasons.md` is generated from this file, and the command line prints the
//! remedies.

use proviso_core::Reason;

#[allow(clippy::wildcard_imports, reason = "the table names every reason")]
use super::*;

/// A reason with its cause and its remedy.
#[derive(Debug)]
pub struct Explanation {
    pub reason: Reason,
    /// The cause, as a sentence.
    pub cause: &'static str,
    /// The next step of a person, as a sentence; `None` if nothing is to be done.
    pub remedy: Option<&'static str>,
}

const fn failure(reason: Reason, cause: &'static str, remedy: &'static str) -> Explanation {
    Explanation { reason, cause, remedy: Some(remedy) }
}

const fn state(reason: Reason, cause: &'static str) -> Explanation {
    Explanation { reason, cause, remedy: None }
}

/// Explanations about one kind of object.
#[derive(Debug)]
pub struct Section {
    pub title: &'static str,
    pub explanations: &'static [Explanation],
}

/// Every reason that Proviso writes, each once.
pub static SECTIONS: [Section; 5] = [
    Section {
        title: "Failures of policies and experiments",
        explanations: &[
            failure(
                BREAK_GLASS,
                "An administrator has taken over the webhook configuration by the annotation `proviso.dev/break-glass`. New generations wait.",
                "Remove the annotation when the incident is over: the condition has the command",
            ),
            failure(
                Reason::CACHE_ERROR,
                "A replica cannot read or write the artifact cache.",
                "Check the cache volume of the policy server: it may be full, or read-only",
            ),
            failure(
                Reason::COMPILE_ERROR,
                "The program does not compile.",
                "Correct the program at the position in the message, and apply the policy again",
            ),
            failure(
                Reason::COMPILE_TIMEOUT,
                "The program takes longer to compile than the policy server permits.",
                "Make the program smaller, or raise --compile-timeout of the policy server",
            ),
            failure(
                CONTEXT_FORBIDDEN,
                "The policy server may not read a kind in `contextAwareResources`.",
                "Grant the policy server the permission, by the commands in the message, or remove the kind from contextAwareResources",
            ),
            failure(
                CONTEXT_NOT_READY,
                "The policy server has not listed the objects of a kind in `contextAwareResources` yet.",
                "Wait. If this does not change within a minute, check that the API server answers",
            ),
            failure(
                CONTEXT_NOT_SERVED,
                "The API server does not have a kind in `contextAwareResources`.",
                "Install the CustomResourceDefinition of the kind, or correct its name in contextAwareResources",
            ),
            failure(
                CONTEXT_NOT_WATCHED,
                "The API server does not list or watch a kind in `contextAwareResources`, such as metrics.",
                "Remove the kind from contextAwareResources: policies cannot read it",
            ),
            failure(
                CONTEXT_OUT_OF_SCOPE,
                "A namespaced Policy names a cluster-scoped kind in `contextAwareResources`.",
                "Use a ClusterPolicy, or remove the kind from contextAwareResources",
            ),
            failure(
                CONTEXT_TOO_LARGE,
                "The objects that the policy may read exceed the memory for them.",
                "Raise --context-memory and the memory limit of the policy server, or read fewer kinds",
            ),
            failure(
                Reason::INVALID,
                "A field of the policy has an invalid value.",
                "Correct the field that the message names, and apply the policy again",
            ),
            failure(
                LOADING_FAILED,
                "Some replicas cannot load the revision. The generation before answers.",
                "See the state of each replica: kubectl proviso status POLICY",
            ),
            failure(
                MALFORMED,
                "The operator or a replica cannot read the object, because another version of Proviso admitted it.",
                "Correct or delete the object: the message names the field",
            ),
            failure(
                NAME_IN_USE,
                "Another request policy of the same level, tenant and user has the display name. The newest generation is not rolled out.",
                "Choose another name in spec.request.displayName, or rename or delete the policy that the message names",
            ),
            failure(
                NAMESPACE_FULL,
                "The namespace has as many policies or experiments as it may have, or they and their revisions are too large together.",
                "Delete policies or experiments of the namespace, or lower their revisionHistoryLimit. An administrator can raise the limits \
                 of the operator",
            ),
            failure(
                NAMESPACE_NOT_ALLOWED,
                "The policy server does not allow Policies of this namespace: `allowedNamespaces` of the PolicyServer.",
                "Name another PolicyServer in spec.policyServer, or ask an administrator to allow the namespace",
            ),
            failure(
                NOT_PERMITTED,
                "The policy server does not permit a use in the spec for Policies: mutation, a host capability, a pull secret or a registry.",
                "Remove the use that the message names, use a ClusterPolicy, or ask an administrator to permit it on the PolicyServer",
            ),
            failure(
                POLICY_SERVER_NOT_FOUND,
                "The PolicyServer of a Policy does not exist, or cannot be read. The Policy waits for it.",
                "Correct spec.policyServer, or create the PolicyServer",
            ),
            failure(
                NO_REPLICAS,
                "No replica of the policy server is Ready.",
                "Find out why: kubectl get pods -n proviso-system -l proviso.dev/policy-server=SERVER",
            ),
            failure(
                NOT_INITIALIZED,
                "The program does not work, so that no replica can load it; or the content or the template of a configuration policy is not valid.",
                "See the condition Initialized for the cause",
            ),
            failure(
                NOT_PREPARED,
                "No leader of the policy server has reported for a minute that it has prepared the generation. The rollout waits.",
                "See why: kubectl describe policyserver SERVER shows the condition LeaderElected. If there is a leader, see its log",
            ),
            failure(NOT_ACCEPTED, "The experiment may not be previewed.", "See the condition Accepted for the cause"),
            failure(
                POLICY_NOT_FOUND,
                "The policy of the experiment does not exist.",
                "Create the policy, or delete the experiment: spec.policyRef cannot be changed",
            ),
            failure(
                Reason::PULL_ERROR,
                "A module cannot be fetched: no such artifact, no access, or no answer.",
                "Check that the module's reference is right and that the policy server may fetch it: program.wasm.module and \
                 imagePullSecrets of the policy, and sources of the PolicyServer",
            ),
            failure(
                PRIORITY_IN_USE,
                "Another request policy of the same level, tenant and user has the priority. The newest generation is not rolled out.",
                "Choose another number in spec.request.priority, or change or delete the policy that the message names",
            ),
            failure(
                REPLICA_SILENT,
                "A replica is Ready, but has reported nothing about the generation for a minute: it cannot write the status of the \
                 PolicyRevision, or it is still loading. The rollout waits for the report.",
                "See the log of the pod that the message names. Check its permissions and its connection to the API server",
            ),
            failure(
                ROLLBACK_REFUSED,
                "The generation in the annotation `proviso.dev/rollback-to` is not kept, or the API server refuses its spec.",
                "The message has the cause. Choose another generation: kubectl proviso revisions list POLICY",
            ),
            failure(
                Reason::SETTINGS_INVALID,
                "The program does not accept its settings.",
                "Correct spec.settings: the message is the program's own",
            ),
            failure(TOO_MANY, "The policy has ten older experiments.", "Delete an experiment of the policy"),
            failure(
                Reason::UNSUPPORTED,
                "The policy server does not support a feature of the program.",
                "Remove the feature that the message names, or upgrade the policy server",
            ),
            failure(
                Reason::VERIFICATION_ERROR,
                "The module has another digest than `program.wasm.digest`, or lacks a required signature.",
                "Compare the digest of the module with program.wasm.digest, and its signatures with verification of the PolicyServer, \
                 before you change either",
            ),
            failure(
                VALIDATION_FAILED,
                "The operator could not validate a configuration policy, because the process that validates it was stopped. It tries again.",
                "If this does not change, raise the memory limit of the operator, or see its log",
            ),
        ],
    },
    Section {
        title: "States of policies and experiments",
        explanations: &[
            state(ACCEPTED, "The policy of the experiment exists and has no more than ten experiments."),
            state(DELIVERABLE, "PolicySubscriptions that select the configuration policy get it."),
            state(DISABLED, "`spec.enabled` is false: the policy decides no requests, and no component has it."),
            failure(
                EXPIRED,
                "The preview stopped, because the time in `spec.ttl` has passed since its start.",
                "Commit or delete the experiment, or start its preview again",
            ),
            state(LIVE, "The generation answers requests, or components get it."),
            state(LOADED, "The replica serves the revision, or every replica does."),
            failure(
                LOADED_BEFORE,
                "The replica cannot read the revision any more, because another version of the CustomResourceDefinitions changed its form. \
                 The loaded revision goes on answering, but a restart of the replica would not load it.",
                "Upgrade the operator and the policy server to the version of the CustomResourceDefinitions",
            ),
            state(LOADING, "Replicas are loading the revision."),
            state(NOT_STARTED, "The experiment was not started, and `spec.autoStart` is false."),
            state(PREPARED, "The program was fetched and compiled, and accepted its settings."),
            state(
                PREPARING,
                "The leader of the policy server has not prepared the revision yet, or the operator has not validated it.",
            ),
            state(PREVIEWING, "Every Ready replica previews the experiment, or its canaries get it."),
            state(REPLACED, "Another generation answers requests, or is for components, or none."),
            state(REVISION_CREATED, "The operator has created the revision of the generation."),
            state(
                STILL_CALLED,
                "The generation is not live, but a webhook configuration still calls it: the replicas serve it.",
            ),
            state(
                STOPPING,
                "The preview is suspended. The replicas finish the evaluations that have begun, and report their final counts.",
            ),
            state(
                SUSPENDED,
                "The preview was stopped by a caller, by a change of the experiment, at the end of its `spec.ttl`, or because its start \
                 failed. Unless a caller stopped it, `status.previewMetadata.stopCause` has the cause.",
            ),
            failure(
                UPDATED,
                "The preview stopped, because the experiment was changed.",
                "Start the preview of the new version: kubectl proviso experiment start EXPERIMENT",
            ),
            state(VALIDATED, "The content or the template of the configuration policy is valid."),
        ],
    },
    Section {
        title: "PolicyServers",
        explanations: &[
            state(ALL_REPLICAS_READY, "All replicas are Ready and run the current spec."),
            failure(
                APPLY_FAILED,
                "The API server refused an object of the PolicyServer. The operator has applied the other objects, and tries again.",
                "Undo the change of the PolicyServer, or correct the quota, StorageClass or webhook that the message names",
            ),
            state(CERTIFICATE_ISSUED, "The replicas have a new certificate."),
            state(ELECTED, "A replica leads."),
            failure(
                INCOMPLETE_OBJECT,
                "An object of the API server lacks a field that every object has.",
                "Report it as a bug, with the operator's log",
            ),
            failure(
                INVALID_NAME,
                "The name of the PolicyServer cannot be used in the names of its objects.",
                "Create a PolicyServer with a shorter name, and delete this one",
            ),
            failure(
                INVALID_OBJECT,
                "An object cannot be written as JSON.",
                "Report it as a bug, with the operator's log",
            ),
            state(ISSUED, "The replicas have a certificate that API servers trust."),
            failure(KEY_ERROR, "The operator cannot generate a key.", "Report it as a bug, with the operator's log"),
            failure(
                KUBERNETES_ERROR,
                "A request of the operator to the API server failed. The operator tries again.",
                "If this does not change, check the API server, and the permissions of the operator",
            ),
            failure(
                LEASE_EXPIRED,
                "The leader no longer renews the Lease. Live generations answer, new generations wait.",
                "Another replica takes over within 15 s. If none does, check the pods of the policy server and their logs",
            ),
            state(
                LOST_POD_DELETED,
                "The node of a replica is lost. The operator has deleted the pod by force, so that Kubernetes creates another one.",
            ),
            failure(
                NO_AUTHORITY,
                "The operator has no certificate authority yet.",
                "Check the Secret proviso-ca and the operator's log",
            ),
            failure(
                NO_CALLER_TOKEN,
                "The Secret of caller tokens of the policy server is missing or damaged. The operator creates it with the PolicyServer, \
                 and repairs it. Webhooks stay as they are until then.",
                "Check that the PolicyServer exists, and the operator's log about the Secret policy-server-NAME-callers",
            ),
            failure(
                NO_LEADER,
                "No replica has led yet. Live generations answer, new generations wait.",
                "Check the pods of the policy server and their logs",
            ),
            failure(
                NOT_ISSUED,
                "The operator cannot issue a certificate.",
                "Check the Secret proviso-ca and the operator's log",
            ),
            failure(
                OUT_OF_MEMORY,
                "The kernel has ended a replica, because its memory limit or the memory of its node was exhausted. Kubernetes starts \
                 the replica again. The other replicas answer in the meantime.",
                "Raise resources.limits.memory of the PolicyServer, or lower its evaluation.memoryLimitMiB or \
                 evaluation.concurrency. The message names the replica and its limit",
            ),
            state(POLICIES_REMAIN, "The PolicyServer is deleted, and waits for the policies that the message names."),
            failure(
                REPLICAS_NOT_READY,
                "Some replicas are not Ready.",
                "The message names the replicas and their causes. See also: kubectl -n proviso-system describe pods",
            ),
            state(ROLLING_OUT, "The replicas restart one by one, to run the current spec."),
        ],
    },
    Section {
        title: "PolicySubscriptions",
        explanations: &[
            failure(
                BODY_TOO_LARGE,
                "The body of a configuration policy has more than 512 KiB as JSON. The component keeps the version that it has.",
                "Make the content smaller, or split it over several policies",
            ),
            failure(
                CANARY_NOT_DELIVERED,
                "The subscription is a canary for an experiment, and its component does not get the candidate.",
                "The message has the entry of spec.canaryFor and the cause",
            ),
            failure(
                COMMAND_NOT_POSSIBLE,
                "The command of the notification cannot run: the component has no pods, or the command is too long.",
                "Correct spec.delivery.notify.exec, or notify the component by http",
            ),
            failure(
                CONFIG_MAP_CONFLICT,
                "A ConfigMap or Secret of the name in spec.delivery.configMap, or with a number after it, exists and does not belong to the \
                 subscription. The operator does not overwrite it.",
                "Name another ConfigMap in spec.delivery.configMap, or delete the object that the message names",
            ),
            failure(
                CONTAINER_NOT_FOUND,
                "A pod of the component lacks the container in which the command runs.",
                "Correct spec.delivery.notify.exec.container: the message has the containers of the pod",
            ),
            state(DELIVERED, "The component has acknowledged every policy that it should have."),
            state(DELIVERING, "An update of the component is in flight, or waits for another one."),
            failure(
                DELIVERY_FAILED,
                "The result of an update is not known: a timeout, no connection, or an error of the component. The operator sends the update \
                 again, after delays from 1 s to 5 min.",
                "The message has the pod and the cause. Check the reconfigure script and the log of the component",
            ),
            failure(
                NOT_CONFIGURED,
                "A policy server that reads policies from a folder has no folder for the policies of components.",
                "Start the policy server with --deliver-to",
            ),
            failure(
                NOT_UNIQUE,
                "A filter with `unique: true` selects several policies. The component keeps the policies that it has.",
                "Add criteria to the filter, or remove `unique`",
            ),
            failure(
                NO_POLICY_SELECTED,
                "A selector works, and selects no policy. This is no error if the policy is created later.",
                "Compare the selector with the policies: the message counts the policies that meet each criterion alone",
            ),
            failure(
                POLICY_UNREADABLE,
                "The operator cannot read a policy, for example because another version of the CustomResourceDefinitions changed its form. The \
                 component keeps the version that it has.",
                "See the Events of the policy: kubectl describe clusterpolicy POLICY",
            ),
            failure(
                REJECTED,
                "The component has rejected a change: an exit code from 1 to 125, or an HTTP status 4xx. It keeps the policies that it had. The \
                 change is not sent again until the policy changes.",
                "Correct the policy; or make the component accept it, and run: kubectl proviso subscriptions resend SUBSCRIPTION",
            ),
            failure(
                RENDERING_UNAVAILABLE,
                "The operator could not evaluate a template, for a reason that is not in the policy. It tries again.",
                "If this does not change, see the log of the operator, and its memory limit",
            ),
            state(RESOLVED, "Every selector of the subscription works."),
            failure(
                SCHEMA_VIOLATION,
                "The content that a template computes for the component does not match the schema of the policy. The component keeps the \
                 version that it has.",
                "Correct spec.configuration.template or spec.configuration.schema of the policy: the message has the field",
            ),
            failure(
                SCN_CONFLICT,
                "Another subscription has the service component name. The REST API returns the policies of that one.",
                "Choose another name in spec.scn",
            ),
            failure(
                SERVICE_NOT_FOUND,
                "The Service of the notification does not exist.",
                "Create the Service, or correct spec.delivery.notify.http.service",
            ),
            failure(
                SERVICE_NOT_USABLE,
                "The Service of the notification has no cluster IP or no selector, or does not have the port.",
                "Name a Service with a cluster IP and a selector, and one of its TCP ports, in spec.delivery.notify.http",
            ),
            failure(
                TEMPLATE_FAILED,
                "The template of a policy has no content for the component. The component keeps the version that it has.",
                "Correct spec.configuration.template of the policy, or the labels of the workload: the message has the cause",
            ),
            failure(
                TEMPLATE_TIMEOUT,
                "The template of a policy takes too long for the component.",
                "Make spec.configuration.template of the policy simpler",
            ),
            failure(
                TOO_MANY_POLICIES,
                "The subscription selects more than 2,000 policies. The component keeps the policies that it has.",
                "Add criteria to the filter that the message names, or use several subscriptions",
            ),
            failure(
                WORKLOAD_NOT_FOUND,
                "The workload in spec.component does not exist. Its policies are stored.",
                "Create the workload, or correct spec.component",
            ),
        ],
    },
    Section {
        title: "Events",
        explanations: &[
            state(BREAK_GLASS_ENDED, "The operator reconciles the webhook configuration again."),
            state(COMMITTED, "The experiment is now the policy, and is deleted."),
            failure(
                COMMIT_ABORTED,
                "A commit of the experiment has not ended within a minute, because its caller stopped; or the experiment was deleted \
                 during its commit, by a user or with its policy. The operator has ended the commit: late writes of the caller fail.",
                "Compare the policy with the experiment, and commit the experiment again, if it was not deleted",
            ),
            state(
                FIRST_DIVERGENCE,
                "The experiment and the live policy have decided differently about a request, for the first time since the preview or \
                 the live version started.",
            ),
            state(NOT_LIVE, "No generation of the policy decides requests any more, or components no longer have it."),
            failure(
                PREVIEW_EXPIRES,
                "The preview of the experiment stops by itself soon: the message has the time.",
                "Commit the experiment, or start its preview again to continue it",
            ),
            state(PREVIEW_STARTED, "The preview of the experiment has started."),
            state(PREVIEW_SUSPENDED, "The preview of the experiment was suspended."),
            state(ROLLED_BACK, "The policy has the spec of an earlier generation, as a new generation."),
        ],
    },
];

/// Returns the explanation of a reason; `None` if another version of Proviso wrote the reason.
#[must_use]
pub fn explanation(reason: &Reason) -> Option<&'static Explanation> {
    SECTIONS.iter().flat_map(|section| section.explanations).find(|explanation| explanation.reason == *reason)
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;
    use std::fmt::Write as _;

    use super::*;

    /// The reasons that the crate core defines.
    static CORE: [Reason; 8] = [
        Reason::CACHE_ERROR,
        Reason::COMPILE_ERROR,
        Reason::COMPILE_TIMEOUT,
        Reason::INVALID,
        Reason::PULL_ERROR,
        Reason::SETTINGS_INVALID,
        Reason::UNSUPPORTED,
        Reason::VERIFICATION_ERROR,
    ];

    #[test]
    fn every_reason_is_explained_once() {
        let explained: Vec<_> =
            SECTIONS.iter().flat_map(|section| section.explanations).map(|it| it.reason.as_str()).collect();
        let unique: BTreeSet<_> = explained.iter().copied().collect();
        assert_eq!(explained.len(), unique.len(), "a reason is explained twice: {explained:?}");
        let defined: BTreeSet<_> = ALL.iter().chain(&CORE).map(Reason::as_str).collect();
        assert_eq!(unique, defined);
    }

    #[test]
    fn an_aborted_commit_has_both_causes() {
        let cause = explanation(&COMMIT_ABORTED).unwrap().cause;
        for words in ["within a minute", "was deleted", "with its policy"] {
            assert!(cause.contains(words), "{words}: {cause}");
        }
    }

    #[test]
    fn the_reference_has_every_explanation() {
        let mut page = String::from(
            "# Reasons\n\nThe reasons of conditions and Events, with their causes and remedies. `kubectl describe` shows them, and \
             `kubectl proviso status` prints the remedy too.\n",
        );
        for section in &SECTIONS {
            let _ = write!(page, "\n## {}\n\n| Reason | Cause | Remedy |\n|---|---|---|\n", section.title);
            for Explanation { reason, cause, remedy } in section.explanations {
                let remedy = remedy.map(|remedy| format!("{remedy}.")).unwrap_or_default();
                let _ = writeln!(page, "| `{reason}` | {cause} | {remedy} |");
            }
        }
        proviso_recorded::check("docs/reference/reasons.md", &page);
    }
}
