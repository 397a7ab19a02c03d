//! Joins the data segments of a snapshot. Go's linker writes tens of thousands of small segments. wizer keeps them as
//! empty segments and adds its own. Without the join, every instance would initialise each segment.

use wasm_encoder::{ConstExpr, DataSection, Module, RawSection};
use wasmparser::{DataKind, DataSectionReader, Operator, Parser, Payload};

/// The maximum gap between two joined segments, in bytes. The gap is filled with zeros.
const GAP: usize = 4 << 10;

/// The bytes of a segment and their address in memory.
struct Segment {
    address: usize,
    bytes: Vec<u8>,
}

/// Returns the module with joined segments; `None` if the segments cannot be joined, for example because instructions of the
/// module may refer to segments.
pub(super) fn join_segments(wasm: &[u8]) -> wasmtime::Result<Option<Vec<u8>>> {
    let mut module = Module::new();
    for payload in Parser::new(0).parse_all(wasm) {
        match payload? {
            // Instructions may refer to segments only if this section exists.
            Payload::DataCountSection { .. } => return Ok(None),
            Payload::DataSection(segments) => match join_section(segments)? {
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

/// Returns the joined segments. Returns `None` if the segments are not in the order of their addresses, because a later
/// segment may then overwrite an earlier segment, or if an address is not a constant of memory 0.
fn join_section(segments: DataSectionReader<'_>) -> wasmtime::Result<Option<DataSection>> {
    let mut joined: Vec<Segment> = Vec::new();
    for segment in segments {
        let segment = segment?;
        let offset_expr = match segment.kind {
            DataKind::Active { memory_index: 0, offset_expr } => offset_expr,
            DataKind::Active { .. } => return Ok(None),
            // No instruction can refer to a passive segment, because the module has no `DataCountSection`.
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
