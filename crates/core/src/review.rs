//! Admission reviews. The parser reads only the envelope and small members of the request. Engines get the request as the
//! bytes that arrived; the objects in it are not parsed here.

mod envelope;
mod head;
mod nesting;
mod prefix;

use std::ops::Range;

use bytes::Bytes;
use serde::Deserialize;
use serde_json::value::RawValue;

use envelope::Envelope;
use head::{Members, range_of};

pub use head::{GroupVersionKind, GroupVersionResource, Head, Operation, REDACTED, UserInfo};
pub use prefix::uid_of_prefix;

/// The maximum nesting of lists and objects in a review. Kubernetes objects stay below 60. Deeper input would cost stack in
/// each parser.
pub const MAX_NESTING: usize = 256;

/// A review as it arrived, and the positions of its parts.
#[derive(Clone, Debug)]
pub struct Review {
    body: Bytes,
    request: Range<usize>,
    /// The ranges of the body that form the request without null members.
    pieces: Vec<Range<usize>>,
    object: Option<Range<usize>>,
    old_object: Option<Range<usize>>,
    /// The parsed members of the request; `None` for a raw request, which has no defined members.
    head: Option<Box<Head>>,
    uid: String,
}

/// The error of a body that is not a review.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{message}")]
pub struct ReviewError {
    /// The request's uid, if it is readable. The denial must carry it, or the API server rejects the response.
    pub uid: Option<String>,
    pub message: String,
}

impl ReviewError {
    fn new(message: impl Into<String>) -> Self {
        Self { uid: None, message: message.into() }
    }
}

impl Review {
    /// Parses an `AdmissionReview` of `admission.k8s.io/v1`.
    ///
    /// # Errors
    /// Returns an error if the body is not JSON, is nested deeper than [`MAX_NESTING`], has another kind or version, has
    /// duplicate members in the review or the request, or has no `request` or no `request.uid`.
    pub fn admission(body: Bytes) -> Result<Self, ReviewError> {
        let text = text_of(&body)?;
        let envelope: Envelope<'_, Members<'_>> = envelope_of(text)?;
        for (field, found, wanted) in
            [("apiVersion", &envelope.api_version, "admission.k8s.io/v1"), ("kind", &envelope.kind, "AdmissionReview")]
        {
            if let Some(found) = found.as_deref().filter(|found| *found != wanted) {
                return Err(ReviewError {
                    uid: shallow_uid(text),
                    message: format!("AdmissionReview: {field} is {found:?}, not {wanted:?}"),
                });
            }
        }
        let members = request_of(envelope)?;
        let (Some(request), false) = (members.range(text), members.uid.is_empty()) else {
            return Err(ReviewError::new("AdmissionReview: request.uid is missing"));
        };
        let locate = |part: &str| range_of(text, part);
        Ok(Self {
            pieces: pieces(text, &request, &members.spans),
            object: members.object.map(locate),
            old_object: members.old_object.map(locate),
            uid: members.uid,
            head: Some(Box::new(members.head)),
            request,
            body,
        })
    }

    /// Parses a raw request: `{"request": <any JSON>}`. The uid is `request.uid`, or empty.
    ///
    /// # Errors
    /// Returns an error if the body is not JSON, is nested deeper than [`MAX_NESTING`], or has no `request`.
    pub fn raw(body: Bytes) -> Result<Self, ReviewError> {
        let text = text_of(&body)?;
        let raw: &RawValue = request_of(envelope_of(text)?)?;
        let request = range_of(text, raw.get());
        Ok(Self {
            uid: uid_of(raw).unwrap_or_default(),
            pieces: vec![request.clone()],
            object: Some(request.clone()),
            old_object: None,
            head: None,
            request,
            body,
        })
    }

    /// Returns the size of the body in bytes.
    #[must_use]
    pub fn size(&self) -> usize {
        self.body.len()
    }

    /// Returns the uid, which the answer repeats. Empty for a raw request without a uid.
    #[must_use]
    pub fn uid(&self) -> &str {
        &self.uid
    }

    /// Returns the parsed members of the request; `None` for a raw request.
    #[must_use]
    pub fn head(&self) -> Option<&Head> {
        self.head.as_deref()
    }

    /// Returns the request as the JSON text that arrived.
    #[must_use]
    pub fn request_json(&self) -> &str {
        self.text(&self.request)
    }

    /// Returns the request in pieces. Joined, they are the same JSON without null members, as Kubewarden policies expect it.
    pub fn request_pieces(&self) -> impl Iterator<Item = &[u8]> {
        self.pieces.iter().map(|range| &self.body[range.clone()])
    }

    /// Returns the JSON text that a patch applies to: `request.object`, or all of a raw request.
    #[must_use]
    pub fn object_json(&self) -> Option<&str> {
        self.object.as_ref().map(|range| self.text(range))
    }

    /// Returns `request.oldObject` as JSON text.
    #[must_use]
    pub fn old_object_json(&self) -> Option<&str> {
        self.old_object.as_ref().map(|range| self.text(range))
    }

    /// Returns true if the request has `dryRun: true`.
    #[must_use]
    pub fn is_dry_run(&self) -> bool {
        self.head.as_ref().is_some_and(|head| head.dry_run)
    }

    /// Returns true if the object has credentials: see [`Head::is_confidential`].
    #[must_use]
    pub fn is_confidential(&self) -> bool {
        self.head.as_ref().is_some_and(|head| head.is_confidential())
    }

    fn text(&self, range: &Range<usize>) -> &str {
        // The ranges are boundaries of JSON values in this body, which is valid UTF-8.
        std::str::from_utf8(&self.body[range.clone()]).unwrap_or_default()
    }
}

/// Parses JSON text from a review whose nesting was checked against [`MAX_NESTING`]. The recursion limit of `serde_json` is off.
///
/// # Errors
/// Returns an error if the text is not JSON or does not match `T`.
pub fn parse<'de, T: Deserialize<'de>>(json: &'de str) -> serde_json::Result<T> {
    let mut deserializer = serde_json::Deserializer::from_str(json);
    deserializer.disable_recursion_limit();
    let value = T::deserialize(&mut deserializer)?;
    deserializer.end()?;
    Ok(value)
}

fn text_of(body: &Bytes) -> Result<&str, ReviewError> {
    let text = std::str::from_utf8(body)
        .map_err(|error| ReviewError::new(format!("the body is not UTF-8 (byte {})", error.valid_up_to())))?;
    if nesting::exceeds(body, MAX_NESTING) {
        return Err(ReviewError {
            uid: shallow_uid(text),
            message: format!("the request is nested deeper than {MAX_NESTING} levels"),
        });
    }
    Ok(text)
}

fn envelope_of<'a, R: Deserialize<'a>>(text: &'a str) -> Result<Envelope<'a, R>, ReviewError> {
    serde_json::from_str(text).map_err(|error| {
        let uid = shallow_uid(text);
        // The `kind` of a bare AdmissionRequest is an object. The parser's own error would not name the missing envelope.
        let is_request = uid.is_none() && head::first_string(text, "uid").is_some();
        let message = if is_request {
            "the body is an AdmissionRequest, not an AdmissionReview: wrap it as `request`".to_owned()
        } else {
            format!("the body is not an AdmissionReview: {error}")
        };
        ReviewError { uid, message }
    })
}

fn request_of<R>(envelope: Envelope<'_, R>) -> Result<R, ReviewError> {
    envelope.request.ok_or_else(|| ReviewError::new("the body has no request"))
}

/// Returns the uid of a request of any form. Skips the other members without recursion.
fn uid_of(request: &RawValue) -> Option<String> {
    head::first_string(request.get(), "uid")
}

/// Returns the uid in a refused body. The second pass over the body is acceptable, because a refusal is not time-critical.
fn shallow_uid(body: &str) -> Option<String> {
    head::first_raw(body, "request").and_then(uid_of)
}

/// Returns the ranges of the request without the members whose value is null.
fn pieces(text: &str, request: &Range<usize>, members: &[head::Span<'_>]) -> Vec<Range<usize>> {
    if members.iter().all(|member| !member.is_null()) {
        return vec![request.clone()];
    }
    let mut pieces = Vec::new();
    // The start of the current piece; `None` while null members are skipped.
    let mut start = Some(request.start);
    let mut end_of_kept = request.start + 1;
    let mut cut_at = None;
    for member in members {
        let key = range_of(text, member.key);
        if member.is_null() {
            cut_at.get_or_insert(key.start);
            continue;
        }
        if let Some(cut) = cut_at.take() {
            pieces.extend(start.replace(key.start).map(|from| from..cut));
        }
        end_of_kept = range_of(text, member.value).end;
    }
    if cut_at.is_some() {
        // The last members were null, so the comma before them is cut too.
        pieces.extend(start.take().map(|from| from..end_of_kept));
        start = Some(request.end - 1);
    }
    pieces.extend(start.map(|from| from..request.end));
    pieces
}

#[cfg(test)]
mod tests;
