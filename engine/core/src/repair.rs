//! A core whose journal is damaged, other than by a torn tail, or whose lane files lack what it needs, gives up all of it and
//! has its replicas rebuilt by other nodes. What such a replica promised is forgotten: whom it voted for, and which entries it holds. Two rules make it
//! safe that it goes on under its node's id:
//!
//! * It first hears the term of *every* other voter. Whoever it voted for has that term, so the highest one is as new as
//!   any in which it can have voted. It begins in that term, with its vote spent on itself.
//! * It votes for nobody and stands for no election (it is *silent*) until its log is committed up to where the log of
//!   every other voter ends. Whatever was committed by its acknowledgement is in the log of another voter.
//!
//! It follows meanwhile, and acknowledges what it holds by then, which is as good as any other acknowledgement. A leader
//! that had counted on what it held before begins with it anew.
//!
//! Nothing is removed before every other voter of every replica of this core has answered, and voters that are silent or
//! damaged themselves do not answer: where two of three disks are damaged nothing is removed, and an operator can save what
//! there is. A mark on the disk keeps the replicas silent over restarts. With fewer than three voters there is nobody to
//! be rebuilt from who could go on alone; then the core stops, as with any disk that failed.

use crate::cluster::Address;
use crate::mesh::MeshMessage;
use crate::{Core, Output};
use overtake_base::planted::{Bug, is_planted};
use overtake_base::{NodeId, ShardId};
use overtake_log::disk::{DiskCompletion, DiskDone, DiskOperation, DiskOperationKind, FileName};
use overtake_log::{BatchNumber, JournalConfig, JournalError, mark};
use std::collections::{BTreeMap, BTreeSet};

/// Time between two rounds of questions, in nanoseconds.
const ASK_NS: u64 = 200_000_000;
/// Number of the first operation of giving up: above all that recovery and a journal can have used before.
const FIRST_OPERATION: u64 = 1 << 48;
/// Voters that a shard must have.
const VOTERS_MIN: usize = 3;

/// What this core must ask others about.
#[derive(Default)]
pub(crate) struct Repairs {
    /// Replicas that vote for nobody.
    silent: BTreeSet<ShardId>,
    rounds: BTreeMap<ShardId, Round>,
    number: u64,
    /// The terms that replicas begin in which have forgotten theirs.
    pub(crate) beginnings: BTreeMap<ShardId, u64>,
    next_ask_ns: Option<u64>,
    /// The batch with the terms that replicas begin in: once it is durable the disk says so.
    pub(crate) begun: Option<BatchNumber>,
    /// Journals that were given up.
    pub(crate) given_up: u64,
}

/// One round of answers about a shard: term and last index by voter.
#[derive(Default)]
struct Round {
    answers: BTreeMap<NodeId, (u64, u64)>,
}

/// A journal being given up, as a state machine over the disk seam.
#[derive(Debug)]
pub(crate) enum GivingUp {
    /// Nothing was touched yet.
    Asking,
    Marking,
    Listing,
    Removing {
        left: usize,
    },
}

/// What became of it.
pub(crate) enum Progress {
    On,
    /// The folder is empty but for the mark.
    Done,
    Failed(JournalError),
}

impl GivingUp {
    /// Takes a completion.
    pub(crate) fn complete(&mut self, completion: DiskCompletion, out: &mut Vec<DiskOperation>) -> Progress {
        if !is_of_giving_up(completion.id) {
            // What recovery had asked for before it gave up.
            return Progress::On;
        }
        let done = match completion.result {
            Ok(done) => done,
            Err(error) => return Progress::Failed(JournalError::Disk(error.detail)),
        };
        match (&mut *self, done) {
            (Self::Asking | Self::Marking, _) => {
                out.push(DiskOperation { id: completion.id + 1, kind: DiskOperationKind::List });
                *self = Self::Listing;
            }
            (Self::Listing, DiskDone::Listed(files)) => {
                let files =
                    files.into_iter().map(|(file, _)| file).filter(|file| !mark::FILES[..1].contains(file));
                // Checkpoints last: a folder with checkpoints and without segments is damaged, and given up again.
                let mut files: Vec<FileName> = files.collect();
                files.sort_by_key(|file| matches!(file, FileName::Checkpoint(..)));
                let left = files.len();
                for (id, file) in (completion.id + 1..).zip(files) {
                    out.push(DiskOperation { id, kind: DiskOperationKind::Remove { file } });
                }
                *self = Self::Removing { left };
            }
            (Self::Removing { left }, _) => *left -= 1,
            (Self::Listing, _) => {
                return Progress::Failed(JournalError::Disk(
                    "listing the folder answered something else".into(),
                ));
            }
        }
        if matches!(self, Self::Removing { left: 0 }) { Progress::Done } else { Progress::On }
    }
}

/// The first operation of giving up.
pub(crate) fn first_operation(config: &JournalConfig) -> DiskOperation {
    DiskOperation { id: FIRST_OPERATION, kind: mark::write(config) }
}

/// False for what a journal or its recovery asked for.
pub(crate) fn is_of_giving_up(operation: u64) -> bool {
    operation >= FIRST_OPERATION
}

impl Core {
    /// Replicas of this core as the map has them.
    pub(crate) fn own_replicas(&self) -> Vec<ShardId> {
        let directory = (self.config.core.0 == 0).then_some(ShardId::DIRECTORY);
        let all = self.config.own_shards().chain(directory);
        all.filter(|shard| self.map.is_on(self.me.node, *shard)).collect()
    }

    /// Whether others could rebuild everything of this core.
    pub(crate) fn could_be_rebuilt(&self) -> bool {
        !self.map.is_single()
            && self.own_replicas().iter().all(|shard| self.map.replicas(*shard).len() >= VOTERS_MIN)
    }

    /// What is on the disk is damaged: the others are asked before anything is given up.
    pub(crate) fn begin_repair(&mut self, detail: &str) {
        let core = self.config.core;
        self.out.push(Output::Warning(format!(
            "core {core}: {detail}; its replicas will be rebuilt from the other nodes as soon as all of them that hold \
             one can be asked; look after this disk"
        )));
        self.repairs.beginnings.clear();
        self.repairs.next_ask_ns = Some(self.now.monotonic_ns);
    }

    /// True where a replica has yet to be whole.
    pub(crate) fn is_being_repaired(&self) -> bool {
        self.storage.is_giving_up() || !self.repairs.silent.is_empty()
    }

    /// Who was asked last and what has come of it, in words.
    pub(crate) fn repairs_in_words(&self) -> String {
        if !self.is_being_repaired() {
            return String::new();
        }
        let rounds = self.repairs.rounds.iter().map(|(shard, round)| {
            let voters = self.map.replicas(*shard);
            format!(
                "shard {shard} of {voters:?}: {:?} of {:?}",
                self.repairs.beginnings.get(shard),
                round.answers
            )
        });
        format!("; repairs: {}", rounds.collect::<Vec<_>>().join(", "))
    }

    /// A replica of a folder that was given up begins.
    pub(crate) fn begin_silent(&mut self, shard: ShardId) {
        if is_planted(Bug::RepairedVotesAtOnce) {
            return;
        }
        self.repairs.silent.insert(shard);
        self.repairs.next_ask_ns = Some(self.now.monotonic_ns);
        if let Some(group) = self.group_mut(shard) {
            group.set_silent(true);
        }
    }

    /// A replica was replaced: what it may not do, the new one may not either.
    pub(crate) fn keep_silent(&mut self, shard: ShardId) {
        let silent = self.repairs.silent.contains(&shard);
        if let Some(group) = self.group_mut(shard) {
            group.set_silent(silent);
        }
    }

    /// A replica is not wanted here any more.
    pub(crate) fn forget_repair(&mut self, shard: ShardId) {
        self.repairs.rounds.remove(&shard);
        if self.repairs.silent.remove(&shard) {
            self.look_whether_repaired();
        }
    }

    fn look_whether_repaired(&mut self) {
        if self.repairs.silent.is_empty() && self.repairs.begun.is_none() {
            self.repairs.next_ask_ns = None;
            self.storage.remove_mark();
            self.put_out_operations();
        }
    }

    pub(crate) fn next_repair_ns(&self) -> Option<u64> {
        self.repairs.next_ask_ns
    }

    /// Asks the other voters, round after round.
    pub(crate) fn tick_repairs(&mut self) {
        let now_ns = self.now.monotonic_ns;
        if self.repairs.begun.is_some_and(|batch| self.storage.mark_begun(batch)) {
            self.repairs.begun = None;
            self.put_out_operations();
        }
        if self.repairs.next_ask_ns.is_none_or(|at_ns| at_ns > now_ns) || self.retired {
            return;
        }
        self.repairs.next_ask_ns = self.is_being_repaired().then_some(now_ns + ASK_NS);
        let shards = if self.storage.is_giving_up() {
            self.own_replicas()
        } else {
            self.repairs.silent.iter().copied().collect()
        };
        if shards.is_empty() {
            return self.give_up_if_heard();
        }
        self.repairs.number = self.next_number();
        let number = self.repairs.number;
        self.repairs.rounds.clear();
        let mut asks: BTreeMap<Address, Vec<(ShardId, u64)>> = BTreeMap::new();
        for shard in shards {
            let last = self.group_mut(shard).map_or(0, |group| group.last_index());
            self.repairs.rounds.insert(shard, Round::default());
            for node in self.map.replicas(shard).iter().filter(|node| **node != self.me.node) {
                if let Some(to) = self.map.host(*node, shard).filter(|to| self.links.is_up(*to)) {
                    asks.entry(to).or_default().push((shard, last));
                }
            }
        }
        for (to, shards) in asks {
            self.out.push(Output::Mesh { to, message: MeshMessage::ReplicaAsk { number, shards } });
        }
    }

    /// Another core lost what its replicas promised.
    pub(crate) fn replica_asked(&mut self, from: Address, number: u64, shards: &[(ShardId, u64)]) {
        let mut told = Vec::new();
        for (shard, last) in shards {
            if self.is_closed(*shard) {
                continue;
            }
            if let Some(group) =
                self.group_mut(*shard).filter(|group| !group.is_silent() && !group.is_hollow())
            {
                group.log_ends_at(from.node, *last);
                told.push((*shard, group.term(), group.last_index()));
            }
        }
        self.out.push(Output::Mesh { to: from, message: MeshMessage::ReplicaTold { number, shards: told } });
    }

    /// What another voter knows.
    pub(crate) fn replica_told(&mut self, from: Address, number: u64, shards: &[(ShardId, u64, u64)]) {
        if number != self.repairs.number {
            return;
        }
        for (shard, term, last) in shards {
            let voters = self.map.replicas(*shard);
            if !voters.contains(&from.node) {
                continue;
            }
            let others = voters.iter().filter(|node| **node != self.me.node).count();
            let Some(round) = self.repairs.rounds.get_mut(shard) else { continue };
            round.answers.insert(from.node, (*term, *last));
            if round.answers.len() == others {
                let term = round.answers.values().map(|(term, _)| *term).max().unwrap_or(0);
                let last = round.answers.values().map(|(_, last)| *last).max().unwrap_or(0);
                self.heard_from_all(*shard, term, last);
            }
        }
    }

    /// Gives up what is on the disk once the others have said what is to be known of every replica of this core: at once
    /// where it holds none.
    fn give_up_if_heard(&mut self) {
        let all = self.own_replicas().iter().all(|shard| self.repairs.beginnings.contains_key(shard));
        if all && self.storage.give_up() {
            self.repairs.given_up += 1;
            self.put_out_operations();
        }
    }

    fn heard_from_all(&mut self, shard: ShardId, term: u64, last: u64) {
        if self.storage.is_giving_up() {
            self.repairs.beginnings.insert(shard, term);
            return self.give_up_if_heard();
        }
        let silent = self.repairs.silent.contains(&shard);
        let Some(group) = self.group_mut(shard) else { return };
        if silent && group.commit() >= last {
            group.set_silent(false);
            self.repairs.silent.remove(&shard);
            self.look_whether_repaired();
        }
    }
}
