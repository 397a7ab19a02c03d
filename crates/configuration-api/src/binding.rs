//! The binding of a component's configuration: the templates `<<…>>` and `{{…}}` of ONAP's config-binding service.

use serde_json::{Map, Value, json};

/// The key of the connections of the message router (`DMaaP`), by the names in `<<…>>`.
pub(crate) const DMAAP: &str = "dmaap";
/// The key of the components that `{{…}}` names.
pub(crate) const RELATIONSHIPS: &str = "rels";

/// Replaces each string that begins with a template. `<<name>>` becomes the member `name` of `dmaap`, or `{}` if there is none.
/// `{{name}}` becomes the list of the addresses of the named components that a service catalogue has; there is none, so the list is empty.
pub(crate) fn bind(config: Value, dmaap: Option<&Map<String, Value>>) -> Value {
    match config {
        Value::String(text) => {
            if let Some(name) = template(&text, ["<<", ">>"]) {
                dmaap.and_then(|dmaap| dmaap.get(name.trim())).cloned().unwrap_or_else(|| json!({}))
            } else if template(&text, ["{{", "}}"]).is_some() {
                json!([])
            } else {
                Value::String(text)
            }
        }
        Value::Array(list) => list.into_iter().map(|value| bind(value, dmaap)).collect(),
        Value::Object(members) => members.into_iter().map(|(key, value)| (key, bind(value, dmaap))).collect(),
        value => value,
    }
}

/// Returns the name in a template at the begin of a text.
fn template<'a>(text: &'a str, [open, close]: [&str; 2]) -> Option<&'a str> {
    let (name, _) = text.strip_prefix(open)?.split_once(close)?;
    let is_bracket = |character: char| open.contains(character) || close.contains(character);
    (!name.contains(is_bracket)).then_some(name)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn templates_are_replaced_at_every_depth() {
        let dmaap = json!({"feed": {"topic": "t"}});
        let config = json!({
            "a": "<<feed>>", "b": ["<< feed >>", "<<other>>", "{{collector}}", "{{a,b}}"], "c": {"d": "<<feed"}, "e": 1,
            "f": "x <<feed>>", "g": "<<<feed>>", "h": "",
        });
        let expected = json!({
            "a": {"topic": "t"}, "b": [{"topic": "t"}, {}, [], []], "c": {"d": "<<feed"}, "e": 1, "f": "x <<feed>>",
            "g": "<<<feed>>", "h": "",
        });
        assert_eq!(bind(config, dmaap.as_object()), expected);
        assert_eq!(bind(json!("<<feed>>"), None), json!({}));
    }
}
