//! What all queues of a shard share: time, sequences, the messages, their timers, and the lists of what is to be done.

use crate::answer::{PayloadRef, Place};
use crate::blocks::Blocks;
use crate::message::{Message, Messages, NO_SEQUENCE};
use crate::pages::{LivePayloads, Sequences};
use crate::timers::Timers;
use overtake_base::{Level, QueueId, Sequence, UnixMillis};
use std::collections::BTreeSet;

/// The parts of a shard that are not one queue's.
#[derive(Default)]
pub(crate) struct Shared {
    /// Shard time.
    pub(crate) time: UnixMillis,
    /// Sequence given last; the first one is 1.
    pub(crate) last_sequence: u64,
    pub(crate) messages: Messages,
    pub(crate) sequences: Sequences,
    pub(crate) timers: Timers,
    /// Number of the last setting of a timer.
    pub(crate) last_order: u64,
    /// Payloads in log entries.
    pub(crate) payloads: LivePayloads,
    /// Their bytes.
    pub(crate) log_payload_bytes: u64,
    pub(crate) blocks: Blocks,
    /// Lanes with visible work, by a time not after that of their starvation alert.
    pub(crate) alarms: BTreeSet<(UnixMillis, QueueId, Level)>,
    /// Queues with redrive jobs.
    pub(crate) jobs: BTreeSet<QueueId>,
    /// Queues that remember keys or ids, by when the first can be forgotten.
    pub(crate) forgets: BTreeSet<(UnixMillis, QueueId)>,
    /// Queues whose summary changed, each once.
    pub(crate) changed: Vec<QueueId>,
}

impl Shared {
    /// The message becomes visible for the first time (or anew, by a redrive): it gets its place at the tail.
    pub(crate) fn appear(&mut self, slot: u32, retention_ms: u64) {
        self.last_sequence += 1;
        let message = &mut self.messages[slot];
        message.sequence = Sequence(self.last_sequence);
        message.since = self.time;
        if message.ttl_ms == crate::message::TTL_OF_QUEUE {
            message.ttl_ms = retention_ms;
        }
        self.name(slot);
    }

    /// The message with this sequence, dead letters not counted.
    pub(crate) fn by_sequence(&self, sequence: Sequence) -> Option<u32> {
        self.sequences.get(sequence.0)
    }

    /// Sets the message's timer: as the newest of all, or, where it left memory with its timer set, as what it was.
    pub(crate) fn set_timer(&mut self, slot: u32) {
        let message = &mut self.messages[slot];
        let Some(at) = message.timer_at() else { return };
        if message.order == 0 {
            self.last_order += 1;
            message.order = self.last_order;
            self.timers.set(&mut self.messages, slot, at);
        } else {
            self.timers.set_back(&mut self.messages, slot, at);
        }
    }

    pub(crate) fn clear_timer(&mut self, slot: u32) {
        if let Some(at) = self.messages[slot].timer_at() {
            self.timers.clear(&mut self.messages, slot, at);
            self.messages[slot].order = 0;
        }
    }

    /// The record's memory is free again.
    pub(crate) fn free(&mut self, slot: u32) {
        let payload = self.messages[slot].payload;
        self.payload_gone(payload);
        self.messages.remove(slot);
    }

    pub(crate) fn store(&mut self, message: Message) -> u32 {
        self.payload_here(message.payload);
        self.messages.insert(message)
    }

    /// The message's payload stands in a block from now on.
    pub(crate) fn move_payload(&mut self, slot: u32, to: PayloadRef) {
        let from = core::mem::replace(&mut self.messages[slot].payload, to);
        self.payload_here(to);
        self.payload_gone(from);
    }

    fn payload_here(&mut self, payload: PayloadRef) {
        match payload.place {
            Place::Entry(index) => {
                self.payloads.add(index);
                self.log_payload_bytes += u64::from(payload.length);
            }
            Place::Block(block) => self.blocks.payload_here(block, payload.length),
        }
    }

    fn payload_gone(&mut self, payload: PayloadRef) {
        match payload.place {
            Place::Entry(index) => {
                self.payloads.remove(index);
                self.log_payload_bytes -= u64::from(payload.length);
            }
            Place::Block(block) => self.blocks.payload_gone(block, payload.length),
        }
    }

    /// The message can be found by its sequence, if it has one already.
    pub(crate) fn name(&mut self, slot: u32) {
        let sequence = self.messages[slot].sequence;
        if sequence != NO_SEQUENCE {
            self.sequences.insert(sequence.0, slot);
        }
    }
}
