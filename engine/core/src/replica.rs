//! One shard's replica on this core: its raft group, its state machine, and the commands on their way through the log.
//!
//! All commands that reach a shard in one turn become one log entry. Callers are answered when their entry is
//! committed and applied, never before. Reads of a shard with several voters are answered when a quorum has said, after
//! they came, that it still follows this leader: no clock is trusted for that.

use crate::cache::EntryCache;
use crate::cold::Source;
use crate::mesh::{Caller, Read};
use crate::proposals::Proposals;
use bytes::Bytes;
use core::cell::Cell;
use overtake_base::{BlockId, Malformed, NodeId, QueueId, ShardId, UnixMillis};
use overtake_queue::answer::{Answer, Place};
use overtake_queue::command::{Batch, Command, LevelChoice, NewMessage, RedriveSelection};
use overtake_queue::entry::encode_batch;
use overtake_queue::machine::Machine;
use overtake_replication::Group;
use overtake_replication::types::{EntryKind, LogEntry};
use std::collections::{BTreeMap, BTreeSet, VecDeque};

/// Bytes that one log entry holds before the next one is begun.
const ENTRY_BYTES_TARGET: usize = 1024 * 1024;

/// A replica of a data shard.
pub struct Replica {
    /// Which shard.
    pub shard: ShardId,
    /// Its raft group.
    pub group: Group,
    /// Its state.
    pub machine: Machine,
    entry_bytes_max: usize,
    /// What was last told of its leader.
    pub seen: Seen,
    open: VecDeque<OpenEntry>,
    proposed: Proposals<Vec<CommandCaller>>,
    /// Reads that came since the last turn's end.
    reads: Vec<(Caller, Read)>,
    /// Reads that wait for a quorum (no index yet), or for their index to be applied, in order of their numbers.
    asked: VecDeque<AskedReads>,
    last_read: u64,
    /// True while a tick is on its way, so that one deadline makes one tick.
    tick_proposed: bool,
    /// Index of the newest checkpoint that is durable.
    pub checkpoint_index: u64,
    /// A spill is on its way through the log.
    pub spilling: bool,
    /// Blocks that nothing needs any more, and the log index since when: they are free once no checkpoint that recovery
    /// may begin with is older.
    pub gone_blocks: Vec<(u64, BlockId)>,
    /// What may be cached and holds no payload that a message in memory needs.
    pub unneeded_places: Vec<Place>,
    /// Blocks that recovery found on disk, until their log entries are applied.
    pub unswept: BTreeSet<BlockId>,
    /// How many messages the leases on their way ask for, by queue.
    leasing: BTreeMap<QueueId, u64>,
    /// The machine's next deadline, until the next entry is applied: it is asked for several times a turn.
    deadline: Cell<Option<UnixMillis>>,
}

/// What others were told of a group's leader.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct Seen {
    /// The newest term.
    pub term: u64,
    /// Its leader.
    pub leader: Option<NodeId>,
    /// Whether that is this node, and it serves.
    pub serves: bool,
}

impl Seen {
    /// What there is to see of a group now.
    #[must_use]
    pub fn of(group: &Group) -> Self {
        Self { term: group.term(), leader: group.leader(), serves: group.is_caught_up_as_leader() }
    }
}

struct AskedReads {
    number: u64,
    index: Option<u64>,
    reads: Vec<(Caller, Read)>,
}

/// Commands that are not proposed yet.
#[derive(Default)]
struct OpenEntry {
    commands: Vec<Command>,
    callers: Vec<CommandCaller>,
    bytes: usize,
}

/// Who waits for a command, and about which queue it was.
#[derive(Clone, Copy, Debug)]
pub struct CommandCaller {
    /// None for the core's own commands.
    pub caller: Option<Caller>,
    /// The queue.
    pub queue: QueueId,
    /// What the core's own command was.
    pub own: Own,
    /// How many messages a lease asks for; [`Replica::submit`] knows.
    leased: u64,
}

impl CommandCaller {
    /// Somebody who waits.
    #[must_use]
    pub const fn of(caller: Caller, queue: QueueId) -> Self {
        Self { caller: Some(caller), queue, own: Own::Other, leased: 0 }
    }

    /// The core itself.
    #[must_use]
    pub const fn own(queue: QueueId, own: Own) -> Self {
        Self { caller: None, queue, own, leased: 0 }
    }
}

/// Commands of a core's own that it wants to hear of.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Own {
    /// Nothing to be heard of.
    Other,
    /// A spill.
    Spill {
        /// Where messages were to leave from; none where only payloads were.
        source: Option<Source>,
        /// Whether it was for the relief of the journal.
        relief: bool,
    },
    /// A thaw of this block.
    Thaw(BlockId),
}

/// What became of a command.
#[derive(Debug)]
pub struct CommandDone {
    /// Who asked.
    pub caller: CommandCaller,
    /// What it became.
    pub outcome: CommandOutcome,
}

/// What a command became.
#[derive(Debug)]
pub enum CommandOutcome {
    /// Committed and applied.
    Answered(Answer),
    /// Refused before it was proposed: nothing was stored.
    NotStored,
    /// Not proposed: another replica leads, or will in a moment.
    NotLeader(Command),
    /// Its entry was lost to another leader's: nobody knows.
    Unknown,
}

impl Replica {
    /// A replica that has recovered.
    #[must_use]
    pub fn new(
        shard: ShardId,
        group: Group,
        machine: Machine,
        checkpoint_index: u64,
        entry_bytes_max: usize,
    ) -> Self {
        Self {
            shard,
            entry_bytes_max,
            group,
            machine,
            seen: Seen::default(),
            open: VecDeque::new(),
            proposed: Proposals::default(),
            reads: Vec::new(),
            asked: VecDeque::new(),
            last_read: 0,
            tick_proposed: false,
            checkpoint_index,
            spilling: false,
            gone_blocks: Vec::new(),
            unneeded_places: Vec::new(),
            unswept: BTreeSet::new(),
            leasing: BTreeMap::new(),
            deadline: Cell::new(None),
        }
    }

    /// True where this replica answers for its shard.
    #[must_use]
    pub fn serves(&self) -> bool {
        self.group.is_caught_up_as_leader()
    }

    /// This replica begins to lead: what it proposed when it led before may be lost.
    pub fn lead_began(&mut self) {
        self.tick_proposed = false;
    }

    /// Takes a read, to be answered when a quorum has given leave.
    pub fn submit_read(&mut self, caller: Caller, read: Read) {
        self.reads.push((caller, read));
    }

    /// Asks for leave for the reads that came.
    pub fn ask_for_reads(&mut self) {
        if self.reads.is_empty() || !self.serves() {
            return;
        }
        self.last_read += 1;
        let (number, reads) = (self.last_read, core::mem::take(&mut self.reads));
        self.asked.push_back(AskedReads { number, index: None, reads });
        self.group.read(number);
    }

    /// A quorum has given leave for these.
    pub fn reads_allowed(&mut self, allowed: &[(u64, u64)]) {
        for (number, index) in allowed {
            if let Some(asked) = self.asked.iter_mut().find(|asked| asked.number == *number) {
                asked.index = Some(*index);
            }
        }
    }

    /// True while reads wait.
    #[must_use]
    pub fn has_reads(&self) -> bool {
        !self.reads.is_empty() || !self.asked.is_empty()
    }

    /// Reads that may be answered now.
    pub fn take_reads(&mut self) -> Vec<(Caller, Read)> {
        let mut ready = Vec::new();
        while let Some(asked) = self.asked.front()
            && asked.index.is_some_and(|index| index <= self.group.last_applied())
            && let Some(asked) = self.asked.pop_front()
        {
            ready.extend(asked.reads);
        }
        ready
    }

    /// Reads that this replica cannot answer, since it leads no more.
    pub fn drop_reads(&mut self) -> Vec<(Caller, Read)> {
        let asked = core::mem::take(&mut self.asked).into_iter().flat_map(|asked| asked.reads);
        core::mem::take(&mut self.reads).into_iter().chain(asked).collect()
    }

    /// This replica is replaced by another one of the same node. Gives what is to be said of the commands that it was
    /// given, and the reads.
    pub fn give_up(&mut self, done: &mut Vec<CommandDone>) -> Vec<(Caller, Read)> {
        for OpenEntry { commands, callers, .. } in core::mem::take(&mut self.open) {
            let done_of =
                |(command, caller)| CommandDone { caller, outcome: CommandOutcome::NotLeader(command) };
            done.extend(commands.into_iter().zip(callers).map(done_of));
        }
        let lost = self.proposed.take_all().flatten();
        done.extend(lost.map(|caller| CommandDone { caller, outcome: CommandOutcome::Unknown }));
        self.drop_reads()
    }

    /// Takes a command into this turn's entry.
    pub fn submit(&mut self, command: Command, mut caller: CommandCaller) {
        if let Command::Lease { lease, .. } = &command {
            caller.leased = u64::from(lease.max);
            *self.leasing.entry(caller.queue).or_default() += caller.leased;
        }
        let bytes = encoded_bytes(&command);
        let target = ENTRY_BYTES_TARGET.min(self.entry_bytes_max / 2);
        let full = self.open.back().is_none_or(|open| open.bytes + bytes > target && open.bytes > 0);
        if full {
            self.open.push_back(OpenEntry::default());
        }
        if let Some(open) = self.open.back_mut() {
            open.bytes += bytes;
            open.commands.push(command);
            open.callers.push(caller);
        }
    }

    /// How many messages the leases on their way ask for: they take them before any lease that comes now.
    #[must_use]
    pub fn leasing(&self, queue: QueueId) -> u64 {
        self.leasing.get(&queue).copied().unwrap_or(0)
    }

    fn lease_done(&mut self, caller: CommandCaller) {
        if let Some(leasing) = self.leasing.get_mut(&caller.queue).filter(|_| caller.leased > 0) {
            *leasing -= caller.leased;
            if *leasing == 0 {
                self.leasing.remove(&caller.queue);
            }
        }
    }

    /// Proposes what was submitted, and a tick where one is due. Gives back the callers that cannot be served now.
    pub fn propose(&mut self, now: UnixMillis, refused: &mut Vec<CommandDone>) {
        if !self.serves() {
            let open = core::mem::take(&mut self.open).into_iter();
            for (command, caller) in open.flat_map(|open| open.commands.into_iter().zip(open.callers)) {
                self.lease_done(caller);
                refused.push(CommandDone { caller, outcome: CommandOutcome::NotLeader(command) });
            }
            return;
        }
        if self.open.is_empty() && self.next_deadline() <= now {
            self.open.push_back(OpenEntry::default());
            self.tick_proposed = true;
        }
        while let Some(open) = self.open.pop_front() {
            let OpenEntry { commands, callers, bytes } = open;
            let mut entry = Vec::with_capacity(bytes);
            let batch = Batch { time: now.max(self.machine.time()), commands };
            encode_batch(&batch, &mut entry);
            let fits = entry.len() <= self.entry_bytes_max;
            match fits.then(|| self.group.propose(Bytes::from(entry))) {
                Some(Ok((term, index))) => self.proposed.push(term, index, callers),
                Some(Err(_)) if !self.group.is_alone() => {
                    self.tick_proposed = false;
                    for (command, caller) in batch.commands.into_iter().zip(callers) {
                        self.lease_done(caller);
                        refused.push(CommandDone { caller, outcome: CommandOutcome::NotLeader(command) });
                    }
                }
                Some(Err(_)) | None => {
                    self.tick_proposed = false;
                    for caller in callers {
                        self.lease_done(caller);
                        refused.push(CommandDone { caller, outcome: CommandOutcome::NotStored });
                    }
                }
            }
        }
    }

    /// Applies one committed entry and says what became of its commands.
    pub fn apply(
        &mut self,
        entry: &LogEntry,
        cache: &mut EntryCache,
        done: &mut Vec<CommandDone>,
    ) -> Result<(), Malformed> {
        let mut answers = Vec::new();
        if entry.kind == EntryKind::Membership {
            self.group.apply_membership(entry).map_err(|_| Malformed("a change of membership"))?;
            self.machine.pass(entry.index);
        } else if entry.data.is_empty() {
            // A leader begins its term with it.
            self.machine.pass(entry.index);
        } else {
            self.machine.apply(entry.index, &entry.data, &mut answers)?;
            self.deadline.set(None);
            let place = Place::Entry(entry.index);
            if self.machine.holds_payloads(place) {
                cache.insert(self.shard, place, entry.data.clone());
            }
            self.tick_proposed = false;
        }
        self.group.applied(entry.index);
        let (lost, own) = self.proposed.committed(entry.term, entry.index);
        for caller in lost.into_iter().flatten() {
            self.lease_done(caller);
            done.push(CommandDone { caller, outcome: CommandOutcome::Unknown });
        }
        let mut answers = answers.into_iter();
        for caller in own.into_iter().flatten() {
            self.lease_done(caller);
            let outcome = answers.next().map_or(CommandOutcome::Unknown, CommandOutcome::Answered);
            done.push(CommandDone { caller, outcome });
        }
        Ok(())
    }

    /// When a tick is due; never while one is on its way.
    #[must_use]
    pub fn next_deadline(&self) -> UnixMillis {
        if self.tick_proposed || !self.serves() {
            return UnixMillis::NEVER;
        }
        let deadline = self.deadline.get().unwrap_or_else(|| self.machine.next_deadline());
        self.deadline.set(Some(deadline));
        deadline
    }

    /// True while commands wait for their entries.
    #[must_use]
    pub fn is_busy(&self) -> bool {
        !self.open.is_empty() || !self.proposed.is_empty() || self.has_reads()
    }

    /// First log index that the shard still needs: after its checkpoint, and not before any living payload.
    #[must_use]
    pub fn first_needed_index(&self) -> u64 {
        let after_checkpoint = self.checkpoint_index + 1;
        self.machine.oldest_live_index().map_or(after_checkpoint, |oldest| oldest.min(after_checkpoint))
    }
}

fn message_bytes(message: &NewMessage) -> usize {
    const MESSAGE_BYTES: usize = 64;
    let key_bytes = message.dedup_key.as_ref().map_or(0, Bytes::len);
    MESSAGE_BYTES + message.body.len() + message.headers.len() + key_bytes
}

/// About how many bytes a command takes in an entry, never less by more than the room that an entry has left over.
fn encoded_bytes(command: &Command) -> usize {
    const RECEIPT_BYTES: usize = 32;
    const COMMAND_BYTES: usize = 64;
    const CONFIG_BYTES: usize = 4_096;
    COMMAND_BYTES
        + match command {
            Command::Enqueue { messages, .. } => messages.iter().map(message_bytes).sum(),
            Command::StoreClaimed { message, .. } => message_bytes(message),
            Command::Claim { key, .. } | Command::EndClaim { key, .. } | Command::FenceClaim { key, .. } => {
                key.len()
            }
            Command::Settle { ack, extend, release, .. } => {
                let errors: usize =
                    release.iter().map(|r| r.error.as_ref().map_or(0, |error| error.len())).sum();
                (ack.len() + extend.len() + release.len()) * RECEIPT_BYTES + errors
            }
            Command::Unlease { leases, .. } => leases.len() * RECEIPT_BYTES,
            Command::Redrive { redrive, .. } => match &redrive.selection {
                RedriveSelection::Ids(ids) => ids.len() * size_of::<u128>(),
                RedriveSelection::All | RedriveSelection::FromPriority(_) => 0,
            },
            Command::Lease { lease, .. } => {
                let picks =
                    if let LevelChoice::Picks { picks, .. } = &lease.choice { picks.len() } else { 0 };
                picks * RECEIPT_BYTES + lease.worker.as_ref().map_or(0, |worker| worker.len())
            }
            Command::Configure { .. } => CONFIG_BYTES,
            Command::Thaw { records, .. } => records.len(),
            Command::Delete { .. }
            | Command::Cancel { .. }
            | Command::Purge { .. }
            | Command::PurgeDeadLetters { .. }
            | Command::RedriveTurns { .. }
            | Command::NoteRefused { .. }
            | Command::Spill { .. } => 0,
        }
}
