//! The limits of the engine, and how wasmtime is told of them.

use wasmtime::{
    Enabled, InstanceAllocationStrategy, ModuleVersionStrategy, OptLevel, PoolingAllocationConfig, WasmFeatures,
};

/// Stack of the guest's functions, in bytes. Deeper recursion traps.
const GUEST_STACK: usize = 1 << 20;
/// Stack of the fiber that an evaluation runs on, in bytes: what the guest leaves is for the functions that it
/// imports.
const FIBER_STACK: usize = GUEST_STACK + (1 << 20);
/// Elements that one table may have. Go modules need some 10,000.
pub(super) const TABLE_ELEMENTS: usize = 100_000;
/// Tables that one module may have: languages with reference types use a second one.
const TABLES: u32 = 4;
/// Bytes of an instance's memory that are reset in place, rather than given back to the kernel and faulted in
/// again by the next instance.
const KEEP_RESIDENT: usize = 512 << 10;
/// Stacks of one evaluation: its own, and one for what a builtin calls in the guest that called it.
const STACKS: u32 = 2;
/// A wasm page.
const PAGE: usize = 64 << 10;

/// Limits that hold for every module of one [`Engine`](super::Engine).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Config {
    /// The memory of one instance, in bytes, rounded down to whole pages of 64 KiB. Default: 128 MiB. From 64 KiB to
    /// 4 GiB.
    pub memory_limit: usize,
    /// How many instances may exist at once. Further evaluations wait. Default: 64. At least 1.
    ///
    /// Each reserves some 4 GiB of address space, but only the memory that its guest touches.
    pub concurrency: u32,
}

impl Default for Config {
    fn default() -> Self {
        Self { memory_limit: 128 << 20, concurrency: 64 }
    }
}

/// Why there is no engine.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum EngineError {
    #[error("wasm engine: {0}")]
    Configuration(String),
    /// Most often a limit on the address space (`ulimit -v`).
    #[error("wasm engine: cannot reserve address space for {concurrency} instances: {cause}")]
    Pool { concurrency: u32, cause: String },
    #[error("wasm engine: cannot start the thread that counts time: {0}")]
    Ticker(String),
}

impl Config {
    pub(super) fn wasmtime(&self) -> Result<wasmtime::Config, EngineError> {
        if self.concurrency == 0 {
            return Err(EngineError::Configuration("concurrency is 0, not at least 1".into()));
        }
        if !(PAGE..=4 << 30).contains(&self.memory_limit) {
            let limit = self.memory_limit;
            return Err(EngineError::Configuration(format!("memory_limit is {limit} bytes, not 64 KiB to 4 GiB")));
        }
        let mut config = wasmtime::Config::new();
        config
            .allocation_strategy(InstanceAllocationStrategy::Pooling(self.pool()))
            .cranelift_opt_level(OptLevel::Speed)
            .epoch_interruption(true)
            .max_wasm_stack(GUEST_STACK)
            .async_stack_size(FIBER_STACK)
            .memory_init_cow(true)
            // What modules of Go 1.26 and later declare.
            .wasm_features(WasmFeatures::FUNCTION_REFERENCES, true)
            // A trap names the function it happened in; lines are of no use without the sources.
            .generate_address_map(false)
            .wasm_backtrace_details(wasmtime::WasmBacktraceDetails::Disable);
        // wasmtime itself compares only the major version, and patch releases fix miscompilations: code of
        // any other release must be compiled anew.
        config
            .module_version(ModuleVersionStrategy::Custom(wasmtime_environ::VERSION.into()))
            .map_err(|error| EngineError::Configuration(format!("{error:#}")))?;
        Ok(config)
    }

    pub(super) fn memory_bytes(&self) -> usize {
        self.memory_limit - self.memory_limit % PAGE
    }

    fn pool(&self) -> PoolingAllocationConfig {
        let mut pool = PoolingAllocationConfig::new();
        pool.total_core_instances(self.concurrency)
            .total_memories(self.concurrency)
            .total_tables(self.concurrency.saturating_mul(TABLES))
            .total_stacks(self.concurrency.saturating_mul(STACKS))
            .max_memory_size(self.memory_bytes())
            .max_memories_per_module(1)
            .max_tables_per_module(TABLES)
            .table_elements(TABLE_ELEMENTS)
            .linear_memory_keep_resident(KEEP_RESIDENT)
            .table_keep_resident(PAGE)
            .pagemap_scan(Enabled::Auto);
        pool
    }
}
