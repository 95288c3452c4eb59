//! One writer, any number of readers, no waiting on either side.
//!
//! The version is odd while a write is under way. A reader that meets a write gives up instead of trying again: the
//! writer rings the doorbell after every write, so the reader is sure to be called once more.

use crate::sync::{AtomicU64, Ordering, fence};

/// Writes `words` to the first of `cells`. Only one thread may ever write under one `version`.
pub(crate) fn write<'a>(version: &AtomicU64, cells: impl Iterator<Item = &'a AtomicU64>, words: &[u64]) {
    let before = version.load(Ordering::Relaxed);
    version.store(before.wrapping_add(1), Ordering::Relaxed);
    // The odd version is seen before any of the words: see the fence in `read`.
    fence(Ordering::Release);
    for (cell, word) in cells.zip(words) {
        cell.store(*word, Ordering::Relaxed);
    }
    version.store(before.wrapping_add(2), Ordering::Release);
}

/// Reads the first of `cells` and as many more as `more` says from its word. Returns false, with anything in `words`,
/// where a write came in between.
pub(crate) fn read<'a>(
    version: &AtomicU64,
    mut cells: impl Iterator<Item = &'a AtomicU64>,
    more: impl FnOnce(u64) -> usize,
    words: &mut Vec<u64>,
) -> bool {
    words.clear();
    let before = version.load(Ordering::Acquire);
    if before % 2 == 1 {
        return false;
    }
    let Some(first) = cells.next() else { return false };
    let first = first.load(Ordering::Relaxed);
    words.push(first);
    words.extend(cells.take(more(first)).map(|cell| cell.load(Ordering::Relaxed)));
    // A word of a later write makes that write's odd version visible to the load below.
    fence(Ordering::Acquire);
    version.load(Ordering::Relaxed) == before
}
