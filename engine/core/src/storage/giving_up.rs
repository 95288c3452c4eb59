//! The disk's side of giving up a damaged journal.

use super::{GivingUp, Phase, Recovered, Storage};
use crate::{Core, Output, repair};
use bytes::Bytes;
use overtake_base::ShardId;
use overtake_log::disk::{DiskCompletion, DiskOperation, DiskOperationKind};
use overtake_log::{BatchNumber, Journal, JournalError, Record, mark};

/// A folder in which damage was come upon is being marked.
pub(super) struct Marking {
    /// What was found.
    reason: String,
    /// The mark is durable. One of a repair that was under way would hide it, and goes.
    marked: bool,
}

impl Storage {
    /// Marks a folder in which damage was come upon: without a mark the next start would not look at what is damaged.
    pub(super) fn mark_given_up(&mut self, error: &JournalError) {
        self.phase = Phase::Marking(Marking { reason: error.to_string(), marked: false });
        self.operations.push(repair::first_operation(&self.config));
    }

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
    /// Something was done on a disk that is damaged. What had been under way there does not matter any more.
    pub(super) fn marking_went_on(&mut self, marking: Marking, completion: &DiskCompletion) {
        let Marking { reason, marked } = marking;
        let of_mark = repair::is_of_giving_up(completion.id);
        if of_mark && !marked && completion.result.is_ok() {
            let kind = DiskOperationKind::Remove { file: mark::FILES[1] };
            self.storage.operations.push(DiskOperation { id: completion.id + 1, kind });
        }
        if of_mark && (marked || completion.result.is_err()) {
            let core = self.config.core;
            return self.fatal(format!(
                "core {core}: {reason}. This node ends; where the other nodes hold what it holds, start it again: it has \
                 everything of this core rebuilt from them"
            ));
        }
        self.storage.phase = Phase::Marking(Marking { reason, marked: marked || of_mark });
    }

    /// The journal is open, and with the first one of a folder the folder is to remember that there is one.
    pub(super) fn journal_opened(&mut self, journal: Journal, recovered: Recovered) {
        self.storage.phase = Phase::Running(journal);
        self.storage.recovered = Some(recovered);
        if !core::mem::replace(&mut self.storage.config.begun, true) {
            self.out.push(Output::JournalBegun);
        }
        self.recovered_both();
    }

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
}
