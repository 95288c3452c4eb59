//! A group of one voter: what it puts out when, with several outputs on their way to the disk, and across restarts.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use bytes::Bytes;
use overtake_base::{NodeId, ShardId};
use overtake_replication::{
    ENTRY_BYTES_MAX, EntryKind, Group, GroupConfig, GroupError, GroupOutput, HardState, LogEntry,
    RecoveredGroup,
};
use proptest::prelude::*;

fn start(recovered: RecoveredGroup) -> Group {
    let config = GroupConfig { shard: ShardId(3), node: NodeId(1), voters: vec![NodeId(1)], seed: 7 };
    Group::new(config, recovered).unwrap()
}

fn output(group: &mut Group) -> GroupOutput {
    let mut out = GroupOutput::default();
    group.output(&mut out);
    out
}

fn indexes(entries: &[LogEntry]) -> Vec<u64> {
    entries.iter().map(|e| e.index).collect()
}

/// A leader whose first entry is committed and applied.
fn leader() -> Group {
    let mut group = start(RecoveredGroup::default());
    group.campaign();
    let out = output(&mut group);
    group.persisted(out.persist.unwrap());
    let out = output(&mut group);
    assert_eq!(indexes(&out.committed), [1]);
    group.applied(1);
    group
}

#[test]
fn it_leads_at_once_and_reads_once_its_first_entry_is_applied() {
    let mut group = start(RecoveredGroup::default());
    assert!(!group.is_leader());
    assert_eq!(group.propose(Bytes::new()), Err(GroupError::NotLeader));
    group.campaign();
    assert!(group.is_leader());
    assert_eq!((group.leader(), group.term()), (Some(NodeId(1)), 1));
    let out = output(&mut group);
    assert_eq!(out.hard_state, Some(HardState { term: 1, vote: 1, commit: 0 }));
    assert_eq!(indexes(&out.entries), [1]);
    assert!(!group.is_caught_up_as_leader());
    group.persisted(out.persist.unwrap());
    assert_eq!(indexes(&output(&mut group).committed), [1]);
    assert!(!group.is_caught_up_as_leader(), "committed is not applied");
    group.applied(1);
    assert!(group.is_caught_up_as_leader());
    assert!(!group.has_output());
}

#[test]
fn nothing_commits_before_it_is_durable() {
    let mut group = leader();
    let mut persist = Vec::new();
    for index in 2..=4 {
        assert_eq!(group.propose(Bytes::from(vec![index as u8])), Ok((1, index)));
        let out = output(&mut group);
        assert_eq!(indexes(&out.entries), [index]);
        assert!(out.committed.is_empty(), "nothing of these is durable");
        persist.push(out.persist.unwrap());
    }
    assert_eq!(group.commit(), 1);
    assert!(!group.has_output());
    group.persisted(persist[0]);
    assert_eq!(indexes(&output(&mut group).committed), [2]);
    group.persisted(persist[2]);
    let out = output(&mut group);
    assert_eq!(indexes(&out.committed), [3, 4]);
    assert_eq!(out.committed[1].data, Bytes::from(vec![4]));
    assert_eq!((out.persist, out.hard_state), (None, None), "a commit is not worth a write");
}

#[test]
fn an_idle_leader_has_nothing_to_say() {
    let mut group = leader();
    for _ in 0..1_000 {
        group.tick();
        assert!(!group.has_output());
    }
    assert!(group.is_leader());
}

#[test]
fn too_much_at_once_is_refused_and_passes_later() {
    let mut group = leader();
    assert_eq!(group.propose(Bytes::from(vec![0; ENTRY_BYTES_MAX + 1])), Err(GroupError::TooLarge));
    let data = Bytes::from(vec![0; ENTRY_BYTES_MAX]);
    let taken = (0..100).take_while(|_| group.propose(data.clone()).is_ok()).count();
    assert_eq!(taken, 4, "32 MiB hold four entries of 7 MiB");
    assert_eq!(group.propose(data.clone()), Err(GroupError::Busy));
    let out = output(&mut group);
    assert_eq!(group.propose(data.clone()), Err(GroupError::Busy), "put out is not committed");
    group.persisted(out.persist.unwrap());
    assert_eq!(output(&mut group).committed.len(), 4);
    assert!(group.propose(data).is_ok());
}

#[test]
fn a_restart_goes_on_from_checkpoint_and_log() {
    let entry = |index: u64, term| LogEntry {
        term,
        index,
        kind: EntryKind::Normal,
        data: Bytes::from(index.to_string()),
    };
    let mut group = start(RecoveredGroup {
        hard_state: HardState { term: 4, vote: 1, commit: 6 },
        checkpoint: (5, 2),
        entries: vec![entry(6, 3), entry(7, 4)],
        ..RecoveredGroup::default()
    });
    assert_eq!((group.commit(), group.first_in_memory(), group.last_index()), (6, 6, 7));
    assert_eq!(indexes(&output(&mut group).committed), [6], "what is known to be committed is applied first");
    group.applied(6);
    group.campaign();
    assert_eq!(group.term(), 5);
    let out = output(&mut group);
    assert_eq!(indexes(&out.entries), [8]);
    assert!(out.committed.is_empty());
    group.persisted(out.persist.unwrap());
    let committed = output(&mut group).committed;
    assert_eq!(indexes(&committed), [7, 8]);
    assert_eq!(committed[0], entry(7, 4));
    group.applied(8);
    assert!(group.is_caught_up_as_leader());
}

#[test]
fn a_log_that_ends_before_its_commit_is_corrupt() {
    let config = GroupConfig { shard: ShardId(3), node: NodeId(1), voters: vec![NodeId(1)], seed: 7 };
    let recovered = RecoveredGroup {
        hard_state: HardState { term: 4, vote: 1, commit: 6 },
        checkpoint: (5, 2),
        ..RecoveredGroup::default()
    };
    assert!(matches!(Group::new(config, recovered), Err(GroupError::Corrupt(_))));
}

#[test]
fn compaction_forgets_only_what_is_applied() {
    let mut group = leader();
    for _ in 0..5 {
        group.propose(Bytes::from_static(b"x")).unwrap();
    }
    let out = output(&mut group);
    group.persisted(out.persist.unwrap());
    output(&mut group);
    group.applied(4);
    group.compact(6);
    assert_eq!(group.first_in_memory(), 5);
    assert_eq!(group.entry(4), None);
    assert_eq!(group.entry(5).map(|e| e.data.clone()), Some(Bytes::from_static(b"x")));
    group.applied(6);
    group.compact(6);
    assert_eq!(group.first_in_memory(), 7);
    assert!(group.is_caught_up_as_leader(), "the term of the compaction point is known");
    group.propose(Bytes::from_static(b"y")).unwrap();
    let out = output(&mut group);
    group.persisted(out.persist.unwrap());
    assert_eq!(indexes(&output(&mut group).committed), [7]);
}

/// One step of a single voter's life.
#[derive(Clone, Copy, Debug)]
enum Act {
    Propose,
    Output,
    /// The disk reports the outputs up to one of those under way.
    Persisted(usize),
    Apply,
    Compact,
    Tick,
    /// Lose what is not durable, start again.
    Crash,
}

fn act() -> impl Strategy<Value = Act> {
    prop_oneof![
        4 => Just(Act::Propose),
        4 => Just(Act::Output),
        3 => (0..4_usize).prop_map(Act::Persisted),
        2 => Just(Act::Apply),
        1 => Just(Act::Compact),
        1 => Just(Act::Tick),
        1 => Just(Act::Crash),
    ]
}

/// A single voter with its disk and its state machine.
struct Life {
    group: Group,
    /// What the disk holds for certain.
    log: Vec<LogEntry>,
    hard_state: HardState,
    /// Outputs on their way to the disk.
    under_way: Vec<(u64, Vec<LogEntry>, Option<HardState>)>,
    /// Everything ever put out as committed, and how much of it is applied and compacted in this life.
    committed: Vec<LogEntry>,
    delivered: u64,
    applied: u64,
    proposals: u64,
}

impl Life {
    fn new() -> Self {
        let mut group = start(RecoveredGroup::default());
        group.campaign();
        Self {
            group,
            log: vec![],
            hard_state: HardState::default(),
            under_way: vec![],
            committed: vec![],
            delivered: 0,
            applied: 0,
            proposals: 0,
        }
    }

    fn output(&mut self) {
        let said = self.group.has_output();
        let out = output(&mut self.group);
        assert!(said || out == GroupOutput::default());
        assert!(out.persist.is_some() || (out.entries.is_empty() && out.hard_state.is_none()));
        for entry in &out.committed {
            assert_eq!(entry.index, self.delivered + 1, "in order, each once");
            assert_eq!(self.log.get(self.delivered as usize), Some(entry), "committed, so durable here");
            self.delivered = entry.index;
            match self.committed.get(entry.index as usize - 1) {
                Some(before) => assert_eq!(before, entry, "what was committed stays"),
                None => self.committed.push(entry.clone()),
            }
        }
        if let Some(number) = out.persist {
            self.under_way.push((number, out.entries, out.hard_state));
        }
    }

    fn persisted(&mut self, which: usize) {
        let Some(last) = self.under_way.len().checked_sub(1) else { return };
        let mut newest = None;
        for (number, entries, hard_state) in self.under_way.drain(..=which.min(last)) {
            for entry in entries {
                self.log.truncate(entry.index as usize - 1);
                self.log.push(entry);
            }
            self.hard_state = hard_state.unwrap_or(self.hard_state);
            newest = Some(number);
        }
        self.group.persisted(newest.unwrap());
    }

    fn crash(&mut self) {
        self.under_way.clear();
        (self.delivered, self.applied) = (0, 0);
        self.group = start(RecoveredGroup {
            hard_state: self.hard_state,
            checkpoint: (0, 0),
            entries: self.log.clone(),
            ..RecoveredGroup::default()
        });
        self.group.campaign();
    }

    fn take(&mut self, act: Act) {
        match act {
            Act::Propose => {
                self.proposals += 1;
                let data = Bytes::from(self.proposals.to_string());
                let (term, index) = self.group.propose(data).unwrap();
                assert_eq!((term, index), (self.group.term(), self.group.last_index()));
            }
            Act::Output => self.output(),
            Act::Persisted(which) => self.persisted(which),
            Act::Apply => {
                self.applied = self.delivered;
                self.group.applied(self.applied);
            }
            Act::Compact => self.group.compact(self.applied / 2),
            Act::Tick => self.group.tick(),
            Act::Crash => self.crash(),
        }
    }
}

proptest! {
    #[test]
    fn commits_are_durable_and_stay(acts in prop::collection::vec(act(), 0..200)) {
        let mut life = Life::new();
        acts.into_iter().for_each(|act| life.take(act));
        life.output();
        life.persisted(usize::MAX);
        life.output();
        prop_assert_eq!(life.delivered, life.group.last_index(), "everything durable is committed");
    }
}
