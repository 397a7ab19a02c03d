//! Connections: accepted, under TLS with a certificate that can be replaced, served, and drained. What is answered is for
//! others.

mod certificate;
mod serve;

pub use certificate::{Certificate, CertificateError};
pub use serve::{Answers, serve};
