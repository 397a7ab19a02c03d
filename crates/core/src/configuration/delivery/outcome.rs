//! The result of an update, from the answers of the pods of a component.

/// The result of an update.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// Each pod of the component has accepted the update.
    Acknowledged,
    /// The component has rejected the update. The acknowledged bodies stay.
    Rejected {
        /// The pod that rejected the update, and its message.
        message: String,
        /// True if another pod of the component may have applied the update. That pod gets the acknowledged bodies again.
        is_partly_applied: bool,
    },
    /// The result is not known. The update is sent again.
    Failed {
        /// The pod whose answer is not known, and the cause.
        message: String,
    },
}

/// The answer of one pod, or of one HTTP endpoint, to a notification.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Answer {
    Accepted,
    /// The component does not accept the update, and goes on with the policies that it had.
    Rejected(String),
    /// The component may have applied the update: no connection, a timeout, or an error of the component.
    Unknown(String),
}

/// The answer of one pod, or of one HTTP endpoint, to all messages of a notification: the first answer that does not accept its message.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Reply {
    /// The number of messages that were accepted before the answer. The component may have applied them.
    pub accepted: usize,
    pub answer: Answer,
}

impl From<Answer> for Reply {
    fn from(answer: Answer) -> Self {
        Self { accepted: 0, answer }
    }
}

impl Answer {
    /// Returns the answer of a command. The exit codes from 1 to 125 reject the update. Others are not an answer of the script: a shell
    /// exits with 126 and 127 if it cannot run the script, and with 128 and more if a signal ended the script.
    #[must_use]
    pub fn of_exit_code(code: i32) -> Self {
        let message = format!("exit code {code}");
        match code {
            0 => Self::Accepted,
            1..=125 => Self::Rejected(message),
            _ => Self::Unknown(message),
        }
    }

    /// Returns the answer of an HTTP endpoint. The statuses from 400 to 499 reject the update, except those that ask the client to try
    /// again: 408, 425 and 429.
    #[must_use]
    pub fn of_http_status(status: u16) -> Self {
        let message = format!("HTTP status {status}");
        match status {
            200..=299 => Self::Accepted,
            408 | 425 | 429 => Self::Unknown(message),
            400..=499 => Self::Rejected(message),
            _ => Self::Unknown(message),
        }
    }
}

impl Outcome {
    /// Returns the result of an update from the replies of the pods, by the name of the pod. One pod that rejects the update rejects it
    /// for the component. A component without pods acknowledges the update: a pod reads the stored policies when it starts.
    pub fn from_replies<'a>(replies: impl IntoIterator<Item = (&'a str, Reply)>) -> Self {
        let (mut rejections, mut unknown) = (Vec::new(), Vec::new());
        // The pods that may have applied the update, or a message of it.
        let mut others = 0;
        for (pod, Reply { accepted, answer }) in replies {
            others += usize::from(accepted > 0 && answer != Answer::Accepted);
            match answer {
                Answer::Accepted => others += 1,
                Answer::Rejected(message) => rejections.push(format!("{pod}: {message}")),
                Answer::Unknown(message) => unknown.push(format!("{pod}: {message}")),
            }
        }
        others += unknown.len();
        match (summary(&rejections), summary(&unknown)) {
            (Some(message), _) => Self::Rejected { message, is_partly_applied: others > 0 },
            (None, Some(message)) => Self::Failed { message },
            (None, None) => Self::Acknowledged,
        }
    }
}

/// Returns the first message, and the number of further ones.
fn summary(messages: &[String]) -> Option<String> {
    let (first, rest) = messages.split_first()?;
    Some(if rest.is_empty() { first.clone() } else { format!("{first}, and {} more", rest.len()) })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn failed(message: &str) -> Outcome {
        Outcome::Failed { message: message.to_owned() }
    }

    fn rejected(message: &str, is_partly_applied: bool) -> Outcome {
        Outcome::Rejected { message: message.to_owned(), is_partly_applied }
    }

    #[test]
    fn exit_codes_and_http_statuses_are_answers() {
        let is_accepted = |answer| matches!(answer, Answer::Accepted);
        let is_rejected = |answer| matches!(answer, Answer::Rejected(_));
        let codes =
            |is: fn(Answer) -> bool| (-1..=256).filter(|code| is(Answer::of_exit_code(*code))).collect::<Vec<_>>();
        assert_eq!(codes(is_accepted), [0]);
        assert_eq!(codes(is_rejected), (1..=125).collect::<Vec<_>>());
        let statuses =
            |is: fn(Answer) -> bool| (0..1000).filter(|code| is(Answer::of_http_status(*code))).collect::<Vec<_>>();
        assert_eq!(statuses(is_accepted), (200..300).collect::<Vec<_>>());
        let expected: Vec<_> = (400..500).filter(|status| ![408, 425, 429].contains(status)).collect();
        assert_eq!(statuses(is_rejected), expected);
    }

    #[test]
    fn the_answers_of_the_pods_are_one_outcome() {
        let answers = |codes: &[i32]| {
            let names = ["a-0", "a-1", "a-2"];
            Outcome::from_replies(names.into_iter().zip(codes.iter().map(|code| Answer::of_exit_code(*code).into())))
        };
        assert_eq!(answers(&[]), Outcome::Acknowledged);
        assert_eq!(answers(&[0, 0]), Outcome::Acknowledged);
        assert_eq!(answers(&[0, 137]), failed("a-1: exit code 137"));
        assert_eq!(answers(&[137, 0, 127]), failed("a-0: exit code 137, and 1 more"));
        assert_eq!(answers(&[0, 3]), rejected("a-1: exit code 3", true));
        assert_eq!(answers(&[137, 3]), rejected("a-1: exit code 3", true));
        assert_eq!(answers(&[3, 3]), rejected("a-0: exit code 3, and 1 more", false));
        // The pod may have applied the first message.
        let reply = Reply { accepted: 1, answer: Answer::of_exit_code(3) };
        assert_eq!(Outcome::from_replies([("a-0", reply)]), rejected("a-0: exit code 3", true));
    }
}
