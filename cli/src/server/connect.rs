//! Makes a client from a URL.

use std::time::Duration;

use http::Uri;
use kube::Config;
use kube::config::AuthInfo;

use super::Server;
use super::client::Client;
use super::error::ServerError;
use crate::arguments::Server as Arguments;
use crate::error::{Error, root_cause};

/// The time limit of a connection. Short, because a user waits.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);
/// The time limit between two reads of a response. A commit waits for the preparation of the experiment, at most 30 s.
const READ_TIMEOUT: Duration = Duration::from_mins(1);
/// The default namespace, as for kubectl.
const DEFAULT_NAMESPACE: &str = "default";

impl Server {
    /// Returns a client of the server at this URL. Sends no request.
    ///
    /// # Errors
    /// When the token file or the CA file cannot be read, or is invalid.
    pub fn connect(url: &Uri, arguments: &Arguments, namespace: Option<String>) -> Result<Self, Error> {
        let mut config = Config::new(url.clone());
        config.connect_timeout = Some(CONNECT_TIMEOUT);
        config.read_timeout = Some(READ_TIMEOUT);
        config.reset_reader_on_write = true;
        // No retries: an action may have succeeded although its response is an error.
        config.default_retry = false;
        if let Some(file) = &arguments.token_file {
            let fail = |cause: String| ServerError::File { option: "--token-file", file: file.clone(), cause };
            let token = std::fs::read_to_string(file).map_err(|error| fail(error.to_string()))?;
            let token = token.trim();
            if token.is_empty() || token.chars().any(|letter| !letter.is_ascii_graphic()) {
                return Err(fail("has no token: expected one word of printable characters".to_owned()).into());
            }
            config.auth_info = AuthInfo { token: Some(token.to_owned().into()), ..AuthInfo::default() };
        }
        if let Some(file) = &arguments.server_ca {
            // The client trusts only this file, and not the certificates of the system.
            config.root_cert = Some(Vec::new());
            config.root_cert_file = Some(file.clone());
        }
        let server = url.to_string().trim_end_matches('/').to_owned();
        let client = kube::Client::try_from(config).map_err(|error| {
            let cause = root_cause(&error);
            match &arguments.server_ca {
                Some(file) => ServerError::File { option: "--server-ca", file: file.clone(), cause },
                None => ServerError::Client { server: server.clone(), cause },
            }
        })?;
        let is_namespace_given = namespace.is_some();
        let namespace = namespace.unwrap_or_else(|| DEFAULT_NAMESPACE.to_owned());
        Ok(Self { client: Client::new(client, server), namespace, is_namespace_given })
    }
}
