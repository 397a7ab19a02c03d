//! The arguments of `proviso subscriptions`.

use std::time::Duration;

use clap::{Args, Subcommand};

use super::duration::duration;
use super::output::Output;
use super::server::Server;
use crate::subscription_ref::SubscriptionRef;

/// A command about subscriptions, and the server with them.
#[derive(Args, Debug)]
pub struct Subscriptions {
    #[command(flatten)]
    pub server: Server,

    #[command(subcommand)]
    pub command: Subscription,
}

/// Show and repeat the delivery of configuration policies to components.
#[derive(Debug, Subcommand)]
pub enum Subscription {
    List(List),
    Status(Status),
    Resend(Resend),
}

/// List the subscriptions: the component of each, and the state of its policies
#[derive(Args, Debug)]
pub struct List {
    /// The subscriptions of all namespaces
    #[arg(long, short = 'A', conflicts_with = "namespace")]
    pub all_namespaces: bool,

    /// Refresh every two seconds, until Ctrl-C
    #[arg(long, short)]
    pub watch: bool,

    #[command(flatten)]
    pub output: Output,
}

/// Show the policies that a component has and should have
///
/// Exit code: 0 if the component has all of them, 1 if it rejected one or the delivery failed, 3 if the delivery goes on.
#[derive(Args, Debug)]
pub struct Status {
    /// The subscription: its name, or pvsub/NAME
    pub subscription: SubscriptionRef,

    /// Compare the bodies of the policies that differ
    #[arg(long)]
    pub diff: bool,

    /// Refresh every two seconds, until Ctrl-C
    #[arg(long, short)]
    pub watch: bool,

    #[command(flatten)]
    pub output: Output,
}

/// Send all policies to a component again, also those that it rejected
///
/// Exit code: 0 if the component has all policies, otherwise 1.
#[derive(Args, Debug)]
pub struct Resend {
    /// The subscription: its name, or pvsub/NAME
    pub subscription: SubscriptionRef,

    /// Wait for the answer of the component
    #[arg(
        long,
        value_name = "BOOL",
        default_value_t = true,
        num_args = 0..=1,
        require_equals = true,
        default_missing_value = "true",
        action = clap::ArgAction::Set
    )]
    pub wait: bool,

    /// Longest time to wait, such as 90s or 5m
    #[arg(long, value_name = "DURATION", default_value = "5m", value_parser = duration)]
    pub timeout: Duration,
}
