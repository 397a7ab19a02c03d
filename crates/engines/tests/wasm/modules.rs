//! Which bytes become a module.

use proviso_engines::CompileError;
use proviso_engines::wasm::{ExecutionMode, Metadata, PolicyType, VerifiedCode};

use crate::guest::{ENGINE, Guest, engine};

fn refusal(wasm: &[u8]) -> CompileError {
    ENGINE.precompile(wasm).unwrap_err()
}

fn invalid(wasm: &[u8]) -> String {
    match refusal(wasm) {
        CompileError::Invalid(text) => text,
        other @ CompileError::Unsupported(_) => panic!("not invalid: {other}"),
    }
}

fn unsupported(wasm: &[u8]) -> String {
    match refusal(wasm) {
        CompileError::Unsupported(text) => text,
        other @ CompileError::Invalid(_) => panic!("not unsupported: {other}"),
    }
}

fn text(wat: &str) -> Vec<u8> {
    wat::parse_str(wat).unwrap()
}

#[test]
fn bytes_that_are_no_module_are_refused() {
    for bytes in [&b""[..], b"\0asm", b"(module)", b"\x7fELF\x02\x01\x01\0", b"{}"] {
        assert!(invalid(bytes).contains("no WebAssembly module") || bytes.starts_with(b"\0asm"), "{bytes:?}");
    }
    assert!(invalid(b"\0asm\x01\0\0\0\xff\xff").contains("does not compile"));
    let mut cut = Guest::answering("{}").wasm();
    cut.truncate(cut.len() - 10);
    assert!(invalid(&cut).contains("does not compile"));
}

#[test]
fn a_component_is_refused_as_such() {
    assert!(unsupported(&text("(component)")).contains("component"));
    assert!(unsupported(b"\0asm\x02\0\0\0").contains("unknown version"));
}

#[test]
fn an_enormous_module_is_refused_unread() {
    assert!(invalid(&vec![0; (64 << 20) + 1]).contains("more than 64 MiB"));
}

#[test]
fn a_module_without_the_exports_of_a_policy_is_refused() {
    let call = r#"(func (export "__guest_call") (param i32 i32) (result i32) (i32.const 1))"#;
    assert!(invalid(&text(&format!("(module {call})"))).contains("`memory`"));
    assert!(invalid(&text(r#"(module (memory (export "memory") 1))"#)).contains("`__guest_call`"));
    let wrong = r#"(module (memory (export "memory") 1) (func (export "__guest_call")))"#;
    assert!(invalid(&text(wrong)).contains("wrong type"));
    let wrong = Guest::answering("{}").field(r#"(func (export "_start") (param i32))"#);
    assert!(invalid(&wrong.wasm()).contains("`_start`"));
}

#[test]
fn imports_that_are_not_provided_are_named() {
    for (import, words) in [
        (r#"(import "env" "opa_abort" (func (param i32)))"#, "OPA module (it imports env.opa_abort)"),
        (r#"(import "host" "call" (func))"#, "the execution mode wasi"),
        (r#"(import "js" "alert" (func))"#, "js.alert, which is not provided"),
        (r#"(import "wapc" "__guest_response" (func))"#, "__guest_response"),
        (r#"(import "wasi_snapshot_preview1" "fd_write" (func))"#, "fd_write"),
    ] {
        let text = unsupported(&Guest::answering("{}").import(import).wasm());
        assert!(text.contains(words), "{text}");
    }
}

#[test]
fn code_of_another_release_is_refused() {
    let code = ENGINE.precompile(&Guest::answering("{}").wasm()).unwrap();
    let version = b"48.0.";
    let at = code.windows(version.len()).position(|window| window == version).expect("the version is in the code");
    let mut other = code.clone();
    other[at + version.len()] ^= 1;
    let error = ENGINE.load(&VerifiedCode::assume_verified(other)).unwrap_err();
    assert!(error.to_string().contains("incompatible version"), "{error}");
}

#[test]
fn damaged_code_is_refused() {
    let code = ENGINE.precompile(&Guest::answering("{}").wasm()).unwrap();
    for length in [0, 4, 64, code.len() / 2] {
        let error = ENGINE.load(&VerifiedCode::assume_verified(code[..length].to_vec())).unwrap_err();
        assert!(error.to_string().contains("cannot be loaded"), "{error}");
    }
    let error = ENGINE.load(&VerifiedCode::assume_verified(Guest::answering("{}").wasm())).unwrap_err();
    assert!(error.to_string().contains("cannot be loaded"), "{error}");
}

#[test]
fn engines_of_one_build_share_their_key() {
    let other = engine(1);
    assert_eq!(ENGINE.key(), other.key());
    assert!(ENGINE.key().len() == 16 && ENGINE.key().bytes().all(|byte| byte.is_ascii_hexdigit()));
    let code = ENGINE.precompile(&Guest::answering("{}").wasm()).unwrap();
    other.load(&VerifiedCode::assume_verified(code)).unwrap();
}

fn annotated(json: &str) -> Vec<u8> {
    let json = json.replace('"', "\\\"");
    text(&format!(r#"(module (@custom "io.kubewarden.metadata" "{json}"))"#))
}

#[test]
fn metadata_says_what_a_policy_is() {
    let json = r#"{"protocolVersion":"v1","rules":[{"apiGroups":[""],"apiVersions":["v1"],"resources":["pods"],"operations":["CREATE"]}],
        "annotations":{"io.kubewarden.policy.title":"t"},"mutating":true,"backgroundAudit":false,"executionMode":"kubewarden-wapc",
        "policyType":"raw","contextAwareResources":[{"apiVersion":"v1","kind":"Namespace"}],"hostCapabilities":["oci/*"],
        "minimumKubewardenVersion":"1.30.0","future":1}"#;
    let metadata = Metadata::read(&annotated(&json.replace('\n', ""))).unwrap().unwrap();
    assert!(metadata.mutating && !metadata.background_audit && metadata.policy_type == PolicyType::Raw);
    assert_eq!(metadata.rules[0].resources, ["pods"]);
    assert_eq!(metadata.context_aware_resources[0].kind, "Namespace");
    assert_eq!(metadata.host_capabilities, ["oci/*"]);
    assert_eq!(metadata.check_runnable(), Ok(()));
}

#[test]
fn metadata_has_defaults() {
    assert_eq!(Metadata::read(&Guest::answering("{}").wasm()), Ok(None));
    let metadata = Metadata::read(&annotated("{}")).unwrap().unwrap();
    assert!(!metadata.mutating && metadata.background_audit);
    assert_eq!(
        (metadata.execution_mode, metadata.policy_type),
        (ExecutionMode::KubewardenWapc, PolicyType::Kubernetes)
    );
}

#[test]
fn other_execution_modes_are_refused_by_name() {
    for mode in ["opa", "gatekeeper", "wasi"] {
        let metadata = Metadata::read(&annotated(&format!(r#"{{"executionMode":"{mode}"}}"#))).unwrap().unwrap();
        let error = metadata.check_runnable().unwrap_err();
        assert!(matches!(&error, CompileError::Unsupported(text) if text.contains(mode)), "{error}");
    }
}

#[test]
fn malformed_metadata_is_refused() {
    for json in ["", "[]", r#"{"mutating":1}"#, r#"{"executionMode":"magic"}"#] {
        let error = Metadata::read(&annotated(json)).unwrap_err();
        assert!(error.to_string().contains("io.kubewarden.metadata"), "{error}");
    }
    assert!(Metadata::read(b"no wasm").is_err());
}
