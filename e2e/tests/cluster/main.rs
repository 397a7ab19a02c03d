//! Tests of the control plane, and of CEL expressions with a real API server.

mod cel;
mod control_plane;
