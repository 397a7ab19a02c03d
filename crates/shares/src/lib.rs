//! Budgets of a limited resource, such as evaluation places or memory, that policies share. One policy holds at most a quarter of
//! a budget and the policies of one namespace at most a half, so that no policy and no tenant keeps the others from the resource.
//! The policies that wait get it in a fair order: first the one whose namespace holds the least.

mod ledger;
mod shares;

pub use ledger::{Limits, Rank, Refusal};
pub use shares::{Account, Permit, Shares, Usage};
