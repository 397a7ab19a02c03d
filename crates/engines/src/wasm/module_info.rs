//! Information about a module that the engine determines when it compiles the module. The information is stored with the
//! compiled code, because it cannot be derived from the code.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use super::abi::Abi;
use super::metadata::ExecutionMode;
use super::snapshot_mode::Snapshot;
use crate::CompileError;

/// The last bytes of the code, after the JSON of the [`ModuleInfo`] and its length.
const END: [u8; 8] = *b"proviso\x03";

#[derive(Clone, Debug, PartialEq, Eq, Deserialize, Serialize)]
pub(super) struct ModuleInfo {
    pub(super) abi: Abi,
    /// The execution mode in the module's metadata; `None` if the module has no metadata.
    pub(super) mode: Option<ExecutionMode>,
    /// The builtins that compiled Rego calls in its host, by the numbers that the module uses for them.
    pub(super) builtins: BTreeMap<i32, String>,
    pub(super) snapshot: Snapshot,
}

impl ModuleInfo {
    pub(super) fn new(abi: Abi) -> Self {
        Self { abi, mode: None, builtins: BTreeMap::new(), snapshot: Snapshot::NotTried }
    }

    /// Appends the information to the code of its module.
    pub(super) fn append(&self, code: &mut Vec<u8>) -> Result<(), CompileError> {
        let failed =
            |error: &dyn std::error::Error| CompileError::Invalid(format!("the module cannot be serialized: {error}"));
        let json = serde_json::to_vec(self).map_err(|error| failed(&error))?;
        let length = u32::try_from(json.len()).map_err(|error| failed(&error))?;
        code.extend_from_slice(&json);
        code.extend_from_slice(&length.to_le_bytes());
        code.extend_from_slice(&END);
        Ok(())
    }

    /// Splits the code of a module from the information; `None` if [`Self::append`] did not write the end of the code.
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
    fn module_info_is_read_back_from_complete_code_only() {
        let builtins = [(0, "sprintf".to_owned())].into();
        let snapshot = Snapshot::Refused("it reads the clock".to_owned());
        let info = ModuleInfo { mode: Some(ExecutionMode::Opa), builtins, snapshot, ..ModuleInfo::new(Abi::Opa) };
        let mut code = b"native".to_vec();
        info.append(&mut code).unwrap();
        assert_eq!(ModuleInfo::split(&code), Some((&b"native"[..], info)));
        for length in 0..code.len() {
            assert_eq!(ModuleInfo::split(&code[..length]), None, "{length}");
        }
        let mut wrong = b"native".to_vec();
        wrong.extend_from_slice(&u32::MAX.to_le_bytes());
        wrong.extend_from_slice(&END);
        assert_eq!(ModuleInfo::split(&wrong), None, "a length beyond the code");
    }
}
