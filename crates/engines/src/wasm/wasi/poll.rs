//! `poll_oneoff`, by which guests sleep. A sleep does not block the thread and ends at the deadline.

use std::time::Duration;

use wasmtime::{Caller, Linker};

use super::clock::Clocks;
use super::preview1::{Errno, WASI, errno};
use crate::wasm::guest_memory;
use crate::wasm::outcome::DeadlinePassed;
use crate::wasm::state::State;

/// The maximum number of subscriptions of a call.
const MAX_SUBSCRIPTIONS: u32 = 64;
/// The size of a subscription, in bytes (WASI preview 1, `subscription`).
const SUBSCRIPTION_SIZE: u32 = 48;
/// The size of an event, in bytes (WASI preview 1, `event`).
const EVENT_SIZE: usize = 32;
/// The tag of a subscription to a clock. The other tags are for file descriptors.
const CLOCK_TAG: u8 = 0;
/// The flag for an absolute time of a clock.
const ABSOLUTE_TIME: u64 = 1;

/// A parsed subscription.
struct Subscription {
    user_data: [u8; 8],
    tag: u8,
    /// The time to sleep; `None` for a file descriptor or an unknown clock.
    sleep: Option<Duration>,
}

pub(super) fn define(linker: &mut Linker<State>) -> wasmtime::Result<()> {
    linker.func_wrap_async(WASI, "poll_oneoff", |caller, (subscriptions, events, count, result)| {
        Box::new(poll_oneoff(caller, subscriptions, events, count, result))
    })?;
    Ok(())
}

async fn poll_oneoff(
    mut caller: Caller<'_, State>,
    subscriptions: u32,
    events: u32,
    count: u32,
    result: u32,
) -> wasmtime::Result<Errno> {
    if !(1..=MAX_SUBSCRIPTIONS).contains(&count) {
        return Ok(errno::INVAL);
    }
    let (memory, state) = guest_memory::of(&mut caller, "poll_oneoff")?;
    let deadline = state.deadline;
    let raw = memory.read(subscriptions, count * SUBSCRIPTION_SIZE, usize::MAX)?;
    let raw = raw.as_chunks::<{ SUBSCRIPTION_SIZE as usize }>().0;
    let subscriptions: Vec<_> = raw.iter().map(|raw| parse_subscription(raw, &mut state.clocks)).collect();
    // A subscription to a file descriptor has its event at once, so the call returns without the events of clocks. A guest
    // that polls again gets them later.
    let shortest = if subscriptions.iter().any(|subscription| subscription.sleep.is_none()) {
        None
    } else {
        subscriptions.iter().filter_map(|subscription| subscription.sleep).min()
    };
    if let Some(shortest) = shortest.filter(|sleep| !sleep.is_zero()) {
        let end = tokio::time::Instant::now().checked_add(shortest);
        let deadline = deadline.instant().into();
        tokio::time::sleep_until(end.map_or(deadline, |end| end.min(deadline))).await;
    }
    if deadline.has_passed() {
        return Err(DeadlinePassed.into());
    }
    let (mut memory, _) = guest_memory::of(&mut caller, "poll_oneoff")?;
    let due: Vec<_> =
        subscriptions.iter().filter(|subscription| subscription.sleep == shortest).flat_map(encode_event).collect();
    memory.write(events, &due)?;
    let count = u32::try_from(due.len() / EVENT_SIZE).unwrap_or(u32::MAX);
    memory.write(result, &count.to_le_bytes())?;
    Ok(errno::SUCCESS)
}

fn parse_subscription(raw: &[u8; SUBSCRIPTION_SIZE as usize], clocks: &mut Clocks) -> Subscription {
    // A subscription has six words of 8 bytes: user data, tag, clock, timeout, precision, flags. Smaller values are padded.
    let word = |index: usize| raw.as_chunks::<8>().0.get(index).copied().unwrap_or_default();
    let number = |index| u64::from_le_bytes(word(index));
    let tag = word(1)[0];
    let [clock, timeout, flags] = [number(2) & u64::from(u32::MAX), number(3), number(5)];
    let now = u32::try_from(clock).ok().filter(|_| tag == CLOCK_TAG).and_then(|clock| clocks.read(clock));
    let sleep = now.map(|now| if flags & ABSOLUTE_TIME != 0 { timeout.saturating_sub(now) } else { timeout });
    Subscription { user_data: word(0), tag, sleep: sleep.map(Duration::from_nanos) }
}

fn encode_event(subscription: &Subscription) -> [u8; EVENT_SIZE] {
    let error = match (subscription.tag, subscription.sleep) {
        (_, Some(_)) => errno::SUCCESS,
        (CLOCK_TAG, None) => errno::INVAL,
        (_, None) => errno::BADF,
    };
    let mut event = [0; EVENT_SIZE];
    event[..8].copy_from_slice(&subscription.user_data);
    event[8..10].copy_from_slice(&error.to_le_bytes()[..2]);
    event[10] = subscription.tag;
    event
}
