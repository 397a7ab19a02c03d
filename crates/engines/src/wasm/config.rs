//! The limits of the engine, and the configuration of wasmtime that enforces them.

use wasmtime::{
    Enabled, InstanceAllocationStrategy, ModuleVersionStrategy, OptLevel, PoolingAllocationConfig, WasmFeatures,
};

/// The size of the stack for the guest's functions, in bytes. Deeper recursion traps.
const GUEST_STACK: usize = 1 << 20;
/// The size of the stack of the fiber that an evaluation runs on, in bytes: the guest's stack, and the rest for the host
/// functions that the guest calls.
const FIBER_STACK: usize = GUEST_STACK + (1 << 20);
/// The maximum number of elements of a table. Go modules need about 10,000.
pub(super) const TABLE_ELEMENTS: usize = 100_000;
/// The maximum number of tables of a module. Languages with reference types use a second table.
const TABLES: u32 = 4;
/// The number of bytes of an instance's memory that are reset in place, rather than returned to the kernel and faulted in
/// again by the next instance.
const KEEP_RESIDENT: usize = 512 << 10;
/// The number of stacks of an evaluation: its own, and one for a builtin's calls back into the guest.
const STACKS: u32 = 2;
/// The size of a wasm page, in bytes.
const PAGE: usize = 64 << 10;

/// The limits of every module of an [`Engine`](super::Engine).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Config {
    /// The maximum memory of an instance, in bytes, rounded down to whole pages of 64 KiB. Default: 128 MiB. Range: 64 KiB to
    /// 4 GiB.
    pub memory_limit: usize,
    /// The maximum number of instances at the same time. Further evaluations wait until their deadlines: the policy server
    /// gives an evaluation a place before, so that none waits here. Default: 64. Minimum: 1.
    ///
    /// Each instance reserves about 4 GiB of address space, but uses only the memory that its guest touches.
    pub concurrency: u32,
}

impl Default for Config {
    fn default() -> Self {
        Self { memory_limit: 128 << 20, concurrency: 64 }
    }
}

/// The error of creating an engine.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum EngineError {
    #[error("wasm engine: {0}")]
    Configuration(String),
    /// The address space of the instances cannot be reserved, most often because of a limit (`ulimit -v`).
    #[error("wasm engine: cannot reserve address space for {concurrency} instances: {cause}")]
    Pool { concurrency: u32, cause: String },
    #[error("wasm engine: cannot start the ticker thread: {0}")]
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
            // Modules of Go 1.26 and later declare this feature.
            .wasm_features(WasmFeatures::FUNCTION_REFERENCES, true)
            // A trap message names the function. Line numbers would be useless without the sources.
            .generate_address_map(false)
            .wasm_backtrace_details(wasmtime::WasmBacktraceDetails::Disable);
        // wasmtime itself compares only the major version. Patch releases fix miscompilations, so the engine accepts only code
        // that exactly this release compiled.
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
