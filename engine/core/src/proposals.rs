//! What this replica proposed as a leader and is not committed yet, so that whoever asked learns what became of it.
//!
//! Terms never fall along a log. So a committed entry decides about proposals of its own index and before, and about those
//! behind it that are of an earlier term: such an entry can follow it in no log any more.

use std::collections::VecDeque;

/// See the module's text. `T` is who waits for an entry.
#[derive(Debug)]
pub(crate) struct Proposals<T> {
    /// By index, and terms that never fall.
    waiting: VecDeque<Proposal<T>>,
}

#[derive(Debug)]
struct Proposal<T> {
    term: u64,
    index: u64,
    who: T,
}

impl<T> Default for Proposals<T> {
    fn default() -> Self {
        Self { waiting: VecDeque::new() }
    }
}

impl<T> Proposals<T> {
    pub(crate) fn is_empty(&self) -> bool {
        self.waiting.is_empty()
    }

    /// An entry was proposed.
    pub(crate) fn push(&mut self, term: u64, index: u64, who: T) {
        self.waiting.push_back(Proposal { term, index, who });
    }

    /// An entry is committed: who waited for it, after those whose entries it shows to be lost.
    pub(crate) fn committed(&mut self, term: u64, index: u64) -> (Vec<T>, Option<T>) {
        let (mut lost, mut own) = (Vec::new(), None);
        let decided = |proposal: &mut Proposal<T>| proposal.index <= index || proposal.term < term;
        while let Some(Proposal { term: its_term, index: its_index, who }) =
            self.waiting.pop_front_if(decided)
        {
            if (its_term, its_index) == (term, index) {
                own = Some(who);
            } else {
                lost.push(who);
            }
        }
        (lost, own)
    }

    /// All that wait, who will not learn any more what became of their entries.
    pub(crate) fn take_all(&mut self) -> impl Iterator<Item = T> + use<T> {
        core::mem::take(&mut self.waiting).into_iter().map(|proposal| proposal.who)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn proposals(of: &[(u64, u64)]) -> Proposals<(u64, u64)> {
        let mut proposals = Proposals::default();
        of.iter().for_each(|(term, index)| proposals.push(*term, *index, (*term, *index)));
        proposals
    }

    #[test]
    fn an_entry_answers_who_proposed_it() {
        let mut proposals = proposals(&[(2, 5), (2, 6)]);
        assert_eq!(proposals.committed(2, 4), (vec![], None));
        assert_eq!(proposals.committed(2, 5), (vec![], Some((2, 5))));
        assert_eq!(proposals.committed(2, 6), (vec![], Some((2, 6))));
        assert!(proposals.is_empty());
    }

    #[test]
    fn entries_of_a_former_term_may_yet_be_committed_in_a_later_one() {
        // The next leader has them too: it is this one again, or it was sent them.
        let mut proposals = proposals(&[(2, 5), (2, 6), (4, 8)]);
        assert_eq!(proposals.committed(2, 5), (vec![], Some((2, 5))));
        assert_eq!(proposals.committed(2, 6), (vec![], Some((2, 6))));
        assert_eq!(proposals.committed(4, 7), (vec![], None));
        assert_eq!(proposals.committed(4, 8), (vec![], Some((4, 8))));
    }

    #[test]
    fn entries_that_another_leader_replaced_are_lost_at_once() {
        let mut lost = proposals(&[(2, 5), (2, 6), (2, 7)]);
        assert_eq!(lost.committed(3, 5), (vec![(2, 5), (2, 6), (2, 7)], None));
        // The log is shorter than what was proposed before: what is proposed now does not wait behind it.
        let mut behind = proposals(&[(2, 50), (2, 51)]);
        assert_eq!(behind.committed(4, 40), (vec![(2, 50), (2, 51)], None));
        behind.push(4, 41, (4, 41));
        assert_eq!(behind.committed(4, 41), (vec![], Some((4, 41))));
    }

    #[test]
    fn what_is_given_up_is_given_back() {
        let mut proposals = proposals(&[(2, 5), (3, 6)]);
        assert_eq!(proposals.take_all().collect::<Vec<_>>(), [(2, 5), (3, 6)]);
        assert!(proposals.is_empty());
    }
}
