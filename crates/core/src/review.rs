//! A request for a decision: the envelope is read, the request inside stays the bytes that arrived.
//! Engines get those bytes; nothing here parses the objects under review.

mod envelope;
mod head;
mod nesting;

use std::ops::Range;

use bytes::Bytes;
use serde::Deserialize;
use serde_json::value::RawValue;

use envelope::Envelope;
use head::{Members, range_of};

pub use head::{GroupVersionKind, GroupVersionResource, Head, Operation, UserInfo};

/// The deepest nesting of lists and objects that a review may have. Kubernetes objects stay below 60; deeper
/// input costs stack in every parser that it meets.
pub const MAX_NESTING: usize = 256;

/// A review as it arrived, and where the parts of it are.
#[derive(Clone, Debug)]
pub struct Review {
    body: Bytes,
    request: Range<usize>,
    /// Ranges of the body that make up the request without its null members.
    pieces: Vec<Range<usize>>,
    object: Option<Range<usize>>,
    old_object: Option<Range<usize>>,
    /// None for a raw request, whose shape is its caller's business.
    head: Option<Box<Head>>,
    uid: String,
}

/// Why a body is no review.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{message}")]
pub struct ReviewError {
    /// The request's uid, where it could be read: the caller is owed a denial that carries it.
    pub uid: Option<String>,
    pub message: String,
}

impl ReviewError {
    fn new(message: impl Into<String>) -> Self {
        Self { uid: None, message: message.into() }
    }
}

impl Review {
    /// Reads an `AdmissionReview` of `admission.k8s.io/v1`.
    ///
    /// # Errors
    /// When the body is not JSON, is nested deeper than [`MAX_NESTING`], has another kind or version, repeats
    /// a member of the review or the request, or lacks its `request` or the request's `uid`.
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

    /// Reads a raw request: `{"request": <any JSON>}`. Its uid is `request.uid`, or empty.
    ///
    /// # Errors
    /// When the body is not JSON, is nested deeper than [`MAX_NESTING`], or has no `request`.
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

    /// How many bytes arrived.
    #[must_use]
    pub fn size(&self) -> usize {
        self.body.len()
    }

    /// Echoed in the answer; empty for a raw request without one.
    #[must_use]
    pub fn uid(&self) -> &str {
        &self.uid
    }

    /// The members of the request that Kubernetes defines; none for a raw request.
    #[must_use]
    pub fn head(&self) -> Option<&Head> {
        self.head.as_deref()
    }

    /// The request, as the JSON text that arrived.
    #[must_use]
    pub fn request_json(&self) -> &str {
        self.text(&self.request)
    }

    /// The request in pieces which, put together, are the same JSON without its null members: what a
    /// Kubewarden policy expects.
    pub fn request_pieces(&self) -> impl Iterator<Item = &[u8]> {
        self.pieces.iter().map(|range| &self.body[range.clone()])
    }

    /// What a patch applies to, as JSON text: `request.object`, or the whole of a raw request.
    #[must_use]
    pub fn object_json(&self) -> Option<&str> {
        self.object.as_ref().map(|range| self.text(range))
    }

    /// `request.oldObject` as JSON text.
    #[must_use]
    pub fn old_object_json(&self) -> Option<&str> {
        self.old_object.as_ref().map(|range| self.text(range))
    }

    /// Whether the caller asked that nothing be persisted (`dryRun`).
    #[must_use]
    pub fn is_dry_run(&self) -> bool {
        self.head.as_ref().is_some_and(|head| head.dry_run)
    }

    fn text(&self, range: &Range<usize>) -> &str {
        // The ranges were taken from this body as text, on the boundaries of JSON values.
        std::str::from_utf8(&self.body[range.clone()]).unwrap_or_default()
    }
}

/// Parses JSON text of a review that is known to be nested no deeper than [`MAX_NESTING`].
///
/// # Errors
/// When the text does not fit `T`.
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
        // Its `kind` is an object, of which the parser would say only that it is none of a review.
        let is_request = uid.is_none() && head::first_string(text, "uid").is_some();
        let message = if is_request {
            "the body is no AdmissionReview but an AdmissionRequest: wrap it as `request`".to_owned()
        } else {
            format!("the body is no AdmissionReview: {error}")
        };
        ReviewError { uid, message }
    })
}

fn request_of<R>(envelope: Envelope<'_, R>) -> Result<R, ReviewError> {
    envelope.request.ok_or_else(|| ReviewError::new("the body has no request"))
}

/// The uid of a request of any shape. Skips over the other members without recursion.
fn uid_of(request: &RawValue) -> Option<String> {
    head::first_string(request.get(), "uid")
}

/// The uid in a body that was refused, read a second time: nobody waits for a refusal.
fn shallow_uid(body: &str) -> Option<String> {
    head::first_raw(body, "request").and_then(uid_of)
}

/// Cuts the members whose value is null out of the request.
fn pieces(text: &str, request: &Range<usize>, members: &[head::Span<'_>]) -> Vec<Range<usize>> {
    if members.iter().all(|member| !member.is_null()) {
        return vec![request.clone()];
    }
    let mut pieces = Vec::new();
    // Where the piece that is being gathered starts; none while null members are skipped.
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
        // The last members were null: the comma before them goes too.
        pieces.extend(start.take().map(|from| from..end_of_kept));
        start = Some(request.end - 1);
    }
    pieces.extend(start.map(|from| from..request.end));
    pieces
}

#[cfg(test)]
mod tests;
