//! An operation and its message, in pieces that are written into the guest's memory one after the other.

use std::sync::Arc;

use proviso_core::Review;

pub(super) enum Payload {
    Validate {
        request: Box<[u8]>,
        settings: Arc<[u8]>,
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
        let mut request = Vec::with_capacity(review.request_pieces().map(<[u8]>::len).sum());
        review.request_pieces().for_each(|piece| request.extend_from_slice(piece));
        Self::Validate { request: request.into_boxed_slice(), settings }
    }

    pub(super) fn validate_settings(settings: Arc<[u8]>) -> Self {
        Self::Other { operation: "validate_settings", message: settings }
    }

    pub(super) fn protocol_version() -> Self {
        Self::Other { operation: "protocol_version", message: Arc::default() }
    }

    pub(super) fn operation(&self) -> &'static [u8] {
        match self {
            Self::Validate { .. } => b"validate",
            Self::Other { operation, .. } => operation.as_bytes(),
        }
    }

    /// What the message consists of, in order.
    pub(super) fn pieces(&self) -> [&[u8]; 5] {
        match self {
            Self::Validate { request, settings } => [b"{\"request\":", request, b",\"settings\":", settings, b"}"],
            Self::Other { message, .. } => [message, b"", b"", b"", b""],
        }
    }

    pub(super) fn message_len(&self) -> usize {
        self.pieces().iter().map(|piece| piece.len()).sum()
    }
}
