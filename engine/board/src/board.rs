//! The board, its writers and its readers.

use crate::doorbell::{Bits, Doorbell};
use crate::layout::{self, BoardSummary};
use crate::seqlock;
use crate::sync::AtomicU64;
use core::fmt;
use overtake_base::hash::Map;
use overtake_base::limits::LEVELS_MAX;
use std::sync::{Arc, OnceLock};

/// Slots of one chunk.
const CHUNK_SLOTS: usize = 1_024;
/// Chunks of one writer.
const CHUNKS_MAX: usize = 4_096;
/// Pairs of queue and shard that one writer can show.
pub const SLOTS_MAX: usize = CHUNK_SLOTS * CHUNKS_MAX;
/// Levels that a slot has room for from the start. Most queues have five; the room for more is made when it is needed.
const LEVELS_INLINE: usize = 6;
const WORDS_INLINE: usize = layout::words(LEVELS_INLINE);
const WORDS_MORE: usize = layout::words(LEVELS_MAX) - WORDS_INLINE;

struct Slot {
    version: AtomicU64,
    words: [AtomicU64; WORDS_INLINE],
    more: OnceLock<Box<[AtomicU64]>>,
}

impl Slot {
    fn new() -> Self {
        Self {
            version: AtomicU64::new(0),
            words: [const { AtomicU64::new(0) }; WORDS_INLINE],
            more: OnceLock::new(),
        }
    }

    fn cells(&self) -> impl Iterator<Item = &AtomicU64> {
        self.words.iter().chain(self.more.get().into_iter().flatten())
    }

    fn write(&self, words: &[u64]) {
        if words.len() > WORDS_INLINE {
            self.more.get_or_init(|| (0..WORDS_MORE).map(|_| AtomicU64::new(0)).collect());
        }
        seqlock::write(&self.version, self.cells(), words);
    }

    fn read(&self, words: &mut Vec<u64>) -> bool {
        seqlock::read(&self.version, self.cells(), layout::words_after, words)
    }
}

struct Chunk {
    slots: Box<[Slot]>,
    /// One row for each reader.
    changed: Box<[Bits]>,
}

/// What one writer shows.
struct Wall {
    chunks: Box<[OnceLock<Chunk>]>,
    /// One for each reader.
    doorbells: Box<[Doorbell]>,
}

/// The board of one node. Handed out once as one writer and one reader for each core.
pub struct Board {
    walls: Box<[Wall]>,
}

impl Board {
    /// A board for `cores` cores: for each of them a writer and a reader of what the others write.
    #[must_use]
    pub fn for_cores(cores: u16) -> Vec<(Writer, Reader)> {
        let cores = usize::from(cores);
        let wall = |_| Wall {
            chunks: (0..CHUNKS_MAX).map(|_| OnceLock::new()).collect(),
            doorbells: (0..cores).map(|_| Doorbell::new(CHUNKS_MAX)).collect(),
        };
        let board = Arc::new(Self { walls: (0..cores).map(wall).collect() });
        (0..cores).map(|core| (Writer::new(board.clone(), core), Reader::new(board.clone(), core))).collect()
    }
}

/// This writer shows as many queues and shards as fit.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Full;

impl fmt::Display for Full {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "the board shows {SLOTS_MAX} queues and shards of this core already")
    }
}

impl core::error::Error for Full {}

/// Shows the summaries of one core. There is one for each core, and it cannot be cloned: slots have one writer.
pub struct Writer {
    board: Arc<Board>,
    core: usize,
    slots: Map<(u32, u16), usize>,
    free: Vec<usize>,
    used: usize,
    words: Vec<u64>,
}

impl Writer {
    fn new(board: Arc<Board>, core: usize) -> Self {
        Self { board, core, slots: Map::default(), free: Vec::new(), used: 0, words: Vec::new() }
    }

    /// Shows a summary in place of the last one of the same queue and shard. One that is `gone` gives its slot back.
    pub fn publish(&mut self, summary: &BoardSummary) -> Result<(), Full> {
        let key = (summary.queue, summary.shard);
        let known = if summary.gone { self.slots.remove(&key) } else { self.slots.get(&key).copied() };
        let slot = match known {
            Some(slot) => slot,
            // It was never shown: nobody is to be told that it is gone.
            None if summary.gone => return Ok(()),
            None => {
                let slot = self.take_slot()?;
                self.slots.insert(key, slot);
                slot
            }
        };
        if summary.gone {
            self.free.push(slot);
        }
        layout::encode(summary, &mut self.words);
        let wall = &self.board.walls[self.core];
        let (number, index) = (slot / CHUNK_SLOTS, slot % CHUNK_SLOTS);
        let readers = wall.doorbells.len();
        let chunk = wall.chunks[number].get_or_init(|| Chunk {
            slots: (0..CHUNK_SLOTS).map(|_| Slot::new()).collect(),
            changed: (0..readers).map(|_| Bits::new(CHUNK_SLOTS)).collect(),
        });
        chunk.slots[index].write(&self.words);
        for (reader, doorbell) in wall.doorbells.iter().enumerate() {
            if reader != self.core {
                doorbell.ring(number, &chunk.changed[reader], index);
            }
        }
        Ok(())
    }

    fn take_slot(&mut self) -> Result<usize, Full> {
        if let Some(slot) = self.free.pop() {
            return Ok(slot);
        }
        if self.used == SLOTS_MAX {
            return Err(Full);
        }
        self.used += 1;
        Ok(self.used - 1)
    }
}

/// Sees what the other cores show.
pub struct Reader {
    board: Arc<Board>,
    core: usize,
    /// For each writer, whose summary each slot held when it was last read. A slot that has a new owner says thereby
    /// that the old one is gone.
    owners: Vec<Vec<Option<(u32, u16)>>>,
    /// For each writer, where each owner's newest summary is.
    places: Vec<Map<(u32, u16), usize>>,
    words: Vec<u64>,
    summary: BoardSummary,
}

impl Reader {
    fn new(board: Arc<Board>, core: usize) -> Self {
        let writers = board.walls.len();
        Self {
            board,
            core,
            owners: vec![Vec::new(); writers],
            places: vec![Map::default(); writers],
            words: Vec::new(),
            summary: BoardSummary::default(),
        }
    }

    /// Calls `each` with the newest summary of every queue and shard that changed since the last call.
    pub fn changed(&mut self, mut each: impl FnMut(&BoardSummary)) {
        let Self { board, core, owners, places, words, summary } = self;
        for (writer, wall) in board.walls.iter().enumerate().filter(|(writer, _)| writer != core) {
            let (owners, places) = (&mut owners[writer], &mut places[writer]);
            let bits = |chunk: usize| wall.chunks[chunk].get().map(|chunk| &chunk.changed[*core]);
            wall.doorbells[*core].answer(bits, |chunk, index| {
                let Some(slots) = wall.chunks[chunk].get() else { return };
                // Where a write came in between, its ring is still to come.
                if !slots.slots[index].read(words) || layout::decode(words, summary).is_none() {
                    return;
                }
                let slot = chunk * CHUNK_SLOTS + index;
                if owners.len() <= slot {
                    owners.resize(slot + 1, None);
                }
                let owner = (!summary.gone).then_some((summary.queue, summary.shard));
                let before = core::mem::replace(&mut owners[slot], owner);
                if let Some(before) = before.filter(|before| Some(*before) != owner)
                    && places.get(&before) == Some(&slot)
                {
                    places.remove(&before);
                    each(&BoardSummary {
                        queue: before.0,
                        shard: before.1,
                        gone: true,
                        ..Default::default()
                    });
                }
                if let Some(owner) = owner {
                    places.insert(owner, slot);
                    each(summary);
                }
            });
        }
    }
}
