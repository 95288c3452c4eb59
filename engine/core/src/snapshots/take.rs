//! The side that is rebuilt. Its replica goes on with the log and the votes that it has until the whole snapshot is durable:
//! the entries beside its log, the state as its newest checkpoint. From then on recovery finds the new one. The replica
//! that runs is replaced by one that recovers from that checkpoint, as after a restart. While it is being replaced it
//! hears nothing, so that nothing it says can rest on what goes away.

use super::give::state_checksum;
use super::{BlockBytes, SnapshotAsk, SnapshotPart, StateHead, StatePart};
use crate::cluster::Address;
use crate::mesh::MeshMessage;
use crate::{Core, Output};
use bytes::Bytes;
use overtake_base::planted::{Bug, is_planted};
use overtake_base::{BlockId, QueueId, ShardId};
use overtake_log::{BatchNumber, CheckpointFound, Record, RecoveredShard};
use overtake_queue::machine::Machine;
use overtake_replication::types::{LogEntry, SnapshotOffer};
use std::collections::BTreeSet;

/// A part that did not come within this is asked for again, in nanoseconds.
const AGAIN_NS: u64 = 1_000_000_000;
/// Length of a block, at most.
const BLOCK_BYTES_MAX: u64 = 1 << 32;
/// How often a block is asked for again before its state is given up.
const BLOCK_TRIES: u32 = 3;
/// Length of a state, at most.
const STATE_BYTES_MAX: u64 = 1 << 36;

/// A snapshot that is coming in.
pub(crate) struct Incoming {
    from: Address,
    /// Term of the leader that offered it.
    term: u64,
    /// Up to where the replica's log was committed when it was offered.
    commit: u64,
    asked_ns: u64,
    number: u64,
    phase: Phase,
    /// What has come of the state.
    state: Option<(StateHead, Vec<u8>)>,
    /// The blocks that the state names, once all of it is here.
    blocks: Option<Vec<BlockId>>,
    /// The one that is coming, and what has come of it.
    block: Option<(BlockId, Vec<u8>)>,
    /// How often a block was asked for in vain.
    block_tries: u32,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Phase {
    /// A part is on its way.
    Asked,
    /// Entries are becoming durable.
    Staging(BatchNumber),
    /// Everything is here.
    Whole,
    /// The replica finishes what it said, and takes no more part.
    Closed,
    /// The state is being written.
    Writing,
}

impl Incoming {
    /// For whoever wonders why it does not go on.
    pub(super) fn in_words(&self) -> String {
        let state = self.state.as_ref().map(|(head, bytes)| (head, bytes.len()));
        format!(
            ", a snapshot comes from {}: {:?}, state {state:?}, block {:?} after {} tries",
            self.from,
            self.phase,
            self.block.as_ref().map(|(block, bytes)| (block, bytes.len())),
            self.block_tries
        )
    }

    /// The state, and what depends on it, must come anew.
    fn forget_state(&mut self) {
        (self.state, self.blocks, self.block, self.block_tries) = (None, None, None, 0);
    }
}

impl Core {
    /// The leader offers a snapshot, since its log does not reach back to what this replica lacks.
    pub(crate) fn snapshot_offered(&mut self, shard: ShardId, offer: SnapshotOffer) {
        let Some(from) = self.map.host(offer.from, shard) else { return };
        let number = self.next_number();
        let commit = self.group_mut(shard).map_or(0, |group| group.commit());
        let incoming = self.snapshots.incoming.entry(shard).or_insert(Incoming {
            from,
            term: offer.term,
            commit,
            asked_ns: 0,
            number,
            phase: Phase::Asked,
            state: None,
            blocks: None,
            block: None,
            block_tries: 0,
        });
        (incoming.from, incoming.term, incoming.commit) = (from, offer.term, commit);
        if incoming.phase == Phase::Asked {
            self.ask_for_part(shard);
        }
    }

    fn ask_for_part(&mut self, shard: ShardId) {
        let staged = self.storage.journal().and_then(|(journal, _)| journal.staged_range(shard));
        let number = self.next_number();
        let Some(incoming) = self.snapshots.incoming.get_mut(&shard) else { return };
        (incoming.number, incoming.asked_ns) = (number, self.now.monotonic_ns);
        incoming.phase = Phase::Asked;
        let state = incoming.state.as_ref().map(|(head, bytes)| (head.index, bytes.len() as u64));
        let block = incoming.block.as_ref().map(|(block, bytes)| (block.0, bytes.len() as u64));
        let to = incoming.from;
        if self.links.is_up(to) {
            let message = MeshMessage::SnapshotAsk(SnapshotAsk { shard, number, staged, state, block });
            self.out.push(Output::Mesh { to, message });
        }
    }

    /// A part that was asked for.
    pub(crate) fn snapshot_part(&mut self, from: Address, shard: ShardId, number: u64, part: SnapshotPart) {
        let Some(incoming) = self.snapshots.incoming.get(&shard) else { return };
        if (incoming.from, incoming.number, incoming.phase) != (from, number, Phase::Asked) {
            return;
        }
        let taken = match part {
            SnapshotPart::Entries { first, entries } => self.stage(shard, first, &entries),
            SnapshotPart::State(part) => self.take_state_part(shard, part),
            SnapshotPart::Block(part) => self.take_block_part(shard, part),
        };
        if !taken {
            // Whatever it is, it does not fit: begin again, at the pace of time-outs.
            if let Some(incoming) = self.snapshots.incoming.get_mut(&shard) {
                incoming.forget_state();
            }
            if let Some((journal, _)) = self.storage.journal() {
                journal.trim_staged(shard, 0);
            }
        }
    }

    /// Writes entries beside the shard's log.
    fn stage(&mut self, shard: ShardId, first: u64, entries: &[LogEntry]) -> bool {
        let entry_bytes_max = self.config.entry_bytes_max;
        let Some((journal, _)) = self.storage.journal() else { return false };
        journal.trim_staged(shard, first);
        let next = journal.staged_range(shard).map_or(first, |(_, last)| last + 1);
        let Some(from) = entries.first().map(|entry| entry.index) else { return false };
        let fits = (first..=next).contains(&from)
            && (from..).zip(entries).all(|(index, entry)| entry.index == index)
            && entries.iter().all(|entry| entry.data.len() <= entry_bytes_max);
        if !fits {
            return false;
        }
        let mut batch = journal.durable();
        for LogEntry { term, index, kind, data } in entries {
            let (term, index, kind) = (*term, *index, *kind as u8);
            batch = journal.append(Record::Staged { shard, term, index, kind, data });
        }
        if let Some(incoming) = self.snapshots.incoming.get_mut(&shard) {
            incoming.phase = Phase::Staging(batch);
        }
        true
    }

    fn take_state_part(&mut self, shard: ShardId, StatePart { head, offset, bytes }: StatePart) -> bool {
        let Some((journal, _)) = self.storage.journal() else { return false };
        journal.trim_staged(shard, head.first);
        let staged = journal.staged_range(shard);
        let whole = match staged {
            Some((first, last)) => (first, last) == (head.first, head.index),
            None => head.first == head.index + 1,
        };
        let Some(incoming) = self.snapshots.incoming.get_mut(&shard) else { return false };
        let state = incoming.state.take().filter(|(known, _)| *known == head);
        let (_, mut state) = state.unwrap_or((head, Vec::new()));
        let fits = offset == state.len() as u64
            && head.bytes <= STATE_BYTES_MAX
            && offset + bytes.len() as u64 <= head.bytes
            && (!bytes.is_empty() || head.bytes == offset);
        if !whole || !fits {
            return false;
        }
        state.extend_from_slice(&bytes);
        let complete = state.len() as u64 == head.bytes;
        if complete && state_checksum(&state) != head.checksum {
            return false;
        }
        incoming.state = Some((head, state));
        (incoming.blocks, incoming.block) = (None, None);
        if complete {
            incoming.phase = Phase::Whole;
        } else {
            self.ask_for_part(shard);
        }
        true
    }

    fn take_block_part(&mut self, shard: ShardId, part: BlockBytes) -> bool {
        let BlockBytes { block, records, length, offset, bytes } = part;
        let Some(incoming) = self.snapshots.incoming.get_mut(&shard) else { return false };
        let Some((_, mut whole)) = incoming.block.take().filter(|(wanted, _)| *wanted == block) else {
            return false;
        };
        let fits = offset == whole.len() as u64
            && records <= length
            && length <= BLOCK_BYTES_MAX
            && offset + bytes.len() as u64 <= length
            && (!bytes.is_empty() || offset == length);
        if !fits {
            return false;
        }
        incoming.block_tries = 0;
        whole.extend_from_slice(&bytes);
        if (whole.len() as u64) < length {
            incoming.block = Some((block, whole));
            self.ask_for_part(shard);
            return true;
        }
        incoming.phase = Phase::Whole;
        let whole = Bytes::from(whole);
        self.storage.store_block(
            shard,
            block,
            whole.slice(..records as usize),
            whole.slice(records as usize..),
        )
    }

    /// The first block that the state names and that is not here; asks for it, unless it is about to be. False where all
    /// are on disk.
    fn lacks_blocks(&mut self, shard: ShardId) -> bool {
        let Some(incoming) = self.snapshots.incoming.get_mut(&shard) else { return false };
        if incoming.blocks.is_none() {
            let state = incoming.state.as_ref().filter(|_| shard != ShardId::DIRECTORY);
            let machine = state.and_then(|(_, state)| {
                let (_, state) = crate::state::split(state).ok()?;
                Machine::restore(shard, state).ok()
            });
            incoming.blocks = Some(machine.iter().flat_map(Machine::blocks).collect());
        }
        let Some(lanes) = self.storage.lanes() else { return true };
        let missing = |block: &&BlockId| !lanes.contains(shard, **block);
        let Some(block) = incoming.blocks.iter().flatten().find(missing).copied() else { return false };
        // This replica may be about to write it itself.
        if !lanes.is_to_be_written(shard, block) && self.storage.drafts.records((shard, block)).is_none() {
            incoming.block = Some((block, Vec::new()));
            self.ask_for_part(shard);
        }
        true
    }

    /// True where a replica is being replaced: nothing is to reach it.
    pub(crate) fn is_closed(&self, shard: ShardId) -> bool {
        let incoming = self.snapshots.incoming.get(&shard);
        incoming.is_some_and(|incoming| matches!(incoming.phase, Phase::Closed | Phase::Writing))
            || self.changes.is_going(shard)
    }

    /// Moves every snapshot on, out and in.
    pub(crate) fn advance_snapshots(&mut self) {
        self.give_parts();
        for shard in self.snapshots.incoming.keys().copied().collect::<Vec<_>>() {
            self.advance_incoming(shard);
        }
    }

    fn advance_incoming(&mut self, shard: ShardId) {
        let durable = self.storage.journal().map_or(0, |(journal, _)| journal.durable());
        let Some(incoming) = self.snapshots.incoming.get(&shard) else { return };
        let head = incoming.state.as_ref().map(|(head, _)| *head);
        match (incoming.phase, head) {
            (Phase::Staging(batch), _) if batch <= durable => {
                self.ask_for_part(shard);
            }
            (Phase::Whole, Some(_)) if self.lacks_blocks(shard) => {}
            (Phase::Whole | Phase::Closed, Some(head)) => self.close(shard, head),
            _ => {}
        }
    }

    /// Everything is here. Once nothing of the old replica is under way any more, the state is written.
    fn close(&mut self, shard: ShardId, head: StateHead) {
        let Some(group) = self.group_mut(shard) else { return };
        if group.is_leader() || group.commit() >= head.index {
            // It got on without.
            self.snapshots.incoming.remove(&shard);
            return;
        }
        // What is recovered must know the newest term of its log.
        if group.term() < head.term {
            return;
        }
        let quiet = !group.has_output();
        let Some(incoming) = self.snapshots.incoming.get_mut(&shard) else { return };
        incoming.phase = Phase::Closed;
        if !quiet || self.storage.is_persisting(shard) || !self.storage.may_write_checkpoint() {
            return;
        }
        let Some(incoming) = self.snapshots.incoming.get_mut(&shard) else { return };
        incoming.phase = Phase::Writing;
        let state = incoming.state.as_ref().map_or_else(Bytes::new, |(_, state)| Bytes::from(state.clone()));
        self.storage.write_checkpoint(shard, head.index, head.term, state);
        self.put_out_operations();
    }

    /// The state of a snapshot is durable, or found no room. False where the checkpoint was none of a snapshot.
    pub(crate) fn snapshot_written(&mut self, shard: ShardId, index: u64, written: bool) -> bool {
        let Some(incoming) = self.snapshots.incoming.get(&shard) else { return false };
        let ours = incoming.phase == Phase::Writing
            && incoming.state.as_ref().is_some_and(|(head, _)| head.index == index);
        if !ours {
            return false;
        }
        let Some(Incoming { from, term, state: Some((head, state)), .. }) =
            self.snapshots.incoming.remove(&shard)
        else {
            return true;
        };
        if written {
            match self.install(shard, head, Bytes::from(state)) {
                Ok(()) => {
                    self.snapshots.rebuilt += 1;
                    self.keep_silent(shard);
                    if let Some(group) = self.group_mut(shard) {
                        group.follow(from.node, term);
                    }
                }
                Err(detail) => {
                    self.fatal(format!("shard {shard} cannot go on from the snapshot of {from}: {detail}"));
                }
            }
        }
        true
    }

    /// Replaces a replica by one that recovers from the snapshot.
    fn install(&mut self, shard: ShardId, head: StateHead, data: Bytes) -> Result<(), String> {
        let Some(group) = self.group_mut(shard) else { return Ok(()) };
        let hard_state = group.hard_state();
        let hard_state = Some((hard_state.term, hard_state.vote, hard_state.commit));
        let Some((journal, _)) = self.storage.journal() else { return Ok(()) };
        if !is_planted(Bug::SnapshotNotNoted) {
            journal.install(shard, head.term, head.index);
        }
        journal.release_before(shard, head.first);
        let checkpoint = Some(CheckpointFound { index: head.index, term: head.term, data });
        let found = RecoveredShard { hard_state, entries: Vec::new(), checkpoint };
        if shard == ShardId::DIRECTORY {
            let host = self.recover_directory(found)?;
            self.replace_directory(host);
            self.members_applied();
            return Ok(());
        }
        let mut replica = self.recover_replica(shard, found)?;
        self.storage.forget_drafts(shard);
        self.take_in_blocks(&mut replica)?;
        let Some(old) = self.replicas.get_mut(&shard) else { return Ok(()) };
        replica.seen = old.seen;
        let mut queues: BTreeSet<QueueId> = old.machine.queues().collect();
        queues.extend(replica.machine.queues());
        let mut old = core::mem::replace(old, replica);
        let mut done = Vec::new();
        let reads = old.give_up(&mut done);
        for queue in queues {
            self.to_publish.insert((shard, queue));
            if let Some(newest) = self.own_summary(shard, queue)
                && self.view.update(queue, &newest)
            {
                self.waiting.touch(queue);
            }
        }
        self.commands_done(shard, &mut done);
        for (caller, read) in reads {
            self.not_leader(caller, shard, crate::mesh::ShardRequest::Read(read));
        }
        Ok(())
    }

    /// A link is there again, or gone.
    pub(crate) fn snapshot_link(&mut self, peer: Address, up: bool) {
        if !up {
            self.snapshots.asks.retain(|(from, _)| *from != peer);
            return;
        }
        let waiting = self.snapshots.incoming.iter();
        let waiting = waiting.filter(|(_, i)| i.from == peer && i.phase == Phase::Asked);
        for shard in waiting.map(|(shard, _)| *shard).collect::<Vec<_>>() {
            self.ask_for_part(shard);
        }
    }

    /// Lets time pass: asks again for what did not come, and forgets what nobody wants.
    pub(crate) fn tick_snapshots(&mut self) {
        self.forget_given();
        let now_ns = self.now.monotonic_ns;
        for shard in self.snapshots.incoming.keys().copied().collect::<Vec<_>>() {
            let Some(group) = self.group_mut(shard) else { continue };
            let (leads, commit) = (group.is_leader(), group.commit());
            let Some(incoming) = self.snapshots.incoming.get(&shard) else { continue };
            if matches!(incoming.phase, Phase::Closed | Phase::Writing) {
                continue;
            }
            if leads || commit > incoming.commit {
                // Another leader's log reaches back far enough.
                self.snapshots.incoming.remove(&shard);
            } else if incoming.phase == Phase::Asked && now_ns - incoming.asked_ns >= AGAIN_NS {
                if let Some(incoming) = self.snapshots.incoming.get_mut(&shard)
                    && incoming.block.is_some()
                {
                    incoming.block_tries += 1;
                    if incoming.block_tries > BLOCK_TRIES {
                        // It is not there any more, nor is the state that names it.
                        incoming.forget_state();
                    }
                }
                self.ask_for_part(shard);
            }
        }
    }
}
