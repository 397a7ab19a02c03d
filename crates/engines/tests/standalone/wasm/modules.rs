//! Accepted and refused modules.

use proviso_engines::wasm::ExecutionMode::{self, Gatekeeper, KubewardenWapc, Opa, Wasi};
use proviso_engines::wasm::{Metadata, PolicyType, Program, VerifiedCode};
use proviso_engines::{CompileError, EvaluationError};

use super::command::Command;
use super::guest::{ENGINE, Guest, create_review, engine, load, long_deadline};
use super::rego::Rego;

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
fn bytes_that_are_not_a_module_are_refused() {
    for bytes in [&b""[..], b"\0asm", b"(module)", b"\x7fELF\x02\x01\x01\0", b"{}"] {
        assert!(invalid(bytes).contains("no WebAssembly module") || bytes.starts_with(b"\0asm"), "{bytes:?}");
    }
    assert!(invalid(b"\0asm\x01\0\0\0\xff\xff").contains("does not compile"));
    let mut cut = Guest::answering("{}").wasm();
    cut.truncate(cut.len() - 10);
    assert!(invalid(&cut).contains("does not compile"));
}

#[test]
fn the_refusal_of_a_component_says_that_it_is_a_component() {
    assert!(unsupported(&text("(component)")).contains("component"));
    assert!(unsupported(b"\0asm\x02\0\0\0").contains("unknown version"));
}

#[test]
fn a_module_over_the_size_limit_is_refused() {
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
fn the_refusal_of_an_unknown_import_names_the_import() {
    for (import, words) in [
        (r#"(import "env" "opa_abort" (func (param i32)))"#, "env.opa_abort, which is not provided to a waPC module"),
        (r#"(import "host" "call" (func))"#, "host.call, which is not provided to a waPC module"),
        (r#"(import "js" "alert" (func))"#, "js.alert, which is not provided"),
        (r#"(import "wapc" "__guest_response" (func))"#, "__guest_response"),
        (r#"(import "wasi_snapshot_preview1" "fd_write" (func))"#, "fd_write"),
    ] {
        let text = unsupported(&Guest::answering("{}").import(import).wasm());
        assert!(text.contains(words), "{text}");
    }
}

#[test]
fn code_of_another_wasmtime_release_is_refused() {
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
fn metadata_is_read_from_the_module() {
    let json = r#"{"protocolVersion":"v1","rules":[{"apiGroups":[""],"apiVersions":["v1"],"resources":["pods"],"operations":["CREATE"]}],
        "annotations":{"io.kubewarden.policy.title":"t"},"mutating":true,"backgroundAudit":false,"executionMode":"kubewarden-wapc",
        "policyType":"raw","contextAwareResources":[{"apiVersion":"v1","kind":"Namespace"}],"hostCapabilities":["oci/*"],
        "minimumKubewardenVersion":"1.30.0","future":1}"#;
    let metadata = Metadata::read(&annotated(&json.replace('\n', ""))).unwrap().unwrap();
    assert!(metadata.mutating && !metadata.background_audit && metadata.policy_type == PolicyType::Raw);
    assert_eq!(metadata.rules[0].resources, ["pods"]);
    assert_eq!(metadata.context_aware_resources[0].kind, "Namespace");
    assert_eq!(metadata.host_capabilities, ["oci/*"]);
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

/// Returns the module with metadata that name an execution mode.
fn annotated_with_mode(mode: &str, mut wasm: Vec<u8>) -> Vec<u8> {
    let (name, json) = ("io.kubewarden.metadata", format!(r#"{{"executionMode":"{mode}"}}"#));
    let length = |length: usize| u8::try_from(length).unwrap();
    wasm.extend([0, length(1 + name.len() + json.len()), length(name.len())]);
    wasm.extend(name.bytes().chain(json.bytes()));
    wasm
}

#[test]
fn the_mode_comes_from_the_metadata_the_spec_or_the_convention() {
    let wapc = || Guest::answering("{}").wasm();
    let rego = || Rego::answering("[]").wasm();
    let wasi = || Command::with_body("").wasm();
    for (wasm, declared, mode) in [
        (wapc(), None, KubewardenWapc),
        (wapc(), Some(KubewardenWapc), KubewardenWapc),
        (wasi(), None, Wasi),
        (rego(), Some(Opa), Opa),
        (rego(), Some(Gatekeeper), Gatekeeper),
        (annotated_with_mode("gatekeeper", rego()), None, Gatekeeper),
        (annotated_with_mode("opa", rego()), Some(Opa), Opa),
        (annotated_with_mode("wasi", wasi()), None, Wasi),
        (annotated_with_mode("kubewarden-wapc", wapc()), None, KubewardenWapc),
    ] {
        assert_eq!(load(&ENGINE, &wasm).unwrap().mode(declared), Ok(mode), "{declared:?} {mode}");
    }
    for (wasm, declared, words) in [
        (rego(), None, "set `mode` to opa if the policy answers with an AdmissionReview, or to gatekeeper"),
        (
            annotated_with_mode("gatekeeper", rego()),
            Some(Opa),
            "its execution mode is gatekeeper, not opa: remove `mode`",
        ),
        (wapc(), Some(Opa), "`mode` says opa, which is for compiled Rego, but the module is a waPC module"),
        (rego(), Some(Wasi), "`mode` says wasi, which is for a WASI command, but the module is compiled Rego"),
        (annotated_with_mode("opa", wasi()), None, "the module's metadata says opa"),
        (annotated_with_mode("wasi", wapc()), None, "the module's metadata says wasi"),
    ] {
        let error = load(&ENGINE, &wasm).unwrap().mode(declared).unwrap_err();
        assert!(matches!(&error, CompileError::Invalid(text) if text.contains(words)), "{error}");
    }
}

#[tokio::test]
async fn compiled_rego_without_a_mode_fails_the_evaluation() {
    let program = Program::new(Rego::answering("[]").load().unwrap(), *b"{}");
    let error = program.evaluate(&create_review(), long_deadline()).await.unwrap_err();
    assert_eq!(error, EvaluationError::Failed("compiled Rego needs a mode: opa or gatekeeper".into()));
}

#[test]
fn a_module_with_malformed_metadata_does_not_compile() {
    let error = ENGINE.precompile(&annotated_with_mode("webassembly", Guest::answering("{}").wasm())).unwrap_err();
    assert!(error.to_string().contains("io.kubewarden.metadata"), "{error}");
}

#[test]
fn rego_and_commands_with_missing_exports_or_unknown_imports_are_refused() {
    let rego = |from: &str, to: &str| {
        let text = Rego::answering("[]").wat().replace(from, to);
        unsupported_or_invalid(&text)
    };
    assert!(rego(r#"(export "opa_malloc")"#, "").contains("`opa_malloc`"));
    assert!(rego(r#"(export "eval") (param i32)"#, r#"(export "eval")"#).contains("`eval`"));
    assert!(rego(r#""opa_println""#, r#""opa_surprise""#).contains("env.opa_surprise"));
    assert!(rego(r#""opa_println" (func $println (param i32))"#, r#""x" (global $x i32)"#).contains("env.x"));
    let two = "(memory 1) (global $heap";
    assert!(rego("(global $heap", two).contains("a memory besides"));
    let command = |import: &str| {
        let text = format!(r#"(module {import} (memory (export "memory") 1) (func (export "_start")))"#);
        unsupported_or_invalid(&text)
    };
    assert!(command(r#"(import "wapc" "__guest_error" (func (param i32 i32)))"#).contains("wapc.__guest_error"));
    assert!(unsupported_or_invalid(r#"(module (func (export "_start")))"#).contains("`memory`"));
}

fn unsupported_or_invalid(wat: &str) -> String {
    refusal(&text(wat)).to_string()
}

#[test]
fn malformed_metadata_is_refused() {
    for json in ["", "[]", r#"{"mutating":1}"#, r#"{"executionMode":"magic"}"#] {
        let error = Metadata::read(&annotated(json)).unwrap_err();
        assert!(error.to_string().contains("io.kubewarden.metadata"), "{error}");
    }
    assert!(Metadata::read(b"no wasm").is_err());
}
