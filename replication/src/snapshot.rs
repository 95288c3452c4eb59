//! What a leader and a follower say to each other where the leader's log does not reach back to what the follower lacks.
//!
//! The library's snapshot message carries no state here: it is an offer. A follower that can go on from the leader's log
//! after all answers at once; one that cannot puts the offer out ([`crate::GroupOutput::offer`]). The state then travels
//! past this crate, in its own time, while this replica goes on with the votes of the log it has. When the state is
//! durable the group begins anew from it, as after a restart, and [`Group::follow`] tells the leader.
//!
//! A leader sends nothing else to a follower that it has offered a snapshot, until the follower acknowledges a place that
//! the leader's log reaches back to, or the link breaks, or it has not asked for any part for a while.

use crate::error::GroupError;
use crate::group::Group;
use crate::message::{PeerMessage, PeerMessageKind};
use crate::types::{HardState, SnapshotOffer};
use overtake_base::NodeId;
use raft::{ProgressState, SnapshotStatus, StateRole, Storage};
use std::collections::BTreeMap;

/// Ticks after which a follower that asks for no part of its snapshot is offered another one.
const PATIENCE_TICKS: u32 = 100;

/// See the module's text.
#[derive(Default)]
pub(crate) struct Snapshots {
    /// Not put out yet.
    pub(crate) offer: Option<SnapshotOffer>,
    /// A leader: ticks since each follower that was offered a snapshot asked for a part.
    silent_ticks: BTreeMap<u64, u32>,
}

impl Group {
    /// Index of the oldest entry that can be read, from memory or the journal.
    #[must_use]
    pub fn first_in_log(&self) -> u64 {
        self.raft.store().first_index().unwrap_or(1)
    }

    /// Term, vote and commit as they are now; durable where nothing that was put out is under way.
    #[must_use]
    pub fn hard_state(&self) -> HardState {
        let raft = &self.raft.raft;
        HardState { term: raft.term, vote: raft.vote, commit: raft.raft_log.committed }
    }

    /// A leader offers a snapshot that holds everything up to `index`; its log reaches back to `first`.
    pub(crate) fn offered(
        &mut self,
        from: NodeId,
        term: u64,
        index: u64,
        first: u64,
    ) -> Result<(), GroupError> {
        // It says no less than a heartbeat does.
        let kind = PeerMessageKind::Heartbeat { commit: 0, read: 0 };
        self.step_into(from, PeerMessage { term, kind })?;
        let follows =
            self.raft.raft.state == StateRole::Follower && (self.term(), self.leader()) == (term, Some(from));
        if !follows {
            return Ok(());
        }
        if self.hollow || index > self.commit() && first > self.commit() + 1 {
            self.snapshots.offer = Some(SnapshotOffer { from, term, index });
            return Ok(());
        }
        self.acknowledge(from, term)
    }

    /// Tells a leader of this term up to where this replica holds its log for certain: a group that began anew from a
    /// snapshot says so.
    pub fn follow(&mut self, leader: NodeId, term: u64) {
        if term == self.term() {
            // A message that cannot be stepped is one that is not needed: the leader asks itself.
            let _ = self.acknowledge(leader, term);
        }
    }

    /// A replica without a state is sent log, of which it can make nothing.
    pub(crate) fn ask_for_snapshot(&mut self, leader: NodeId, term: u64) -> Result<(), GroupError> {
        // It learns who leads first: the library forgets what it asked for with each new term.
        let kind = PeerMessageKind::Heartbeat { commit: 0, read: 0 };
        self.step_into(leader, PeerMessage { term, kind })?;
        self.raft.raft.pending_request_snapshot = 1;
        self.acknowledge(leader, term)
    }

    /// Whether it has a state at all.
    #[must_use]
    pub fn is_hollow(&self) -> bool {
        self.hollow
    }

    /// An append from the very beginning is answered with what is committed.
    fn acknowledge(&mut self, leader: NodeId, term: u64) -> Result<(), GroupError> {
        let kind = PeerMessageKind::Append { index: 0, log_term: 0, commit: 0, entries: Vec::new() };
        self.step_into(leader, PeerMessage { term, kind })
    }

    /// A leader: a follower that was offered a snapshot can go on from the log.
    pub(crate) fn end_snapshot_of(&mut self, from: NodeId, message: &PeerMessage) {
        if let PeerMessageKind::AppendResponse { index, reject: false, .. } = message.kind
            && self.is_leader()
            && message.term == self.term()
            && index + 1 >= self.first_in_log()
        {
            self.snapshot_failed(from);
        }
    }

    /// A follower asked for a part of a snapshot.
    pub fn snapshot_asked(&mut self, peer: NodeId) {
        if let Some(ticks) = self.snapshots.silent_ticks.get_mut(&peer.0) {
            *ticks = 0;
        }
    }

    /// A follower does not get the snapshot that it was offered: it is tried anew with the log, and offered another one
    /// where that does not do.
    pub fn snapshot_failed(&mut self, peer: NodeId) {
        self.snapshots.silent_ticks.remove(&peer.0);
        let progress = self.raft.raft.prs().get(peer.0);
        if progress.is_some_and(|progress| progress.state == ProgressState::Snapshot) {
            self.raft.report_snapshot(peer.0, SnapshotStatus::Failure);
        }
    }

    /// Lets time pass for followers that were offered snapshots.
    pub(crate) fn tick_snapshots(&mut self) {
        let waiting: Vec<u64> = if self.is_leader() {
            let all = self.raft.raft.prs().iter();
            all.filter(|(_, progress)| progress.state == ProgressState::Snapshot).map(|(id, _)| *id).collect()
        } else {
            Vec::new()
        };
        let silent = &mut self.snapshots.silent_ticks;
        silent.retain(|peer, _| waiting.contains(peer));
        let mut late = Vec::new();
        for peer in waiting {
            let ticks = silent.entry(peer).or_default();
            *ticks += 1;
            if *ticks > PATIENCE_TICKS {
                late.push(NodeId(peer));
            }
        }
        late.into_iter().for_each(|peer| self.snapshot_failed(peer));
    }
}
