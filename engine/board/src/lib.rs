//! The board: shared memory in which each core shows the heads of its shards' lanes to the other cores of the node, so
//! that any core can choose where to take the most urgent message from. Nobody locks, nobody waits.
//!
//! Each core is the only writer of its own slots, one slot for each (queue, shard) that it shows. A slot is a seqlock
//! ([`seqlock`]). For each pair of writer and reader there is a tree of bits ([`doorbell`]) that says which slots
//! changed since the reader looked: looking when nothing changed is one load for each writer, and a slot that changed a
//! hundred times between two looks is read once. Readers may skip summaries, and never see an older one after a newer.
//!
//! Memory follows the slots in use: they come in chunks, made when first needed and reused, never given back.

mod board;
mod doorbell;
mod layout;
mod seqlock;

/// What the lock-free parts are made of. `tests/loom.rs` compiles the same files against loom's.
mod sync {
    pub(crate) use std::sync::atomic::{AtomicU64, Ordering, fence};
}

pub use board::{Board, Full, Reader, SLOTS_MAX, Writer};
pub use layout::{BoardLevel, BoardSummary};
