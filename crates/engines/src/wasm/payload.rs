//! An operation and its message. The message consists of pieces, which are written to the guest's memory one after the other.

use std::collections::BTreeMap;
use std::sync::Arc;

use proviso_core::Review;
use proviso_core::review::Operation;
use serde_json::value::RawValue;

pub(super) enum Payload {
    Validate {
        request: Box<[u8]>,
        settings: Arc<[u8]>,
    },
    /// The two documents that compiled Rego evaluates.
    Rego {
        input: Box<[u8]>,
        data: Arc<[u8]>,
    },
    /// Another operation and its message.
    Other {
        operation: &'static str,
        message: Arc<[u8]>,
    },
}

impl Payload {
    pub(super) fn validate(review: &Review, settings: Arc<[u8]>) -> Self {
        // The store of an instance cannot borrow the request, so the request is copied once (0.1 µs for 5 KB) before it is
        // copied into the guest.
        Self::Validate { request: embed_request([], review, []), settings }
    }

    /// Creates the documents for Rego whose input is this JSON.
    pub(super) fn rego(input: String, data: Arc<[u8]>) -> Self {
        Self::Rego { input: input.into_bytes().into_boxed_slice(), data }
    }

    /// Creates the documents for Rego that is written for OPA's admission control.
    pub(super) fn opa(review: &Review, data: Arc<[u8]>) -> Self {
        Self::Rego { input: embed_request([b"{\"request\":"], review, [b"}"]), data }
    }

    /// Creates the documents for Rego that is written for Gatekeeper.
    pub(super) fn gatekeeper(review: &Review, settings: &[u8], data: Arc<[u8]>) -> Self {
        let before = [b"{\"parameters\":".as_slice(), settings, b",\"review\":"];
        let input = match request_with_deleted_object(review) {
            Some(request) => [&before.concat()[..], &request, b"}"].concat().into_boxed_slice(),
            None => embed_request(before, review, [b"}"]),
        };
        Self::Rego { input, data }
    }

    pub(super) fn validate_settings(settings: Arc<[u8]>) -> Self {
        Self::Other { operation: "validate_settings", message: settings }
    }

    pub(super) fn protocol_version() -> Self {
        Self::Other { operation: "protocol_version", message: Arc::default() }
    }

    pub(super) fn operation(&self) -> &'static [u8] {
        match self {
            Self::Validate { .. } | Self::Rego { .. } => b"validate",
            Self::Other { operation, .. } => operation.as_bytes(),
        }
    }

    /// Returns the pieces of the message, in order.
    pub(super) fn pieces(&self) -> [&[u8]; 5] {
        match self {
            Self::Validate { request, settings } => [b"{\"request\":", request, b",\"settings\":", settings, b"}"],
            Self::Rego { input, .. } => [input, b"", b"", b"", b""],
            Self::Other { message, .. } => [message, b"", b"", b"", b""],
        }
    }

    pub(super) fn message_len(&self) -> usize {
        self.pieces().iter().map(|piece| piece.len()).sum()
    }
}

/// Returns the request with other bytes before and after it.
fn embed_request<const N: usize, const M: usize>(before: [&[u8]; N], review: &Review, after: [&[u8]; M]) -> Box<[u8]> {
    let pieces = || before.into_iter().chain(review.request_pieces()).chain(after);
    let mut message = Vec::with_capacity(pieces().map(<[u8]>::len).sum());
    pieces().for_each(|piece| message.extend_from_slice(piece));
    message.into_boxed_slice()
}

/// Returns a request for a deletion with the deleted object as `object`: Gatekeeper's policies expect the object there, and the
/// API server sends null. `None` if the request needs no change.
fn request_with_deleted_object(review: &Review) -> Option<Vec<u8>> {
    let is_deletion = review.head().is_some_and(|head| head.operation == Some(Operation::Delete));
    let old: &RawValue = serde_json::from_str(review.old_object_json().filter(|_| is_deletion)?).ok()?;
    // No member is lost: `Review` refuses requests with repeated members.
    let mut members: BTreeMap<String, &RawValue> = serde_json::from_str(review.request_json()).ok()?;
    members.retain(|_, value| value.get() != "null");
    members.insert("object".to_owned(), old);
    serde_json::to_vec(&members).ok()
}
