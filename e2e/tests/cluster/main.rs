//! The control plane, and what a real API server says about expressions.

mod cel;
mod control_plane;
