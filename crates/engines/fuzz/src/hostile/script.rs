//! Scripts. A script has records, which are the calls that a guest makes, and contents for its memory. Scripts are built from
//! arbitrary bytes so that most arguments are valid or almost valid.

use std::ops::Range;

use super::guest::{CONTENTS, CallTemplate, Guest, MEMORY, text_address};

/// The maximum number of argument words of a record.
pub const MAX_ARGUMENTS: usize = 10;
/// The size of a record, in bytes: the function and its arguments.
pub const RECORD_SIZE: usize = 4 * (1 + MAX_ARGUMENTS);
/// The upper bound for the number of records, so that the records fit into their part of the guest's memory.
const MAX_RECORDS: u8 = 64;
/// The maximum length of the contents, in bytes.
const CONTENTS_LIMIT: usize = 8 << 10;

/// The kind of an argument in a [`CallTemplate`].
#[derive(Clone, Debug)]
pub enum ArgumentKind {
    /// Any number, which the bytes of the script select.
    Any,
    Number(u32),
    /// The address of one of these texts.
    TextAddress(Range<usize>),
    /// The length of the text whose address was the last address of a text.
    TextLength,
    /// The address of the contents, or an address within the contents.
    Contents,
    /// The length of the contents, or a smaller length.
    ContentsLength,
    /// The address of one of these texts, or an address within the contents.
    TextOrContents(Range<usize>),
}

/// A call: a function and its arguments.
#[derive(Clone, Copy, Debug)]
pub struct Record {
    pub function: usize,
    pub arguments: [u32; MAX_ARGUMENTS],
}

/// Writes a script in the format that the guest reads from its message.
pub fn write(records: &[Record], contents: &[u8]) -> Vec<u8> {
    let number = |number: usize| u32::try_from(number).unwrap_or_default().to_le_bytes();
    let mut script = vec![0];
    script.extend(number(records.len()));
    for record in records {
        script.extend(number(record.function));
        script.extend(record.arguments.iter().flat_map(|argument| argument.to_le_bytes()));
    }
    script.extend(&contents[..contents.len().min(CONTENTS_LIMIT)]);
    script.push(0);
    script
}

/// Builds a script from arbitrary bytes: the number of records, then for each record the function and three bytes for each
/// argument, then the contents.
pub fn from_bytes(bytes: &[u8], guest: &Guest) -> Vec<u8> {
    let mut reader = Reader { bytes };
    let mut drafts = Vec::new();
    for _ in 0..reader.byte() % MAX_RECORDS {
        if reader.bytes.is_empty() {
            break;
        }
        let function = usize::from(reader.byte()) % (guest.function_count() + guest.templates.len());
        let template = guest.templates.get(function.wrapping_sub(guest.function_count()));
        let count = template.map_or_else(|| guest.argument_count(function), |template| template.arguments.len());
        let raw: Vec<[u8; 3]> = (0..count).map(|_| [reader.byte(), reader.byte(), reader.byte()]).collect();
        drafts.push((function, template, raw));
    }
    let contents = reader.bytes;
    let records: Vec<Record> = drafts
        .into_iter()
        .map(|(function, template, raw)| record(guest, function, template, &raw, contents.len()))
        .collect();
    write(&records, contents)
}

fn record(guest: &Guest, function: usize, template: Option<&CallTemplate>, raw: &[[u8; 3]], contents: usize) -> Record {
    let mut arguments = [0; MAX_ARGUMENTS];
    let mut builder = ArgumentBuilder { guest, contents: u32::try_from(contents).unwrap_or_default(), text: 0 };
    for (index, ([kind, low, high], argument)) in raw.iter().zip(&mut arguments).enumerate() {
        let value = u16::from_le_bytes([*low, *high]);
        let argument_kind = template.and_then(|template| template.arguments.get(index)).unwrap_or(&ArgumentKind::Any);
        *argument = builder.build(argument_kind, *kind, value);
    }
    Record { function: template.map_or(function, |template| template.function), arguments }
}

struct Reader<'a> {
    bytes: &'a [u8],
}

impl Reader<'_> {
    /// Returns the next byte; zero after the last byte.
    fn byte(&mut self) -> u8 {
        let Some((first, rest)) = self.bytes.split_first() else { return 0 };
        self.bytes = rest;
        *first
    }
}

/// Builds the arguments of a record, one after the other.
struct ArgumentBuilder<'a> {
    guest: &'a Guest,
    /// The length of the contents, in bytes.
    contents: u32,
    /// The last text whose address was an argument.
    text: usize,
}

impl ArgumentBuilder<'_> {
    /// Builds an argument. `selector` and `value` are bytes of the script.
    fn build(&mut self, kind: &ArgumentKind, selector: u8, value: u16) -> u32 {
        match kind {
            ArgumentKind::Any => self.any(selector, value),
            ArgumentKind::Number(number) => *number,
            ArgumentKind::TextAddress(range) => self.text_address(range, value),
            ArgumentKind::TextLength => self.text_length(),
            ArgumentKind::ContentsLength => self.contents.saturating_sub(u32::from(value)),
            ArgumentKind::TextOrContents(range) if selector.is_multiple_of(2) => self.text_address(range, value),
            ArgumentKind::Contents | ArgumentKind::TextOrContents(_) => self.contents_address(value),
        }
    }

    fn any(&mut self, selector: u8, value: u16) -> u32 {
        let (all, value_32) = (0..self.guest.texts.len(), u32::from(value));
        match selector % 8 {
            // A small number is a number, a length or a file descriptor.
            0 => value_32 % 64,
            1 => self.contents_address(value),
            2 => self.text_address(&all, value),
            3 => self.text_length(),
            4 => value_32,
            // The address is just inside or just outside the memory.
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

    fn contents_address(&self, value: u16) -> u32 {
        // Small values select the beginning of the contents, because most calls need a whole text.
        let offset = if value < 256 { 0 } else { u32::from(value) % (self.contents + 1) };
        CONTENTS + offset
    }

    fn text_address(&mut self, range: &Range<usize>, value: u16) -> u32 {
        self.text = range.start + usize::from(value) % range.len().max(1);
        text_address(self.text)
    }

    fn text_length(&self) -> u32 {
        self.guest.texts.get(self.text).map_or(0, |text| u32::try_from(text.len()).unwrap_or_default())
    }
}
