#!/bin/sh
# Fuzzes one target with libFuzzer, on a stable compiler:
#   ci/fuzz/fuzz.sh TARGET [options of libFuzzer, such as -max_total_time=60]
# New inputs that reach new code are added to ci/fuzz/corpus/TARGET; an input that breaks something is written to
# ci/fuzz/corpus/TARGET/crash-*, so that `cargo test -p overtake-fuzz` replays it from then on.
set -eu
cd "$(dirname "$0")/../.."
target=${1:?"which target? cargo test -p overtake-fuzz names them"}
shift
corpus=ci/fuzz/corpus/$target
mkdir -p "$corpus"
coverage="-Cpasses=sancov-module -Ccodegen-units=1 -Cdebug-assertions=on -Coverflow-checks=on"
for option in -sanitizer-coverage-level=4 -sanitizer-coverage-inline-8bit-counters -sanitizer-coverage-pc-table \
    -sanitizer-coverage-trace-compares; do
    coverage="$coverage -Cllvm-args=$option"
done
host=$(rustc -vV | sed -n 's/^host: //p')
# A target folder of its own: everything is built with coverage.
folder=${CARGO_TARGET_DIR:-target}/fuzz
CARGO_TARGET_DIR=$folder RUSTFLAGS="$coverage" cargo build --release --target "$host" -p overtake-fuzz \
    --no-default-features --features "libfuzzer${FUZZ_FEATURES:+,$FUZZ_FEATURES}"
OVERTAKE_FUZZ_TARGET=$target exec "$folder/$host/release/overtake-fuzz" -artifact_prefix="$corpus/" "$@" "$corpus"
