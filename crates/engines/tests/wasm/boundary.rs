//! Guests that call their host with whatever there is: addresses, lengths and bytes. An evaluation may fail, but it ends,
//! and nothing else does. `make fuzz` goes further with the same guests.

use std::sync::{Arc, LazyLock};
use std::time::Duration;

use proptest::prelude::*;
use proviso_engines::Deadline;
use proviso_engines::wasm::ExecutionMode::{KubewardenWapc, Opa, Wasi};
use proviso_engines::wasm::{ExecutionMode, Module, Program};

use crate::guest::{ENGINE, create, load};
use crate::world::World;

static GUESTS: LazyLock<[(ExecutionMode, Module); 3]> = LazyLock::new(|| {
    [
        (KubewardenWapc, include_str!("../../fuzz/guests/wapc.wat")),
        (Opa, include_str!("../../fuzz/guests/opa.wat")),
        (Wasi, include_str!("../../fuzz/guests/wasi.wat")),
    ]
    .map(|(mode, text)| (mode, load(&ENGINE, &wat::parse_str(text).unwrap()).unwrap()))
});

/// Mostly what is inside of the guest, or just outside.
fn argument() -> impl Strategy<Value = u32> {
    prop_oneof![
        4 => 0_u32..64,
        3 => 0_u32..0x40000,
        1 => 0x3fff0_u32..0x40010,
        1 => any::<u32>(),
        1 => prop::sample::select(vec![u32::MAX, 0x7fff_ffff, 0x8000_0000, 1024, 2048, 65_536]),
    ]
}

fn record() -> impl Strategy<Value = Vec<u8>> {
    (any::<u8>(), prop::collection::vec(argument(), 9)).prop_map(|(function, arguments)| {
        let mut record = vec![function, 0, 0, 0];
        record.extend(arguments.iter().flat_map(|argument| argument.to_le_bytes()));
        record
    })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(400))]

    #[test]
    fn every_call_of_a_host_function_ends(records in prop::collection::vec(record(), 1..12)) {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap();
        let script = records.concat();
        for (mode, module) in GUESTS.iter() {
            let program = Program::new(module.clone(), script.as_slice()).in_mode(*mode);
            let program = program.with_host(Arc::new(World::default()));
            let deadline = Deadline::after(Duration::from_millis(200));
            runtime.block_on(async {
                // Either question may be answered, or not.
                drop(program.validate_settings(deadline).await);
                drop(program.evaluate(&create(), deadline).await);
            });
        }
    }
}

/// That the guests do as they are told: a script that answers.
#[tokio::test]
async fn the_guests_obey() {
    let record = |function: u8, arguments: [u32; 9]| {
        let mut record = vec![function, 0, 0, 0];
        record.extend(arguments.iter().flat_map(|argument| argument.to_le_bytes()));
        record
    };
    let [wapc, opa, wasi] = &*GUESTS;
    let ask = async |(mode, module): &(ExecutionMode, Module), script: Vec<u8>| {
        let program = Program::new(module.clone(), script).in_mode(*mode).with_host(Arc::new(World::default()));
        let deadline = Deadline::after(Duration::from_secs(5));
        if *mode == Opa {
            program.evaluate(&create(), deadline).await.unwrap_err().to_string()
        } else {
            program.validate_settings(deadline).await.unwrap_err().to_string()
        }
    };
    // The host echoes ten bytes, the guest fetches them and fails outside of its memory.
    let script = [record(8, [0, 10, 0, 0, 0, 0, 0, 0, 0]), record(4, [0x40000 - 9, 0, 0, 0, 0, 0, 0, 0, 0])].concat();
    let text = ask(wapc, script).await;
    assert!(text.contains("__host_response with 10 bytes"), "{text}");
    let text = ask(opa, record(0, [2048, 0, 0, 0, 0, 0, 0, 0, 0])).await;
    assert!(text.contains(r#"gave up: [{"result":[]}]"#), "{text}");
    let text = ask(wasi, record(6, [0x40000, 1, 0, 0, 0, 0, 0, 0, 0])).await;
    assert!(text.contains("random_get with 1 bytes"), "{text}");
}
