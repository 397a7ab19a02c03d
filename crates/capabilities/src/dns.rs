//! The capability `net/v1/dns_lookup_host`: resolves host names.

use std::sync::Arc;
use std::time::Duration;

use moka::future::Cache;
use serde_json::json;
use tokio::sync::Semaphore;

use crate::error::HostCallError;
use crate::requests;

/// The maximum age of a cached answer. The system resolver does not return the TTL of an address.
const CACHE_TTL: Duration = Duration::from_secs(30);
/// The maximum number of cached answers.
const MAX_CACHED_NAMES: u64 = 1000;
/// The maximum number of concurrent lookups. Each lookup occupies a thread until the system resolver returns, even if the caller
/// is gone.
const MAX_CONCURRENT_LOOKUPS: usize = 16;
/// The maximum length of a DNS name, in bytes.
const MAX_NAME: usize = 253;

/// A resolver with a cache.
#[derive(Debug)]
pub(crate) struct DnsLookup {
    /// The sorted addresses by host name.
    cache: Cache<String, Arc<Vec<String>>>,
    permits: Arc<Semaphore>,
}

impl Default for DnsLookup {
    fn default() -> Self {
        Self {
            cache: Cache::builder().max_capacity(MAX_CACHED_NAMES).time_to_live(CACHE_TTL).build(),
            permits: Arc::new(Semaphore::new(MAX_CONCURRENT_LOOKUPS)),
        }
    }
}

impl DnsLookup {
    pub(crate) async fn answer(&self, call: &str, payload: &[u8]) -> Result<Vec<u8>, HostCallError> {
        let name: String = requests::read(call, payload)?;
        let is_forbidden = |c: char| !c.is_ascii_graphic() || "/@%?#".contains(c);
        if name.is_empty() || name.len() > MAX_NAME || name.contains(is_forbidden) {
            let name = name.chars().take(80).collect();
            return Err(HostCallError::Name { name, why: "it is not a host name".to_owned() });
        }
        let found = self.cache.try_get_with(name.clone(), self.look_up(name)).await;
        let ips = found.map_err(|error: Arc<HostCallError>| (*error).clone())?;
        Ok(json!({"ips": *ips}).to_string().into_bytes())
    }

    async fn look_up(&self, name: String) -> Result<Arc<Vec<String>>, HostCallError> {
        let failed = |why: String| HostCallError::Name { name: name.clone(), why };
        let permit = Arc::clone(&self.permits).acquire_owned().await.map_err(|error| failed(error.to_string()))?;
        let host = name.clone();
        // A separate task: if the caller gives up, the permit stays taken until the system resolver returns.
        let lookup = tokio::spawn(async move {
            let _permit = permit;
            tokio::net::lookup_host((host, 0)).await.map(|found| found.map(|address| address.ip()).collect::<Vec<_>>())
        });
        let found = lookup.await.map_err(|stopped| failed(stopped.to_string()))?;
        let mut found = found.map_err(|error| failed(error.to_string()))?;
        found.sort_unstable();
        found.dedup();
        Ok(Arc::new(found.iter().map(ToString::to_string).collect()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::Value;

    #[tokio::test]
    async fn a_host_name_resolves_to_distinct_addresses() {
        let dns = DnsLookup::default();
        let answer = dns.answer("net/v1/dns_lookup_host", br#""localhost""#).await.unwrap();
        let answer: Value = serde_json::from_slice(&answer).unwrap();
        assert!(answer["ips"].as_array().unwrap().contains(&Value::from("127.0.0.1")), "{answer}");
        let literal = dns.answer("net/v1/dns_lookup_host", br#""127.0.0.1""#).await.unwrap();
        assert_eq!(literal, br#"{"ips":["127.0.0.1"]}"#);
    }

    #[tokio::test]
    async fn an_invalid_host_name_is_refused() {
        let dns = DnsLookup::default();
        for payload in
            [r#""""#, r#""a b""#, r#""http://a""#, r#"{"host": "a"}"#, "a", &format!("{:?}", "x".repeat(254))]
        {
            assert!(dns.answer("net/v1/dns_lookup_host", payload.as_bytes()).await.is_err(), "{payload}");
        }
    }
}
