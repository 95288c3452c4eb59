//! The fuzzer: runs the target that `OVERTAKE_FUZZ_TARGET` names. Start it with `fuzz.sh`.

#![no_main]

use std::sync::LazyLock;

static TARGET: LazyLock<overtake_fuzz::Target> = LazyLock::new(|| {
    let name = std::env::var("OVERTAKE_FUZZ_TARGET").unwrap_or_default();
    overtake_fuzz::target(&name).unwrap_or_else(|| {
        let names: Vec<&str> = overtake_fuzz::TARGETS.iter().map(|(name, _)| *name).collect();
        panic!("OVERTAKE_FUZZ_TARGET names no target; there are {names:?}")
    })
});

libfuzzer_sys::fuzz_target!(|data: &[u8]| TARGET(data));
