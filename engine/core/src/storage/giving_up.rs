//! The disk's side of giving up a damaged journal, and checkpoints that wait for their entries.

use super::{GivingUp, Phase, ReadyCheckpoint, Recovered, Storage};
use crate::{Core, repair};
use bytes::Bytes;
use overtake_base::ShardId;
use overtake_log::disk::DiskOperation;
use overtake_log::{BatchNumber, Journal, Record, mark};

impl Storage {
    /// True from the moment that the journal was found damaged until another one is begun.
    pub(crate) fn is_giving_up(&self) -> bool {
        matches!(self.phase, Phase::GivingUp(_))
    }

    /// Gives up what is on a disk that is damaged. False where that has begun, or something is still under way there:
    /// its completion would be taken for one of the recovery that follows.
    pub(crate) fn give_up(&mut self) -> bool {
        let asking = matches!(self.phase, Phase::GivingUp(GivingUp::Asking)) && self.under_way == 0;
        if asking {
            self.phase = Phase::GivingUp(GivingUp::Marking);
            self.operations.push(repair::first_operation(&self.config));
        }
        asking
    }

    /// What replicas begin with after a journal was given up may be durable: then the disk says so. True where it does.
    pub(crate) fn mark_begun(&mut self, batch: BatchNumber) -> bool {
        let Phase::Running(journal) = &mut self.phase else { return false };
        let durable = journal.durable() >= batch;
        if durable {
            journal.write_checkpoint(mark::MARK, mark::BEGUN, 1, Bytes::new(), &mut self.operations);
        }
        durable
    }

    /// The replicas of a journal that was given up are whole.
    pub(crate) fn remove_mark(&mut self) {
        if let Phase::Running(journal) = &mut self.phase {
            journal.remove_mark(&mut self.operations);
        }
    }

    /// True while something of the shard is on its way to the disk.
    pub(crate) fn is_persisting(&self, shard: ShardId) -> bool {
        self.persisting.iter().any(|persisting| persisting.shard == shard)
    }

    pub(crate) fn may_write_checkpoint(&self) -> bool {
        !self.checkpoints.writing && self.checkpoints.ready.is_none()
    }

    /// The journal, once it is recovered, and where its operations go.
    pub(crate) fn journal(&mut self) -> Option<(&mut Journal, &mut Vec<DiskOperation>)> {
        if let Phase::Running(journal) = &mut self.phase {
            Some((journal, &mut self.operations))
        } else {
            None
        }
    }

    /// Term of an entry that is in the journal.
    pub(crate) fn entry_term(&self, shard: ShardId, index: u64) -> Option<u64> {
        if let Phase::Running(journal) = &self.phase { journal.entry_term(shard, index) } else { None }
    }
}

impl Core {
    /// The replicas of a folder that was given up begin in terms in which they did not vote before. False where some
    /// of those are not known.
    pub(super) fn begin_again(&mut self, recovered: &mut Recovered) -> bool {
        if self.own_replicas().is_empty() {
            self.storage.remove_mark();
        }
        for shard in self.own_replicas() {
            let found = recovered.shards.entry(shard).or_default();
            let Some(term) = self.repairs.beginnings.get(&shard).copied() else { return false };
            // In a log that nobody has begun nobody voted.
            let vote = if term == 0 { 0 } else { self.me.node.0 };
            found.hard_state = Some((term, vote, 0));
            if let Phase::Running(journal) = &mut self.storage.phase {
                let batch = journal.append(Record::HardState { shard, term, vote, commit: 0 });
                self.repairs.begun = Some(batch);
            }
        }
        true
    }

    /// Writes the checkpoint that waits, once its entries are durable. True while there is one.
    pub(super) fn write_ready_checkpoint(&mut self) -> bool {
        let durable = self.storage.journal().map_or(0, |(journal, _)| journal.durable());
        let ready = &mut self.storage.checkpoints.ready;
        let waits = ready.is_some();
        if let Some(ReadyCheckpoint { shard, index, term, state, .. }) =
            ready.take_if(|ready| ready.batch <= durable)
        {
            self.storage.write_checkpoint(shard, index, term, state);
        }
        waits
    }
}
