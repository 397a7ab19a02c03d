//! Limits of one evaluation of a request. They bound time and memory, whatever the caller sends and the policies return.

use serde_json::Value;

/// The maximum size of a payload as JSON, in bytes, before and after patches.
pub const MAX_PAYLOAD_BYTES: usize = 1 << 20;
/// The maximum number of values in a payload, before and after patches: objects, lists, and the values in them.
pub const MAX_PAYLOAD_VALUES: usize = 50_000;
/// The maximum size of the paths of all fields that the policies of an evaluation patch together, in bytes. A field within many others
/// or below long keys has a long path.
pub(super) const MAX_PATH_BYTES: usize = 16 << 20;
/// The maximum length of the reason of a rejection, in bytes. The rest is cut off.
pub(super) const MAX_REASON_BYTES: usize = 4096;
/// The estimated memory of a value in a payload besides its text, in bytes.
const VALUE_BYTES: usize = 512;
/// The maximum number of constraints that all policies of an evaluation return together.
pub const MAX_CONSTRAINTS: usize = 10_000;
/// The maximum total size of these constraints as JSON, in bytes.
pub(super) const MAX_CONSTRAINT_BYTES: usize = 4 << 20;
/// The maximum nesting of lists and objects in a payload, a patch or a constraint, and of a field path.
pub const MAX_NESTING: usize = 64;
/// The maximum number of patterns of service providers that all policies of an evaluation return together.
pub(super) const MAX_PROVIDER_PATTERNS: usize = 100;
/// The maximum number of names in an allow-list of service providers.
pub(super) const MAX_PROVIDERS: usize = 10_000;
/// The maximum length of the name of a service provider, in bytes.
pub(super) const MAX_PROVIDER_BYTES: usize = 1024;
/// The maximum cost of the validations of one step: see [`super::fragment::Fragment::cost`]. About a second.
pub(crate) const MAX_STEP_COST: u64 = 50_000_000;
/// The maximum memory of a compiled pattern, in bytes.
pub(super) const MAX_PATTERN_BYTES: usize = 256 << 10;
/// The limits of the memory of a compiled pattern that are tried in this order, in bytes. Most patterns fit into the first one.
pub(super) const PATTERN_BYTES: [usize; 3] = [8 << 10, 64 << 10, MAX_PATTERN_BYTES];
/// The maximum memory of all compiled patterns of an evaluation, in bytes.
pub(super) const MAX_PATTERNS_BYTES: usize = 96 << 20;
/// The maximum number of values in a schema after each reference is replaced by its target.
pub(super) const MAX_EXPANSION: u64 = 5_000;

/// Returns the size of a value as JSON, in bytes.
pub(super) fn json_bytes(value: &Value) -> usize {
    struct Counter(usize);
    impl std::io::Write for Counter {
        fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
            self.0 += bytes.len();
            Ok(bytes.len())
        }
        fn flush(&mut self) -> std::io::Result<()> {
            Ok(())
        }
    }
    let mut counter = Counter(0);
    // Values with string keys always serialize, and the counter accepts every byte.
    let _ = serde_json::to_writer(&mut counter, value);
    counter.0
}

/// Returns the number of values within a value, itself included. A payload within the limits has few enough for its memory.
pub(super) fn value_count(value: &Value) -> usize {
    match value {
        Value::Array(items) => 1 + items.iter().map(value_count).sum::<usize>(),
        Value::Object(members) => 1 + members.values().map(value_count).sum::<usize>(),
        _ => 1,
    }
}

/// Returns the estimated memory of a value, in bytes.
pub(super) fn memory_bytes(value: &Value) -> usize {
    memory_of(json_bytes(value), value_count(value))
}

/// Returns the estimated memory of a value with this size as JSON and this number of values. An object of one member takes many times
/// as much as its JSON.
pub(super) fn memory_of(json_bytes: usize, values: usize) -> usize {
    json_bytes + VALUE_BYTES * values
}

/// Returns true if lists and objects nest deeper than `limit`.
pub(super) fn nests_deeper(value: &Value, limit: usize) -> bool {
    match value {
        Value::Array(items) => limit == 0 || items.iter().any(|item| nests_deeper(item, limit - 1)),
        Value::Object(members) => limit == 0 || members.values().any(|member| nests_deeper(member, limit - 1)),
        _ => false,
    }
}

/// Returns the number of values within a value, itself included. Long strings count more than once.
pub(crate) fn count_values(value: &Value) -> u64 {
    let text = |text: &str| 1 + text.len() as u64 / 8;
    match value {
        Value::String(string) => text(string),
        Value::Array(items) => 1 + items.iter().map(count_values).sum::<u64>(),
        Value::Object(members) => {
            1 + members.iter().map(|(key, member)| key.len() as u64 / 8 + count_values(member)).sum::<u64>()
        }
        _ => 1,
    }
}
