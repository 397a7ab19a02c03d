//! Connections: accepted, under TLS with a certificate that can be replaced, served, and drained when the process is told
//! to end. What is answered is for others.

mod certificate;
mod client;
mod serve;
pub mod shutdown;

pub use certificate::{Certificate, CertificateError};
pub use client::ClientCertificates;
pub use serve::{Answers, serve};
