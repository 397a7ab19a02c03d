//! The waPC protocol. The host calls with the lengths of operation and payload; the guest fetches both, calls the host with its
//! answer, and returns 1 on success. All numbers are addresses and lengths in the module's memory, 32 bits wide.

#![allow(unsafe_code)] // The host reads and writes the module's memory at the addresses that the module passes to it.

#[link(wasm_import_module = "wapc")]
unsafe extern "C" {
    fn __guest_request(operation: *mut u8, payload: *mut u8);
    fn __guest_response(answer: *const u8, len: usize);
    fn __guest_error(message: *const u8, len: usize);
}

/// Fetches the call, and answers it with the result of `answer`. Returns 1, or 0 after an error.
pub fn call(operation_len: usize, payload_len: usize, answer: fn(&[u8], &[u8]) -> Result<Vec<u8>, String>) -> i32 {
    let mut operation = vec![0; operation_len];
    let mut payload = vec![0; payload_len];
    // SAFETY: the host writes exactly the lengths that it announced, and both buffers have them.
    unsafe { __guest_request(operation.as_mut_ptr(), payload.as_mut_ptr()) };
    match answer(&operation, &payload) {
        Ok(answer) => {
            // SAFETY: the host only reads, and only until the call returns; `answer` lives longer.
            unsafe { __guest_response(answer.as_ptr(), answer.len()) };
            1
        }
        Err(message) => {
            // SAFETY: the same as for `answer`.
            unsafe { __guest_error(message.as_ptr(), message.len()) };
            0
        }
    }
}
