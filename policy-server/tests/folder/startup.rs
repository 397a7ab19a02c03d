//! Tests of the start of the server, and of the errors of a failed start, which name a remedy.

use std::net::TcpListener;
use std::process::Command;

use hyper::StatusCode;
use proviso_e2e::Port;
use serde_json::json;

use crate::support::tls::Pair;
use crate::support::{self, Ended, Folder, Server, forbid, pod, policy, run_to_end, wasm, with};

/// Arguments for free ports.
const PORTS: [&str; 4] = ["--listen", "127.0.0.1:0", "--admin-listen", "127.0.0.1:0"];
/// Every flag that has an environment variable, except `log`.
const FLAGS: [&str; 39] = [
    "api-token-file",
    "caller-tokens",
    "client-ca",
    "metrics-listen",
    "manifests",
    "policy-server",
    "namespace",
    "pod-name",
    "pod-uid",
    "listen",
    "admin-listen",
    "state-dir",
    "cache-dir",
    "signing-key",
    "sources",
    "tenants",
    "namespaced-system-requests",
    "pull-secrets",
    "tls-cert",
    "tls-key",
    "evaluation-timeout",
    "namespaced-timeout",
    "memory-limit",
    "compile-memory",
    "compile-timeout",
    "concurrency",
    "request-memory",
    "preview-queue",
    "preview-priority",
    "shutdown-delay",
    "log-format",
    "context-memory",
    "verification",
    "trusted-root",
    "https-proxy",
    "http-proxy",
    "no-proxy",
    "deliver-to",
    "catch-up-interval",
];

fn variable(flag: &str) -> String {
    // The proxies use the environment variables that other programs use.
    let prefix = if flag.ends_with("-proxy") { "" } else { "PROVISO_" };
    format!("{prefix}{}", flag.to_uppercase().replace('-', "_"))
}

/// Asserts that the server ended with this code, wrote these words to stderr and nothing to stdout, and did not panic.
fn assert_refused(ended: &Ended, code: i32, words: &[&str]) {
    assert_eq!(ended.code, Some(code), "{ended:#?}");
    assert_eq!(ended.stdout, "", "stdout is for preview lines");
    for wanted in words {
        assert!(ended.stderr.contains(wanted), "{wanted}: {ended:#?}");
    }
    assert!(!ended.stderr.contains("panicked"), "{ended:#?}");
}

/// Runs a server over this folder with free ports and these arguments until it ends.
async fn run_over(folder: &Folder, arguments: &[&str]) -> Ended {
    let manifests = folder.manifests();
    let all = [&PORTS, &["--manifests", manifests.to_str().unwrap()][..], arguments].concat();
    run_to_end(&all, &[]).await
}

#[tokio::test]
async fn a_port_in_use_is_reported_with_its_flag() {
    let folder = Folder::new();
    let manifests = folder.manifests();
    let taken = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = taken.local_addr().unwrap().to_string();
    for (flag, other) in [("--listen", "--admin-listen"), ("--admin-listen", "--listen")] {
        let arguments = ["--manifests", manifests.to_str().unwrap(), flag, &address, other, "127.0.0.1:0"];
        let ended = run_to_end(&arguments, &[]).await;
        let wanted = format!("policy-server: cannot listen on {flag} {address}: the port may be in use");
        assert_refused(&ended, 1, &[&wanted, &format!("choose another one with {flag}"), "already in use"]);
    }
}

#[tokio::test]
async fn a_missing_manifest_folder_is_reported_with_its_path() {
    let folder = Folder::new();
    let missing = folder.root().join("nowhere");
    let ended = run_to_end(&[&PORTS[..], &["--manifests", missing.to_str().unwrap()]].concat(), &[]).await;
    assert_refused(&ended, 1, &["--manifests", missing.to_str().unwrap(), "name a folder that exists"]);
    folder.write("a.yaml", "");
    let file = folder.manifests().join("a.yaml");
    let ended = run_to_end(&[&PORTS[..], &["--manifests", file.to_str().unwrap()]].concat(), &[]).await;
    assert_refused(&ended, 1, &["is not a folder: name the folder that the manifest is in", file.to_str().unwrap()]);
}

#[tokio::test]
async fn invalid_arguments_and_state_files_are_refused_at_the_start() {
    let folder = Folder::new();
    let damaged = folder.root().join("damaged");
    std::fs::create_dir(&damaged).unwrap();
    std::fs::write(damaged.join("state.json"), "{\"version\": 1, \"rec").unwrap();
    let newer = folder.root().join("newer");
    std::fs::create_dir(&newer).unwrap();
    std::fs::write(newer.join("state.json"), "{\"version\": 99, \"records\": {}}").unwrap();
    let file = folder.root().join("file");
    std::fs::write(&file, "").unwrap();
    let [damaged, newer, file] = [&damaged, &newer, &file].map(|path| path.to_str().unwrap());
    for (arguments, words) in [
        (vec!["--log", "everything=please"], vec!["--log"]),
        (vec!["--listen", "0.0.0.0:0"], vec!["--listen 0.0.0.0:0 can be reached from other machines", "--tls-cert"]),
        (vec!["--listen", "[::]:0"], vec!["can be reached from other machines"]),
        (vec!["--state-dir", damaged], vec!["state.json is damaged", "remove it to start again at generation 1"]),
        (vec!["--state-dir", newer], vec!["state.json has version 99, this server reads 1"]),
        (vec!["--state-dir", file], vec!["--state-dir", file]),
    ] {
        let manifests = folder.manifests();
        let ports = if arguments[0] == "--listen" { &PORTS[2..] } else { &PORTS[..] };
        let all = [ports, &["--manifests", manifests.to_str().unwrap()], &arguments].concat();
        let ended = run_to_end(&all, &[]).await;
        assert_refused(&ended, 1, &[&["policy-server: "], &words[..]].concat());
        assert!(!ended.stderr.contains("policy server started"), "{ended:#?}");
    }
    // Wrong usage has exit code 2, as usual for command lines.
    for (arguments, word) in [
        (vec!["--evaluation-timeout", "soon"], "500ms, 2s or 1m"),
        (vec!["--evaluation-timeout", "0s"], "is not between"),
        (vec!["--concurrency", "1"], "--concurrency"),
        (vec!["--memory-limit", "9999999"], "--memory-limit"),
        (vec!["--tls-cert", "a"], "--tls-key"),
        (vec!["--log-format", "xml"], "text, json"),
        (vec!["--manifest", "a"], "--manifests"),
    ] {
        assert_refused(&run_over(&folder, &arguments).await, 2, &[word]);
    }
    assert_refused(&run_to_end(&[], &[]).await, 2, &["--manifests"]);
}

#[tokio::test]
async fn an_invalid_certificate_is_reported_with_its_path() {
    let folder = Folder::new();
    let (pair, other) = (Pair::new(), Pair::new());
    let (cert, key) = (folder.root().join("tls.crt"), folder.root().join("tls.key"));
    for (what, cert_text, key_text, words) in [
        ("no certificate", "", pair.key.as_str(), ["tls.crt", "certificate"]),
        ("no key", &pair.cert, "", ["tls.key", "key"]),
        ("another's key", &pair.cert, &other.key, ["tls.crt", "do not work together"]),
        ("swapped", &pair.key, &pair.cert, ["tls.crt", "certificate"]),
    ] {
        std::fs::write(&cert, cert_text).unwrap();
        std::fs::write(&key, key_text).unwrap();
        let arguments = ["--tls-cert", cert.to_str().unwrap(), "--tls-key", key.to_str().unwrap()];
        let ended = run_over(&folder, &arguments).await;
        assert_refused(&ended, 1, &[&["policy-server: "], &words[..]].concat());
        assert!(!ended.stderr.contains("PRIVATE KEY"), "{what}: {ended:#?}");
    }
    std::fs::remove_file(&cert).unwrap();
    let arguments = ["--tls-cert", cert.to_str().unwrap(), "--tls-key", key.to_str().unwrap()];
    assert_refused(&run_over(&folder, &arguments).await, 1, &["policy-server: ", cert.to_str().unwrap()]);
}

#[tokio::test]
async fn a_server_without_readable_tokens_or_authorities_of_callers_does_not_start() {
    let folder = Folder::new();
    let [cert, key, file] = ["tls.crt", "tls.key", "file"].map(|name| folder.root().join(name));
    let pair = Pair::new();
    std::fs::write(&cert, &pair.cert).unwrap();
    std::fs::write(&key, &pair.key).unwrap();
    let missing = folder.root().join("missing");
    let [cert, key, path, missing] = [&cert, &key, &file, &missing].map(|path| path.to_str().unwrap());
    for (content, flag, path, words) in [
        ("", "--caller-tokens", path, "there is no caller token"),
        ("short", "--caller-tokens", path, "line 1 is not a caller token"),
        ("", "--caller-tokens", missing, "No such file"),
        ("", "--client-ca", path, "holds no certificate"),
        ("", "--client-ca", missing, "cannot be read"),
    ] {
        std::fs::write(&file, content).unwrap();
        let ended = run_over(&folder, &["--tls-cert", cert, "--tls-key", key, flag, path]).await;
        assert_refused(&ended, 1, &["policy-server: ", path, words]);
    }
}

#[tokio::test]
async fn a_replica_with_invalid_cache_flags_does_not_start() {
    let folder = Folder::new();
    let key = folder.root().join("signing.key");
    let missing = folder.root().join("missing.key");
    std::fs::write(&key, "no key").unwrap();
    let [key, missing] = [&key, &missing].map(|path| path.to_str().unwrap());
    let replica = ["--policy-server", "a", "--namespace", "b", "--pod-name", "a-0", "--pod-uid", "u"];
    for (arguments, words) in [
        (vec!["--cache-dir", "/c", "--signing-key", key], vec!["--signing-key", key, "in PKCS #8 and PEM"]),
        (vec!["--cache-dir", "/c", "--signing-key", missing], vec!["--signing-key", missing, "cannot be read"]),
        (vec!["--state-dir", "/s"], vec!["--state-dir /s is for a folder of manifests", "--cache-dir"]),
    ] {
        let ended = run_to_end(&[&PORTS[..], &replica, &arguments].concat(), &[]).await;
        assert_refused(&ended, 1, &[&["policy-server: "], &words[..]].concat());
    }
}

#[tokio::test]
async fn help_and_completions_name_every_flag() {
    let help = run_to_end(&["--help"], &[]).await;
    assert_eq!((help.code, help.stderr.as_str()), (Some(0), ""));
    for flag in FLAGS.into_iter().chain(["log"]) {
        assert!(help.stdout.contains(&format!("--{flag} ")), "--{flag}: {}", help.stdout);
        let named = format!("[env: {}", variable(flag));
        assert!(help.stdout.contains(&named), "{named}: {}", help.stdout);
    }
    for words in ["POST /validate/<policy id>", "/readyz?verbose", "Examples:", "cluster.<name>"] {
        assert!(help.stdout.contains(words), "{words}: {}", help.stdout);
    }
    // The count fails if a new flag is missing in `FLAGS`.
    let options = help.stdout.split("Examples:").next().unwrap();
    let offered = options.lines().filter(|line| line.trim_start().starts_with("--")).count();
    assert_eq!(offered, FLAGS.len() + 2, "{}", help.stdout);

    for shell in ["bash", "zsh", "fish"] {
        let completions = run_to_end(&["--completions", shell], &[]).await;
        assert_eq!((completions.code, completions.stderr.as_str()), (Some(0), ""), "{shell}");
        for flag in FLAGS {
            assert!(completions.stdout.contains(flag), "{shell}: --{flag}");
        }
    }
    let version = run_to_end(&["--version"], &[]).await;
    assert_eq!(
        (version.code, version.stdout.as_str()),
        (Some(0), concat!("policy-server ", env!("CARGO_PKG_VERSION")))
    );
}

#[tokio::test]
async fn environment_variables_set_flags_that_are_not_given() {
    let folder = Folder::new();
    let manifests = folder.manifests();
    let manifests = manifests.to_str().unwrap();
    let base = [("PROVISO_LISTEN", "127.0.0.1:0"), ("PROVISO_ADMIN_LISTEN", "127.0.0.1:0")];
    let with_one = |name, value| [&base[..], &[("PROVISO_MANIFESTS", manifests), (name, value)]].concat();
    for (name, value, code, word) in [
        ("PROVISO_MANIFESTS", "/nowhere", 1, "--manifests /nowhere"),
        ("PROVISO_LISTEN", "0.0.0.0:0", 1, "can be reached from other machines"),
        ("PROVISO_LOG", "x=y=z", 1, "--log"),
        ("PROVISO_STATE_DIR", "/dev/null/state", 1, "/dev/null/state"),
        ("PROVISO_EVALUATION_TIMEOUT", "soon", 2, "--evaluation-timeout"),
        ("PROVISO_CONCURRENCY", "many", 2, "--concurrency"),
        ("PROVISO_MEMORY_LIMIT", "0", 2, "--memory-limit"),
        ("PROVISO_PREVIEW_QUEUE", "0", 2, "--preview-queue"),
        ("PROVISO_PREVIEW_PRIORITY", "highest", 2, "--preview-priority"),
        ("PROVISO_SHUTDOWN_DELAY", "1h", 2, "--shutdown-delay"),
        ("PROVISO_LOG_FORMAT", "xml", 2, "--log-format"),
        ("PROVISO_TLS_CERT", "a", 2, "--tls-key"),
    ] {
        assert_refused(&run_to_end(&[], &with_one(name, value)).await, code, &[word]);
    }
    // A flag overrides its variable.
    let arguments = ["--manifests", "/elsewhere"];
    assert_refused(&run_to_end(&arguments, &with_one("PROVISO_LOG", "info")).await, 1, &["--manifests /elsewhere"]);
}

#[tokio::test]
async fn a_server_can_be_configured_by_environment_variables_alone() {
    let folder = Folder::new();
    folder.write("a.json", policy("a", &forbid("true", "served")));
    let manifests = folder.manifests();
    let mut command = Command::new(env!("CARGO_BIN_EXE_policy-server"));
    command
        .env("PROVISO_MANIFESTS", &manifests)
        .env("PROVISO_LISTEN", "127.0.0.1:0")
        .env("PROVISO_ADMIN_LISTEN", "127.0.0.1:0")
        .env("PROVISO_LOG_FORMAT", "json")
        .env("PROVISO_LOG", "info")
        .env("PROVISO_SHUTDOWN_DELAY", "0s");
    let mut server = Server::run(command, folder).await;
    server.until("ready", async || server.get("/readyz").await.status == StatusCode::OK).await;
    assert_eq!(server.post("/validate/cluster.a", pod("u", "x").to_string()).await.message(), "served");
    server.signal(rustix::process::Signal::TERM);
    assert_eq!(server.exit_code().await, Some(0), "{:#?}", server.stderr.all());
}

#[tokio::test]
async fn the_default_log_format_is_text() {
    let folder = Folder::new();
    let manifests = folder.manifests();
    let taken = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = taken.local_addr().unwrap().to_string();
    let arguments = ["--manifests", manifests.to_str().unwrap(), "--listen", "127.0.0.1:0", "--admin-listen", &address];
    let ended = run_to_end(&arguments, &[]).await;
    assert!(!ended.stderr.contains('{') && !ended.stderr.contains('\u{1b}'), "{ended:#?}");
}

#[tokio::test]
async fn a_server_starts_over_an_empty_folder() {
    let server = Server::start(Folder::new(), &[]).await;
    assert_eq!(server.post("/validate/cluster.a", pod("u", "x").to_string()).await.status, StatusCode::NOT_FOUND);
    server.folder.write("a.json", policy("a", &forbid("true", "served")));
    server.until_details("[+] cluster.a generation 1 live").await;
    assert_eq!(server.post("/validate/cluster.a", pod("u", "x").to_string()).await.message(), "served");
}

#[tokio::test]
async fn the_server_is_ready_when_it_has_tried_every_policy() {
    let folder = Folder::new();
    // The validation of the settings never ends, so the server is not ready until the timeout.
    let slow = wat::parse_str(
        r#"(module
            (memory (export "memory") 1)
            (func (export "__guest_call") (param i32 i32) (result i32) (loop $again (br $again)) (i32.const 1)))"#,
    );
    folder.write("slow.wasm", slow.unwrap());
    folder.write("slow.json", policy("slow", &with(wasm("slow.wasm"), &json!({"timeoutEvalSeconds": 8}))));
    let server = Server::spawn(folder, &[]).await;
    let ready = server.get("/readyz").await;
    assert_eq!(ready.status, StatusCode::SERVICE_UNAVAILABLE, "{}", ready.text);
    assert!(ready.text.contains("still being loaded"), "{}", ready.text);
    assert_eq!(server.get("/livez").await.status, StatusCode::OK);
    let early = server.post("/validate/cluster.slow", pod("u", "x").to_string()).await;
    assert_eq!((early.status, early.headers["retry-after"].as_bytes()), (StatusCode::SERVICE_UNAVAILABLE, &b"1"[..]));
    server.until_details("[-] cluster.slow denies everything: no generation works: SettingsInvalid").await;
    assert_eq!(
        server.get("/readyz").await.status,
        StatusCode::OK,
        "one bad policy does not keep the others from serving"
    );
}

#[test]
fn the_demo_shows_the_expected_lines() {
    let (port, admin_port) = (Port::reserve().unwrap(), Port::reserve().unwrap());
    let demo = Command::new("bash")
        .arg(support::example("demo.sh"))
        .arg(env!("CARGO_BIN_EXE_policy-server"))
        .env("PORT", port.number().to_string())
        .env("ADMIN_PORT", admin_port.number().to_string())
        .env("PROVISO_EVALUATION_TIMEOUT", support::PATIENT[1])
        .env(support::PREVIEW_PRIORITY, "normal")
        .output()
        .unwrap();
    let (stdout, stderr) = (String::from_utf8(demo.stdout).unwrap(), String::from_utf8(demo.stderr).unwrap());
    assert_eq!((demo.status.code(), stderr.as_str()), (Some(0), ""), "{stdout}");
    let has_line = |parts: &[&str]| stdout.lines().any(|line| parts.iter().all(|part| line.contains(part)));
    for parts in [
        &["REVIEW", "POLICY", "VERDICT", "MESSAGE"][..],
        &["pod-create", "cluster.required-labels", "allowed"],
        &["pod-create", "cluster.safe-defaults", "mutated", "securityContext"],
        &["pod-create-untrusted-image", "cluster.trusted-registries", "denied"],
        &["deployment-delete", "ns.payments.protected-objects", "denied"],
        &["PolicyPreviewLog {", "required-labels-cost-center", "NewlyDenied"],
        &["PolicyPreviewLog {", "required-labels-cost-center", "MessageDiffers"],
        &["[+] cluster.required-labels generation 2 live"],
        &["[-]", "required-labels", "Gatekeper"],
        &["exit code 0"],
        &["Everything was as expected."],
    ] {
        assert!(has_line(parts), "{parts:?}:\n{stdout}");
    }
}
