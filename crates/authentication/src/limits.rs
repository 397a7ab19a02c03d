//! The limits of token reviews, for each client and for all clients together.

use std::net::{IpAddr, Ipv6Addr};
use std::num::NonZeroU32;
use std::sync::Arc;
use std::time::Duration;

use governor::clock::{Clock as _, DefaultClock};
use governor::{DefaultDirectRateLimiter, Quota, RateLimiter};
use moka::future::Cache;

/// The reviews per second and the burst of one client.
const PER_CLIENT: (u32, u32) = (1, 10);
/// The reviews per second and the burst of all clients together.
const ALL_CLIENTS: (u32, u32) = (10, 50);
/// The maximum number of clients whose limits are kept. A client that is dropped begins with a new burst.
const MAX_CLIENTS: u64 = 10_000;
/// The time after which the limit of a client without reviews is dropped: longer than it takes to refill the burst.
const IDLE_TIMEOUT: Duration = Duration::from_mins(1);

/// The rate limiters of token reviews.
#[derive(Debug)]
pub(crate) struct ReviewLimits {
    clients: Cache<IpAddr, Arc<DefaultDirectRateLimiter>>,
    all: DefaultDirectRateLimiter,
    clock: DefaultClock,
}

impl Default for ReviewLimits {
    fn default() -> Self {
        let clients = Cache::builder().max_capacity(MAX_CLIENTS).time_to_idle(IDLE_TIMEOUT).build();
        Self { clients, all: limiter(ALL_CLIENTS), clock: DefaultClock::default() }
    }
}

impl ReviewLimits {
    /// Takes a review of this client from the limits.
    ///
    /// # Errors
    /// Returns the time after which the client may try again. The limit of the client comes first, so that a client that exceeds it
    /// takes nothing from the others.
    pub async fn take(&self, client: IpAddr) -> Result<(), Duration> {
        let own = self.clients.get_with(network(client), async { Arc::new(limiter(PER_CLIENT)) }).await;
        own.check().map_err(|not_until| not_until.wait_time_from(self.clock.now()))?;
        self.all.check().map_err(|not_until| not_until.wait_time_from(self.clock.now()))
    }
}

/// Returns the address by which clients are told apart. One machine may have all addresses of a /64 network of IPv6.
fn network(client: IpAddr) -> IpAddr {
    match client {
        IpAddr::V4(_) => client,
        IpAddr::V6(address) => Ipv6Addr::from_bits(address.to_bits() >> 64 << 64).into(),
    }
}

fn limiter((per_second, burst): (u32, u32)) -> DefaultDirectRateLimiter {
    let at_least_one = |number| NonZeroU32::new(number).unwrap_or(NonZeroU32::MIN);
    RateLimiter::direct(Quota::per_second(at_least_one(per_second)).allow_burst(at_least_one(burst)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_client_that_exceeds_its_limit_takes_nothing_from_the_others() {
        let limits = ReviewLimits::default();
        let hostile: IpAddr = "192.0.2.1".parse().unwrap();
        let mut taken = 0;
        for _ in 0..1000 {
            match limits.take(hostile).await {
                Ok(()) => taken += 1,
                Err(wait) => assert!(wait <= Duration::from_secs(1), "{wait:?}"),
            }
        }
        // A burst, and one more for each second that the loop takes.
        assert!((10..20).contains(&taken), "{taken}");
        assert!(limits.take("192.0.2.2".parse().unwrap()).await.is_ok());
    }

    #[tokio::test]
    async fn addresses_of_one_network_share_a_limit_and_all_clients_have_one() {
        let limits = ReviewLimits::default();
        let mut taken = 0;
        for host in 0..100_u16 {
            let address = Ipv6Addr::new(0x2001, 0xdb8, 0, 0, 0, 0, 0, host);
            taken += u32::from(limits.take(address.into()).await.is_ok());
        }
        assert!(taken < 20, "{taken}");
        let mut of_all = taken;
        for network in 0..500_u16 {
            let address = Ipv6Addr::new(0x2001, 0xdb8, 1, network, 0, 0, 0, 1);
            of_all += u32::from(limits.take(address.into()).await.is_ok());
        }
        assert!((50..100).contains(&of_all), "{of_all}");
    }
}
