//! Modules of Go's own compiler, whose runtime reads one random seed in every initialisation.
//!
//! The runtime uses the seed for hash tables, for `select`, and for the order in which `range` visits a map, which Go does not
//! specify. Packages of random numbers use the same seed: the programs that contain them would get the same numbers from every
//! instance of a snapshot. `TinyGo` is another compiler: its modules have no list of their functions.

use wasmparser::{KnownCustom, Parser, Payload as Section, ProducersSectionReader};
use wasmtime::ensure;

/// The name of the compiler in the section `producers`.
const COMPILER: &str = "Go cmd/compile";
/// The beginnings of the names of functions that return random numbers of the runtime. In the runtime's list of functions,
/// which every module of Go has, a zero byte ends each name.
const RANDOM_FUNCTIONS: [&[u8]; 4] = [b"\0math/rand.", b"\0math/rand/v2.", b"\0hash/maphash.", b"\0runtime.fastrand"];
/// The beginning of the names of functions that initialise a package. A module that imports a package without calling it
/// contains only these functions of the package. For example, `math/big` imports `math/rand`.
const PACKAGE_INITIALISER: &[u8] = b"init";

/// Returns an error if the random numbers that the initialisation of this module has read, in `reads` calls, could be visible.
pub(super) fn check(wasm: &[u8], reads: u32) -> wasmtime::Result<()> {
    // The runtime of Go calls once. Another call is one of the program, for example of `crypto/rand`.
    let is_runtime = reads == 1 && is_compiled_by_go(wasm);
    ensure!(is_runtime, "the module reads random numbers during its initialisation");
    ensure!(
        !contains_random_functions(wasm),
        "the module contains a generator that Go seeds during the initialisation (math/rand, hash/maphash)"
    );
    Ok(())
}

fn is_compiled_by_go(wasm: &[u8]) -> bool {
    let mut sections = Parser::new(0).parse_all(wasm).map_while(Result::ok);
    sections.any(|section| match section {
        Section::CustomSection(section) => match section.as_known() {
            KnownCustom::Producers(producers) => names_compiler(producers),
            _ => false,
        },
        _ => false,
    })
}

fn names_compiler(producers: ProducersSectionReader<'_>) -> bool {
    let fields = producers.into_iter().map_while(Result::ok);
    fields
        .filter(|field| field.name == "processed-by")
        .flat_map(|field| field.values.into_iter().map_while(Result::ok))
        .any(|value| value.name == COMPILER)
}

fn contains_random_functions(wasm: &[u8]) -> bool {
    RANDOM_FUNCTIONS.into_iter().any(|function| {
        wasm.windows(function.len())
            .enumerate()
            .any(|(at, window)| window == function && !wasm[at + function.len()..].starts_with(PACKAGE_INITIALISER))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn module(compiler: &str, functions: &str) -> Vec<u8> {
        let text = format!(
            r#"(module (memory 1) (data (i32.const 0) "runtime.main\00{functions}\00")
                (@producers (language "Go" "go1.26") (processed-by "{compiler}" "go1.26")))"#
        );
        wat::parse_str(text).unwrap()
    }

    #[test]
    fn only_the_seed_of_the_go_runtime_is_permitted() {
        for (compiler, functions, reads, is_permitted) in [
            (COMPILER, "encoding/json.Unmarshal", 1, true),
            (COMPILER, "encoding/json.Unmarshal", 2, false),
            ("TinyGo", "encoding/json.Unmarshal", 1, false),
            (COMPILER, "math/rand.(*Rand).Intn", 1, false),
            (COMPILER, "math/rand/v2.IntN", 1, false),
            (COMPILER, "hash/maphash.MakeSeed", 1, false),
            (COMPILER, "runtime.fastrandn", 1, false),
            // The package is imported, but none of its functions is called.
            (COMPILER, "math/rand.init", 1, true),
            (COMPILER, "math/rand.init\\00math/rand.Intn", 1, false),
            (COMPILER, "example.com/math/rand.Intn", 1, true),
        ] {
            assert_eq!(check(&module(compiler, functions), reads).is_ok(), is_permitted, "{compiler} {functions}");
        }
        let unknown = wat::parse_str("(module)").unwrap();
        assert!(check(&unknown, 1).is_err());
        assert!(check(&unknown[..4], 1).is_err(), "a damaged module");
    }
}
