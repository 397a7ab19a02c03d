//! From an address to a client.

use std::time::Duration;

use http::Uri;
use kube::config::AuthInfo;
use kube::{Client, Config};

use super::{Server, ServerError};
use crate::arguments::Server as Arguments;
use crate::error::{Error, root_cause};

/// How long a server may take to accept a connection. A person waits.
const CONNECT: Duration = Duration::from_secs(10);
/// How long it may be silent in the middle of an answer.
const READ: Duration = Duration::from_secs(30);
/// What a Policy without a namespace is of, as kubectl has it.
const NAMESPACE: &str = "default";

impl Server {
    /// The server at this address. Nothing is sent yet.
    ///
    /// # Errors
    /// When a file cannot be used.
    pub fn connect(url: &Uri, arguments: &Arguments, namespace: Option<String>) -> Result<Self, Error> {
        let mut config = Config::new(url.clone());
        config.connect_timeout = Some(CONNECT);
        config.read_timeout = Some(READ);
        config.reset_reader_on_write = true;
        // What is asked for may have been done though the answer says that it was not.
        config.default_retry = false;
        if let Some(file) = &arguments.token_file {
            let fail = |cause: String| ServerError::File { option: "--token-file", file: file.clone(), cause };
            let token = std::fs::read_to_string(file).map_err(|error| fail(error.to_string()))?;
            let token = token.trim();
            if token.is_empty() || token.chars().any(|letter| !letter.is_ascii_graphic()) {
                return Err(fail("holds no token: one word of printable characters".to_owned()).into());
            }
            config.auth_info = AuthInfo { token: Some(token.to_owned().into()), ..AuthInfo::default() };
        }
        if let Some(file) = &arguments.server_ca {
            // What is trusted is that file alone, not the system's certificates too.
            config.root_cert = Some(Vec::new());
            config.root_cert_file = Some(file.clone());
        }
        let server = url.to_string().trim_end_matches('/').to_owned();
        let client = Client::try_from(config).map_err(|error| {
            let cause = root_cause(&error);
            match &arguments.server_ca {
                Some(file) => ServerError::File { option: "--server-ca", file: file.clone(), cause },
                None => ServerError::Client { server: server.clone(), cause },
            }
        })?;
        let is_namespace_given = namespace.is_some();
        let namespace = namespace.unwrap_or_else(|| NAMESPACE.to_owned());
        Ok(Self { client, url: server, namespace, is_namespace_given })
    }
}
