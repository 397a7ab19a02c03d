//! The policy that changed each field of the payload last.

use std::collections::BTreeMap;

use super::path::FieldPath;

/// The fields that policies changed. A field that no policy changed has the value of the caller.
#[derive(Clone, Debug, Default)]
pub(super) struct Writers(BTreeMap<FieldPath, usize>);

impl Writers {
    /// Records that the policy at `position` of the trail changed a field.
    pub fn record(&mut self, field: FieldPath, position: usize) {
        // A change of a field replaces everything within it.
        let within: Vec<_> = self.below(&field).map(|(path, _)| path.clone()).collect();
        for path in within {
            self.0.remove(&path);
        }
        self.0.insert(field, position);
    }

    /// Returns the policy that set the field, or a field that has it.
    pub fn of(&self, field: &FieldPath) -> Option<usize> {
        let mut path = field.clone();
        loop {
            if let Some(position) = self.0.get(&path) {
                return Some(*position);
            }
            if path.keys().is_empty() {
                return None;
            }
            path.pop();
        }
    }

    /// Returns the last policy that set the field, a field that has it, or a field within it.
    pub fn around(&self, field: &FieldPath) -> Option<usize> {
        self.of(field).into_iter().chain(self.below(field).map(|(_, position)| *position)).max()
    }

    fn below(&self, field: &FieldPath) -> impl Iterator<Item = (&FieldPath, &usize)> {
        let field = field.clone();
        // Paths are ordered by their keys, so that everything within a field follows the field.
        self.0.range(field.clone()..).take_while(move |(path, _)| path.starts_with(&field))
    }
}
