//! The capability `net/v1/dns_lookup_host`.

use std::sync::Arc;
use std::time::Duration;

use moka::future::Cache;
use serde_json::json;
use tokio::sync::Semaphore;

use crate::error::AskError;
use crate::requests;

/// How old an answer may be. The resolver of the system does not tell how long an address is good for.
const FRESH: Duration = Duration::from_secs(30);
/// The answers that are kept.
const KEPT: u64 = 1000;
/// Look-ups at the same time. Each holds a thread until the system gives up, whoever still waits for it.
const LOOKUPS: usize = 16;
/// The longest name that there is.
const MAX_NAME: usize = 253;

/// Names that were looked up.
#[derive(Debug)]
pub(crate) struct Names {
    /// Addresses, sorted.
    known: Cache<String, Arc<Vec<String>>>,
    places: Arc<Semaphore>,
}

impl Default for Names {
    fn default() -> Self {
        Self {
            known: Cache::builder().max_capacity(KEPT).time_to_live(FRESH).build(),
            places: Arc::new(Semaphore::new(LOOKUPS)),
        }
    }
}

impl Names {
    pub(crate) async fn answer(&self, call: &str, payload: &[u8]) -> Result<Vec<u8>, AskError> {
        let name: String = requests::read(call, payload)?;
        let is_odd = |c: char| !c.is_ascii_graphic() || "/@%?#".contains(c);
        if name.is_empty() || name.len() > MAX_NAME || name.contains(is_odd) {
            let name = name.chars().take(80).collect();
            return Err(AskError::Name { name, why: "it is no name of a host".to_owned() });
        }
        let found = self.known.try_get_with(name.clone(), self.look_up(name)).await;
        let ips = found.map_err(|error: Arc<AskError>| (*error).clone())?;
        Ok(json!({"ips": *ips}).to_string().into_bytes())
    }

    async fn look_up(&self, name: String) -> Result<Arc<Vec<String>>, AskError> {
        let failed = |why: String| AskError::Name { name: name.clone(), why };
        let place = Arc::clone(&self.places).acquire_owned().await.map_err(|error| failed(error.to_string()))?;
        let host = name.clone();
        // A task of its own: who asked may give up, the place is taken until the system does.
        let looking = tokio::spawn(async move {
            let _place = place;
            tokio::net::lookup_host((host, 0)).await.map(|found| found.map(|address| address.ip()).collect::<Vec<_>>())
        });
        let found = looking.await.map_err(|stopped| failed(stopped.to_string()))?;
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
    async fn a_name_has_its_addresses_each_once() {
        let names = Names::default();
        let answer = names.answer("net/v1/dns_lookup_host", br#""localhost""#).await.unwrap();
        let answer: Value = serde_json::from_slice(&answer).unwrap();
        assert!(answer["ips"].as_array().unwrap().contains(&Value::from("127.0.0.1")), "{answer}");
        let literal = names.answer("net/v1/dns_lookup_host", br#""127.0.0.1""#).await.unwrap();
        assert_eq!(literal, br#"{"ips":["127.0.0.1"]}"#);
    }

    #[tokio::test]
    async fn what_is_no_name_is_refused() {
        let names = Names::default();
        for payload in
            [r#""""#, r#""a b""#, r#""http://a""#, r#"{"host": "a"}"#, "a", &format!("{:?}", "x".repeat(254))]
        {
            assert!(names.answer("net/v1/dns_lookup_host", payload.as_bytes()).await.is_err(), "{payload}");
        }
    }
}
