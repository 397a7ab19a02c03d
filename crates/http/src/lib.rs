//! Connections: accepted, under TLS with a certificate that can be replaced, served, and drained when the process is told
//! to end; and the text of `/metrics`. What else is answered is for others.

mod certificate;
mod client;
pub mod metrics;
mod serve;
pub mod shutdown;

pub use certificate::{Certificate, CertificateError};
pub use client::ClientCertificates;
pub use serve::{Answers, serve};
