//! HTTP server plumbing: accepts connections, terminates TLS with a certificate that can be replaced, serves requests,
//! and drains connections at shutdown. Also the text of `/metrics`. Routes and handlers are in the programs.

mod body;
mod certificate;
mod client;
mod client_ca;
mod limits;
pub mod metrics;
mod serve;
pub mod shutdown;

pub use body::{BodyError, BodyFailure, BodyLimits, ReceivedBody, read_body};
pub use certificate::{Certificate, CertificateError, ValidityError};
pub use client::ClientCertificates;
pub use client_ca::{ClientCa, ClientCaError};
pub use limits::{Exhausted, Limits, Peer, Permit, default_request_memory};
pub use serve::{HttpService, Streamed, serve};
