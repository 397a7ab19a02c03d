//! The functions that macros with two variables call: the pairs of a list or a map, and maps from pairs and from maps.

use std::collections::HashMap;

use cel::common::types::{CelInt, CelList, CelMap, CelMapKey, DYN_TYPE, LIST_TYPE, MAP_TYPE};
use cel::common::value::{CowVal, Val};
use cel::{DeclarationError, Env, ExecutionError};

use super::super::argument::{Result, argument, list};
use super::super::overload::function;

/// The name of the function that returns the keys of a map in their order. No expression can contain this name.
pub(in crate::cel) const SORTED: &str = "@sorted";

pub(super) fn declare(environment: &mut Env) -> std::result::Result<(), DeclarationError> {
    function(environment, "@entries", vec![LIST_TYPE], of_list)?;
    function(environment, "@entries", vec![MAP_TYPE], of_map)?;
    function(environment, SORTED, vec![DYN_TYPE], sorted)?;
    function(environment, "@map", vec![LIST_TYPE], map)?;
    function(environment, "@merge", vec![LIST_TYPE], merge)
}

fn pair<'v>(key: Box<dyn Val + 'v>, value: &(dyn Val + 'v)) -> Box<dyn Val + 'v> {
    Box::new(CelList::from(vec![key, value.clone_as_boxed()]))
}

fn of_list<'b, 'v>(arguments: Vec<CowVal<'b, 'v>>) -> Result<CowVal<'b, 'v>> {
    let pairs = (0..).zip(list(&arguments, 0)?).map(|(index, item)| pair(Box::new(CelInt::from(index)), item.as_ref()));
    Ok(CowVal::owned(CelList::from(pairs.collect::<Vec<_>>())))
}

fn of_map<'b, 'v>(arguments: Vec<CowVal<'b, 'v>>) -> Result<CowVal<'b, 'v>> {
    let map = as_map(argument(&arguments, 0)?)?;
    let mut entries: Vec<_> = map.inner().iter().collect();
    entries.sort_by(|(a, _), (b, _)| order(a).cmp(&order(b)));
    let pairs = entries.into_iter().map(|(key, value)| pair(boxed(key), value.as_ref()));
    Ok(CowVal::owned(CelList::from(pairs.collect::<Vec<_>>())))
}

fn as_map<'a, 'v>(value: &'a (dyn Val + 'v)) -> Result<&'a CelMap<'v>> {
    value.downcast_ref::<CelMap>().ok_or_else(|| ExecutionError::UnexpectedType {
        got: value.get_type().name().to_owned(),
        want: "map".to_owned(),
    })
}

fn boxed<'v>(key: &CelMapKey<'v>) -> Box<dyn Val + 'v> {
    match key {
        CelMapKey::Bool(key) => key.clone_as_boxed(),
        CelMapKey::Int(key) => key.clone_as_boxed(),
        CelMapKey::String(key) => key.clone_as_boxed(),
        CelMapKey::UInt(key) => key.clone_as_boxed(),
    }
}

/// Returns the keys of a map in their order. Returns another value unchanged.
fn sorted<'b, 'v>(mut arguments: Vec<CowVal<'b, 'v>>) -> Result<CowVal<'b, 'v>> {
    let Some(map) = argument(&arguments, 0)?.downcast_ref::<CelMap>() else { return Ok(arguments.swap_remove(0)) };
    let mut keys: Vec<_> = map.inner().keys().collect();
    keys.sort_by(|a, b| order(a).cmp(&order(b)));
    Ok(CowVal::owned(CelList::from(keys.into_iter().map(boxed).collect::<Vec<_>>())))
}

/// Returns the place of a key in the order of keys: booleans, numbers, strings.
fn order<'a>(key: &'a CelMapKey<'_>) -> (u8, i128, &'a str) {
    match key {
        CelMapKey::Bool(key) => (0, i128::from(*key.inner()), ""),
        CelMapKey::Int(key) => (1, i128::from(*key.inner()), ""),
        CelMapKey::UInt(key) => (1, i128::from(*key.inner()), ""),
        CelMapKey::String(key) => (2, 0, key.inner()),
    }
}

/// Creates a map from pairs of key and value. The keys are unique: they are the keys of a map, or indexes.
fn map<'b, 'v>(arguments: Vec<CowVal<'b, 'v>>) -> Result<CowVal<'b, 'v>> {
    let mut map: HashMap<CelMapKey<'v>, Box<dyn Val + 'v>> = HashMap::new();
    for item in list(&arguments, 0)? {
        let pair = item.downcast_ref::<CelList>().map(CelList::inner);
        let Some([key, value]) = pair else {
            return Err(ExecutionError::function_error("transformMap", "an item is not a pair"));
        };
        map.insert(CowVal::Owned(key.clone()).try_into()?, value.clone());
    }
    Ok(CowVal::owned(CelMap::from(map)))
}

/// Merges maps without common keys.
fn merge<'b, 'v>(arguments: Vec<CowVal<'b, 'v>>) -> Result<CowVal<'b, 'v>> {
    let mut merged: HashMap<CelMapKey<'v>, Box<dyn Val + 'v>> = HashMap::new();
    for item in list(&arguments, 0)? {
        for (key, value) in as_map(item.as_ref())?.inner() {
            if merged.insert(key.clone(), value.clone()).is_some() {
                return Err(ExecutionError::function_error("transformMapEntry", "two entries have the same key"));
            }
        }
    }
    Ok(CowVal::owned(CelMap::from(merged)))
}
