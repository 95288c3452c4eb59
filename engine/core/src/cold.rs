//! What of the backlog stays in memory: when messages leave it, when they come back, and the requests that wait for that.
//!
//! Only a replica that serves decides; what it decides goes through the shard's log as spills and thaws. A shard has one
//! spill under way at a time, from the proposal until its block is durable; a core has a few, and a few thaws. A request
//! that needs records or messages of runs waits here while they are read and brought back; then it is looked at anew.

use crate::Core;
use crate::blocks::Key;
use crate::config::ColdConfig;
use crate::mesh::{Caller, Read, ShardRequest};
use crate::replica::{CommandCaller, CommandOutcome, Own};
use bytes::Bytes;
use overtake_base::{BlockId, Level, Malformed, MessageId, QueueId, ShardId, UnixMillis};
use overtake_log::RESTORE;
use overtake_log::lanes::{BlockPart, BlockRead};
use overtake_queue::answer::{Answer, Place, Spilled};
use overtake_queue::cold::Loaded;
use overtake_queue::command::{Command, Spill, SpillWhat};
use overtake_queue::machine::Machine;
use std::collections::{BTreeMap, BTreeSet, VecDeque};

/// Thaws under way at the same time that nobody waits for: as many as keep the disk reading while others become durable.
const READ_AHEAD_MAX: usize = 6;
/// Shards that spill at the same time: enough that blocks keep up with what is enqueued, and few enough that requests
/// which wait for a spill are few.
const SPILLS_MAX: usize = 4;
/// Fewest messages of a lane that stay in memory in front of its runs, however many lanes there are.
const KEEP_MIN: u32 = 16;
/// Pause after a look that found nothing to take out of memory, in nanoseconds.
const LOOK_AGAIN_NS: u64 = 100_000_000;
/// Parts of the journal's bytes (on a full disk, of a segment) that are written before its oldest segment is looked at
/// again.
const RELIEF_PARTS: u64 = 8;
/// A journal is made shorter where less than this part of it is payloads that are needed, if it is longer than this part of
/// the longest one.
const HOLLOW_PART: u64 = 4;
/// Most bytes of a message's record in a run, but for its texts.
const RECORD_BYTES_MAX: usize = 256;
/// Messages that one walk over payloads looks at in one entry.
const WALK_MESSAGES: u32 = 4_096;

/// See the module's text.
pub(crate) struct Cold {
    blocked: BTreeMap<u64, Blocked>,
    pub(crate) reads: BTreeMap<u64, (Key, ReadFor)>,
    thaws: BTreeMap<Key, Thaw>,
    /// Queues whose lanes may have their heads in runs, or near to one.
    pub(crate) ahead: BTreeSet<(ShardId, QueueId)>,
    /// Visible messages of a lane that stay in front of its runs.
    keep: u32,
    /// Shards whose last spill was to take messages out of memory, and did or is under way.
    leaving: BTreeSet<ShardId>,
    /// Where a spill took nothing, although there is enough: messages that are due or expire soon. They have their next
    /// turn when all others had theirs, or one of them would be tried again and again while others could leave.
    barren: BTreeSet<(ShardId, Source)>,
    relief: Option<Relief>,
    /// Something was moved out of the journal since the last look at it.
    relieved: bool,
    /// Where there are too many messages in memory: the journal's turn is next.
    relief_is_next: bool,
    /// Bytes of journal that were written when its oldest segment was looked at last.
    relief_looked_at_bytes: Option<u64>,
    look_at_ns: u64,
    wake_at_ns: Option<u64>,
}

/// Where messages leave memory from.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum Source {
    /// The visible messages of a queue's level.
    Lane(QueueId, Level),
    /// The delayed messages of a queue.
    Delayed(QueueId),
}

impl Source {
    fn of(queue: QueueId, what: SpillWhat) -> Option<Self> {
        match what {
            SpillWhat::Lane { level, .. } => Some(Self::Lane(queue, level)),
            SpillWhat::Delayed => Some(Self::Delayed(queue)),
            SpillWhat::Payloads { .. } => None,
        }
    }
}

/// What a block is read for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum ReadFor {
    /// To bring its run back.
    Thaw,
    /// For requests that look into it.
    Records,
    /// For a block that is being made.
    Draft(Place),
    /// For a reply.
    Fetch,
    /// For a replica that is rebuilt.
    Snapshot,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Thaw {
    Reading,
    Proposed,
}

/// What a request waits for.
#[derive(PartialEq, Eq, Default, Debug)]
pub(crate) struct Wait {
    /// Blocks to be read for it.
    pub(crate) reads: Vec<BlockId>,
    /// Blocks whose runs must be back.
    pub(crate) thaws: Vec<BlockId>,
    /// A spill on its way, which may take what the request names.
    pub(crate) spill: bool,
}

/// A request that waits for blocks.
struct Blocked {
    caller: Caller,
    shard: ShardId,
    request: ShardRequest,
    /// The messages that it asks for, where it names them.
    wanted: Option<BTreeSet<MessageId>>,
    loaded: Loaded,
    wait: Wait,
}

/// The messages that a request looks for in runs by their ids; none where it looks at all of them.
fn wanted(request: &ShardRequest) -> Option<BTreeSet<MessageId>> {
    match request {
        ShardRequest::Command(Command::Enqueue { messages, .. }) => {
            Some(messages.iter().map(|message| message.id).collect())
        }
        ShardRequest::Command(Command::StoreClaimed { message, .. }) => Some([message.id].into()),
        ShardRequest::Command(Command::Cancel { id, .. })
        | ShardRequest::Read(Read::Inspect { id, .. } | Read::Lookup { id: Some(id), .. }) => {
            Some([*id].into())
        }
        ShardRequest::Command(_) | ShardRequest::Read(_) => None,
    }
}

impl Blocked {
    /// Takes what the request needs of a run.
    fn load(&mut self, machine: &Machine, block: BlockId, records: &Bytes) -> Result<(), Malformed> {
        let wanted = |id| self.wanted.as_ref().is_none_or(|ids| ids.contains(&id));
        machine.load(block, records, wanted, &mut self.loaded)
    }
}

/// Moving what still stands in the journal's oldest segment.
struct Relief {
    shard: ShardId,
    up_to_index: u64,
    /// Lanes are still long enough for runs.
    lanes: bool,
    /// Queues that are still to be walked over.
    queues: VecDeque<QueueId>,
    dead: bool,
    after: Option<MessageId>,
}

impl Cold {
    pub(crate) fn new(config: &ColdConfig) -> Self {
        Self {
            blocked: BTreeMap::new(),
            reads: BTreeMap::new(),
            thaws: BTreeMap::new(),
            ahead: BTreeSet::new(),
            keep: config.keep_messages.max(KEEP_MIN.min(config.keep_messages)),
            leaving: BTreeSet::new(),
            barren: BTreeSet::new(),
            relief: None,
            relieved: false,
            relief_is_next: false,
            relief_looked_at_bytes: None,
            look_at_ns: 0,
            wake_at_ns: None,
        }
    }

    /// When, on the monotonic clock, something is to be done though nothing happened.
    pub(crate) fn next_wake(&self) -> Option<u64> {
        self.wake_at_ns
    }

    /// Visible messages of a lane that stay in memory in front of its runs.
    pub(crate) fn keep(&self) -> u64 {
        u64::from(self.keep)
    }

    /// Requests that wait for blocks.
    pub(crate) fn blocked(&self) -> usize {
        self.blocked.len()
    }
}

impl Core {
    /// What is under way in words, for whoever looks why nothing goes on.
    #[must_use]
    pub fn under_way(&self) -> String {
        let blocked = self.cold.blocked.values().map(|blocked| {
            let Blocked { shard, request, wait, .. } = blocked;
            format!("{request:?} of shard {shard} waits: {wait:?}")
        });
        let busy = self.replicas.iter().filter(|(_, replica)| replica.is_busy() || replica.spilling);
        let busy = busy.map(|(shard, replica)| format!("shard {shard}, spilling: {}", replica.spilling));
        format!(
            "{} operations, {} calls; blocked {:?}; thaws {:?}; reads {:?}; busy {:?}; drafts: {}; lanes {:?}{}{}",
            self.operations.len(),
            self.calls.len(),
            blocked.collect::<Vec<_>>(),
            self.cold.thaws,
            self.cold.reads.len(),
            busy.collect::<Vec<_>>(),
            !self.storage.drafts.is_empty(),
            self.storage.lanes().map(overtake_log::lanes::Lanes::usage),
            self.repairs_in_words(),
            self.changes_in_words(),
        )
    }

    /// Once a turn: brings back what is needed soon, takes out of memory what is too much.
    pub(crate) fn manage_cold(&mut self) {
        self.cold.wake_at_ns = None;
        if !self.storage.is_running() {
            return;
        }
        self.thaw_due_runs();
        let hot = self.replicas.values().map(|replica| replica.machine.hot_messages() as u64).sum();
        if !self.stopping {
            self.read_ahead();
            self.spill_if_needed(hot);
        }
        self.let_in(hot);
        self.pump_drafts();
        self.storage.flush_lanes();
        self.put_out_operations();
    }

    /// Runs of which a part is over soon.
    fn thaw_due_runs(&mut self) {
        let ColdConfig { lead_ms, slack_ms, .. } = self.config.cold;
        let until = self.time.plus_ms(lead_ms);
        let mut next = UnixMillis::NEVER;
        // Nothing is allocated where nothing is due: this is looked at in every turn.
        let mut due: Vec<Key> = Vec::new();
        for (shard, replica) in self.replicas.iter().filter(|(_, replica)| replica.serves()) {
            next = next.min(replica.machine.next_due_run_after(until));
            let keys = replica.machine.due_runs(until, slack_ms).map(|block| (*shard, block));
            due.extend(keys.filter(|key| !self.cold.thaws.contains_key(key)).take(READ_AHEAD_MAX));
        }
        due.into_iter().for_each(|(shard, block)| self.thaw(shard, block));
        if next != UnixMillis::NEVER {
            self.wake_at(self.clock.monotonic_at(UnixMillis(next.0.saturating_sub(lead_ms))));
        }
    }

    fn wake_at(&mut self, at_ns: u64) {
        self.cold.wake_at_ns = Some(self.cold.wake_at_ns.map_or(at_ns, |before| before.min(at_ns)));
    }

    /// Runs that are next in their lanes come back before anyone asks for them.
    fn read_ahead(&mut self) {
        let low_water = u64::from(self.cold.keep.div_ceil(2));
        while self.cold.thaws.len() < READ_AHEAD_MAX
            && let Some((shard, queue)) = self.cold.ahead.first().copied()
        {
            let Some(replica) = self.replicas.get(&shard).filter(|replica| replica.serves()) else {
                self.cold.ahead.remove(&(shard, queue));
                continue;
            };
            let runs = replica.machine.runs_ahead(queue, low_water);
            match runs.into_iter().find(|block| !self.cold.thaws.contains_key(&(shard, *block))) {
                Some(block) => self.thaw(shard, block),
                // When those under way are back, the queue is looked at again.
                None => drop(self.cold.ahead.remove(&(shard, queue))),
            }
        }
    }

    /// Begins to bring a run back, unless that is under way.
    fn thaw(&mut self, shard: ShardId, block: BlockId) {
        let key = (shard, block);
        if self.cold.thaws.contains_key(&key) {
            return;
        }
        self.cold.thaws.insert(key, Thaw::Reading);
        if let Some(records) = self.storage.drafts.records(key).cloned() {
            return self.propose_thaw(key, records);
        }
        let token = self.next_number();
        if self.storage.read_block(shard, block, BlockPart::Whole, token) {
            self.cold.reads.insert(token, (key, ReadFor::Thaw));
        } else {
            self.block_missing(key);
        }
    }

    fn propose_thaw(&mut self, (shard, block): Key, records: Bytes) {
        let replica = self.replicas.get_mut(&shard).filter(|replica| replica.serves());
        let found = replica.and_then(|replica| Some((replica.machine.queue_of_run(block)?, replica)));
        let Some((queue, replica)) = found else {
            // The run ended while it was read, or another replica decides now.
            self.cold.thaws.remove(&(shard, block));
            return self.look_at_blocked(shard);
        };
        self.cold.thaws.insert((shard, block), Thaw::Proposed);
        self.counters.thaws += 1;
        let caller = CommandCaller::own(queue, Own::Thaw(block));
        replica.submit(Command::Thaw { queue, block, records }, caller);
    }

    pub(crate) fn block_missing(&mut self, key: Key) {
        let detail = self.missing_block(key);
        self.fatal(detail);
        self.storage.fail();
    }

    /// What is said of a block that is needed and not there.
    pub(crate) fn missing_block(&self, (shard, block): Key) -> String {
        let unreadable = self.storage.lanes().and_then(|lanes| lanes.unreadable().first().copied());
        let hint = unreadable.map_or_else(String::new, |file| {
            format!("; the header of {file} is damaged, it may be in there")
        });
        format!(
            "shard {shard}: block {block} of messages is needed and not in any lane file{hint}: {RESTORE}"
        )
    }

    /// A block that was read is here.
    pub(crate) fn block_read(&mut self, read: BlockRead) {
        let Some((key, purpose)) = self.cold.reads.remove(&read.token) else { return };
        let BlockRead { token, shard, block, records, payloads } = read;
        match purpose {
            ReadFor::Thaw => {
                if self
                    .replicas
                    .get(&shard)
                    .is_some_and(|replica| replica.machine.queue_of_run(block).is_some())
                {
                    self.storage.cache.insert(shard, Place::Block(block), payloads);
                }
                self.propose_thaw(key, records);
            }
            ReadFor::Records => self.records_read(key, &records),
            ReadFor::Draft(place) => self.payload_collected(key, place, Some(&payloads)),
            ReadFor::Snapshot => self.block_part_read(token, block, &records, &payloads),
            ReadFor::Fetch => self.payloads_fetched(token, shard, Place::Block(block), Some(payloads)),
        }
    }

    /// Gives a run's records to the requests that wait for them.
    fn records_read(&mut self, (shard, block): Key, records: &Bytes) {
        let Some(replica) = self.replicas.get(&shard) else { return };
        let mut damaged = None;
        for blocked in self.cold.blocked.values_mut().filter(|blocked| blocked.shard == shard) {
            let wanted = blocked.wait.reads.iter().position(|read| *read == block);
            if let Some(at) = wanted
                && let _ = blocked.wait.reads.swap_remove(at)
                && let Err(malformed) = blocked.load(&replica.machine, block, records)
            {
                damaged = Some(malformed);
            }
        }
        if let Some(malformed) = damaged {
            return self.fatal(format!("shard {shard}: block {block} cannot be used: {malformed}"));
        }
        self.look_at_blocked(shard);
    }

    /// Serves a request when what it waits for has come.
    pub(crate) fn block_request(
        &mut self,
        caller: Caller,
        shard: ShardId,
        request: ShardRequest,
        loaded: Loaded,
        wait: Wait,
    ) {
        self.counters.requests_blocked += 1;
        let number = self.next_number();
        let (reads, thaws) = (wait.reads.clone(), wait.thaws.clone());
        let wanted = wanted(&request);
        self.cold.blocked.insert(number, Blocked { caller, shard, request, wanted, loaded, wait });
        thaws.into_iter().for_each(|block| self.thaw(shard, block));
        for block in reads {
            let key = (shard, block);
            if let Some(records) = self.storage.drafts.records(key).cloned() {
                self.records_read(key, &records);
            } else if !self.cold.reads.values().any(|read| *read == (key, ReadFor::Records)) {
                let token = self.next_number();
                if !self.storage.read_block(shard, block, BlockPart::Records, token) {
                    return self.block_missing(key);
                }
                self.cold.reads.insert(token, (key, ReadFor::Records));
            }
        }
        self.put_out_operations();
    }

    /// A shard has no replica here any more: what waits for its blocks goes elsewhere.
    pub(crate) fn lead_lost(&mut self, shard: ShardId) {
        self.cold.thaws.retain(|(of, _), _| *of != shard);
        self.cold.ahead.retain(|(of, _)| *of != shard);
        self.look_at_blocked(shard);
    }

    /// Serves the requests that need not wait any more.
    fn look_at_blocked(&mut self, shard: ShardId) {
        let serves = self.replicas.get(&shard).is_some_and(crate::replica::Replica::serves);
        let spilling = self.replicas.get(&shard).is_some_and(|replica| replica.spilling);
        let thaws = &self.cold.thaws;
        let ready = |blocked: &Blocked| {
            let Wait { reads, thaws: wanted, spill } = &blocked.wait;
            let come = reads.is_empty()
                && !wanted.iter().any(|block| thaws.contains_key(&(shard, *block)))
                && !(*spill && spilling);
            // Where another replica leads, that one is asked.
            blocked.shard == shard && (come || !serves)
        };
        let ready: Vec<u64> = self
            .cold
            .blocked
            .iter()
            .filter(|(_, blocked)| ready(blocked))
            .map(|(number, _)| *number)
            .collect();
        for number in ready {
            let Some(Blocked { caller, shard, request, loaded, .. }) = self.cold.blocked.remove(&number)
            else {
                continue;
            };
            match request {
                // It has leave already, and what has been applied since is only newer.
                ShardRequest::Read(read) if serves => self.read(caller, shard, read, loaded),
                request => self.serve_request(caller, shard, request, loaded),
            }
        }
    }

    /// This replica began or ended to lead.
    pub(crate) fn lead_changed(&mut self, shard: ShardId) {
        let Some(replica) = self.replicas.get(&shard) else { return };
        if replica.serves() {
            // Lanes may stand with their heads in runs.
            let queues = replica.machine.queues();
            self.cold.ahead.extend(queues.map(|queue| (shard, queue)));
        }
        self.look_at_blocked(shard);
    }

    /// Entries were applied: runs are back, or over.
    pub(crate) fn look_at_thaws(&mut self, shard: ShardId) {
        let Some(replica) = self.replicas.get(&shard) else { return };
        let before = self.cold.thaws.len();
        let machine = &replica.machine;
        self.cold.thaws.retain(|(of, block), _| *of != shard || machine.queue_of_run(*block).is_some());
        if self.cold.thaws.len() < before {
            self.look_at_blocked(shard);
        }
    }

    /// What became of a spill or thaw.
    pub(crate) fn own_command_done(&mut self, shard: ShardId, own: Own, outcome: &CommandOutcome) {
        let spilled = match outcome {
            CommandOutcome::Answered(Answer::Spilled(spilled)) => Some(*spilled),
            _ => None,
        };
        let refused = matches!(outcome, CommandOutcome::Answered(Answer::Thawed(false)));
        match own {
            Own::Other => {}
            Own::Thaw(block) => {
                let is_cold =
                    |replica: &crate::replica::Replica| replica.machine.queue_of_run(block).is_some();
                if refused && self.replicas.get(&shard).is_some_and(is_cold) {
                    let detail = format!("shard {shard}: block {block} on disk is not what the log made");
                    return self.fatal(detail);
                }
                // Where it came to nothing it is tried again by whoever needs it.
                self.cold.thaws.remove(&(shard, block));
                self.look_at_blocked(shard);
            }
            Own::Spill { source, relief } => {
                if let Some(replica) = self.replicas.get_mut(&shard) {
                    replica.spilling = false;
                }
                self.spilled(shard, source, relief, spilled.unwrap_or_default());
                self.look_at_blocked(shard);
            }
        }
    }

    /// Takes messages out of memory where there are too many, or payloads out of the journal where it is too long.
    fn spill_if_needed(&mut self, hot: u64) {
        // What comes back for a request must not be taken out again before the request has it.
        if !self.cold.blocked.is_empty() || self.snapshots.holds_spills(self.now.monotonic_ns) {
            return;
        }
        // No timer wakes for this: what can leave memory changes only when something happens.
        if self.cold.look_at_ns > self.now.monotonic_ns {
            return;
        }
        let spilling = self.replicas.keys().filter(|shard| self.is_spilling(**shard)).count();
        for _ in spilling..SPILLS_MAX {
            if !self.spill_once(hot) {
                break;
            }
        }
    }

    /// Whether messages are leaving memory.
    pub(crate) fn messages_leave(&self) -> bool {
        self.cold.leaving.iter().any(|shard| self.is_spilling(*shard))
    }

    /// Whether requests wait for what is on disk.
    pub(crate) fn has_blocked(&self) -> bool {
        !self.cold.blocked.is_empty()
    }

    /// From the proposal of a spill until its block is durable.
    fn is_spilling(&self, shard: ShardId) -> bool {
        let proposed = |replica: &crate::replica::Replica| replica.spilling && replica.serves();
        self.replicas.get(&shard).is_some_and(proposed) || self.storage.drafts.has_any_of(shard)
    }

    /// Proposes the next spill; false where there is none to propose now.
    fn spill_once(&mut self, hot: u64) -> bool {
        let config = self.config.cold;
        let over = hot > config.hot_messages_max && !self.storage.lanes_full();
        // Every other spill, so that the journal does not grow for as long as messages keep coming.
        if over && core::mem::take(&mut self.cold.relief_is_next) && self.relieve_journal() {
            return true;
        }
        if over {
            self.cold.relief_is_next = true;
            // Where there are very many lanes, each keeps less.
            let keep_min = KEEP_MIN.min(config.keep_messages);
            let mut keep = self.cold.keep;
            loop {
                match self.spill_messages(keep) {
                    Some(spilled) => {
                        self.cold.keep = if spilled { keep } else { self.cold.keep };
                        return spilled;
                    }
                    None if keep > keep_min => keep = (keep / 4).max(keep_min),
                    None => {
                        self.cold.barren.clear();
                        self.cold.look_at_ns = self.now.monotonic_ns + LOOK_AGAIN_NS;
                        return false;
                    }
                }
            }
        }
        self.cold.barren.clear();
        if hot * 2 < config.hot_messages_max {
            self.cold.keep = config.keep_messages;
        }
        self.relieve_journal()
    }

    /// Proposes a spill of the longest lane, of which `keep` messages stay, or of delayed messages. False where only
    /// shards that spill already have any, none where nothing is long enough.
    fn spill_messages(&mut self, keep: u32) -> Option<bool> {
        let serving = self.replicas.iter().filter(|(_, replica)| replica.serves());
        let mut fullest: Vec<(usize, ShardId, u64)> = serving
            .map(|(shard, replica)| (replica.machine.hot_messages(), *shard, replica.machine.applied()))
            .collect();
        fullest.sort_by_key(|(hot, ..)| core::cmp::Reverse(*hot));
        let mut wait = false;
        for (_, shard, up_to_index) in fullest {
            if self.is_spilling(shard) {
                wait = true;
            } else if let Some((queue, what)) = self.longest(shard, keep) {
                self.propose_spill(shard, queue, what, up_to_index, false);
                return Some(true);
            }
        }
        wait.then_some(false)
    }

    /// The lane, of which `keep` messages stay, or the delayed messages of the shard of which the most can leave memory.
    fn longest(&self, shard: ShardId, keep: u32) -> Option<(QueueId, SpillWhat)> {
        let machine = &self.replicas.get(&shard)?.machine;
        let min = u64::from(self.config.cold.run_messages_min);
        let may = |source| !self.cold.barren.contains(&(shard, source));
        let lane = machine.longest_lane(u64::from(keep), |queue, level| may(Source::Lane(queue, level)));
        let lane = lane.filter(|(.., count)| *count >= min);
        let delayed = machine.most_delayed(|queue| may(Source::Delayed(queue)));
        let delayed = delayed.filter(|(_, count)| *count >= min);
        let of_lane = lane.map_or(0, |(.., count)| count);
        match (lane, delayed) {
            (_, Some((queue, count))) if count > of_lane => Some((queue, SpillWhat::Delayed)),
            (Some((queue, level, _)), _) => Some((queue, SpillWhat::Lane { level, keep })),
            _ => None,
        }
    }

    fn propose_spill(
        &mut self,
        shard: ShardId,
        queue: QueueId,
        what: SpillWhat,
        up_to_index: u64,
        relief: bool,
    ) {
        let config = self.config.cold;
        let walks = matches!(what, SpillWhat::Payloads { .. });
        // A run comes back in one entry: its records must fit one. Texts count as payload bytes do.
        let half = self.config.entry_bytes_max / 2;
        let messages_max = config.block_messages_max.min((half / RECORD_BYTES_MAX).max(1) as u32);
        let spill = Spill {
            what,
            up_to_index,
            horizon: self.time.plus_ms(config.lead_ms * 4),
            messages_min: config.run_messages_min,
            messages_max: if walks { WALK_MESSAGES } else { messages_max },
            bytes_max: config.block_bytes.min(half as u64),
        };
        let Some(replica) = self.replicas.get_mut(&shard) else { return };
        replica.spilling = true;
        if relief {
            self.cold.leaving.remove(&shard);
        } else {
            self.cold.leaving.insert(shard);
        }
        self.counters.spills += 1;
        let caller = CommandCaller::own(queue, Own::Spill { source: Source::of(queue, what), relief });
        replica.submit(Command::Spill { queue, spill }, caller);
    }

    /// What a spill came to.
    fn spilled(&mut self, shard: ShardId, source: Option<Source>, for_relief: bool, spilled: Spilled) {
        if spilled.payloads == 0 {
            self.cold.barren.extend(source.map(|source| (shard, source)));
        }
        if !for_relief && spilled.payloads == 0 {
            self.cold.leaving.remove(&shard);
            self.cold.look_at_ns = self.now.monotonic_ns + LOOK_AGAIN_NS;
        }
        let relief = self.cold.relief.as_mut().filter(|relief| for_relief && relief.shard == shard);
        let Some(relief) = relief else { return };
        if relief.lanes {
            relief.lanes = spilled.payloads > 0;
        } else if spilled.next.is_some() {
            relief.after = spilled.next;
        } else if relief.dead {
            relief.queues.pop_front();
            (relief.dead, relief.after) = (false, None);
        } else {
            (relief.dead, relief.after) = (true, None);
        }
    }

    /// Moves what keeps the journal's oldest segment needed. True where a spill was proposed for it.
    fn relieve_journal(&mut self) -> bool {
        if self.cold.relief.is_none() && !self.begin_relief() {
            return false;
        }
        let Some(relief) = &self.cold.relief else { return false };
        let (shard, up_to_index) = (relief.shard, relief.up_to_index);
        let full = self.storage.is_full();
        // A draft that finds no room would hold back the checkpoints that make some.
        if full && (up_to_index == 0 || !self.storage.make_lanes_room()) {
            return false;
        }
        if !self.replicas.get(&shard).is_some_and(crate::replica::Replica::serves) {
            self.cold.relief = None;
            return false;
        }
        if self.is_spilling(shard) {
            return false;
        }
        if relief.lanes {
            // A run takes more room than what of it stands in the segment.
            if let Some((queue, what)) = self.longest(shard, self.cold.keep).filter(|_| !full) {
                self.propose_spill(shard, queue, what, up_to_index, true);
                return true;
            }
            if let Some(relief) = &mut self.cold.relief {
                relief.lanes = false;
            }
        }
        let Some(relief) = &self.cold.relief else { return false };
        if let Some(queue) = relief.queues.front().copied() {
            let what = SpillWhat::Payloads { dead: relief.dead, after: relief.after };
            self.propose_spill(shard, queue, what, up_to_index, true);
            return true;
        }
        self.cold.relief = None;
        if full {
            // Recovery may begin with the checkpoint before the newest: only the second one lets go of the segment.
            self.storage.want_checkpoints(shard, 2);
        }
        self.cold.relieved = true;
        let left = self.replicas.get(&shard).and_then(|replica| replica.machine.oldest_live_index());
        if up_to_index > 0 && left.is_none_or(|oldest| oldest > up_to_index) {
            // Other shards may need the segment too: they are next.
            self.cold.relief_looked_at_bytes = None;
        }
        false
    }

    fn begin_relief(&mut self) -> bool {
        let usage = self.storage.usage();
        let config = self.config.cold;
        let full = self.storage.is_full();
        let live = usage.segments_live as u64 * self.config.segment_bytes;
        let sparse_bytes_max = config.unneeded_bytes_max();
        // On a full disk the room that acks and leases go on with comes from segments only.
        let pause = if full {
            self.config.segment_bytes / RELIEF_PARTS
        } else {
            config.journal_bytes_max / RELIEF_PARTS
        };
        if self.cold.relief_looked_at_bytes.is_some_and(|before| usage.bytes_written - before < pause) {
            return false;
        }
        self.cold.relief_looked_at_bytes = Some(usage.bytes_written);
        let pinned = self.storage.pinning().into_iter().find_map(|(shard, highest)| {
            let oldest = self.replicas.get(&shard)?.machine.oldest_live_index()?;
            (oldest <= highest).then_some((shard, highest))
        });
        let sparse = || {
            let shards = self.replicas.iter();
            let most = shards.map(|(shard, replica)| (replica.machine.unneeded_bytes(), *shard)).max()?;
            (most.0 > sparse_bytes_max).then_some((most.1, 0))
        };
        // A journal in which little lives is made shorter early: it takes room, and is read at a start.
        let payloads: u64 = self.replicas.values().map(|replica| replica.machine.log_payload_bytes()).sum();
        let hollow = live > config.journal_bytes_max / HOLLOW_PART && payloads < live / HOLLOW_PART;
        let wanted = match pinned.filter(|_| full || hollow || live > config.journal_bytes_max) {
            None if !full => sparse(),
            pinned => pinned,
        };
        let Some((shard, up_to_index)) = wanted else {
            if core::mem::take(&mut self.cold.relieved) {
                // Nothing stands in the way any more: two rounds of checkpoints let go of the segment.
                self.storage.checkpoints.owe(usage.bytes_written);
            }
            return false;
        };
        let Some(replica) = self.replicas.get(&shard) else { return false };
        self.cold.relief = Some(Relief {
            shard,
            up_to_index: up_to_index.min(replica.machine.applied()),
            lanes: up_to_index > 0,
            queues: replica.machine.queues().collect(),
            dead: false,
            after: None,
        });
        true
    }
}
