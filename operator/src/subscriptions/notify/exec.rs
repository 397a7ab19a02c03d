//! A notification by a command in each Ready pod: `command… policies '<json>'`.

use std::time::Duration;

use futures_util::{StreamExt as _, stream};
use k8s_openapi::api::core::v1;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Status;
use kube::Api;
use kube::api::AttachParams;
use proviso_core::Failure;
use proviso_core::configuration::{Answer, MIN_MESSAGE, Notification, Outcome, Reply};
use proviso_crds::{NotifyExec, PolicySubscription, reasons};
use proviso_delivery::{MAX_OUTPUT, with_output};
use tokio::io::{AsyncRead, AsyncReadExt as _};
use tokio::time::timeout;

use super::Notified;
use super::pods::{self, Pod};
use crate::subscriptions::Shared;

/// The first of the two arguments that are appended to the command.
const ARGUMENT: &str = "policies";
/// The maximum size of the URL of a request, in bytes. The arguments of a command are in the URL, and the HTTP library accepts 65,534.
const MAX_URL: usize = 64_000;
/// The size of the rest of the URL: the address of the API server, a namespace, a pod and a container.
const URL_RESERVE: usize = 1_500;
/// The number of pods of one component in which the command runs at the same time. It is half of the places of a namespace, so that a
/// command that hangs leaves the others to another component.
const CONCURRENCY: usize = 4;

pub(super) async fn notify(
    shared: &Shared,
    subscription: &PolicySubscription,
    namespace: &str,
    exec: &NotifyExec,
    limit: Duration,
    notification: &Notification,
) -> Notified {
    let Some(component) = &subscription.spec.component else {
        return Notified::failed(Failure::new(
            reasons::COMMAND_NOT_POSSIBLE,
            "spec.delivery.notify.exec: a command runs in the pods of spec.component, and the subscription has an scn instead: use http, or \
             remove spec.delivery.notify",
        ));
    };
    let Some(messages) = messages(&exec.command, notification) else {
        return Notified::failed(Failure::new(
            reasons::COMMAND_NOT_POSSIBLE,
            "spec.delivery.notify.exec.command is too long for a request to the API server: move its arguments to a script",
        ));
    };
    let pods = match pods::of_component(shared, subscription, namespace).await {
        Ok(pods) => pods,
        Err(error) => {
            let message = format!("cannot list the pods of the component: {error}");
            return Notified::of(Outcome::Failed { message });
        }
    };
    let starting = pods.iter().filter(|pod| !pod.is_ready && pod.has_started).map(|pod| pod.uid.clone()).collect();
    let ready: Vec<_> = pods.iter().filter(|pod| pod.is_ready).collect();
    if ready.is_empty() {
        let kind = component.kind.as_str();
        let note = format!(
            "no pod of the {kind} {} is Ready, so that the command has not run: a pod reads the stored policies when it starts",
            component.name
        );
        return Notified { note: Some(note), starting, ..Notified::of(Outcome::Acknowledged) };
    }
    let requested = exec.container.as_deref();
    let lacking = ready.iter().find(|pod| pod.container(requested).is_none());
    let cause = lacking.map(|pod| Failure::new(reasons::CONTAINER_NOT_FOUND, missing_container(pod, requested)));
    let run = |pod: &Pod| {
        let (pod, messages) = (pod.clone(), &messages);
        async move {
            let reply = match pod.container(requested) {
                Some(container) => {
                    let _permit = shared.notifications.acquire(namespace).await;
                    let all = run_all(shared, namespace, (&pod.name, container), &exec.command, messages);
                    let expired =
                        |_| Answer::Unknown(format!("the command has not ended within {} s", limit.as_secs()));
                    timeout(limit, all).await.unwrap_or_else(|elapsed| expired(elapsed).into())
                }
                None => Answer::Unknown(missing_container(&pod, requested)).into(),
            };
            (pod.name, reply)
        }
    };
    let mut replies: Vec<(String, Reply)> =
        stream::iter(ready.into_iter().map(run)).buffer_unordered(CONCURRENCY).collect().await;
    replies.sort_by(|(one, _), (other, _)| one.cmp(other));
    let outcome = Outcome::from_replies(replies.iter().map(|(pod, reply)| (pod.as_str(), reply.clone())));
    Notified { outcome, note: None, cause, starting }
}

fn missing_container(pod: &Pod, requested: Option<&str>) -> String {
    let containers = pod.containers.join(", ");
    match requested {
        Some(name) => {
            format!("the pod has no container {name}, but {containers}: correct spec.delivery.notify.exec.container")
        }
        None => format!(
            "the annotation kubectl.kubernetes.io/default-container of the pod names none of its containers ({containers}): set \
             spec.delivery.notify.exec.container"
        ),
    }
}

/// Returns the messages of a notification, each of which fits into the URL of a request; `None` if the command leaves no room.
fn messages(command: &[String], notification: &Notification) -> Option<Vec<String>> {
    let arguments = command.iter().map(String::as_str).chain([ARGUMENT]);
    // Each argument is a query parameter of its own.
    let fixed: usize = arguments.map(|argument| "&command=".len() + encoded_length(argument)).sum();
    let room = MAX_URL.checked_sub(URL_RESERVE + fixed)?;
    let mut limit = room;
    while limit >= MIN_MESSAGE {
        let messages = notification.messages(limit);
        if messages.iter().all(|message| encoded_length(message) <= room) {
            return Some(messages);
        }
        limit = limit / 4 * 3;
    }
    None
}

/// Returns the length of a text in the query of a URL, where most characters of JSON that are no letters and digits take three bytes.
fn encoded_length(text: &str) -> usize {
    let length = |byte: u8| if byte.is_ascii_alphanumeric() || b" *-._".contains(&byte) { 1 } else { 3 };
    text.bytes().map(length).sum()
}

/// Runs the command for each message in a container, until one of them is not accepted.
async fn run_all(
    shared: &Shared,
    namespace: &str,
    (pod, container): (&str, &str),
    command: &[String],
    messages: &[String],
) -> Reply {
    // This client has no read timeout: a command may run for some minutes without output.
    let api = Api::<v1::Pod>::namespaced(shared.commands.clone(), namespace);
    for (accepted, message) in messages.iter().enumerate() {
        let arguments = command.iter().map(String::as_str).chain([ARGUMENT, message]).collect::<Vec<_>>();
        let params = AttachParams::default().container(container).stdin(false).stdout(true).stderr(true);
        let answer = match api.exec(pod, arguments, &params).await {
            Ok(mut process) => {
                let status = process.take_status();
                let (output, errors) = (process.stdout(), process.stderr());
                let (output, errors) = tokio::join!(read(output), read(errors));
                let status = match status {
                    Some(status) => status.await,
                    None => None,
                };
                with_output(answer(status.as_ref()), if errors.is_empty() { &output } else { &errors })
            }
            Err(error) => Answer::Unknown(format!("the command cannot be started: {error}")),
        };
        if answer != Answer::Accepted {
            return Reply { accepted, answer };
        }
    }
    Reply { accepted: messages.len(), answer: Answer::Accepted }
}

/// Reads a stream to its end, and returns its first kibibyte.
async fn read(stream: Option<impl AsyncRead + Unpin>) -> Vec<u8> {
    let (mut output, mut buffer) = (Vec::new(), [0; 4096]);
    let Some(mut stream) = stream else { return output };
    while let Ok(read @ 1..) = stream.read(&mut buffer).await {
        let kept = read.min(MAX_OUTPUT.saturating_sub(output.len()));
        output.extend(buffer.iter().take(kept));
    }
    output
}

/// Returns the answer of a command from the status that the kubelet sends at its end.
fn answer(status: Option<&Status>) -> Answer {
    let Some(status) = status else {
        return Answer::Unknown("the connection has ended before the command".to_owned());
    };
    if status.status.as_deref() == Some("Success") {
        return Answer::Accepted;
    }
    let causes = status.details.iter().flat_map(|details| details.causes.iter().flatten());
    let code = causes.into_iter().find(|cause| cause.reason.as_deref() == Some("ExitCode"));
    let code = code.and_then(|cause| cause.message.as_deref()?.parse().ok());
    match (status.reason.as_deref(), code) {
        (Some("NonZeroExitCode"), Some(code)) => Answer::of_exit_code(code),
        // For example a program that does not exist in the container.
        _ => Answer::Unknown(status.message.clone().unwrap_or_else(|| "the command has failed".to_owned())),
    }
}

#[cfg(test)]
mod tests {
    use proviso_core::configuration::{Audience, ConfigurationPolicy, Delivery, Desired, Item, Step, Version};
    use serde_json::{Value, json};

    use super::*;

    fn notification(contents: &[Value]) -> Notification {
        let items = contents.iter().enumerate().map(|(index, content)| {
            let policy = ConfigurationPolicy {
                id: format!("cluster.p{index}").parse().unwrap(),
                version: Version::of(1),
                config_name: "memory".to_owned(),
                owner: None,
                attributes: std::collections::BTreeMap::new(),
                is_confidential: false,
                audience: Audience::All,
            };
            (policy.id.clone(), Item::new(&policy, content).unwrap())
        });
        let mut delivery = Delivery::default();
        delivery.want(Desired { items: items.collect(), ..Desired::default() });
        let Step::Deliver(update) = delivery.begin(Duration::ZERO) else { panic!("no update") };
        Notification::new(&update)
    }

    #[test]
    fn each_message_fits_into_a_url() {
        let command = vec!["/bin/reconfigure".to_owned()];
        let one = messages(&command, &notification(&[json!({"min": 1})])).unwrap();
        assert!(one.len() == 1 && !one[0].contains("data_segment"), "{one:?}");
        // Quotes take three bytes each in a URL, and JSON escapes them.
        for character in ["\"", "ü", "x"] {
            let contents: Vec<_> = (0..20).map(|_| json!(character.repeat(5000))).collect();
            let many = messages(&command, &notification(&contents)).unwrap();
            assert!(many.len() > 1, "{character}");
            let fits = |message: &String| encoded_length(message) + URL_RESERVE < MAX_URL;
            assert!(many.iter().all(fits), "{character}");
        }
        assert_eq!(messages(&vec!["/".repeat(1024); 64], &notification(&[json!({})])), None);
    }

    #[test]
    fn the_length_is_that_of_the_encoding_for_forms() {
        let text = "{\"a b\": [1.5, \"ü*-_\"]}/";
        let encoded = "%7B%22a+b%22%3A+%5B1.5%2C+%22%C3%BC*-_%22%5D%7D%2F";
        assert_eq!(encoded_length(text), encoded.len());
    }

    #[test]
    fn the_status_at_the_end_of_a_command_is_its_answer() {
        let read = |status: Value| answer(Some(&serde_json::from_value(status).unwrap()));
        assert_eq!(read(json!({"status": "Success"})), Answer::Accepted);
        let failure = |code: &str| {
            json!({
                "status": "Failure", "reason": "NonZeroExitCode", "message": "command terminated with exit code",
                "details": {"causes": [{"reason": "ExitCode", "message": code}]},
            })
        };
        assert_eq!(read(failure("3")), Answer::of_exit_code(3));
        assert_eq!(read(failure("137")), Answer::of_exit_code(137));
        let unknown = read(json!({"status": "Failure", "reason": "InternalError", "message": "no such file"}));
        assert_eq!(unknown, Answer::Unknown("no such file".to_owned()));
        assert!(matches!(answer(None), Answer::Unknown(_)));
    }

    #[tokio::test]
    async fn a_long_output_is_read_to_its_end_and_cut() {
        let (mut writer, reader) = tokio::io::duplex(64);
        let write = async move {
            tokio::io::AsyncWriteExt::write_all(&mut writer, &[b'x'; 10_000]).await.unwrap();
        };
        let (output, ()) = tokio::join!(read(Some(reader)), write);
        assert_eq!(output.len(), MAX_OUTPUT);
    }
}
