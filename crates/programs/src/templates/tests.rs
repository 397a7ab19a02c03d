use std::collections::BTreeSet;

use proviso_core::configuration::ConfigurationPolicy;
use serde_json::json;

use super::*;

const CEL: &str = "{'memory': params.base * int(component.labels[?'size'].orValue('1')), 'team': component.namespace}";
const REGO: &str = r#"package memory
default size := 1
size := to_number(input.component.labels.size)
content := {"memory": input.parameters.base * size, "team": input.component.namespace}"#;

fn configuration(fields: &Value) -> Configuration {
    let mut configuration = json!({"configName": "memory"});
    configuration.as_object_mut().unwrap().extend(fields.as_object().unwrap().clone());
    serde_json::from_value(configuration).unwrap()
}

fn template(language: &str, source: &str) -> Configuration {
    configuration(&json!({"template": {language: source}}))
}

fn settings() -> Map<String, Value> {
    Map::from_iter([("base".to_owned(), json!(128)), ("numbers".to_owned(), json!(vec![1; 200]))])
}

fn component(labels: &[(&str, &str)]) -> ComponentFacts {
    let labels = labels.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned())).collect();
    ComponentFacts { namespace: "team".into(), name: "web".into(), kind: Some("Deployment".into()), labels }
}

fn policy() -> ConfigurationPolicy {
    let configuration = configuration(&json!({"content": {}}));
    configuration.facts(PolicyId::cluster("memory").unwrap(), Version::of(3))
}

fn render(configuration: &Configuration, component: &ComponentFacts) -> Result<Value, RenderError> {
    // The time limit is ample, because the machine may be busy: other limits end a hostile template.
    let renderer =
        Renderer::compile(configuration, &settings()).map_err(|error| RenderError::Compile(error.to_string()));
    renderer?.with_timeout(std::time::Duration::from_mins(1)).render(component)
}

fn check(configuration: &Configuration) -> Vec<String> {
    let id = PolicyId::cluster("memory").unwrap();
    check_configuration("spec", &id, configuration, &settings()).iter().map(ToString::to_string).collect()
}

#[test]
fn one_policy_has_different_content_for_each_component() {
    for template in [template("cel", CEL), template("rego", REGO)] {
        assert_eq!(check(&template), [""; 0]);
        assert_eq!(render(&template, &component(&[])), Ok(json!({"memory": 128, "team": "team"})));
        assert_eq!(render(&template, &component(&[("size", "4")])), Ok(json!({"memory": 512, "team": "team"})));
    }
}

#[test]
fn a_template_reads_all_facts_of_the_component() {
    let facts = component(&[("a", "b")]);
    let all = json!({"all": {"namespace": "team", "name": "web", "kind": "Deployment", "labels": {"a": "b"}}});
    let outside = ComponentFacts { kind: None, ..component(&[]) };
    for (template, kind) in [
        (template("cel", "{'all': component}"), "{'has': has(component.kind)}"),
        (template("rego", "package a\ncontent := {\"all\": input.component}"), ""),
    ] {
        assert_eq!(render(&template, &facts), Ok(all.clone()));
        let found = render(&template, &outside).unwrap();
        assert_eq!(found["all"].get("kind"), None, "a component outside of Kubernetes has no kind");
        if !kind.is_empty() {
            assert_eq!(render(&self::template("cel", kind), &outside), Ok(json!({"has": false})));
        }
    }
}

#[test]
fn a_template_that_does_not_compile_is_refused_with_its_field() {
    let rego = |body: &str| template("rego", &format!("package a\n{body}"));
    for (configuration, expected) in [
        (template("cel", "{'a': "), "spec.configuration.template.cel: line 1, column 7"),
        (template("cel", "{'a': object.b}"), "there is no variable object, only component and params"),
        (template("cel", "{'a': variables.b}"), "there is no variable variables.b here"),
        (template("cel", "{'a': authorizer.group('').resource('a').check('get').allowed()}"), "no variable authorizer"),
        (template("cel", "{'a': no_such_function()}"), "there is no function no_such_function"),
        (template("cel", &format!("{{'a': '{}'}}", "x".repeat(65_536))), "at most 65536 are allowed"),
        (rego("content := {"), "spec.configuration.template.rego"),
        (rego("result := {}"), "package a has no rule content"),
        (rego("content := 5"), "the rule content is no object"),
        (rego("content(x) := {\"a\": x}"), "content is a function"),
        (rego("content := {\"a\": data.inventory}"), "data.inventory is not available"),
        (rego("content := {\"a\": http.send({\"url\": \"http://a\"})}"), "a policy has no network"),
        (rego("content := {\"a\": time.now_ns()}"), "time.now_ns has another result in each evaluation"),
        (rego("content := {\"a\": rand.intn(\"a\", 5)}"), "rand.intn has another result"),
        (rego("content := {\"a\": uuid.rfc4122(\"a\")}"), "uuid.rfc4122 has another result"),
        (rego("content := {\"a\": opa.runtime()}"), "opa.runtime has another result"),
        (
            configuration(&json!({"template": {"cel": "{}"}, "schema": {"type": 5}})),
            "spec.configuration.schema: is not",
        ),
        (
            configuration(&json!({"content": {}, "schema": {"$ref": "https://example.com/a"}})),
            "spec.configuration.schema: has a reference that does not resolve",
        ),
    ] {
        let errors = check(&configuration);
        assert!(errors.len() == 1 && errors[0].contains(expected), "{expected}: {errors:?}");
    }
}

#[test]
fn content_that_is_fixed_is_checked_before_it_is_delivered() {
    let schema = json!({"properties": {"min": {"type": "integer"}}, "required": ["max"]});
    let mut deep = json!({});
    for _ in 0..64 {
        deep = json!({"a": deep});
    }
    for (fields, expected) in [
        (json!({"content": {"min": "x", "max": 1}, "schema": schema}), Some("/min: value is not of type \"integer\"")),
        (json!({"content": {"min": 1, "max": 1}, "schema": schema}), None),
        (json!({"content": {"text": "x".repeat(512 * 1024)}}), Some("at most 524288 (512 KiB) are allowed")),
        (json!({"content": {"text": "x".repeat(511 * 1024)}}), None),
        (json!({"content": deep}), Some("nested more than 64 levels deep")),
    ] {
        let errors = check(&configuration(&fields));
        let is_expected = match expected {
            Some(text) => {
                errors.len() == 1 && errors[0].starts_with("spec.configuration.content: ") && errors[0].contains(text)
            }
            None => errors.is_empty(),
        };
        assert!(is_expected, "{expected:?}: {errors:?}");
    }
}

#[test]
fn computed_content_is_validated_and_limited() {
    let schema = json!({"properties": {"memory": {"maximum": 500}}});
    for (language, source) in [("cel", CEL), ("rego", REGO)] {
        let limited = configuration(&json!({"template": {language: source}, "schema": schema}));
        assert!(render(&limited, &component(&[("size", "2")])).is_ok());
        let error = render(&limited, &component(&[("size", "4")])).unwrap_err();
        let expected = "/memory: value is greater than the maximum of 500";
        assert!(matches!(&error, RenderError::Schema(why) if why.contains(expected)), "{error}");
        assert_eq!(error.reason().as_str(), "SchemaViolation");
    }
    let cases = [
        ("cel", "[1]", "the value is a list, not a map"),
        ("cel", "null", "the value is a null, not a map"),
        ("cel", "{'a': component.labels.missing}", "No such key: missing"),
        ("cel", "{1: 2}", "the key 1 is not a string"),
        ("cel", "{'a': duration('1h')}", "has no representation in JSON"),
        ("rego", "package a\ncontent := [x | x := input.component.name]", "the content is a list, not an object"),
        ("rego", "package a\ncontent := {\"a\": input.component.labels.missing}", "the rule content is undefined"),
        (
            "rego",
            "package a\ncontent := {\"a\": 1} if input.component.name\ncontent := {\"a\": 2} if input.component.labels.x",
            "policy.rego:3:1: rule conflicts with rule at policy.rego:2:1",
        ),
    ];
    for (language, source, expected) in cases {
        let error = render(&template(language, source), &component(&[("x", "y")])).unwrap_err();
        assert!(matches!(&error, RenderError::Template(why) if why.contains(expected)), "{source}: {error}");
        assert!(!error.to_string().contains("input"), "the error has no part of the source: {error}");
        assert!(!error.is_transient());
    }
}

#[test]
fn hostile_templates_end_with_an_error() {
    let loops = |body: &str| {
        format!(
            "{{'a': params.numbers.all(a, params.numbers.all(b, params.numbers.all(c, params.numbers.all(d, {body}))))}}"
        )
    };
    let copies = "{'a': params.numbers.map(a, params.numbers.map(b, params.numbers.map(c, [a, b, c])))}";
    let rows = (1..12).map(|row| format!("r{row} := [x | some _ in numbers.range(1, 10); x := r{}]", row - 1));
    let doubled = format!(
        "package a\nimport rego.v1\nr0 := [1, 2]\n{}\ncontent := {{\"a\": r11}}",
        rows.collect::<Vec<_>>().join("\n")
    );
    let texts = "package a\nimport rego.v1\ncontent := {sprintf(\"%d %d\", [x, y]): [x, y] | input.component.labels.x; \
        some x in numbers.range(1, 5000); some y in numbers.range(1, 5000)}";
    for (language, source, expected) in [
        ("cel", loops("true").as_str(), "iterations"),
        ("cel", copies, "memory"),
        ("cel", &format!("{{'a': params.numbers.map(a, '{}')}}", "x".repeat(10_000)), "more than 524288 bytes"),
        ("rego", &doubled, "more than 524288 bytes"),
        ("rego", texts, "memory"),
    ] {
        let error = render(&template(language, source), &component(&[("x", "y")])).unwrap_err();
        assert!(error.to_string().contains(expected), "{expected}: {error}");
    }
}

#[test]
fn an_evaluation_ends_at_its_time_limit() {
    let endless = "package a\nimport rego.v1\ncontent := {\"n\": n} if { input.component.labels.slow; n := count([1 | \
        some x in numbers.range(1, 100000); some y in numbers.range(1, 100000); x + y < 0]) }\ndefault content := {\"n\": 0}";
    let loops = "{'a': params.numbers.all(a, params.numbers.all(b, params.numbers.all(c, true)))}";
    for template in [template("rego", endless), template("cel", loops)] {
        let renderer = Renderer::compile(&template, &settings()).unwrap();
        let renderer = renderer.with_timeout(std::time::Duration::from_millis(30));
        let error = renderer.render(&component(&[("slow", "yes")])).unwrap_err();
        assert!(error == RenderError::Timeout(30) && error.is_transient(), "{error}");
    }
}

#[test]
fn the_same_component_gets_the_same_body() {
    let labels: Vec<_> = (0..50).map(|label| format!("label-{label}")).collect();
    let labels: Vec<_> = labels.iter().map(|label| (label.as_str(), "x")).collect();
    let component = component(&labels);
    let cel = "{'keys': component.labels.map(k, k), 'filtered': component.labels.filter(k, k != 'x'), \
        'pairs': component.labels.transformList(k, v, k + v), 'merged': component.labels.transformMap(k, v, v), \
        'text': component.labels.map(k, k).join(',')}";
    let rego = "package a\nimport rego.v1\ncontent := {\"keys\": [k | some k, _ in input.component.labels], \
        \"set\": {v | some v in input.component.labels}, \"all\": input.component.labels}";
    for template in [template("cel", cel), template("rego", rego)] {
        let renderer = || Renderer::compile(&template, &settings()).unwrap();
        let digest = |_| renderer().item(&policy(), &component).unwrap().entry().digest;
        let digests: BTreeSet<_> = (0..10).map(digest).collect();
        assert_eq!(digests.len(), 1, "{template:?}");
    }
    let keys = render(&template("cel", cel), &component).unwrap()["keys"].clone();
    assert!(keys.as_array().unwrap().iter().map(|key| key.as_str().unwrap()).is_sorted(), "{keys}");
}

#[test]
fn a_large_template_compiles() {
    let entries: Vec<_> = (0..3000).map(|entry| format!("'key-{entry}': {entry}")).collect();
    let cel = format!("{{{}}}", entries.join(", "));
    assert!(cel.len() > 48 * 1024);
    let content = render(&template("cel", &cel), &component(&[])).unwrap();
    assert_eq!(content.as_object().unwrap().len(), 3000);
}

#[test]
fn a_body_has_the_content_of_the_component() {
    let renderer = Renderer::compile(&template("cel", CEL), &settings()).unwrap();
    let body = renderer.item(&policy(), &component(&[])).unwrap().body().to_string();
    let body: Value = serde_json::from_str(&body).unwrap();
    assert_eq!(body["config"], json!({"memory": 128, "team": "team"}));
    assert_eq!(body["policyVersion"], "3");
    let error = RenderError::of_field(&Renderer::compile(&template("cel", "{"), &settings()).unwrap_err());
    assert!(error.to_string().starts_with("`spec.configuration.template.cel`: "), "{error}");
}

#[test]
fn the_examples_of_the_documentation_have_the_documented_content() {
    let page = include_str!("../../../../docs/reference/configuration-templates.md");
    let blocks = |language: &str| -> Vec<&str> {
        let start = format!("```{language}\n");
        let blocks = page.split(&start).skip(1);
        blocks.map(|block| block.split("```").next().unwrap()).collect()
    };
    let expected: Value = serde_json::from_str(blocks("json")[0]).unwrap();
    let labels = BTreeMap::from([("size".to_owned(), "large".to_owned())]);
    let encoder = ComponentFacts { namespace: "media".into(), name: "encoder".into(), kind: None, labels };
    let examples = blocks("yaml");
    assert_eq!(examples.len(), 2);
    for example in examples {
        let policy: Value = serde_yaml::from_str(example).unwrap();
        let spec: proviso_crds::PolicySpec = serde_json::from_value(policy["spec"].clone()).unwrap();
        assert_eq!(proviso_crds::validation::policy(&spec), []);
        let configuration = spec.configuration.unwrap();
        let id = PolicyId::cluster("memory").unwrap();
        assert_eq!(check_configuration("spec", &id, &configuration, &spec.settings), []);
        let renderer = Renderer::compile(&configuration, &spec.settings).unwrap();
        let renderer = renderer.with_timeout(std::time::Duration::from_mins(1));
        assert_eq!(renderer.render(&encoder), Ok(expected.clone()));
        let small = renderer.render(&ComponentFacts { labels: BTreeMap::new(), ..encoder.clone() }).unwrap();
        assert_eq!(small["limit"], 256, "the default of the label");
    }
    let wrong = template("cel", "{'a': object.b}");
    let error = blocks("text")[1].trim();
    assert_eq!(check(&wrong), [error]);
}
