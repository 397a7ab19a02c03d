//! The output of a component beside its answer: the output of a failed command, or the body of an HTTP response.

use proviso_core::configuration::Answer;

/// The maximum size of an output that is read and reported, in bytes. The rest is discarded.
pub const MAX_OUTPUT: usize = 1024;

/// Returns the answer with the output of the component in its message. An output without printable characters adds nothing.
#[must_use]
pub fn with_output(answer: Answer, output: &[u8]) -> Answer {
    let output = String::from_utf8_lossy(&output[..output.len().min(MAX_OUTPUT)]);
    // A component must not write lines of its own into a log.
    let text: String = output.chars().map(|it| if it.is_control() { ' ' } else { it }).collect();
    let text = text.trim();
    if text.is_empty() {
        return answer;
    }
    match answer {
        Answer::Accepted => Answer::Accepted,
        Answer::Rejected(message) => Answer::Rejected(format!("{message}: {text}")),
        Answer::Unknown(message) => Answer::Unknown(format!("{message}: {text}")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_message_of_a_refusal_has_the_first_kibibyte_of_the_output() {
        let rejected = with_output(Answer::of_exit_code(3), b"min_memory\n is too large\x1b[0m\n");
        assert_eq!(rejected, Answer::Rejected("exit code 3: min_memory  is too large [0m".to_owned()));
        let unknown = with_output(Answer::of_http_status(503), &[b'x'; 5000]);
        assert_eq!(unknown, Answer::Unknown(format!("HTTP status 503: {}", "x".repeat(MAX_OUTPUT))));
        assert_eq!(with_output(Answer::of_exit_code(3), b" \n"), Answer::of_exit_code(3));
        assert_eq!(with_output(Answer::Accepted, b"done"), Answer::Accepted);
    }
}
