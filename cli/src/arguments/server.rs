//! The arguments that name a server with the REST API.

use std::net::IpAddr;
use std::path::PathBuf;

use clap::Args;
use http::Uri;

use super::connection::Connection;

/// A server with the REST API, in place of a cluster.
#[allow(clippy::struct_field_names, reason = "clap names the options by them")]
#[derive(Args, Clone, Debug, Default)]
#[command(next_help_heading = "Server")]
pub struct Server {
    /// Use the REST API at this URL, of a policy server over a folder or of an operator, in place of a cluster
    #[arg(long, global = true, value_name = "URL", env = "PROVISO_SERVER", value_parser = address)]
    pub server: Option<Uri>,

    /// File with the bearer token for the server
    #[arg(long, global = true, value_name = "FILE", env = "PROVISO_TOKEN_FILE")]
    pub token_file: Option<PathBuf>,

    /// File with the CA certificates that verify the server's certificate; default: those of the system
    #[arg(long, global = true, value_name = "FILE", env = "PROVISO_SERVER_CA")]
    pub server_ca: Option<PathBuf>,
}

impl Server {
    /// The ids of the options, and the environment variables in place of them.
    pub(super) const ALL: [(&'static str, &'static str); 3] =
        [("server", "PROVISO_SERVER"), ("token_file", "PROVISO_TOKEN_FILE"), ("server_ca", "PROVISO_SERVER_CA")];

    /// Checks these arguments together with those that name a cluster.
    ///
    /// # Errors
    /// Returns a message if options for a cluster and options for a server are mixed.
    pub fn check(&self, connection: &Connection) -> Result<(), String> {
        let is_given = |(option, is_given)| if is_given { Some(option) } else { None };
        let of_cluster =
            [("--kubeconfig", connection.kubeconfig.is_some()), ("--context", connection.context.is_some())];
        let of_server = [("--token-file", self.token_file.is_some()), ("--server-ca", self.server_ca.is_some())];
        match self.server {
            Some(_) => match of_cluster.into_iter().find_map(is_given) {
                Some(option) => Err(format!(
                    "{option} names a cluster, and --server or PROVISO_SERVER names a server: leave one out"
                )),
                None => Ok(()),
            },
            None => match of_server.into_iter().find_map(is_given) {
                Some(option) => Err(format!("{option} is for a server: name it with --server or PROVISO_SERVER")),
                None => Ok(()),
            },
        }
    }

    /// Returns the values of the options, in the order of [`Self::ALL`].
    pub(super) fn values(&self) -> [Option<String>; 3] {
        let path = |path: &Option<PathBuf>| path.as_ref().map(|path| path.display().to_string());
        let server = self.server.as_ref().map(|url| url.to_string().trim_end_matches('/').to_owned());
        [server, path(&self.token_file), path(&self.server_ca)]
    }
}

/// Parses the URL of a server. Plain HTTP is for loopback only, because requests may carry a token.
fn address(text: &str) -> Result<Uri, String> {
    let url: Uri = text.parse().map_err(|_| "is not a URL such as https://policies.example.com:8443".to_owned())?;
    let host = url.host().unwrap_or_default().trim_matches(['[', ']']);
    let is_loopback = host == "localhost" || host.parse::<IpAddr>().is_ok_and(|address| address.is_loopback());
    match url.scheme_str() {
        _ if url.query().is_some() || url.authority().is_some_and(|it| it.as_str().contains('@')) => {
            Err("has more than a host, a port and a path".to_owned())
        }
        Some("https") => Ok(url),
        Some("http") if is_loopback => Ok(url),
        Some("http") => Err("is not encrypted: http:// is only for loopback, use https://".to_owned()),
        _ => Err("begins with neither https:// nor http://".to_owned()),
    }
}

/// Returns a shell command that runs `program` with these environment variables.
pub(super) fn with_variables(variables: &[(&str, String)], program: &str) -> String {
    let quoted = |value: &str| {
        let is_plain = |letter: char| letter.is_ascii_alphanumeric() || "-_.:/[]".contains(letter);
        if value.chars().all(is_plain) { value.to_owned() } else { format!("'{}'", value.replace('\'', r"'\''")) }
    };
    let variables = variables.iter().map(|(name, value)| format!("{name}={} ", quoted(value)));
    variables.collect::<String>() + program
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_token_is_sent_only_encrypted_or_over_loopback() {
        for (text, wanted) in [
            ("https://policies.example.com:8443", ""),
            ("https://example.com/proviso/", ""),
            ("http://127.0.0.1:3000", ""),
            ("http://localhost:3000/", ""),
            ("http://[::1]:3000", ""),
            ("http://10.0.0.1:3000", "only for loopback"),
            ("http://127.0.0.1.example.com", "only for loopback"),
            ("policies.example.com", "neither https:// nor http://"),
            ("ftp://127.0.0.1", "neither https:// nor http://"),
            ("https://a/?b", "more than a host"),
            ("https://me@example.com", "more than a host"),
            ("", "is not a URL"),
            ("https://", "is not a URL"),
        ] {
            let error = address(text).err().unwrap_or_default();
            assert!(error.contains(wanted) && error.is_empty() == wanted.is_empty(), "{text}: {error}");
        }
    }

    #[test]
    fn a_command_can_be_copied_into_a_shell() {
        let variables = [("A", "https://a:1/".to_owned()), ("B", "it's".to_owned())];
        assert_eq!(with_variables(&variables, "kubectl proviso"), r"A=https://a:1/ B='it'\''s' kubectl proviso");
    }
}
