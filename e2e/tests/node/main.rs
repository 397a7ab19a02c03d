//! Tests with the programs of a full node. All but those of the charts need root: `make e2e`.

mod charts;
mod pods;
