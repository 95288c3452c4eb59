//! The lock-free parts under loom, which tries every order that the memory model allows. The files are those of the
//! crate, compiled against loom's atomics.

#![allow(clippy::unwrap_used, clippy::expect_used, missing_docs)]

mod sync {
    pub(crate) use loom::sync::atomic::{AtomicU64, Ordering, fence};
}

#[path = "../src/doorbell.rs"]
mod doorbell;
#[path = "../src/seqlock.rs"]
mod seqlock;

use doorbell::{Bits, Doorbell};
use loom::thread;
use std::sync::Arc;
use sync::AtomicU64;

/// Slots of three words, which a whole write makes all the same but for their place.
struct Shared {
    slots: Vec<(AtomicU64, [AtomicU64; 3])>,
    bell: Doorbell,
    bits: Bits,
}

impl Shared {
    fn new(slots: usize) -> Arc<Self> {
        let slot = |_| (AtomicU64::new(0), [AtomicU64::new(0), AtomicU64::new(0), AtomicU64::new(0)]);
        Arc::new(Self { slots: (0..slots).map(slot).collect(), bell: Doorbell::new(1), bits: Bits::new(64) })
    }

    fn publish(&self, slot: usize, value: u64) {
        let (version, words) = &self.slots[slot];
        seqlock::write(version, words.iter(), &[value, value + 100, value + 200]);
        self.bell.ring(0, &self.bits, slot);
    }

    fn look(&self, seen: &mut [u64]) {
        self.bell.answer(
            |_| Some(&self.bits),
            |_, slot| {
                let (version, words) = &self.slots[slot];
                let mut read = Vec::new();
                if seqlock::read(version, words.iter(), |_| 2, &mut read) {
                    assert_eq!(read, [read[0], read[0] + 100, read[0] + 200], "a torn summary");
                    assert!(read[0] >= seen[slot], "an older summary after a newer one");
                    seen[slot] = read[0];
                }
            },
        );
    }
}

#[test]
fn readers_see_whole_summaries_in_order_and_never_miss_the_last() {
    let mut model = loom::model::Builder::new();
    model.preemption_bound = Some(3);
    model.check(|| {
        let shared = Shared::new(1);
        let writer = shared.clone();
        let writing = thread::spawn(move || {
            writer.publish(0, 1);
            writer.publish(0, 2);
        });
        let mut seen = [0];
        shared.look(&mut seen);
        shared.look(&mut seen);
        writing.join().unwrap();
        shared.look(&mut seen);
        assert_eq!(seen, [2], "the last summary was missed");
    });
}

#[test]
fn a_ring_beside_an_answer_is_not_lost() {
    let mut model = loom::model::Builder::new();
    model.preemption_bound = Some(3);
    model.check(|| {
        let shared = Shared::new(2);
        let writer = shared.clone();
        let writing = thread::spawn(move || {
            writer.publish(0, 1);
            writer.publish(1, 5);
        });
        let mut seen = [0, 0];
        shared.look(&mut seen);
        writing.join().unwrap();
        shared.look(&mut seen);
        assert_eq!(seen, [1, 5]);
    });
}
