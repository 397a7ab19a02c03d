//! What is found out about a module when it is compiled, and goes with its compiled code: none of it can be told from
//! the code.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use super::abi::Abi;
use super::metadata::ExecutionMode;
use crate::CompileError;

/// At the very end of the code, after the length of the facts before it.
const END: [u8; 8] = *b"proviso\x02";

#[derive(Clone, Debug, PartialEq, Eq, Deserialize, Serialize)]
pub(super) struct Facts {
    pub(super) abi: Abi,
    /// The mode that the module's metadata name; none where it was never annotated.
    pub(super) mode: Option<ExecutionMode>,
    /// The builtins that compiled Rego asks its host for, by the numbers that it calls them by.
    pub(super) builtins: BTreeMap<i32, String>,
}

impl Facts {
    pub(super) fn of(abi: Abi) -> Self {
        Self { abi, mode: None, builtins: BTreeMap::new() }
    }

    /// Appends the facts to the code that they are about.
    pub(super) fn append(&self, code: &mut Vec<u8>) -> Result<(), CompileError> {
        let failed =
            |error: &dyn std::error::Error| CompileError::Invalid(format!("the module cannot be described: {error}"));
        let json = serde_json::to_vec(self).map_err(|error| failed(&error))?;
        let length = u32::try_from(json.len()).map_err(|error| failed(&error))?;
        code.extend_from_slice(&json);
        code.extend_from_slice(&length.to_le_bytes());
        code.extend_from_slice(&END);
        Ok(())
    }

    /// Takes code and facts apart; none where the end is not one that [`Self::append`] made.
    pub(super) fn split(code: &[u8]) -> Option<(&[u8], Self)> {
        let (code, length) = code.strip_suffix(&END)?.split_last_chunk::<4>()?;
        let length = usize::try_from(u32::from_le_bytes(*length)).ok()?;
        let (code, json) = code.split_at_checked(code.len().checked_sub(length)?)?;
        Some((code, serde_json::from_slice(json).ok()?))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn facts_come_back_as_they_were_and_never_out_of_a_part() {
        let builtins = [(0, "sprintf".to_owned())].into();
        let facts = Facts { mode: Some(ExecutionMode::Opa), builtins, ..Facts::of(Abi::Opa) };
        let mut code = b"native".to_vec();
        facts.append(&mut code).unwrap();
        assert_eq!(Facts::split(&code), Some((&b"native"[..], facts)));
        for length in 0..code.len() {
            assert_eq!(Facts::split(&code[..length]), None, "{length}");
        }
        let mut wrong = b"native".to_vec();
        wrong.extend_from_slice(&u32::MAX.to_le_bytes());
        wrong.extend_from_slice(&END);
        assert_eq!(Facts::split(&wrong), None, "a length beyond the code");
    }
}
