//! The side that has the shard.

use super::{BlockBytes, KEEP_NS, SnapshotAsk, SnapshotPart, StateHead, StatePart};
use crate::cluster::Address;
use crate::cold::ReadFor;
use crate::mesh::MeshMessage;
use crate::{Core, Output};
use bytes::Bytes;
use overtake_base::checksum::checksum;
use overtake_base::planted::{Bug, is_planted};
use overtake_base::{BlockId, ShardId};
use overtake_log::lanes::BlockPart;
use overtake_replication::types::{EntryKind, LogEntry};

/// Entries of one part, at most.
const PART_ENTRIES: u64 = 64;
/// The state is taken when so few entries are left to be sent.
const LAST_ENTRIES: u64 = 64;
/// Bytes of snapshots that one core gives in a second, at most.
const BYTES_PER_S: u64 = 200 * 1024 * 1024;
/// No part is given while the journal has this much to write, in bytes.
const BACKLOG_BYTES: usize = 1024 * 1024;
/// Looked at again after this, in nanoseconds.
const LATER_NS: u64 = 1_000_000;
/// How long no more messages leave memory where that keeps a state from being taken, in nanoseconds.
const HOLD_NS: u64 = 1_000_000_000;
const NANOS_PER_S: u64 = 1_000_000_000;
const DOMAIN: u64 = u64::from_le_bytes(*b"snapshot");

/// The checksum of a state.
pub(super) fn state_checksum(state: &[u8]) -> u64 {
    checksum(DOMAIN, state)
}

/// A snapshot that is being given.
#[derive(Default)]
pub(crate) struct Outgoing {
    state: Option<(StateHead, Bytes)>,
    /// The oldest entry that is still to be sent.
    first: u64,
    used_ns: u64,
}

impl Outgoing {
    pub(super) fn first_kept(&self) -> u64 {
        self.first
    }
}

/// Entries of a part that are being read.
pub(crate) struct Reading {
    to: Address,
    ask: SnapshotAsk,
    first: u64,
    from: u64,
    /// Their terms and, once read, their data.
    entries: Vec<(u64, Option<(EntryKind, Bytes)>)>,
    left: usize,
}

impl Core {
    /// A replica that is being rebuilt wants a part.
    pub(crate) fn snapshot_asked(&mut self, from: Address, ask: SnapshotAsk) {
        let asks = &mut self.snapshots.asks;
        asks.retain(|(other, before)| (*other, before.shard) != (from, ask.shard));
        asks.push_back((from, ask));
    }

    /// Gives parts, as far as live traffic leaves room.
    pub(crate) fn give_parts(&mut self) {
        self.snapshots.wake_ns = None;
        while !self.snapshots.asks.is_empty() {
            let now_ns = self.now.monotonic_ns;
            let wait_ns = self.snapshots.next_part_ns.saturating_sub(now_ns);
            if wait_ns > 0 || self.storage.backlog_bytes() > BACKLOG_BYTES {
                self.snapshots.wake_ns = Some(now_ns + wait_ns.max(LATER_NS));
                return;
            }
            if let Some((to, ask)) = self.snapshots.asks.pop_front() {
                self.give_part(to, ask);
            }
        }
    }

    /// Index of the state that this core holds of a shard, and the oldest entry that it refers to.
    fn state_now(&self, shard: ShardId) -> Option<(u64, u64)> {
        if shard == ShardId::DIRECTORY {
            return self.host.as_ref().map(|host| (host.applied, host.applied));
        }
        let machine = &self.replicas.get(&shard)?.machine;
        let index = machine.applied();
        if is_planted(Bug::SnapshotWithoutEntries) {
            return Some((index, index));
        }
        // The last one goes along: a checkpoint and the entry that it ends with are always found together.
        Some((index, machine.oldest_live_index().unwrap_or(index).min(index)))
    }

    fn give_part(&mut self, to: Address, ask: SnapshotAsk) {
        let shard = ask.shard;
        let hollow = self.group_mut(shard).is_none_or(|group| group.is_hollow());
        let Some((now_index, now_first)) = self.state_now(shard).filter(|_| !hollow) else { return };
        if let Some(group) = self.group_mut(shard) {
            group.snapshot_asked(to.node);
        }
        let now_ns = self.now.monotonic_ns;
        let outgoing = self.snapshots.outgoing.entry(shard).or_default();
        outgoing.used_ns = now_ns;
        if let Some((block, _)) = ask.block {
            return self.read_block_part(to, ask, BlockId(block));
        }
        let next_of = |first: u64| match ask.staged {
            Some((from, last)) if from <= first && last + 1 >= first => last + 1,
            _ => first,
        };
        // Who has more than the state that was taken for another one needs a newer one.
        outgoing.state.take_if(|(head, _)| next_of(head.first) > head.index + 1);
        let (first, end) = match &outgoing.state {
            Some((head, _)) => (head.first, head.index),
            None => (now_first, now_index),
        };
        outgoing.first = first;
        let next = next_of(first);
        let take = outgoing.state.is_none() && next + LAST_ENTRIES > end;
        if take && self.storage.drafts.has_any_of(shard) {
            // A state that knows a block which is not on disk yet cannot be given.
            self.snapshots.asks.push_back((to, ask));
            self.snapshots.next_part_ns = now_ns + LATER_NS;
            self.snapshots.hold_spills_ns = now_ns + HOLD_NS;
            return;
        }
        if take && !self.take_state(shard, end, first) {
            return;
        }
        let state = self.snapshots.outgoing.get(&shard).and_then(|outgoing| outgoing.state.as_ref());
        if let Some((head, state)) = state.filter(|(head, _)| next > head.index) {
            let offset = ask.state.filter(|(index, _)| *index == head.index).map_or(0, |(_, bytes)| bytes);
            let from = usize::try_from(offset).unwrap_or(usize::MAX).min(state.len());
            let to_byte = (from + self.config.snapshot_part_bytes).min(state.len());
            let part = StatePart { head: *head, offset, bytes: state.slice(from..to_byte) };
            let bytes = part.bytes.len();
            return self.send_part(to, ask, SnapshotPart::State(part), bytes);
        }
        self.read_part(to, ask, first, next, end);
    }

    /// Takes the shard's state as it is now. False where the journal does not know its last entry any more.
    fn take_state(&mut self, shard: ShardId, index: u64, first: u64) -> bool {
        let Some(term) = self.storage.entry_term(shard, index) else { return false };
        let mut state = Vec::new();
        crate::state::encode(&self.replica_head(shard), &mut state);
        match (self.replicas.get(&shard), &self.host) {
            (Some(replica), _) => replica.machine.snapshot(&mut state),
            (None, Some(host)) => state.extend_from_slice(&host.directory.snapshot()),
            (None, None) => return false,
        }
        let checksum = state_checksum(&state);
        let head = StateHead { index, term, first, bytes: state.len() as u64, checksum };
        self.snapshots.outgoing.entry(shard).or_default().state = Some((head, Bytes::from(state)));
        true
    }

    /// Reads entries from `next` on for a part.
    fn read_part(&mut self, to: Address, ask: SnapshotAsk, first: u64, next: u64, end: u64) {
        let shard = ask.shard;
        let token = self.next_number();
        let last = end.min(next + PART_ENTRIES - 1);
        let part_bytes = self.config.snapshot_part_bytes as u64;
        let Some((journal, operations)) = self.storage.journal() else { return };
        let terms = journal.terms_within(shard, next, last, part_bytes);
        for index in (next..).take(terms.len()) {
            journal.read_entry(shard, index, token, operations);
        }
        if terms.is_empty() {
            // They are not here any more: this replica was rebuilt itself, or they were released between the offer and now.
            // A state that needs them is of no use, the next one may be.
            self.snapshots.outgoing.remove(&shard);
            if let Some(group) = self.group_mut(shard) {
                group.snapshot_failed(to.node);
            }
            return;
        }
        let left = terms.len();
        let entries = terms.into_iter().map(|term| (term, None)).collect();
        self.snapshots.readings.insert(token, Reading { to, ask, first, from: next, entries, left });
        self.put_out_operations();
    }

    /// True where the entry was read for a part; none where it is gone.
    pub(crate) fn part_read(&mut self, token: u64, index: u64, data: Option<(EntryKind, &Bytes)>) -> bool {
        let Some(reading) = self.snapshots.readings.get_mut(&token) else { return false };
        if let Some((_, place)) = reading.entries.get_mut((index - reading.from) as usize) {
            *place = data.map(|(kind, data)| (kind, data.clone()));
        }
        reading.left -= 1;
        if reading.left > 0 {
            return true;
        }
        let Some(Reading { to, ask, first, from, entries, .. }) = self.snapshots.readings.remove(&token)
        else {
            return true;
        };
        let whole = (from..).zip(entries).map_while(|(index, (term, data))| {
            let (kind, data) = data?;
            Some(LogEntry { term, index, kind, data })
        });
        let entries: Vec<LogEntry> = whole.collect();
        if !entries.is_empty() {
            let bytes = entries.iter().map(|entry| entry.data.len()).sum();
            self.send_part(to, ask, SnapshotPart::Entries { first, entries }, bytes);
        }
        true
    }

    /// Reads a block for a part. Where it is not there any more nothing comes, and whoever asked begins with a newer state.
    fn read_block_part(&mut self, to: Address, ask: SnapshotAsk, block: BlockId) {
        let token = self.next_number();
        if self.storage.read_block(ask.shard, block, BlockPart::Whole, token) {
            self.cold.reads.insert(token, ((ask.shard, block), ReadFor::Snapshot));
            self.snapshots.block_readings.insert(token, (to, ask));
            self.put_out_operations();
        }
    }

    /// A block was read for a part.
    pub(crate) fn block_part_read(&mut self, token: u64, block: BlockId, records: &Bytes, payloads: &Bytes) {
        let Some((to, ask)) = self.snapshots.block_readings.remove(&token) else { return };
        let whole = Bytes::from([&records[..], &payloads[..]].concat());
        let offset = ask.block.map_or(0, |(_, has)| has).min(whole.len() as u64);
        let end = (offset as usize + self.config.snapshot_part_bytes).min(whole.len());
        let bytes = whole.slice(offset as usize..end);
        let sent = bytes.len();
        let (records, length) = (records.len() as u64, whole.len() as u64);
        let part = SnapshotPart::Block(BlockBytes { block, records, length, offset, bytes });
        self.send_part(to, ask, part, sent);
    }

    fn send_part(&mut self, to: Address, ask: SnapshotAsk, part: SnapshotPart, bytes: usize) {
        let takes_ns = bytes as u64 * NANOS_PER_S / BYTES_PER_S;
        self.snapshots.next_part_ns = self.now.monotonic_ns + takes_ns;
        if self.links.is_up(to) {
            let message = MeshMessage::SnapshotPart { shard: ask.shard, number: ask.number, part };
            self.out.push(Output::Mesh { to, message });
        }
    }

    /// Forgets snapshots that nobody asks for any more.
    pub(super) fn forget_given(&mut self) {
        let now_ns = self.now.monotonic_ns;
        self.snapshots.outgoing.retain(|_, outgoing| now_ns - outgoing.used_ns.min(now_ns) < KEEP_NS);
    }
}
