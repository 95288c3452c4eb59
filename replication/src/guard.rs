//! Keeps peers' messages away on which the library would panic, or stand still. Each refusal names a rule that no peer breaks which
//! kept what it promised; a peer that lost its disk and came back under its old id is how they come about.

use crate::error::GroupError;
use crate::message::{PeerMessage, PeerMessageKind};

/// What has to be known of this replica.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Replica {
    /// Its term.
    pub term: u64,
    /// Whether it leads in that term.
    pub leads: bool,
    /// Whether it stands for election, or asks whether it would be elected.
    pub stands: bool,
    /// Index of its newest entry, durable or not.
    pub last_index: u64,
    /// Whether entries of it are not durable yet.
    pub entries_under_way: bool,
    /// A leader: up to where the sender said in this term that it holds the log.
    pub matched: u64,
}

/// What to do with a message.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Verdict {
    /// Step it.
    Step,
    /// Drop it: late, and harmless.
    Drop,
}

/// Checks a well-formed message of a voter against this replica. `probe` says where a leader would try next after a
/// rejection that names an index and a term.
pub fn check(
    replica: Replica,
    message: &PeerMessage,
    probe: impl FnOnce(u64, u64) -> u64,
) -> Result<Verdict, GroupError> {
    if message.term < replica.term {
        return Ok(Verdict::Step); // Answered or ignored without a look at the rest.
    }
    match &message.kind {
        // The library advances its commit to this number, and panics where the log ends before.
        PeerMessageKind::Heartbeat { commit, .. } if *commit > replica.last_index => {
            Err(GroupError::Refused("a leader says committed what this log does not hold"))
        }
        // It would note the number as replicated, send appends that start past its own log, and heartbeats that make
        // the other side panic.
        PeerMessageKind::AppendResponse { index, reject: false, .. }
            if replica.leads && message.term == replica.term && *index > replica.last_index =>
        {
            Err(GroupError::Refused("a follower says it holds what this leader never sent"))
        }
        // A follower that holds the log up to `matched` rejects nothing up to there, so this one came late. The library
        // would go back behind `matched`, to entries that may be forgotten since, and wait there for a snapshot.
        PeerMessageKind::AppendResponse { index, reject: true, hint, hint_term, snapshot: 0, .. }
            if replica.leads
                && message.term == replica.term
                && (*index <= replica.matched || probe(*hint, *hint_term) < replica.matched) =>
        {
            Ok(Verdict::Drop)
        }
        // Votes are asked for only once the log is durable, so this answers an older question; a leader whose log is
        // not durable breaks an assertion of the library.
        PeerMessageKind::Vote { reject: false, .. } if replica.stands && replica.entries_under_way => {
            Ok(Verdict::Drop)
        }
        _ => Ok(Verdict::Step),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const REPLICA: Replica =
        Replica { term: 5, leads: true, stands: false, last_index: 10, entries_under_way: false, matched: 0 };

    /// With a log where every term fits: the next try is where the hint says.
    fn verdict(replica: Replica, term: u64, kind: PeerMessageKind) -> Result<Verdict, GroupError> {
        check(replica, &PeerMessage { term, kind }, |hint, _| hint)
    }

    fn refused(replica: Replica, term: u64, kind: PeerMessageKind) -> bool {
        verdict(replica, term, kind).is_err()
    }

    fn ack(index: u64, reject: bool) -> PeerMessageKind {
        PeerMessageKind::AppendResponse { index, commit: 0, reject, hint: 0, hint_term: 0, snapshot: 0 }
    }

    #[test]
    fn a_heartbeat_may_commit_only_what_is_here() {
        assert!(!refused(REPLICA, 5, PeerMessageKind::Heartbeat { commit: 10, read: 0 }));
        assert!(refused(REPLICA, 5, PeerMessageKind::Heartbeat { commit: 11, read: 0 }));
        assert!(refused(REPLICA, 6, PeerMessageKind::Heartbeat { commit: 11, read: 0 }));
        assert!(
            !refused(REPLICA, 4, PeerMessageKind::Heartbeat { commit: 11, read: 0 }),
            "an old leader is answered"
        );
    }

    #[test]
    fn a_follower_may_acknowledge_only_what_was_sent() {
        assert!(!refused(REPLICA, 5, ack(10, false)));
        assert!(refused(REPLICA, 5, ack(11, false)));
        assert!(!refused(REPLICA, 5, ack(11, true)), "a rejection names the index it rejects");
        assert!(!refused(REPLICA, 6, ack(11, false)), "a newer term only makes the leader step down");
        assert!(!refused(Replica { leads: false, ..REPLICA }, 5, ack(11, false)));
    }

    #[test]
    fn a_rejection_of_what_was_acknowledged_since_is_late() {
        let reject = |term, index, hint| {
            let kind = PeerMessageKind::AppendResponse {
                index,
                commit: 0,
                reject: true,
                hint,
                hint_term: 5,
                snapshot: 0,
            };
            verdict(Replica { matched: 6, ..REPLICA }, term, kind)
        };
        assert_eq!(reject(5, 8, 6), Ok(Verdict::Step));
        assert_eq!(reject(5, 8, 5), Ok(Verdict::Drop), "it would go back behind what is acknowledged");
        assert_eq!(reject(5, 6, 6), Ok(Verdict::Drop), "it rejects what is acknowledged");
        assert_eq!(reject(6, 8, 5), Ok(Verdict::Step), "of a newer term");
    }

    #[test]
    fn a_vote_counts_only_once_the_log_is_durable() {
        let vote = |stands, entries_under_way, reject| {
            let kind = PeerMessageKind::Vote { pre: false, reject, commit: 0, commit_term: 0 };
            let replica = Replica { stands, entries_under_way, leads: false, ..REPLICA };
            verdict(replica, 5, kind)
        };
        assert_eq!(vote(true, true, false), Ok(Verdict::Drop));
        assert_eq!(vote(true, true, true), Ok(Verdict::Step));
        assert_eq!(vote(true, false, false), Ok(Verdict::Step));
        assert_eq!(vote(false, true, false), Ok(Verdict::Step));
    }
}
