//! Scripts: records of what a guest does, and contents for its memory, made of any bytes so that most arguments are nearly
//! right.

use std::ops::Range;

use super::guest::{CONTENTS, Guest, MEMORY, Phrase, place_of};

/// The most arguments that a record has.
pub const ARGUMENTS: usize = 10;
/// Bytes of a record: the function and its arguments.
pub const RECORD: usize = 4 * (1 + ARGUMENTS);
/// The most records: as many as a byte counts and there is room for.
const RECORDS: u8 = 64;
/// The longest contents, in bytes.
const LONGEST: usize = 8 << 10;

/// How an argument of a phrase is made.
#[derive(Clone, Debug)]
pub enum Part {
    /// As the bytes say.
    Any,
    Number(u32),
    /// The address of one of these words.
    Word(Range<usize>),
    /// The length of the word before.
    Length,
    /// Where the contents are, or in the midst of them.
    Contents,
    /// How long they are.
    ContentsLength,
    /// A text: one of these words, or within the contents.
    Text(Range<usize>),
}

/// A function and its arguments.
#[derive(Clone, Copy, Debug)]
pub struct Record {
    pub function: usize,
    pub arguments: [u32; ARGUMENTS],
}

/// The script that the guest finds in its message.
pub fn write(records: &[Record], contents: &[u8]) -> Vec<u8> {
    let number = |number: usize| u32::try_from(number).unwrap_or_default().to_le_bytes();
    let mut script = vec![0];
    script.extend(number(records.len()));
    for record in records {
        script.extend(number(record.function));
        script.extend(record.arguments.iter().flat_map(|argument| argument.to_le_bytes()));
    }
    script.extend(&contents[..contents.len().min(LONGEST)]);
    script.push(0);
    script
}

/// A script of any bytes: how many records, for each the function and three bytes for each argument, contents.
pub fn of_bytes(bytes: &[u8], guest: &Guest) -> Vec<u8> {
    let mut reader = Reader { bytes };
    let mut drafts = Vec::new();
    for _ in 0..reader.byte() % RECORDS {
        if reader.bytes.is_empty() {
            break;
        }
        let function = usize::from(reader.byte()) % (guest.functions() + guest.phrases.len());
        let phrase = guest.phrases.get(function.wrapping_sub(guest.functions()));
        let count = phrase.map_or_else(|| guest.arguments(function), |phrase| phrase.parts.len());
        let raw: Vec<[u8; 3]> = (0..count).map(|_| [reader.byte(), reader.byte(), reader.byte()]).collect();
        drafts.push((function, phrase, raw));
    }
    let contents = reader.bytes;
    let records: Vec<Record> = drafts
        .into_iter()
        .map(|(function, phrase, raw)| record(guest, function, phrase, &raw, contents.len()))
        .collect();
    write(&records, contents)
}

fn record(guest: &Guest, function: usize, phrase: Option<&Phrase>, raw: &[[u8; 3]], contents: usize) -> Record {
    let mut arguments = [0; ARGUMENTS];
    let mut making = Making { guest, contents: u32::try_from(contents).unwrap_or_default(), word: 0 };
    for (index, ([kind, low, high], argument)) in raw.iter().zip(&mut arguments).enumerate() {
        let value = u16::from_le_bytes([*low, *high]);
        let part = phrase.and_then(|phrase| phrase.parts.get(index)).unwrap_or(&Part::Any);
        *argument = making.make(part, *kind, value);
    }
    Record { function: phrase.map_or(function, |phrase| phrase.function), arguments }
}

struct Reader<'a> {
    bytes: &'a [u8],
}

impl Reader<'_> {
    /// Zero at the end.
    fn byte(&mut self) -> u8 {
        let Some((first, rest)) = self.bytes.split_first() else { return 0 };
        self.bytes = rest;
        *first
    }
}

/// Makes the arguments of a record, one after the other.
struct Making<'a> {
    guest: &'a Guest,
    contents: u32,
    /// The last word whose address was an argument.
    word: usize,
}

impl Making<'_> {
    fn make(&mut self, part: &Part, kind: u8, value: u16) -> u32 {
        match part {
            Part::Any => self.any(kind, value),
            Part::Number(number) => *number,
            Part::Word(range) => self.place(range, value),
            Part::Length => self.length(),
            Part::ContentsLength => self.contents.saturating_sub(u32::from(value)),
            Part::Text(range) if kind.is_multiple_of(2) => self.place(range, value),
            Part::Contents | Part::Text(_) => self.within(value),
        }
    }

    fn any(&mut self, kind: u8, value: u16) -> u32 {
        let (all, value_32) = (0..self.guest.words.len(), u32::from(value));
        match kind % 8 {
            // A number, a length, a file descriptor.
            0 => value_32 % 64,
            1 => self.within(value),
            2 => self.place(&all, value),
            3 => self.length(),
            4 => value_32,
            // Just inside of the memory or just outside.
            5 => MEMORY - 32 + value_32 % 64,
            6 => self.contents.saturating_sub(value_32 % 32),
            _ => match value % 6 {
                0 => u32::MAX - value_32 % 128,
                1 => (1 << 31) - value_32 % 128,
                2 => (1 << 31) + value_32 % 128,
                3 => MEMORY + value_32,
                4 => value_32 << 16,
                _ => value_32 << 8,
            },
        }
    }

    fn within(&self, value: u16) -> u32 {
        // Mostly where they begin.
        let offset = if value < 256 { 0 } else { u32::from(value) % (self.contents + 1) };
        CONTENTS + offset
    }

    fn place(&mut self, range: &Range<usize>, value: u16) -> u32 {
        self.word = range.start + usize::from(value) % range.len().max(1);
        place_of(self.word)
    }

    fn length(&self) -> u32 {
        self.guest.words.get(self.word).map_or(0, |word| u32::try_from(word.len()).unwrap_or_default())
    }
}
