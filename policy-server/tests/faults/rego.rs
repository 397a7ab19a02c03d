//! Rego programs that run too long, or that could crash the interpreter.

use serde_json::json;

use crate::{TOO_LONG, ask, assert_failed, assert_fine, server_with_fine_policies};

use crate::support::{Folder, cel, forbid, pod, policy, rego, with};

// A Rego program needs much CPU time, by a loop or by a regular expression.
#[tokio::test(flavor = "multi_thread")]
async fn expensive_rego_ends_at_its_deadline_and_does_not_delay_others() {
    let folder = Folder::new();
    let budget = json!({"timeoutEvalSeconds": 8});
    for (name, condition) in [
        (
            "loops",
            "count([1 | some a in numbers.range(1, 100000); some b in numbers.range(1, 100000); a == b + 1e9]) > 0",
        ),
        (
            "regex",
            r#"count([1 | some i in numbers.range(1, 100000); regex.match(sprintf("((a*)*)*b%d{1,20}$", [i]), input.request.object.metadata.annotations.text)]) > 0"#,
        ),
    ] {
        // The condition on the annotation keeps the trial run fast: before a policy is accepted, it is tried on an empty request.
        let condition = format!("input.request.object.metadata.annotations.text; {condition}");
        folder.write(&format!("{name}.json"), policy(name, &with(forbid(&condition, "found"), &budget)));
    }
    let server = server_with_fine_policies(folder, &[]).await;
    let mut review = pod("u", "x");
    review["request"]["object"]["metadata"]["annotations"] = json!({"text": "a".repeat(100_000)});
    let details = server.details().await;
    assert!(details.contains("[+] cluster.loops") && details.contains("[+] cluster.regex"), "{details}");
    let mut asked = Vec::new();
    for name in ["loops", "regex"] {
        asked.push(server.begin(&format!("/validate/cluster.{name}"), review.to_string()).await);
    }
    for _ in 0..5 {
        assert_fine(&server).await;
    }
    let others_were_first = !asked.iter().any(tokio::task::JoinHandle::is_finished);
    for answer in asked {
        assert_failed(&answer.await.unwrap(), TOO_LONG);
    }
    assert!(others_were_first, "other policies waited for the expensive ones");
    assert_fine(&server).await;
}

// A Rego program could crash the interpreter, and with it the process: by recursion, deep nesting, or values out of range.
#[tokio::test]
async fn no_rego_source_ends_the_server() {
    let server = server_with_fine_policies(Folder::new(), &[]).await;
    let package = |rules: &str| rego(&format!("package test\n{rules}"));
    let recursion = "deny contains \"x\" if f(1)\nf(n) if f(n + 1)";
    let mutual = "deny contains \"x\" if a\na if b\nb if a";
    let brackets = format!("deny contains \"x\" if {}1{}", "[".repeat(400), "]".repeat(400));
    let chain = format!("deny contains \"x\" if 1{} == 0", " + 1".repeat(20_000));
    let negations = format!("deny contains \"x\" if {}false", "not ".repeat(5000));
    for (what, reason, rules) in [
        ("recursion", "Unsupported", recursion),
        ("mutual recursion", "Unsupported", mutual),
        ("brackets", "", brackets.as_str()),
        ("chain", "", chain.as_str()),
        ("negations", "", negations.as_str()),
        ("pattern", "CompileError", "deny contains \"x\" if regex.match(\"(((a{1,1000}){1,1000}){1,1000})\", \"x\")"),
        ("no end", "CompileError", "deny contains \"x\" if {"),
        ("no rule", "CompileError", ""),
    ] {
        server.folder.write("bad.json", policy("bad", &package(rules)));
        server.until_details(&format!("[-] cluster.bad denies everything: no generation works: {reason}")).await;
        server.until("the reason", async || !server.details().await.contains("being prepared")).await;
        assert_failed(&ask(&server, "bad").await, "spec.program.rego.source: ");
        assert_fine(&server).await;
        server.folder.remove("bad.json");
        server.until(what, async || !server.details().await.contains("[-]")).await;
    }
    // These expressions compile. The result does not matter, but the evaluation must end in time and not affect other policies.
    for expression in [
        "x := 1 / 0; x",
        "count(numbers.range(1, 1000000000000)) > 0",
        "bits.lsh(1, 1000000000000) > 0",
        "substring(\"äöü\", 1, 1) == \"x\"",
        "sprintf(\"%d %s %v\", [input.request.object, input.request.uid, [1]]) == \"x\"",
        "strings.replace_n({\"\": \"x\"}, \"aaa\") == \"x\"",
        "indexof(\"ä\", \"\") == 5",
        "count(net.cidr_expand(\"::/0\")) > 0",
        "time.add_date(9223372036854775807, 9223372036, 1, 1) > 0",
        "glob.match(\"{{{{[[[[\", [], \"x\")",
        "regex.match(concat(\"\", [\"(((a{1,1000}){1,1000})\", \"{1,1000})\"]), \"x\")",
        "json.unmarshal(concat(\"\", [\"[\" | some i in numbers.range(1, 200000)]))",
        "count(concat(\"\", [\"xxxxxxxxxxxxxxxx\" | some i in numbers.range(1, 2000000)])) > 0",
        "to_number(\"1e999999999\") > 0",
        "semver.compare(\"1.0.0-\", \"x\") == 0",
        "walk(input, [path, value]); path[1000000] == value",
    ] {
        server
            .folder
            .write("odd.json", policy("odd", &forbid(&format!("input.request.name == \"x\"; {expression}"), "x")));
        server.until_details("[+] cluster.odd generation 1 live").await;
        let answer = ask(&server, "odd").await;
        let code = &answer.response()["status"]["code"];
        assert!(answer.is_allowed() || answer.message() == "x" || *code == 500, "{expression}: {}", answer.text);
        assert_fine(&server).await;
        server.folder.remove("odd.json");
        server.until(expression, async || !server.details().await.contains("cluster.odd")).await;
    }
}

// Policies in Rego and CEL would take gigabytes, in the evaluation at load and in requests.
#[tokio::test(flavor = "multi_thread")]
async fn greedy_rego_and_cel_are_denied_and_the_server_stays_small() {
    let folder = Folder::new();
    // Lists of strings of 1 MB: the limit is reached after little CPU time, also in a development build. A long evaluation has the
    // lowest CPU priority, and could exceed its time limit on a busy machine.
    let strings = |text: &str| {
        format!("text := {text}; count([concat(\"\", [text, text]) | some i in numbers.range(1, 3000)]) > 0")
    };
    let at_load = strings("concat(\"\", [\"0123456789\" | some i in numbers.range(1, 50000)])");
    for name in ["a", "b", "c"] {
        folder.write(&format!("load-{name}.json"), policy(&format!("load-{name}"), &forbid(&at_load, "found")));
    }
    // In the evaluation at load, the annotation is undefined, so that only the evaluation of a request is greedy.
    let in_request = strings("input.request.object.metadata.annotations.text");
    let budget = json!({"timeoutEvalSeconds": 30});
    folder.write("rego.json", policy("rego", &with(forbid(&in_request, "found"), &budget)));
    let text = "object.metadata.annotations.text";
    let expression = format!("object.spec.items.map(x, {text} + {text}).size() == 0");
    folder.write("cel.json", policy("cel", &with(cel(&expression, "found"), &budget)));
    let server = server_with_fine_policies(folder, &["--memory-limit", "32"]).await;
    let message = "it takes more memory than its limit of";
    for name in ["a", "b", "c"] {
        server
            .until_details(&format!("[-] cluster.load-{name} denies everything: no generation works: CompileError"))
            .await;
        assert_failed(&ask(&server, &format!("load-{name}")).await, message);
    }
    let mut review = pod("u", "x");
    review["request"]["object"]["metadata"]["annotations"] = json!({"text": "a".repeat(500_000)});
    review["request"]["object"]["spec"]["items"] = (1..3000).collect();
    let before = server.resident();
    for name in ["rego", "cel"] {
        let asked = [
            server.begin(&format!("/validate/cluster.{name}"), review.to_string()).await,
            server.begin(&format!("/validate/cluster.{name}"), review.to_string()).await,
        ];
        assert_fine(&server).await;
        for answer in asked {
            assert_failed(&answer.await.unwrap(), "it takes more memory than its limit of 32 MiB");
        }
    }
    let grown = server.peak().saturating_sub(before) >> 20;
    // The peak includes the loads of three policies, each with 128 MiB at most, of which two are at the same time.
    assert!(grown < 2 * 128 + 100, "{grown} MiB");
    assert_fine(&server).await;
}
