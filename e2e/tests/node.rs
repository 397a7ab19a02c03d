//! A full node.
