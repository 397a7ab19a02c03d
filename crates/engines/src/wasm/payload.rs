//! An operation and its message, in pieces that are written into the guest's memory one after the other.

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
    /// What compiled Rego evaluates: two documents.
    Rego {
        input: Box<[u8]>,
        data: Arc<[u8]>,
    },
    /// An operation with the message that it takes.
    Other {
        operation: &'static str,
        message: Arc<[u8]>,
    },
}

impl Payload {
    pub(super) fn validate(review: &Review, settings: Arc<[u8]>) -> Self {
        // The store of an instance borrows nothing, so the request is copied: 0.1 µs for 5 KB, and the only copy
        // besides the one in the guest.
        Self::Validate { request: copy([], review, []), settings }
    }

    /// For Rego as OPA's admission policies are written.
    pub(super) fn opa(review: &Review, data: Arc<[u8]>) -> Self {
        Self::Rego { input: copy([b"{\"request\":"], review, [b"}"]), data }
    }

    /// For Rego as Gatekeeper's policies are written.
    pub(super) fn gatekeeper(review: &Review, settings: &[u8], data: Arc<[u8]>) -> Self {
        let before = [b"{\"parameters\":".as_slice(), settings, b",\"review\":"];
        let input = match showing_deleted_object(review) {
            Some(request) => [&before.concat()[..], &request, b"}"].concat().into_boxed_slice(),
            None => copy(before, review, [b"}"]),
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

    /// What the message consists of, in order.
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

/// The request between what goes before it and after it.
fn copy<const N: usize, const M: usize>(before: [&[u8]; N], review: &Review, after: [&[u8]; M]) -> Box<[u8]> {
    let pieces = || before.into_iter().chain(review.request_pieces()).chain(after);
    let mut copy = Vec::with_capacity(pieces().map(<[u8]>::len).sum());
    pieces().for_each(|piece| copy.extend_from_slice(piece));
    copy.into_boxed_slice()
}

/// Gatekeeper's policies find an object that is deleted in `review.object`, where the API server has null. None where the request
/// is as they know it already.
fn showing_deleted_object(review: &Review) -> Option<Vec<u8>> {
    let is_deletion = review.head().is_some_and(|head| head.operation == Some(Operation::Delete));
    let old: &RawValue = serde_json::from_str(review.old_object_json().filter(|_| is_deletion)?).ok()?;
    // The reviews that are read are those of which this reads every member.
    let mut members: BTreeMap<String, &RawValue> = serde_json::from_str(review.request_json()).ok()?;
    members.retain(|_, value| value.get() != "null");
    members.insert("object".to_owned(), old);
    serde_json::to_vec(&members).ok()
}
