//! The limit of the process is global, so this test has its own program.

use proviso_memory::{Exceeded, check, set_process_limit, with_limit};

const MIB: usize = 1 << 20;

#[test]
fn work_that_grows_fails_while_the_process_has_no_memory_left() {
    let resident = vec![1_u8; 64 * MIB];
    set_process_limit(Some(64 << 20));
    let small = with_limit(100 * MIB, || vec![1_u8; MIB].len());
    assert_eq!(small, Ok(MIB), "small work goes on");
    let mut blocks = Vec::new();
    let large = with_limit(100 * MIB, || {
        while check().is_ok() {
            blocks.push(vec![1_u8; MIB]);
        }
    });
    assert_eq!(large, Err(Exceeded::Process { limit: 64 << 20 }));
    assert!(blocks.len() <= 8, "{} MiB", blocks.len());
    drop((resident, blocks));
    set_process_limit(None);
    assert_eq!(with_limit(100 * MIB, || vec![1_u8; 64 * MIB].len()), Ok(64 * MIB));
}
