//! The random numbers of guests.

/// The source of random numbers of one instance.
pub(in crate::wasm) struct Random {
    /// The state of a generator with a seed; `None` for the generator of the operating system.
    sequence: Option<u64>,
    reads: u32,
}

impl Random {
    /// Returns the random generator of the operating system.
    pub(in crate::wasm) fn system() -> Self {
        Self { sequence: None, reads: 0 }
    }

    /// Returns a generator with a seed. Two runs of a guest with the same seed read the same numbers.
    pub(in crate::wasm) fn seeded(seed: u64) -> Self {
        Self { sequence: Some(seed), reads: 0 }
    }

    /// Returns the number of times that the guest has read random numbers.
    pub(in crate::wasm) fn reads(&self) -> u32 {
        self.reads
    }

    /// Fills the bytes with random numbers for the guest.
    pub(super) fn fill(&mut self, bytes: &mut [u8]) -> Result<(), getrandom::Error> {
        self.reads = self.reads.saturating_add(1);
        match &mut self.sequence {
            Some(state) => {
                fill_from_sequence(state, bytes);
                Ok(())
            }
            None => getrandom::fill(bytes),
        }
    }
}

/// Fills the bytes with the next numbers of the generator `SplitMix64` (Steele, Lea and Flood, 2014).
fn fill_from_sequence(state: &mut u64, bytes: &mut [u8]) {
    for chunk in bytes.chunks_mut(8) {
        *state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut word = *state;
        word = (word ^ (word >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        word = (word ^ (word >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        word ^= word >> 31;
        chunk.copy_from_slice(&word.to_le_bytes()[..chunk.len()]);
    }
}
