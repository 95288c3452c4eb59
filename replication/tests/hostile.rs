//! One replica whose peers send anything at all: bytes, messages of the right form with any numbers in them, and real
//! messages with some bytes changed. Nothing of it may panic, then or later.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use bytes::Bytes;
use overtake_base::{NodeId, ShardId, Writer};
use overtake_replication::{
    Group, GroupConfig, GroupError, GroupOutput, LogEntry, MembershipChange, RecoveredGroup, Role,
};
use proptest::prelude::*;

const SHARD: ShardId = ShardId(9);
const VICTIM: NodeId = NodeId(1);

#[derive(Clone, Debug)]
enum Act {
    Tick(u8),
    Campaign,
    Propose,
    Change(Vec<(u8, u8)>),
    Output,
    Persist,
    Apply,
    Compact,
    /// Whatever the bytes are.
    Bytes(u64, Vec<u8>),
    /// A message of the right form: sender, kind, numbers, entries' terms.
    Message {
        from: u64,
        kind: u8,
        term: u64,
        numbers: [u64; 4],
        flag: bool,
        terms: Vec<u64>,
    },
    /// One of the victim's own messages, turned around, with a byte changed.
    Echo {
        from: u64,
        which: usize,
        at: usize,
        xor: u8,
    },
}

/// Mostly small, so that numbers meet those of the log; sometimes where arithmetic would overflow.
fn number() -> impl Strategy<Value = u64> {
    prop_oneof![20 => 0..12_u64, 1 => any::<u64>(), 1 => Just((1 << 62) - 1)]
}

fn act() -> impl Strategy<Value = Act> {
    let message = (2..4_u64, 1..11_u8, number(), [number(), number(), number(), number()], any::<bool>())
        .prop_flat_map(|(from, kind, term, numbers, flag)| {
            prop::collection::vec(0..term.saturating_add(1).min(1 << 62), 0..4).prop_map(move |mut terms| {
                terms.sort_unstable();
                Act::Message { from, kind, term, numbers, flag, terms }
            })
        });
    prop_oneof![
        2 => (1..30_u8).prop_map(Act::Tick),
        1 => Just(Act::Campaign),
        2 => Just(Act::Propose),
        1 => prop::collection::vec((any::<u8>(), any::<u8>()), 0..3).prop_map(Act::Change),
        4 => Just(Act::Output),
        3 => Just(Act::Persist),
        2 => Just(Act::Apply),
        1 => Just(Act::Compact),
        1 => (0..5_u64, any::<Vec<u8>>()).prop_map(|(from, bytes)| Act::Bytes(from, bytes)),
        20 => message,
        4 => (2..4_u64, any::<usize>(), any::<usize>(), any::<u8>())
            .prop_map(|(from, which, at, xor)| Act::Echo { from, which, at, xor }),
    ]
}

/// The layout of a message, written down a second time.
fn message(kind: u8, term: u64, numbers: [u64; 4], flag: bool, terms: &[u64]) -> Vec<u8> {
    let mut bytes = vec![4];
    let mut out = Writer(&mut bytes);
    out.u16(SHARD.0);
    out.u64(VICTIM.0);
    out.u8(kind);
    out.u64(term);
    let [a, b, c, d] = numbers;
    match kind {
        1 => {
            [a, if a == 0 { 0 } else { b.min(term) }, c].iter().for_each(|n| out.u64(*n));
            out.u32(terms.len() as u32);
            for term in terms {
                out.u64(*term);
                out.u8(u8::from(flag));
                if flag {
                    let role = [Role::Voter, Role::Learner, Role::None][(d % 3) as usize];
                    let change = |node| (role, NodeId(1 + node % 4));
                    let count = (d % 4) as usize;
                    out.bytes(&MembershipChange((c..).take(count).map(change).collect()).encode());
                } else {
                    out.bytes(b"data");
                }
            }
        }
        2 => {
            [a, b].iter().for_each(|n| out.u64(*n));
            out.bool(flag);
            [c, d, c % 3].iter().for_each(|n| out.u64(*n));
        }
        3 | 4 => {
            out.bool(flag);
            numbers.iter().for_each(|n| out.u64(*n));
        }
        5 | 6 => {
            out.bool(flag);
            [a, b].iter().for_each(|n| out.u64(*n));
        }
        7 | 8 | 10 => [a, b].iter().for_each(|n| out.u64(*n)),
        _ => {}
    }
    bytes
}

struct Victim {
    group: Group,
    persist: Option<u64>,
    delivered: u64,
    said: Vec<Bytes>,
    taken: usize,
    committed: Vec<LogEntry>,
}

impl Victim {
    fn new(voters: u64) -> Self {
        let voters = (1..=voters).map(NodeId).collect();
        let config = GroupConfig { shard: SHARD, node: VICTIM, voters, seed: 1 };
        let group = Group::new(config, RecoveredGroup::default()).unwrap();
        Self { group, persist: None, delivered: 0, said: vec![], taken: 0, committed: vec![] }
    }

    fn output(&mut self) {
        let mut out = GroupOutput::default();
        self.group.output(&mut out);
        self.persist = out.persist.or(self.persist);
        self.delivered = out.committed.last().map_or(self.delivered, |e| e.index);
        self.committed.append(&mut out.committed);
        self.said.extend(out.messages.into_iter().chain(out.messages_after_sync).map(|m| m.1));
    }

    fn step(&mut self, from: u64, bytes: &[u8]) {
        self.taken += usize::from(self.group.step(NodeId(from), bytes).is_ok());
    }

    fn take(&mut self, act: Act) {
        match act {
            Act::Tick(times) => (0..times).for_each(|_| self.group.tick()),
            Act::Campaign => self.group.campaign(),
            Act::Propose => {
                let _ = self.group.propose(Bytes::from_static(b"data"));
            }
            Act::Output => self.output(),
            Act::Persist => {
                if let Some(number) = self.persist.take() {
                    self.group.persisted(number);
                }
            }
            Act::Apply => {
                for entry in self.committed.drain(..) {
                    // A change that cannot be made is where a node would stop.
                    let _ = self.group.apply_membership(&entry);
                }
                self.group.applied(self.delivered);
            }
            Act::Change(changes) => {
                let role = |role| [Role::Voter, Role::Learner, Role::None][usize::from(role % 3)];
                let changes =
                    changes.into_iter().map(|(to, node)| (role(to), NodeId(u64::from(1 + node % 5))));
                self.group.propose_membership(&MembershipChange(changes.collect()));
            }
            Act::Compact => self.group.compact(self.delivered),
            Act::Bytes(from, bytes) => self.step(from, &bytes),
            Act::Message { from, kind, term, numbers, flag, terms } => {
                self.step(from, &message(kind, term, numbers, flag, &terms));
            }
            Act::Echo { from, which, at, xor } => {
                if self.said.is_empty() {
                    return;
                }
                let mut bytes = self.said[which % self.said.len()].to_vec();
                bytes[3..11].copy_from_slice(&VICTIM.0.to_le_bytes());
                let at = at % bytes.len();
                bytes[at] ^= xor;
                self.step(from, &bytes);
            }
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(4_000))]
    #[test]
    fn nothing_a_peer_sends_panics(acts in prop::collection::vec(act(), 0..80)) {
        let mut victim = Victim::new(3);
        acts.into_iter().for_each(|act| victim.take(act));
        victim.output();
    }

    #[test]
    fn any_bytes_are_refused(bytes: Vec<u8>, from in 0..4_u64) {
        prop_assert!(Victim::new(3).group.step(NodeId(from), &bytes).is_err());
    }
}

#[test]
fn votes_that_were_not_asked_for_make_no_leader() {
    let granted = |kind| message(kind, 2, [0; 4], false, &[]);
    let mut victim = Victim::new(3);
    victim.step(2, &message(1, 1, [0, 0, 0, 0], false, &[1, 1]));
    victim.output();
    victim.group.campaign();
    for _ in 0..2 {
        for from in [2, 3] {
            victim.step(from, &granted(6));
            victim.step(from, &granted(5));
        }
        victim.output();
        assert!(!victim.group.is_leader(), "its log is not durable");
    }
    victim.take(Act::Persist);
    victim.step(2, &granted(6));
    victim.step(2, &granted(5));
    assert!(victim.group.is_leader());
    victim.output();
}

#[test]
fn a_follower_cannot_claim_what_was_never_sent() {
    let mut victim = Victim::new(3);
    victim.group.campaign();
    victim.step(2, &message(6, 1, [0; 4], false, &[]));
    victim.output();
    victim.take(Act::Persist);
    victim.step(2, &message(5, 1, [0; 4], false, &[]));
    assert!(victim.group.is_leader());
    let claim = |index| message(2, 1, [index, 0, 0, 0], false, &[]);
    assert!(matches!(victim.group.step(NodeId(2), &claim(1_000)), Err(GroupError::Refused(_))));
    assert_eq!((victim.group.commit(), victim.group.replicated()), (0, 0));
    victim.output();
    victim.take(Act::Persist);
    victim.step(2, &claim(1));
    assert_eq!(victim.group.commit(), 1, "it and this node hold the entry");
}

#[test]
fn a_single_voter_takes_no_message() {
    let mut victim = Victim::new(1);
    victim.group.campaign();
    victim.step(2, &message(7, 9, [0; 4], false, &[]));
    assert!(victim.group.is_leader() && victim.taken == 0);
}

#[test]
fn messages_of_other_groups_and_nodes_are_refused() {
    let good = message(7, 9, [0; 4], false, &[]);
    let changed = |at: usize, value: u8| {
        let mut bytes = good.clone();
        bytes[at] = value;
        bytes
    };
    let mut victim = Victim::new(3);
    for (from, bytes) in
        [(2, changed(0, 2)), (2, changed(1, 8)), (2, changed(3, 2)), (2, changed(11, 11)), (1, good.clone())]
    {
        victim.step(from, &bytes);
        assert_eq!((victim.taken, victim.group.term()), (0, 0));
    }
    victim.step(2, &good);
    assert_eq!((victim.taken, victim.group.term()), (1, 9));
    assert_eq!(victim.group.leader(), Some(NodeId(2)));
}

#[test]
fn who_is_not_in_the_group_may_lead_it_by_a_change_that_is_not_known_here_but_answers_nothing() {
    let mut victim = Victim::new(3);
    victim.step(4, &message(7, 9, [0; 4], false, &[]));
    assert_eq!((victim.group.term(), victim.group.leader()), (9, Some(NodeId(4))));
    for answer in [2, 5, 6, 8] {
        victim.step(4, &message(answer, 12, [1, 0, 0, 0], false, &[]));
    }
    assert_eq!(victim.group.term(), 9);
}
