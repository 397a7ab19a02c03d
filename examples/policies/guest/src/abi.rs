//! waPC: the host says how long operation and payload are, the guest fetches them, answers by another call and
//! returns whether it could. All numbers are 32 bits wide: addresses and lengths in this module's memory.

#![allow(unsafe_code)] // The host reads and writes our memory at the addresses that we hand to it.

#[link(wasm_import_module = "wapc")]
unsafe extern "C" {
    fn __guest_request(operation: *mut u8, payload: *mut u8);
    fn __guest_response(answer: *const u8, len: usize);
    fn __guest_error(message: *const u8, len: usize);
}

/// Fetches the call, answers it by `answer`, and returns 1, or 0 after an error.
pub fn call(operation_len: usize, payload_len: usize, answer: fn(&[u8], &[u8]) -> Result<Vec<u8>, String>) -> i32 {
    let mut operation = vec![0; operation_len];
    let mut payload = vec![0; payload_len];
    // SAFETY: the host writes exactly the lengths that it announced, and both buffers have them.
    unsafe { __guest_request(operation.as_mut_ptr(), payload.as_mut_ptr()) };
    match answer(&operation, &payload) {
        Ok(answer) => {
            // SAFETY: the host only reads, before the call returns; `answer` lives until after it.
            unsafe { __guest_response(answer.as_ptr(), answer.len()) };
            1
        }
        Err(message) => {
            // SAFETY: as above.
            unsafe { __guest_error(message.as_ptr(), message.len()) };
            0
        }
    }
}
