//! Blocks between a core's shards and its disk: what a spill drafted is gathered and written, blocks are read back,
//! blocks that nothing needs are freed.
//!
//! A draft's payloads count as being where they were until its block is durable: the journal keeps their entries, reads
//! are led there, and no checkpoint is written that knows the block. A crash before that finds the spill in the log and
//! drafts the block anew.

use crate::Core;
use crate::cold::ReadFor;
use crate::replica::Replica;
use bytes::Bytes;
use overtake_base::limits::BLOCK_PAYLOAD_PREFIX_BYTES;
use overtake_base::planted::{Bug, is_planted};
use overtake_base::{BlockId, ShardId};
use overtake_log::lanes::{BlockPart, NewBlock};
use overtake_queue::answer::{PayloadRef, Place};
use overtake_queue::entry::payload_bytes;
use std::collections::{BTreeMap, BTreeSet, VecDeque};

/// Places of payloads read at the same time for one block.
const READS_MAX: usize = 8;
/// Blocks that are whole and not on the disk yet: while one is written the next one is gathered.
const UNWRITTEN_MAX: usize = 2;
/// From so many payloads of one block on, the block is read whole instead of each payload.
const WHOLE_FROM: usize = 4;

pub(crate) type Key = (ShardId, BlockId);

/// Drafts until they are durable.
#[derive(Default)]
pub(crate) struct Drafts {
    pending: BTreeMap<Key, Draft>,
    order: VecDeque<Key>,
    collecting: Option<Collecting>,
}

/// What is to become a block.
struct Draft {
    records: Bytes,
    /// Each payload's first byte in the block, and where it stands until then.
    sources: Vec<(u32, PayloadRef)>,
    /// Lowest log index of an entry among those.
    oldest_entry: Option<u64>,
}

/// The draft whose payloads are being read.
struct Collecting {
    key: Key,
    payloads: Vec<Option<Bytes>>,
    /// Places that are still to be asked for.
    missing: VecDeque<Place>,
    asked: BTreeSet<Place>,
}

impl Drafts {
    pub(crate) fn is_empty(&self) -> bool {
        self.pending.is_empty()
    }

    pub(crate) fn has_any_of(&self, shard: ShardId) -> bool {
        self.pending.range((shard, BlockId(0))..=(shard, BlockId(u64::MAX))).next().is_some()
    }

    /// Forgets what is to be written of the shard, and says which blocks that were.
    pub(crate) fn forget_shard(&mut self, shard: ShardId) -> Vec<BlockId> {
        let of_shard = self.pending.range((shard, BlockId(0))..=(shard, BlockId(u64::MAX)));
        let blocks: Vec<BlockId> = of_shard.map(|((_, block), _)| *block).collect();
        blocks.iter().for_each(|block| self.forget((shard, *block)));
        blocks
    }

    /// The lowest log index of an entry that a draft of the shard still needs.
    pub(crate) fn oldest_entry(&self, shard: ShardId) -> Option<u64> {
        let of_shard = self.pending.range((shard, BlockId(0))..=(shard, BlockId(u64::MAX)));
        of_shard.filter_map(|(_, draft)| draft.oldest_entry).min()
    }

    /// The records of a block that is not durable yet.
    pub(crate) fn records(&self, key: Key) -> Option<&Bytes> {
        Some(&self.pending.get(&key)?.records)
    }

    /// Where a payload is to be read from now.
    pub(crate) fn resolve(&self, shard: ShardId, payload: PayloadRef) -> PayloadRef {
        let Place::Block(block) = payload.place else { return payload };
        let Some(draft) = self.pending.get(&(shard, block)) else { return payload };
        let at = draft.sources.binary_search_by_key(&payload.offset, |(offset, _)| *offset);
        at.ok().and_then(|at| draft.sources.get(at)).map_or(payload, |(_, source)| *source)
    }

    pub(crate) fn forget(&mut self, key: Key) {
        self.pending.remove(&key);
        self.order.retain(|other| *other != key);
        if self.collecting.as_ref().is_some_and(|collecting| collecting.key == key) {
            self.collecting = None;
        }
    }
}

impl Core {
    /// Takes over what the entries that were applied drafted and made unneeded.
    pub(crate) fn take_block_news(&mut self, shard: ShardId) {
        let Some(replica) = self.replicas.get_mut(&shard) else { return };
        let applied = replica.machine.applied();
        let (mut drafts, mut gone) = (Vec::new(), Vec::new());
        replica.machine.drain_drafts(|draft| drafts.push(draft));
        replica.machine.drain_gone_blocks(|block| gone.push(block));
        replica.gone_blocks.extend(gone.iter().map(|block| (applied, *block)));
        replica.unneeded_places.extend(replica.machine.take_emptied_entries().into_iter().map(Place::Entry));
        replica.unneeded_places.extend(gone.iter().map(|block| Place::Block(*block)));
        for draft in drafts {
            let key = (shard, draft.block);
            match self.storage.lanes().and_then(|lanes| lanes.has_records(shard, draft.block, &draft.records))
            {
                // A replayed spill.
                Some(true) => continue,
                Some(false) => {
                    let detail =
                        format!("shard {shard}: block {} on disk is not what the log makes", draft.block);
                    return self.fatal(detail);
                }
                None => {}
            }
            let mut offset = BLOCK_PAYLOAD_PREFIX_BYTES;
            let mut sources = Vec::with_capacity(draft.payloads.len());
            for payload in draft.payloads {
                sources.push((offset, self.storage.drafts.resolve(shard, payload)));
                offset += payload.length + BLOCK_PAYLOAD_PREFIX_BYTES;
            }
            let entries = sources.iter().filter_map(|(_, source)| match source.place {
                Place::Entry(index) => Some(index),
                Place::Block(_) => None,
            });
            let oldest_entry = entries.min();
            self.counters.blocks_drafted += 1;
            self.storage.drafts.pending.insert(key, Draft { records: draft.records, sources, oldest_entry });
            self.storage.drafts.order.push_back(key);
        }
        for block in gone {
            // One that nothing needs before it is written is not written.
            self.storage.drafts.forget((shard, block));
        }
        self.sweep_cache(shard);
        // In this very turn: nothing else may bring the next one soon.
        self.pump_drafts();
    }

    /// What no message in memory needs leaves the cache, once no draft is to be gathered from it.
    fn sweep_cache(&mut self, shard: ShardId) {
        if self.storage.drafts.has_any_of(shard) {
            return;
        }
        let Some(replica) = self.replicas.get_mut(&shard) else { return };
        for place in replica.unneeded_places.drain(..) {
            self.storage.cache.remove(shard, place);
        }
    }

    /// Goes on with the draft whose turn it is.
    pub(crate) fn pump_drafts(&mut self) {
        while self.storage.drafts.collecting.is_none() {
            let free = self.storage.lanes().is_some_and(|lanes| lanes.unwritten() < UNWRITTEN_MAX);
            let Some(key) = self.storage.drafts.order.front().copied().filter(|_| free) else { return };
            self.storage.drafts.order.pop_front();
            self.collect_payloads(key);
        }
    }

    fn collect_payloads(&mut self, key: Key) {
        let Some(draft) = self.storage.drafts.pending.get(&key) else { return };
        let mut payloads = vec![None; draft.sources.len()];
        let mut missing: Vec<Place> = Vec::new();
        for ((_, source), payload) in draft.sources.iter().zip(&mut payloads) {
            match self.storage.cache.get(key.0, source.place).map(|whole| payload_bytes(whole, *source)) {
                // Copied: a slice would keep all of the entry in memory.
                Some(Ok(bytes)) => *payload = Some(Bytes::copy_from_slice(&bytes)),
                _ => missing.push(source.place),
            }
        }
        missing.sort_unstable();
        missing.dedup();
        let collecting = Collecting { key, payloads, missing: missing.into(), asked: BTreeSet::new() };
        self.storage.drafts.collecting = Some(collecting);
        self.go_on_collecting();
    }

    /// Asks for the next places; writes the block where all payloads are there.
    fn go_on_collecting(&mut self) {
        let Some(mut collecting) = self.storage.drafts.collecting.take() else { return };
        let (shard, block) = collecting.key;
        while collecting.asked.len() < READS_MAX
            && let Some(place) = collecting.missing.pop_front()
        {
            let token = self.next_number();
            let asked = match place {
                Place::Entry(index) => self.storage.read_entry(shard, index, token),
                Place::Block(source) => self.storage.read_block(shard, source, BlockPart::Whole, token),
            };
            if !asked {
                let detail = format!("shard {shard}: a payload for block {block} is not on disk: {place:?}");
                return self.fatal(detail);
            }
            self.cold.reads.insert(token, (collecting.key, ReadFor::Draft(place)));
            collecting.asked.insert(place);
        }
        if !collecting.asked.is_empty() {
            self.storage.drafts.collecting = Some(collecting);
            return;
        }
        let Some(draft) = self.storage.drafts.pending.get(&collecting.key) else { return };
        let payloads = collecting.payloads.into_iter().flatten().collect();
        let new = NewBlock { shard, block, records: draft.records.clone(), payloads };
        self.storage.write_block(&new);
    }

    /// What a payload of the draft stands in was read; none where it is gone with its messages.
    pub(crate) fn payload_collected(&mut self, key: Key, place: Place, whole: Option<&Bytes>) {
        let Some(collecting) = self.storage.drafts.collecting.as_mut().filter(|g| g.key == key) else {
            return;
        };
        let Some(draft) = self.storage.drafts.pending.get(&key) else { return };
        collecting.asked.remove(&place);
        for ((_, source), payload) in draft.sources.iter().zip(&mut collecting.payloads) {
            if source.place != place {
                continue;
            }
            match whole.map(|whole| payload_bytes(whole, *source)) {
                Some(Ok(bytes)) => *payload = Some(Bytes::copy_from_slice(&bytes)),
                _ => {
                    let (shard, block) = key;
                    return self.fatal(format!(
                        "shard {shard}: a payload for block {block} cannot be read: {place:?}"
                    ));
                }
            }
        }
        self.go_on_collecting();
    }

    /// The block is durable.
    pub(crate) fn block_written(&mut self, key: Key) {
        self.counters.blocks_written += 1;
        self.storage.drafts.forget(key);
        self.sweep_cache(key.0);
    }

    /// A checkpoint is durable: blocks that neither it nor the one before knows are freed.
    pub(crate) fn free_blocks(&mut self, shard: ShardId, before_index: u64) {
        if self.snapshots.keeps_blocks(shard) {
            // A replica that is rebuilt may be about to ask for them; the next checkpoint frees them.
            return;
        }
        let Some(replica) = self.replicas.get_mut(&shard) else { return };
        let mut free = Vec::new();
        replica.gone_blocks.retain(|(since, block)| {
            let keeps = *since > before_index && !is_planted(Bug::BlockFreedEarly);
            if !keeps {
                free.push(*block);
            }
            keeps
        });
        for block in free {
            self.counters.blocks_freed += 1;
            if let Some(lanes) = self.storage.lanes_mut() {
                lanes.free(shard, block);
            }
        }
    }

    /// Looks at a replica that was just recovered and at what is on disk for it. Fails where something is missing.
    pub(crate) fn take_in_blocks(&self, replica: &mut Replica) -> Result<(), String> {
        let Some(lanes) = self.storage.lanes() else { return Ok(()) };
        let shard = replica.shard;
        if let Some(block) = replica.machine.blocks().find(|block| !lanes.contains(shard, *block)) {
            return Err(self.missing_block((shard, block)));
        }
        replica.unswept = lanes.blocks_of(shard).collect();
        Ok(())
    }

    /// The blocks that a shard's state names, so that others can be given them: all of them are on disk. None: some are not
    /// yet, or the shard is not here.
    #[must_use]
    pub fn live_blocks(&self, shard: ShardId) -> Option<Vec<BlockId>> {
        let replica = self.replicas.get(&shard).filter(|_| !self.storage.drafts.has_any_of(shard))?;
        Some(replica.machine.blocks().collect())
    }

    /// What recovery found on disk and the log makes nothing of is gone since now. A block's name is the index of its log
    /// entry: until that is applied again nobody can tell.
    pub(crate) fn sweep_blocks(&mut self, shard: ShardId) {
        let Some(replica) = self.replicas.get_mut(&shard).filter(|replica| !replica.unswept.is_empty())
        else {
            return;
        };
        let applied = replica.machine.applied();
        let later = replica.unswept.split_off(&BlockId(applied + 1));
        let told = core::mem::replace(&mut replica.unswept, later);
        if told.is_empty() {
            return;
        }
        let needed: BTreeSet<BlockId> = replica.machine.blocks().collect();
        let known: BTreeSet<BlockId> = replica.gone_blocks.iter().map(|(_, block)| *block).collect();
        let unneeded = told.into_iter().filter(|block| !needed.contains(block) && !known.contains(block));
        replica.gone_blocks.extend(unneeded.map(|block| (applied, block)));
    }
}

/// Asks for payloads of one block: each by itself, or, where they are many, the whole block.
pub(crate) fn parts(references: &[PayloadRef]) -> Vec<BlockPart> {
    if references.len() >= WHOLE_FROM {
        return vec![BlockPart::Whole];
    }
    let payload =
        |reference: &PayloadRef| BlockPart::Payload { offset: reference.offset, length: reference.length };
    references.iter().map(payload).collect()
}
