//! URLs: `url`, `isURL`, and the methods of URLs. A URL is not normalized.

mod parse;

use std::collections::HashMap;
use std::sync::Arc;

use cel::common::types::{CelMap, CelMapKey, CelString, STRING_TYPE, Type};
use cel::common::value::{CowVal, Val};
use cel::objects::Opaque;
use cel::{DeclarationError, Env, ExecutionError};

use super::argument::{Result, opaque, return_bool, return_opaque, return_text, text, texts};
use super::overload::{function, method};
use parse::Url;

const NAME: &str = "kubernetes.URL";

/// A URL. Copies of the value share it.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Shared(Arc<Url>);

impl Opaque for Shared {
    fn runtime_type_name(&self) -> &str {
        NAME
    }
}

pub(super) fn declare(environment: &mut Env) -> std::result::Result<(), DeclarationError> {
    let url = || Type::new_opaque_type(NAME);
    environment.add_type(url())?;
    function(environment, "url", vec![STRING_TYPE], |arguments| {
        let source = text(&arguments, 0)?;
        let refuse = |why: &str| ExecutionError::function_error("url", format!("{source:?}: {why}"));
        return_opaque(Shared(Arc::new(Url::parse(source).map_err(refuse)?)))
    })?;
    function(environment, "isURL", vec![STRING_TYPE], |arguments| {
        return_bool(Url::parse(text(&arguments, 0)?).is_ok())
    })?;
    method(environment, url(), "getScheme", vec![], |arguments| return_text(this(&arguments)?.scheme.clone()))?;
    method(environment, url(), "getHost", vec![], |arguments| return_text(this(&arguments)?.host.clone()))?;
    method(environment, url(), "getHostname", vec![], |arguments| return_text(this(&arguments)?.hostname()))?;
    method(environment, url(), "getPort", vec![], |arguments| return_text(this(&arguments)?.port()))?;
    method(environment, url(), "getEscapedPath", vec![], |arguments| return_text(this(&arguments)?.path.clone()))?;
    method(environment, url(), "getQuery", vec![], |arguments| {
        let mut values: HashMap<String, Vec<String>> = HashMap::new();
        for (key, value) in this(&arguments)?.query() {
            values.entry(key).or_default().push(value);
        }
        let entries = values
            .into_iter()
            .map(|(key, values)| (CelMapKey::String(CelString::from(key)), Box::new(texts(values)) as Box<dyn Val>));
        Ok(CowVal::owned(CelMap::from(entries.collect::<HashMap<_, _>>())))
    })
}

fn this(arguments: &[CowVal<'_, '_>]) -> Result<Arc<Url>> {
    Ok(opaque::<Shared>(arguments, 0)?.0)
}

/// Returns true if a text is a URL.
pub(super) fn is_url(source: &str) -> bool {
    Url::parse(source).is_ok()
}
