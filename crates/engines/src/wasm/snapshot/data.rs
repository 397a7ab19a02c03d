//! Joins the data segments of a recorded module. Go's linker writes tens of thousands of small ones, wizer keeps them
//! all (emptied) beside its own, and every instance would set each of them up.

use wasm_encoder::{ConstExpr, DataSection, Module, RawSection};
use wasmparser::{DataKind, DataSectionReader, Operator, Parser, Payload};

/// Segments that are no further apart than this many bytes are joined, with zeros between them.
const GAP: usize = 4 << 10;

/// A run of bytes and the address that they go to.
struct Segment {
    address: usize,
    bytes: Vec<u8>,
}

/// The same module with fewer segments; none where instructions may name the segments that it has.
pub(super) fn joined(wasm: &[u8]) -> wasmtime::Result<Option<Vec<u8>>> {
    let mut module = Module::new();
    for payload in Parser::new(0).parse_all(wasm) {
        match payload? {
            // Only with this section may instructions name segments.
            Payload::DataCountSection { .. } => return Ok(None),
            Payload::DataSection(segments) => match join(segments)? {
                Some(section) => module.section(&section),
                None => return Ok(None),
            },
            payload => match payload.as_section() {
                Some((id, range)) => module.section(&RawSection { id, data: &wasm[range] }),
                None => &mut module,
            },
        };
    }
    Ok(Some(module.finish()))
}

/// None where the segments are not in the order of their addresses: then later ones may overwrite earlier ones.
fn join(segments: DataSectionReader<'_>) -> wasmtime::Result<Option<DataSection>> {
    let mut joined: Vec<Segment> = Vec::new();
    for segment in segments {
        let segment = segment?;
        let offset_expr = match segment.kind {
            DataKind::Active { memory_index: 0, offset_expr } => offset_expr,
            DataKind::Active { .. } => return Ok(None),
            // Nothing can refer to it here.
            DataKind::Passive => continue,
        };
        let Operator::I32Const { value } = offset_expr.get_operators_reader().read()? else { return Ok(None) };
        let address = value.cast_unsigned() as usize;
        let end = joined.last().map_or(0, |last| last.address + last.bytes.len());
        match (address.checked_sub(end), joined.last_mut()) {
            (None, _) => return Ok(None),
            (Some(gap), Some(last)) if gap <= GAP => {
                last.bytes.resize(last.bytes.len() + gap, 0);
                last.bytes.extend_from_slice(segment.data);
            }
            (Some(_), _) => joined.push(Segment { address, bytes: segment.data.to_vec() }),
        }
    }
    let mut section = DataSection::new();
    for Segment { address, bytes } in joined {
        let address = u32::try_from(address)?.cast_signed();
        section.active(0, &ConstExpr::i32_const(address), bytes);
    }
    Ok(Some(section))
}
