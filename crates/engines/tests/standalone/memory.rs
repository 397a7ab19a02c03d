//! The memory limit of interpreted programs: programs that would take gigabytes are denied, and the process stays small. Each
//! attack runs in a child process of this test program, whose peak is measured.

use std::process::Command;
use std::time::Duration;

use bytes::Bytes;
use proviso_core::Review;
use proviso_engines::rego::{self, Dialect};
use proviso_engines::{CompileError, Deadline, EvaluationError, Program, cel};
use serde_json::json;

/// The limit of one evaluation in these tests, in bytes.
const LIMIT: usize = 16 << 20;
/// The memory that one step may take before it is checked, in MiB: one call of a builtin returns at most 16 MiB of text or a
/// million values.
const ONE_STEP_MIB: u64 = 100;
/// The variable with the name of the attack that the child process runs.
const ATTACK: &str = "PROVISO_MEMORY_ATTACK";

/// Rego bodies by name. `n` is 3,000 in the evaluation; in the trial request of the compiler it is undefined. `text` has 16,000
/// characters.
const REGO: &[(&str, &str)] = &[
    ("array comprehension", "all := [[x, y] | x := xs[_]; y := xs[_]]; count(all) > 0"),
    ("set comprehension", "all := {[x, y] | x := xs[_]; y := xs[_]}; count(all) > 0"),
    ("object comprehension", "all := {sprintf(\"%d %d\", [x, y]): [x, y] | x := xs[_]; y := xs[_]}; count(all) > 0"),
    ("nested comprehensions", "all := [[[x, y] | y := xs[_]] | x := xs[_]]; count(all) > 0"),
    ("partial set", "count(pairs) > 0"),
    ("partial object", "count(keys) > 0"),
    ("formatted texts", "all := [s | x := xs[_]; s := sprintf(\"%d%s\", [x, text])]; count(all) > 0"),
    ("joined texts", "all := [s | x := xs[_]; s := concat(\",\", [text, sprintf(\"%d\", [x])])]; count(all) > 0"),
    ("upper case", "all := [s | x := xs[_]; s := upper(concat(\"\", [text, sprintf(\"%d\", [x])]))]; count(all) > 0"),
    (
        "pieces of a text",
        "all := [s | x := xs[_]; s := split(concat(\"\", [text, sprintf(\"%d\", [x])]), \"\")]; count(all) > 0",
    ),
    ("walk", "big := [xs | numbers.range(1, 200)[_]]; all := [p | walk(big, p)]; count(all) > 0"),
    ("unions", "all := [o | x := xs[_]; o := object.union(members, {\"x\": x})]; count(all) > 0"),
    (
        "parsed texts",
        "json_text := json.marshal(xs); all := [v | x := xs[_]; v := json.unmarshal(json_text)]; count(all) > 0",
    ),
    ("ranges", "all := [v | x := xs[_]; v := numbers.range(1, 100000 + x)]; count(all) > 0"),
];

const RULES: &str = r#"
package attack
xs := numbers.range(1, input.review.object.spec.n)
text := concat("", [t | i := numbers.range(1, 16000)[_]; t := "a"])
members := {k: 1 | x := xs[_]; k := sprintf("%d", [x])}
pairs[p] { x := xs[_]; y := xs[_]; p := [x, y] }
keys[k] = v { x := xs[_]; y := xs[_]; k := sprintf("%d %d", [x, y]); v := [x, y] }
violation[{"msg": "no"}] { input.review.object.spec.n > 0; BODY }
"#;

/// CEL expressions by name. `object.spec.items` has 120 numbers.
const CEL: &[(&str, &str)] = &[
    (
        "nested maps",
        "object.spec.items.map(a, object.spec.items.map(b, object.spec.items.map(c, [a, b, c]))).size() > 0",
    ),
    (
        "nested filters",
        "object.spec.items.map(a, object.spec.items.map(b, object.spec.items.filter(c, c >= 0))).size() > 0",
    ),
    (
        "maps of maps",
        "object.spec.items.map(a, object.spec.items.map(b, object.spec.items.map(c, {'a': a, 'b': b}))).size() > 0",
    ),
    ("variables", "variables.v6.size() > 0"),
];

fn program(attack: &str) -> Program {
    let rego = REGO.iter().find(|(name, _)| *name == attack);
    let program = rego.map(|(_, body)| {
        let program = rego::Program::compile(&RULES.replace("BODY", body), Dialect::Gatekeeper, None, &json!({}));
        Program::Rego(program.unwrap_or_else(|error| panic!("{attack}: {error}")))
    });
    let program = program.unwrap_or_else(|| {
        let (_, expression) = CEL.iter().find(|(name, _)| *name == attack).expect("an attack");
        let variable = |index: usize| cel::Variable {
            name: format!("v{index}"),
            expression: match index {
                0 => "object.spec.items".to_owned(),
                _ => format!("variables.v{0}.map(x, [x, variables.v{0}])", index - 1),
            },
        };
        let validation = cel::Validation { expression: (*expression).to_owned(), ..cel::Validation::default() };
        let variables = (0..=6).map(variable).collect();
        let source = cel::Source { variables, validations: vec![validation], ..cel::Source::default() };
        Program::Cel(cel::Program::compile(source, &json!({})).unwrap_or_else(|error| panic!("{attack}: {error}")))
    });
    program.with_memory_limit(LIMIT)
}

fn review() -> Review {
    let items: Vec<u32> = (0..120).collect();
    let object = json!({"metadata": {"name": "a"}, "spec": {"n": 3000, "items": items}});
    let request = json!({"uid": "u", "operation": "CREATE", "kind": {"group": "", "version": "v1", "kind": "Pod"}, "object": object});
    Review::admission(Bytes::from(json!({"request": request}).to_string())).unwrap()
}

fn evaluate(program: &Program) -> Result<bool, EvaluationError> {
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_time().build().unwrap();
    let deadline = Deadline::after(Duration::from_mins(2));
    runtime.block_on(program.evaluate(&review(), deadline)).map(|verdict| verdict.allowed)
}

/// Returns the peak of the resident memory of this process, in MiB.
fn peak_mib() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find(|line| line.starts_with("VmHWM:")).unwrap();
    line.split_whitespace().nth(1).unwrap().parse::<u64>().unwrap() / 1024
}

/// The child process: prints the memory that it took, or the wrong result.
#[test]
#[ignore = "the child process of the test below"]
#[allow(clippy::print_stdout, reason = "the parent reads stdout")]
fn child() {
    let attack = std::env::var(ATTACK).unwrap();
    let program = program(&attack);
    let before = peak_mib();
    let result = evaluate(&program);
    let grown = peak_mib() - before;
    let expected = "it takes more memory than its limit of 16 MiB: make the program smaller, or raise \
                    evaluation.memoryLimitMiB of the PolicyServer";
    match result {
        Err(EvaluationError::Failed(why)) if why.contains(expected) => println!("\ngrown: {grown}\n"),
        other => println!("\nwrong: {other:?}, {grown} MiB\n"),
    }
}

#[test]
fn an_evaluation_that_takes_too_much_memory_is_denied_and_the_process_stays_small() {
    let mut wrong = Vec::new();
    for attack in REGO.iter().chain(CEL).map(|(name, _)| name) {
        let mut child = Command::new(std::env::current_exe().unwrap());
        let child = child.args(["--exact", "memory::child", "--ignored", "--nocapture"]).env(ATTACK, attack);
        let output = String::from_utf8(child.output().unwrap().stdout).unwrap();
        let grown = output.lines().find_map(|line| line.strip_prefix("grown: ")?.parse::<u64>().ok());
        if grown.is_none_or(|grown| grown > (LIMIT as u64 >> 20) + ONE_STEP_MIB) {
            wrong.push(format!("{attack}: {output}"));
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn a_policy_whose_trial_evaluation_takes_too_much_memory_does_not_compile() {
    let source = "package a\nxs := numbers.range(1, 3000)\n\
                  violation[{\"msg\": \"no\"}] { count([v | x := xs[_]; v := numbers.range(x, 100000)]) > 0 }";
    let error = rego::Program::compile(source, Dialect::Gatekeeper, None, &json!({})).unwrap_err();
    let CompileError::Invalid(why) = error else { panic!("{error:?}") };
    assert!(why.contains("it takes more memory than its limit of 128 MiB"), "{why}");
}

#[test]
fn the_limit_does_not_outlast_an_evaluation_and_does_not_concern_others() {
    let attack = program("array comprehension");
    let fine = Program::Cel(
        cel::Program::compile(
            vec![cel::Validation {
                expression: "object.spec.items.size() == 120".into(),
                ..cel::Validation::default()
            }],
            &json!({}),
        )
        .unwrap(),
    );
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_time().build().unwrap();
    let (attack, fine, review) = (&attack, &fine.with_memory_limit(LIMIT), &review());
    let deadline = Deadline::after(Duration::from_mins(2));
    runtime.block_on(async {
        for _ in 0..2 {
            let (denied, allowed) = tokio::join!(attack.evaluate(review, deadline), fine.evaluate(review, deadline));
            assert!(matches!(denied, Err(EvaluationError::Failed(_))), "{denied:?}");
            assert!(allowed.unwrap().allowed);
            assert!(fine.evaluate(review, deadline).await.unwrap().allowed);
        }
    });
}
