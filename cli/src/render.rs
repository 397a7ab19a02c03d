//! Renders reports as text for a terminal. Pure.

mod detail;
mod diff;
mod experiment;
mod experiments;
mod export;
mod frame;
mod message;
mod module;
mod overview;
mod page;
mod request;
mod revisions;
mod style;
mod subscriptions;
mod suite;
mod table;
#[cfg(test)]
mod tests;
mod text;
mod verdict;
mod view;

pub use detail::detail;
pub use diff::coloured;
pub use experiment::{before_commit, experiment, live_experiment};
pub use experiments::experiments;
pub use export::csv;
pub use frame::frame;
pub use message::{error, warning};
pub use module::module;
pub use overview::overview;
pub use request::request;
pub use revisions::{list, show};
pub use subscriptions::{subscription, subscriptions};
pub use suite::{junit, suite, summary as suite_summary, tap};
pub use text::printable;
pub use verdict::verdict;
pub use view::View;
