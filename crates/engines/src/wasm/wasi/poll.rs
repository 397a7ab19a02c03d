//! `poll_oneoff`, which is how guests sleep: without holding the thread, and no longer than their deadline.

use std::time::Duration;

use wasmtime::{Caller, Linker};

use super::clock::clock_nanoseconds;
use super::preview1::{Errno, WASI, errno};
use crate::wasm::guest_memory;
use crate::wasm::outcome::DeadlinePassed;
use crate::wasm::state::State;

/// The most subscriptions of one call.
const SUBSCRIPTIONS: u32 = 64;
/// Bytes of a subscription and of an event (WASI preview 1, `subscription` and `event`).
const SUBSCRIPTION: u32 = 48;
const EVENT: usize = 32;
/// The tag of a subscription to a clock; the others are to file descriptors.
const CLOCK: u8 = 0;
/// The flag that says that the time of a clock is absolute.
const ABSOLUTE: u64 = 1;

/// One subscription, read.
struct Subscription {
    user_data: [u8; 8],
    tag: u8,
    /// How long to sleep; none for a file descriptor or an unknown clock.
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
    if !(1..=SUBSCRIPTIONS).contains(&count) {
        return Ok(errno::INVAL);
    }
    let (memory, state) = guest_memory::of(&mut caller, "poll_oneoff")?;
    let deadline = state.deadline;
    let raw = memory.read(subscriptions, count * SUBSCRIPTION, usize::MAX)?;
    let subscriptions: Vec<_> = raw.as_chunks::<{ SUBSCRIPTION as usize }>().0.iter().map(read).collect();
    // A file descriptor is answered at once, and no clock with it: they are late, not lost.
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
    if deadline.is_over() {
        return Err(DeadlinePassed.into());
    }
    let (mut memory, _) = guest_memory::of(&mut caller, "poll_oneoff")?;
    let happened: Vec<_> =
        subscriptions.iter().filter(|subscription| subscription.sleep == shortest).flat_map(event).collect();
    memory.write(events, &happened)?;
    let count = u32::try_from(happened.len() / EVENT).unwrap_or(u32::MAX);
    memory.write(result, &count.to_le_bytes())?;
    Ok(errno::SUCCESS)
}

fn read(raw: &[u8; SUBSCRIPTION as usize]) -> Subscription {
    // Six words: user data, tag, clock, timeout, precision, flags; small values are padded.
    let word = |index: usize| raw.as_chunks::<8>().0.get(index).copied().unwrap_or_default();
    let number = |index| u64::from_le_bytes(word(index));
    let tag = word(1)[0];
    let [clock, timeout, flags] = [number(2) & u64::from(u32::MAX), number(3), number(5)];
    let now = u32::try_from(clock).ok().filter(|_| tag == CLOCK).and_then(clock_nanoseconds);
    let sleep = now.map(|now| if flags & ABSOLUTE != 0 { timeout.saturating_sub(now) } else { timeout });
    Subscription { user_data: word(0), tag, sleep: sleep.map(Duration::from_nanos) }
}

fn event(subscription: &Subscription) -> [u8; EVENT] {
    let error = match (subscription.tag, subscription.sleep) {
        (_, Some(_)) => errno::SUCCESS,
        (CLOCK, None) => errno::INVAL,
        (_, None) => errno::BADF,
    };
    let mut event = [0; EVENT];
    event[..8].copy_from_slice(&subscription.user_data);
    event[8..10].copy_from_slice(&error.to_le_bytes()[..2]);
    event[10] = subscription.tag;
    event
}
