//! Paths of fields.

use super::super::path::Located;
use super::*;
use proptest::prelude::*;

fn keys(text: &str) -> Vec<String> {
    text.parse::<FieldPath>().unwrap().keys().to_vec()
}

#[test]
fn both_notations_of_a_path_are_read() {
    assert_eq!(keys("network.vlan"), ["network", "vlan"]);
    assert_eq!(keys("/network/vlan"), ["network", "vlan"]);
    assert_eq!(keys(r"metadata.labels.app\.kubernetes\.io/name"), ["metadata", "labels", "app.kubernetes.io/name"]);
    assert_eq!(keys("/metadata/labels/app.kubernetes.io~1name"), ["metadata", "labels", "app.kubernetes.io/name"]);
    assert_eq!(keys("disks.0.size"), ["disks", "0", "size"]);
    assert_eq!(keys(r"\/a\\b\[0\]"), [r"/a\b[0]"]);
    assert_eq!(keys("/a//b"), ["a", "", "b"]);
    assert_eq!(keys("/"), [""]);
    assert!(keys("").is_empty());
}

#[test]
fn a_path_that_could_be_misread_is_refused() {
    for text in ["a..b", ".a", "a.", r"a\", "disks[0].size", "disks.*.size", "/a~b", "/a~", &"a.".repeat(64)] {
        assert!(text.parse::<FieldPath>().is_err(), "{text:?}");
    }
    let deep = vec!["a"; MAX_NESTING + 1].join(".");
    assert!(matches!(deep.parse::<FieldPath>(), Err(FieldPathError::TooDeep(_))));
}

#[test]
fn a_number_is_an_index_in_a_list_and_a_key_in_an_object() {
    let payload = json!({"list": [{"x": 1}], "object": {"0": {"x": 2}}, "text": "t", "none": null});
    let find = |path: &str| match path.parse::<FieldPath>().unwrap().locate(&payload) {
        Located::Present(value) => value.to_string(),
        Located::Absent => "absent".to_owned(),
        Located::Misplaced { parent, kind } => format!("{parent} is {kind}"),
    };
    assert_eq!(find("list.0.x"), "1");
    assert_eq!(find("object.0.x"), "2");
    assert_eq!(find("list.1.x"), "absent");
    assert_eq!(find("none.x"), "absent");
    assert_eq!(find("list.00.x"), "list is a list");
    assert_eq!(find("list.x"), "list is a list");
    assert_eq!(find("text.x.y"), "text is a string");
}

proptest! {
    #[test]
    fn a_path_round_trips_through_both_notations(keys in prop::collection::vec(r"[a~/.\\\[\]*0é]{0,4}", 0..5)) {
        let path = keys.iter().fold(FieldPath::root(), |path, key| path.child(key.as_str()));
        prop_assert_eq!(path.to_string().parse::<FieldPath>().unwrap(), path.clone());
        prop_assert_eq!(path.to_pointer().parse::<FieldPath>().unwrap(), path);
    }
}
