//! One replica of one group, turn by turn.
//!
//! Between two calls of [`Group::output`] inputs are taken in any number and order: ticks, peers' messages, proposals,
//! and reports of what became durable or was applied. An output may hold entries before those of an earlier one are
//! durable: several are on their way to the disk at once, and [`Group::persisted`] says up to which they arrived.
//!
//! What makes that safe: entries count as this node's own acknowledgement only once they are durable, and a message
//! that promises durability leaves only when everything put out before it is durable too.

use crate::error::GroupError;
use crate::guard::{self, Replica, Verdict};
use crate::membership::Membership;
use crate::message::{self, PeerMessage, PeerMessageKind};
use crate::recovery;
use crate::snapshot::Snapshots;
use crate::tail::{LogTail, from_raft};
use crate::types::{GroupConfig, GroupOutput, HardState, LogEntry, RecoveredGroup};
use bytes::Bytes;
use core::cell::Cell;
use overtake_base::planted::{Bug, is_planted};
use overtake_base::random::Random;
use overtake_base::{NodeId, ShardId};
use raft::eraftpb::{self, Entry, Message, MessageType};
use raft::{Config, RawNode, StateRole};
use std::collections::VecDeque;

/// A follower that hears nothing stands for election after this many ticks, or up to twice as many by its seed.
pub const ELECTION_TICKS: u16 = 10;
/// A leader says so every so many ticks.
pub const HEARTBEAT_TICKS: u16 = 2;
/// Longest entry, in bytes: one entry and its message's head fit a frame.
pub const ENTRY_BYTES_MAX: usize = 7 * 1024 * 1024;
/// A leader refuses proposals beyond this many bytes that are not committed yet. One proposal always passes.
pub const UNCOMMITTED_BYTES_MAX: u64 = 32 * 1024 * 1024;
/// Bytes of applied entries that are kept in memory for peers that are a little behind.
pub const MEMORY_BYTES: usize = 64 * 1024;
/// Bytes of applied entries that are kept in memory, whoever lacks them.
pub const MEMORY_BYTES_MAX: usize = 4 * 1024 * 1024;
/// Append messages under way to one follower, at most.
const APPENDS_UNDER_WAY_MAX: usize = 256;

/// One replica of one group.
pub struct Group {
    shard: ShardId,
    pub(crate) node: NodeId,
    pub(crate) raft: RawNode<LogTail>,
    timeouts: Random,
    /// Term and role that `timeout_ticks` was drawn for.
    timeout_for: (u64, StateRole),
    timeout_ticks: usize,
    /// The hard state that was put out last, or recovered.
    written: HardState,
    /// Newest output that had something to persist.
    newest_persist: u64,
    /// Newest output that had entries to persist.
    newest_entries: u64,
    /// All outputs up to this one are durable.
    persisted: u64,
    /// Messages that wait for earlier outputs though nothing was to be written with them: the output each waits for.
    held: VecDeque<(u64, NodeId, Bytes)>,
    /// Newest entry that was put out as committed.
    delivered: u64,
    pub(crate) snapshots: Snapshots,
    /// It votes for nobody.
    silent: bool,
    /// The newest term in which it led and had applied an entry of that term.
    caught_up_term: Cell<u64>,
    /// Who is in the group, as applied.
    pub(crate) membership: Membership,
    /// It has no state, and is to be given one: until then it takes no log, and votes for nobody.
    pub(crate) hollow: bool,
}

impl Group {
    /// A follower that goes on where `recovered` ended.
    ///
    /// # Errors
    /// [`GroupError::Config`] and [`GroupError::Corrupt`]; the replica must then not take part.
    pub fn new(config: GroupConfig, recovered: RecoveredGroup) -> Result<Self, GroupError> {
        let start = recovery::validate(&config, &recovered)?;
        let hard_state = eraftpb::HardState {
            term: start.hard_state.term,
            vote: if is_planted(Bug::ForgetVote) { 0 } else { start.hard_state.vote },
            commit: start.hard_state.commit,
            ..eraftpb::HardState::default()
        };
        let (checkpoint, older) = (recovered.checkpoint, &recovered.older);
        let tail =
            LogTail::new(start.membership.to_raft(), hard_state, checkpoint, older, recovered.entries.into());
        let raft_config = Config {
            id: config.node.0,
            election_tick: usize::from(ELECTION_TICKS),
            heartbeat_tick: usize::from(HEARTBEAT_TICKS),
            applied: recovered.checkpoint.0,
            max_size_per_msg: message::APPEND_BYTES_MAX as u64,
            max_inflight_msgs: APPENDS_UNDER_WAY_MAX,
            check_quorum: true,
            pre_vote: true,
            // The library's batching of appends puts entries into a message that starts at another index.
            batch_append: false,
            max_uncommitted_size: UNCOMMITTED_BYTES_MAX,
            ..Config::default()
        };
        let logger = slog::Logger::root(slog::Discard, slog::o!());
        let raft = RawNode::new(&raft_config, tail, &logger)
            .map_err(|_| GroupError::Config("the consensus library refused the configuration"))?;
        let concern = format!("election {} {}", config.shard, config.node);
        let mut group = Self {
            shard: config.shard,
            node: config.node,
            timeouts: Random::new(config.seed, &concern),
            timeout_for: (raft.raft.term, raft.raft.state),
            timeout_ticks: 0,
            written: start.hard_state,
            newest_persist: 0,
            newest_entries: 0,
            persisted: 0,
            held: VecDeque::new(),
            delivered: recovered.checkpoint.0,
            snapshots: Snapshots::default(),
            silent: false,
            caught_up_term: Cell::new(0),
            hollow: start.membership.voters.is_empty(),
            membership: start.membership,
            raft,
        };
        group.draw_timeout();
        group.keep_timeout();
        Ok(group)
    }

    /// Stands for election now. A single voter leads at once; its log takes proposals, and commits them as they
    /// become durable.
    pub fn campaign(&mut self) {
        // Refused only where this node is no voter, which `new` excludes.
        let _ = self.raft.campaign();
        self.keep_timeout();
    }

    /// A tick of time passed.
    pub fn tick(&mut self) {
        if self.silent || self.hollow {
            return;
        }
        self.tick_snapshots();
        self.raft.tick();
        self.keep_timeout();
    }

    /// Takes a message of the peer `from`, which the transport has authenticated.
    ///
    /// # Errors
    /// [`GroupError::Malformed`] and [`GroupError::Refused`]: nothing was done.
    pub fn step(&mut self, from: NodeId, message: &[u8]) -> Result<(), GroupError> {
        let (address, message) = message::decode(message)?;
        if address.shard != self.shard {
            return Err(GroupError::Refused("a message of another group"));
        }
        if address.to != self.node || from == self.node {
            return Err(GroupError::Refused("a message to another node"));
        }
        let raft = &self.raft.raft;
        // Who leads may have come to the group by a change that this replica has not applied yet.
        let progress = raft.prs().get(from.0);
        if progress.is_none() && self.is_alone() {
            return Err(GroupError::Refused("a message of another node to one that is alone"));
        }
        if progress.is_none() && message.kind.is_answer() {
            return Ok(());
        }
        let replica = Replica {
            term: raft.term,
            leads: raft.state == StateRole::Leader,
            stands: matches!(raft.state, StateRole::Candidate | StateRole::PreCandidate),
            last_index: raft.raft_log.last_index(),
            entries_under_way: self.newest_entries > self.persisted
                || !raft.raft_log.unstable_entries().is_empty(),
            matched: progress.map_or(0, |progress| progress.matched),
        };
        let probe = |hint, hint_term| match hint_term {
            0 => hint,
            _ => raft.raft_log.find_conflict_by_term(hint, hint_term).0,
        };
        if self.hollow
            && message.term >= self.term()
            && matches!(
                message.kind,
                PeerMessageKind::Append { .. } | PeerMessageKind::Heartbeat { commit: 1.., .. }
            )
        {
            // Of log it can make nothing; and a leader that says that some is committed here takes it for the replica that was
            // here before.
            return self.ask_for_snapshot(from, message.term);
        }
        if guard::check(replica, &message, probe)? == Verdict::Drop {
            return Ok(());
        }
        if let PeerMessageKind::AppendResponse { reject: true, snapshot: 1.., .. } = message.kind
            && message.term == self.term()
        {
            // It has no state, whatever was acknowledged by one that was there before it.
            self.log_ends_at(from, 0);
        }
        if is_planted(Bug::VoteTwice)
            && matches!(message.kind, PeerMessageKind::RequestVote { pre: false, .. })
        {
            self.raft.raft.vote = raft::INVALID_ID;
        }
        let asks_for_votes =
            matches!(message.kind, PeerMessageKind::RequestVote { .. } | PeerMessageKind::TimeoutNow);
        if (self.silent || self.hollow) && asks_for_votes {
            return Ok(());
        }
        if let PeerMessageKind::Snapshot { index, first } = message.kind {
            return self.offered(from, message.term, index, first);
        }
        self.end_snapshot_of(from, &message);
        self.step_into(from, message)
    }

    pub(crate) fn step_into(&mut self, from: NodeId, message: PeerMessage) -> Result<(), GroupError> {
        let result = self.raft.step(message::to_raft(from, self.node, message));
        self.keep_timeout();
        result.map_err(|_| GroupError::Refused("a message that cannot be stepped"))
    }

    /// A replica that may have forgotten what it promised votes for nobody and stands for no election while it is silent.
    /// It follows, and acknowledges what it holds.
    pub fn set_silent(&mut self, silent: bool) {
        self.silent = silent;
    }

    /// Whether it votes for nobody.
    #[must_use]
    pub fn is_silent(&self) -> bool {
        self.silent
    }

    /// A replica says that its log ends at `last`. Where more had been acknowledged, that is lost: its disk was damaged, or it
    /// is not the replica that was there before. A leader begins with it from the beginning.
    pub fn log_ends_at(&mut self, peer: NodeId, last: u64) {
        if !self.is_leader() || peer == self.node {
            return;
        }
        if let Some(progress) = self.raft.raft.mut_prs().get_mut(peer.0)
            && progress.matched > last
        {
            progress.matched = 0;
            progress.next_idx = 1;
            progress.pending_snapshot = 0;
            progress.become_probe();
        }
    }

    /// Whether this node is the only voter: it needs no ticks and no one's leave.
    #[must_use]
    pub fn is_alone(&self) -> bool {
        self.raft.raft.prs().is_singleton()
    }

    /// What is under way to this peer may be lost.
    pub fn unreachable(&mut self, peer: NodeId) {
        if self.raft.raft.prs().get(peer.0).is_some() {
            self.raft.report_unreachable(peer.0);
            self.snapshot_failed(peer);
            self.keep_timeout();
        }
    }

    /// Asks for leave to answer a read: a quorum must say that it still follows this leader. [`GroupOutput::reads`]
    /// names it then; never, where this replica stops leading first. Numbers count up from 1.
    pub fn read(&mut self, number: u64) {
        self.raft.read_index(message::read_context(number));
    }

    /// Lets another voter lead, once it has the whole log. Gives up by itself after an election time-out.
    pub fn transfer(&mut self, to: NodeId) {
        if self.is_leader() && self.raft.raft.prs().get(to.0).is_some() {
            self.raft.transfer_leader(to.0);
            self.keep_timeout();
        }
    }

    /// Whether a leader knows a peer to answer, and to lack hardly anything: it could lead in a moment.
    #[must_use]
    pub fn could_lead(&self, peer: NodeId) -> bool {
        const ENTRIES_BEHIND_MAX: u64 = 16;
        let progress = self.raft.raft.prs().get(peer.0);
        progress.is_some_and(|progress| {
            progress.recent_active && progress.matched + ENTRIES_BEHIND_MAX >= self.last_index()
        })
    }

    /// Whether this replica leads (as far as it knows).
    #[must_use]
    pub fn is_leader(&self) -> bool {
        self.raft.raft.state == StateRole::Leader
    }

    /// The leader, as far as this replica knows.
    #[must_use]
    pub fn leader(&self) -> Option<NodeId> {
        match self.raft.raft.leader_id {
            raft::INVALID_ID => None,
            leader => Some(NodeId(leader)),
        }
    }

    /// The newest term this replica has seen.
    #[must_use]
    pub fn term(&self) -> u64 {
        self.raft.raft.term
    }

    /// Up to where the log is known to be committed. Entries are applied only as they are put out.
    #[must_use]
    pub fn commit(&self) -> u64 {
        self.raft.raft.raft_log.committed
    }

    /// Up to where the state machine said that it has applied entries.
    #[must_use]
    pub fn last_applied(&self) -> u64 {
        self.raft.raft.raft_log.applied()
    }

    /// Index of the newest entry, durable or not.
    #[must_use]
    pub fn last_index(&self) -> u64 {
        self.raft.raft.raft_log.last_index()
    }

    /// Its term; 0 where there is none.
    #[must_use]
    pub fn last_term(&self) -> u64 {
        self.raft.raft.raft_log.last_term()
    }

    /// Appends `data` to the log and says where: term and index. The entry may still be lost, unless it is put out as
    /// committed; an entry of another term that is put out at this index means that it was.
    ///
    /// # Errors
    /// [`GroupError::NotLeader`], [`GroupError::Busy`], [`GroupError::TooLarge`]: nothing was appended.
    pub fn propose(&mut self, data: Bytes) -> Result<(u64, u64), GroupError> {
        if !self.is_leader() {
            return Err(GroupError::NotLeader);
        }
        if data.len() > ENTRY_BYTES_MAX {
            return Err(GroupError::TooLarge);
        }
        let mut proposal = Message { from: self.node.0, ..Message::default() };
        proposal.set_msg_type(MessageType::MsgPropose);
        proposal.set_entries(vec![Entry { data, ..Entry::default() }].into());
        match self.raft.raft.step(proposal) {
            Ok(()) => Ok((self.term(), self.last_index())),
            Err(_) => Err(GroupError::Busy),
        }
    }

    /// Whether [`Group::output`] would say anything.
    #[must_use]
    pub fn has_output(&self) -> bool {
        self.raft.has_ready()
            || self.held.front().is_some_and(|(number, ..)| *number <= self.persisted)
            || self.raft.store().wants_older()
            || self.snapshots.offer.is_some()
    }

    /// Replaces `out` by what this group wants done. Called once a turn, after all inputs.
    ///
    /// [`GroupOutput::persist`] is set where entries, a term or a vote are to be written; `hard_state` comes only with
    /// it (how far the log is committed needs not be durable by itself), and `messages_after_sync` too.
    pub fn output(&mut self, out: &mut GroupOutput) {
        out.persist = None;
        out.hard_state = None;
        out.entries.clear();
        out.messages.clear();
        out.messages_after_sync.clear();
        out.committed.clear();
        out.reads.clear();
        out.wanted.clear();
        out.offer = self.snapshots.offer.take();
        self.release_held(&mut out.messages);
        if self.raft.has_ready() {
            self.take_ready(out);
        }
        self.raft.mut_store().older().take_news(&mut out.wanted);
    }

    fn release_held(&mut self, messages: &mut Vec<(NodeId, Bytes)>) {
        while self.held.front().is_some_and(|(number, ..)| *number <= self.persisted) {
            if let Some((_, to, bytes)) = self.held.pop_front() {
                messages.push((to, bytes));
            }
        }
    }

    fn take_ready(&mut self, out: &mut GroupOutput) {
        let mut ready = self.raft.ready();
        let number = ready.number();
        out.entries.extend(ready.take_entries().into_iter().map(from_raft));
        for entry in &out.entries {
            self.raft.mut_store().append(entry.clone());
        }
        let first = self.first_in_log();
        let encode = |message| message::encode(self.shard, first, message);
        out.messages.extend(ready.take_messages().into_iter().filter_map(encode));
        out.messages_after_sync.extend(ready.take_persisted_messages().into_iter().filter_map(encode));
        if is_planted(Bug::FollowerAcknowledgesEarly) {
            out.messages.append(&mut out.messages_after_sync);
        }
        out.committed.extend(ready.take_committed_entries().into_iter().map(from_raft));
        out.reads.extend(ready.take_read_states().into_iter().filter_map(|read| {
            let number = u64::from_le_bytes(read.request_ctx.try_into().ok()?);
            Some((number, read.index))
        }));
        self.delivered = out.committed.last().map_or(self.delivered, |entry| entry.index);
        if ready.must_sync() {
            out.persist = Some(number);
            self.newest_persist = number;
            if !out.entries.is_empty() {
                self.newest_entries = number;
            }
            out.hard_state = self.changed_hard_state();
        } else if self.persisted >= self.newest_persist {
            self.persisted = number; // Nothing to write, nothing under way.
            out.messages.append(&mut out.messages_after_sync);
        } else {
            let wait_for = self.newest_persist;
            self.held.extend(out.messages_after_sync.drain(..).map(|(to, bytes)| (wait_for, to, bytes)));
        }
        let persisted = self.persisted;
        self.raft.advance_append_async(ready);
        if persisted == number {
            self.raft.on_persist_ready(number);
        }
    }

    fn changed_hard_state(&mut self) -> Option<HardState> {
        let raft = &self.raft.raft;
        let now = HardState { term: raft.term, vote: raft.vote, commit: raft.raft_log.committed };
        (now != self.written).then(|| {
            self.written = now;
            now
        })
    }

    /// All outputs up to the one that [`GroupOutput::persist`] named `number` are durable. What that makes possible
    /// (commits of a leader, messages that waited) is in the next output.
    pub fn persisted(&mut self, number: u64) {
        assert!(
            number <= self.newest_persist,
            "an output that was never put out cannot be durable; a commit on top of it would lose entries"
        );
        if number > self.persisted {
            self.persisted = number;
            self.raft.on_persist_ready(number);
            if is_planted(Bug::QuorumTooSmall) && self.is_leader() {
                self.invent_an_acknowledgement();
            }
        }
    }

    /// What a majority that is too small by one comes to: a peer that never answered is counted.
    fn invent_an_acknowledgement(&mut self) {
        let (own, term, index) = (self.node.0, self.term(), self.raft.raft.raft_log.persisted);
        let Some(peer) = self.raft.raft.prs().iter().map(|(id, _)| *id).filter(|id| *id != own).min() else {
            return;
        };
        let mut answer = Message { from: peer, to: own, term, index, ..Message::default() };
        answer.set_msg_type(MessageType::MsgAppendResponse);
        let _ = self.raft.step(answer);
    }

    /// The state machine has applied all entries up to `index`.
    pub fn applied(&mut self, index: u64) {
        assert!(index <= self.delivered, "only what was put out as committed can have been applied");
        if index > self.raft.raft.raft_log.applied() {
            self.raft.advance_apply_to(index);
        }
        self.raft.mut_store().applied(index);
    }

    /// A leader: up to where it knows every voter to hold the log durably (0 until all have answered it). Others: 0.
    #[must_use]
    pub fn replicated(&self) -> u64 {
        if !self.is_leader() {
            return 0;
        }
        self.raft.raft.prs().iter().map(|(_, progress)| progress.matched).min().unwrap_or(0)
    }

    /// Leaves entries up to `index` to the journal. Entries that were not applied are kept in memory, whatever is asked.
    pub fn compact(&mut self, index: u64) {
        let applied = self.raft.raft.raft_log.applied();
        self.raft.mut_store().compact(index.min(applied));
    }

    /// Leaves to the journal what no peer is likely to need soon: what was applied, but for the newest
    /// [`MEMORY_BYTES`], and for what some voter lacks, up to [`MEMORY_BYTES_MAX`].
    pub fn trim(&mut self) {
        let applied = self.raft.raft.raft_log.applied();
        if self.is_alone() {
            return self.raft.mut_store().compact(applied);
        }
        let needed = if self.is_leader() { self.replicated() } else { applied };
        let tail = self.raft.mut_store();
        while tail.first() <= applied
            && (tail.bytes() > MEMORY_BYTES_MAX || tail.bytes() > MEMORY_BYTES && tail.first() <= needed)
        {
            tail.compact(tail.first());
        }
    }

    /// The journal holds no entries before `index` any more: a peer that lacks one needs a snapshot.
    pub fn released(&mut self, index: u64) {
        self.compact(index.saturating_sub(1));
        self.raft.mut_store().forget(index.saturating_sub(1));
    }

    /// Entries from `low` on, as [`GroupOutput::wanted`] asked, as many as the caller thinks fit; none where the journal
    /// does not hold them any more.
    pub fn older_read(&mut self, low: u64, entries: Vec<LogEntry>) {
        for context in self.raft.mut_store().older().take_read(low, entries) {
            self.raft.on_entries_fetched(context);
        }
        self.keep_timeout();
    }

    /// An entry that is still in memory and was put out already.
    #[must_use]
    pub fn entry(&self, index: u64) -> Option<&LogEntry> {
        self.raft.store().entry(index)
    }

    /// Index of the oldest entry in memory; one more than the newest where there is none.
    #[must_use]
    pub fn first_in_memory(&self) -> u64 {
        self.raft.store().first()
    }

    /// Whether this replica leads and has applied an entry of its own term: it has then applied everything that was
    /// ever answered. (Whether it still leads, a quorum can tell; with check-quorum a leader that lost it steps down
    /// within [`ELECTION_TICKS`].)
    #[must_use]
    pub fn is_caught_up_as_leader(&self) -> bool {
        if !self.is_leader() {
            return false;
        }
        // What is applied is never taken back: once is enough for a term.
        if self.caught_up_term.get() != self.term() && self.raft.raft.apply_to_current_term() {
            self.caught_up_term.set(self.term());
        }
        self.caught_up_term.get() == self.term()
    }

    /// The library draws election time-outs from the thread's randomness whenever its term or role changes: each is
    /// overwritten at once by one of our own stream, so that a run repeats.
    pub(crate) fn keep_timeout(&mut self) {
        let now = (self.raft.raft.term, self.raft.raft.state);
        if now != self.timeout_for {
            self.timeout_for = now;
            self.draw_timeout();
        }
        self.raft.raft.set_randomized_election_timeout(self.timeout_ticks);
    }

    fn draw_timeout(&mut self) {
        let base = u64::from(ELECTION_TICKS);
        self.timeout_ticks = (base + self.timeouts.below(base)) as usize;
    }
}
