//! Which slots changed: three levels of bits, rung from the leaf up and answered from the top down, so that a ring that
//! comes while the reader looks is at worst answered twice, never lost.

use crate::sync::{AtomicU64, Ordering};

const WORD_BITS: usize = 64;

/// A row of bits.
pub(crate) struct Bits(Box<[AtomicU64]>);

impl Bits {
    pub(crate) fn new(bits: usize) -> Self {
        Self((0..bits.div_ceil(WORD_BITS)).map(|_| AtomicU64::new(0)).collect())
    }

    fn set(&self, bit: usize) {
        // Always a read-modify-write, also where the bit is set already: it must come after what it announces.
        self.0[bit / WORD_BITS].fetch_or(1 << (bit % WORD_BITS), Ordering::AcqRel);
    }

    fn take(&self, word: usize, mut each: impl FnMut(usize)) {
        let mut bits = self.0[word].swap(0, Ordering::AcqRel);
        while bits != 0 {
            each(word * WORD_BITS + bits.trailing_zeros() as usize);
            bits &= bits - 1;
        }
    }
}

/// The upper two levels for one writer and one reader; the lowest lies with the slots of each chunk.
pub(crate) struct Doorbell {
    /// One bit for each word of `chunks`.
    top: AtomicU64,
    /// One bit for each chunk.
    chunks: Bits,
}

impl Doorbell {
    /// For at most `chunks` chunks, 64 × 64 at most.
    pub(crate) fn new(chunks: usize) -> Self {
        assert!(chunks <= WORD_BITS * WORD_BITS, "the top level is one word");
        Self { top: AtomicU64::new(0), chunks: Bits::new(chunks) }
    }

    /// Says that a slot of a chunk changed; `slots` are the chunk's bits for the same reader.
    pub(crate) fn ring(&self, chunk: usize, slots: &Bits, slot: usize) {
        slots.set(slot);
        self.chunks.set(chunk);
        self.top.fetch_or(1 << (chunk / WORD_BITS), Ordering::AcqRel);
    }

    /// Calls `each` with the chunk and slot of everything rung since the last time. `slots` finds a chunk's bits.
    pub(crate) fn answer<'a>(
        &self,
        slots: impl Fn(usize) -> Option<&'a Bits>,
        mut each: impl FnMut(usize, usize),
    ) {
        // A plain look first: it does not take the cache line from the writer.
        if self.top.load(Ordering::Relaxed) == 0 {
            return;
        }
        let mut top = self.top.swap(0, Ordering::AcqRel);
        while top != 0 {
            let word = top.trailing_zeros() as usize;
            top &= top - 1;
            self.chunks.take(word, |chunk| {
                let Some(bits) = slots(chunk) else { return };
                for word in 0..bits.0.len() {
                    if bits.0[word].load(Ordering::Relaxed) != 0 {
                        bits.take(word, |slot| each(chunk, slot));
                    }
                }
            });
        }
    }
}
