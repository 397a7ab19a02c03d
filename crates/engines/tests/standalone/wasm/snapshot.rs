//! Snapshots: the initialisation of a module that runs once, when the module is compiled, and the modules whose answers a
//! snapshot would change.

use proviso_engines::wasm::{Module, Program, Snapshot, SnapshotMode, VerifiedCode};

use super::guest::{ENGINE, Guest, failure};

const CLOCK: &str =
    r#"(import "wasi_snapshot_preview1" "clock_time_get" (func $clock (param i32 i64 i32) (result i32)))"#;
const RANDOM: &str = r#"(import "wasi_snapshot_preview1" "random_get" (func $random (param i32 i32) (result i32)))"#;
/// Code that reads the wall clock into the eight bytes at 8.
const READ_TIME: &str = "(drop (call $clock (i32.const 0) (i64.const 0) (i32.const 8)))";
/// Code that reads random numbers into the eight bytes at 8.
const READ_RANDOM: &str = "(drop (call $random (i32.const 8) (i32.const 8)))";
/// Code that turns the eight bytes at 8 into valid UTF-8: every byte below 128 is.
const MAKE_TEXT: &str = "(i64.store (i32.const 8) (i64.and (i64.load (i32.const 8)) (i64.const 0x7f7f7f7f7f7f7f7f)))";
/// Code that always leaves 1.
const ALWAYS: &str = "(i32.const 1)";
/// Code that leaves 1 only for a message with the long settings of [`evaluate`]. No trial call has such settings.
const WITH_LONG_SETTINGS: &str = "(i32.gt_u (local.get $message_len) (i32.const 9000))";

/// Returns a guest whose initialiser has this code. Each call fails. The text of the error is the eight bytes at 8 if the code
/// `reveals` leaves 1, and empty if it leaves 0.
fn guest(initialiser: &str, reveals: &str) -> Guest {
    Guest::with_body(&format!("(call $fail (i32.const 8) (i32.mul (i32.const 8) {reveals})) (i32.const 0)"))
        .import(CLOCK)
        .import(RANDOM)
        .field(&format!(r#"(func (export "_initialize") {initialiser} {MAKE_TEXT})"#))
}

fn load(guest: &Guest, mode: SnapshotMode) -> Module {
    let code = ENGINE.precompile_with(&guest.wasm(), mode).unwrap();
    ENGINE.load(&VerifiedCode::assume_verified(code)).unwrap()
}

/// Returns the module with its snapshot.
fn recorded(guest: &Guest) -> Module {
    let module = load(guest, SnapshotMode::Automatic);
    assert_eq!(*module.snapshot(), Snapshot::Recorded);
    module
}

/// Returns the module without a snapshot, and the cause.
fn refused(guest: &Guest) -> (Module, String) {
    let module = load(guest, SnapshotMode::Automatic);
    let Snapshot::Refused(cause) = module.snapshot().clone() else { panic!("{:?}", module.snapshot()) };
    (module, cause)
}

/// Returns the text of the error of one evaluation.
async fn evaluate(module: &Module) -> String {
    let settings = format!(r#"{{"long":"{}"}}"#, "x".repeat(10_000));
    failure(&Program::new(module.clone(), settings.into_bytes())).await
}

/// Asserts that the module has no snapshot because of `cause`, and that two evaluations have different texts.
async fn assert_answers_are_fresh(guest: &Guest, cause: &str) {
    let (module, actual) = refused(guest);
    assert!(actual.contains(cause), "{actual}");
    let (first, second) = (evaluate(&module).await, evaluate(&module).await);
    assert!(first.len() == 8 && first != second, "{first:?} {second:?}");
}

/// Marks a guest as a module of Go's own compiler.
fn built_by_go(guest: Guest) -> Guest {
    guest.field(r#"(@producers (language "Go" "go1.26") (processed-by "Go cmd/compile" "go1.26"))"#)
}

#[tokio::test]
async fn initialisation_is_recorded() {
    let guest = guest("(i64.store (i32.const 8) (i64.const 0x6867666564636261))", ALWAYS);
    assert_eq!(evaluate(&recorded(&guest)).await, "abcdefgh");
    let module = load(&guest, SnapshotMode::Never);
    assert_eq!((module.snapshot(), &*evaluate(&module).await), (&Snapshot::NotTried, "abcdefgh"));
    assert_ne!(ENGINE.cache_key(SnapshotMode::Never), ENGINE.cache_key(SnapshotMode::Automatic));
    assert_eq!(*Guest::answering("{}").load().unwrap().snapshot(), Snapshot::NotTried, "no initialiser");
}

#[tokio::test]
async fn initialisation_that_grows_the_memory_is_recorded() {
    let grow = "(drop (memory.grow (i32.const 1))) (i32.store (i32.const 140000) (i32.const 7))";
    let guest = guest(
        grow,
        "(i32.and (i32.eq (i32.load (i32.const 140000)) (i32.const 7)) (i32.eq (memory.size) (i32.const 3)))",
    );
    assert_eq!(evaluate(&recorded(&guest)).await.len(), 8);
}

#[tokio::test]
async fn a_time_that_initialisation_reads_is_fresh_in_each_evaluation() {
    assert_answers_are_fresh(&guest(READ_TIME, ALWAYS), "reads the clock").await;
    // No trial call reveals the time.
    assert_answers_are_fresh(&guest(READ_TIME, WITH_LONG_SETTINGS), "reads the clock").await;
}

#[tokio::test]
async fn random_numbers_that_initialisation_reads_are_fresh_in_each_evaluation() {
    assert_answers_are_fresh(&guest(READ_RANDOM, ALWAYS), "reads random numbers").await;
    assert_answers_are_fresh(&guest(READ_RANDOM, WITH_LONG_SETTINGS), "reads random numbers").await;
    let twice = built_by_go(guest(&READ_RANDOM.repeat(2), WITH_LONG_SETTINGS));
    assert_answers_are_fresh(&twice, "reads random numbers").await;
}

#[tokio::test]
async fn a_go_module_that_reveals_its_seed_is_not_recorded() {
    assert_answers_are_fresh(&built_by_go(guest(READ_RANDOM, ALWAYS)), "answers differently").await;
    let generator = "\0math/rand.(*Rand).Intn\0";
    let guest = built_by_go(guest(READ_RANDOM, WITH_LONG_SETTINGS)).data(3000, generator);
    assert_answers_are_fresh(&guest, "math/rand").await;
}

#[tokio::test]
async fn a_go_module_whose_answers_do_not_depend_on_its_seed_is_recorded() {
    let guest = built_by_go(guest(READ_RANDOM, "(i32.const 0)"));
    assert_eq!(evaluate(&recorded(&guest)).await, "");
}

#[tokio::test]
async fn a_recorded_guest_reads_the_current_time_and_new_random_numbers() {
    for read in [READ_TIME, READ_RANDOM] {
        let module = recorded(&guest("", &format!("(block (result i32) {read} {MAKE_TEXT} {ALWAYS})")));
        let (first, second) = (evaluate(&module).await, evaluate(&module).await);
        assert!(first.len() == 8 && first != second, "{first:?} {second:?}");
    }
}

#[tokio::test]
async fn the_monotonic_clock_starts_with_each_instance() {
    // The time of the evaluation is not before the time of the initialisation, and less than a minute after it.
    let elapsed = "(i32.and
        (i32.eqz (call $clock (i32.const 1) (i64.const 0) (i32.const 24)))
        (i32.and
            (i64.ge_u (i64.load (i32.const 24)) (i64.load (i32.const 16)))
            (i64.lt_u (i64.load (i32.const 24)) (i64.add (i64.load (i32.const 16)) (i64.const 60000000000)))))";
    let guest = guest("(drop (call $clock (i32.const 1) (i64.const 0) (i32.const 16)))", elapsed);
    for module in [recorded(&guest), load(&guest, SnapshotMode::Never)] {
        assert_eq!(evaluate(&module).await.len(), 8);
    }
}

#[tokio::test]
async fn a_module_that_calls_its_host_while_it_initialises_is_not_recorded() {
    let log = "(drop (call $host_call (i32.const 2000) (i32.const 10) (i32.const 2010) (i32.const 7)
        (i32.const 2017) (i32.const 3) (i32.const 0) (i32.const 0)))";
    let (_, cause) = refused(&guest(log, ALWAYS).data(2000, "kubewardentracinglog"));
    assert!(cause.contains("calls its host"), "{cause}");
    // The guest fetches the operation, whose name has eight letters.
    let (module, cause) = refused(&guest("(call $request (i32.const 8) (i32.const 2000))", ALWAYS));
    assert!(cause.contains("calls its host"), "{cause}");
    assert_eq!(evaluate(&module).await, "validate");
}

#[tokio::test]
async fn a_module_that_is_refused_memory_while_it_initialises_is_not_recorded() {
    let (_, cause) = refused(&guest("(drop (memory.grow (i32.const 1000)))", ALWAYS));
    assert!(cause.contains("more memory than the limit"), "{cause}");
}

#[tokio::test]
async fn a_module_that_does_not_end_the_trial_calls_is_not_recorded() {
    let endless = Guest::with_body("(loop (br 0)) (i32.const 1)").field(r#"(func (export "_initialize"))"#);
    let (_, cause) = refused(&endless);
    assert!(cause.contains("too long"), "{cause}");
}

#[tokio::test]
async fn a_module_that_writes_to_tables_is_not_recorded() {
    let write = "(table.set $table (i32.const 0) (ref.func $guest_call))";
    let table = "(table $table 1 funcref) (elem declare func $guest_call)";
    let (_, cause) = refused(&guest(write, ALWAYS).field(table));
    assert!(cause.contains("table.set"), "{cause}");
}

#[tokio::test]
async fn scattered_data_survives_the_recording() {
    // The segments are near to and far from each other. The last segment lies in a gap, and the initialiser overwrites it.
    let guest = guest(
        "(i32.store8 (i32.const 3005) (i32.const 0))",
        "(i32.and (i32.eq (i32.load8_u (i32.const 3000)) (i32.const 97))
            (i32.and (i32.eq (i32.load8_u (i32.const 3010)) (i32.const 98))
                (i32.and (i32.eq (i32.load8_u (i32.const 90000)) (i32.const 99))
                    (i32.eqz (i32.load8_u (i32.const 3005))))))",
    );
    let guest = guest.data(3000, "a").data(90_000, "c").data(3010, "b").data(3005, "x");
    assert_eq!(evaluate(&recorded(&guest)).await.len(), 8);
}

#[tokio::test]
async fn data_that_instructions_refer_to_survives_the_recording() {
    let copy = r#"(func (export "_start") (memory.init $name (i32.const 3000) (i32.const 0) (i32.const 3)))"#;
    let guest = guest("", "(i32.eq (i32.load8_u (i32.const 3002)) (i32.const 99))").field(copy);
    let module = load(&guest.field(r#"(data $name "abc")"#), SnapshotMode::Automatic);
    assert_eq!(evaluate(&module).await.len(), 8);
}
