//! What was complained about already: a peer that is away for a day is worth a few lines, not one for each attempt.

use crate::limits;
use std::collections::BTreeMap;
use std::time::Instant;

/// The last complaint about each.
#[derive(Default)]
pub(super) struct Complaints(BTreeMap<String, (String, Instant)>);

impl Complaints {
    /// True where it is to be told: it is another one than the last about the same, or that is long ago.
    pub(super) fn is_news(&mut self, now: Instant, about: &str, reason: &str) -> bool {
        let told = self.0.get(about);
        let recent = |at: &Instant| now.saturating_duration_since(*at) < limits::PEER_COMPLAINT_EVERY;
        if told.is_some_and(|(before, at)| before == reason && recent(at)) {
            return false;
        }
        if told.is_none() && self.0.len() >= limits::PEER_COMPLAINTS_MAX {
            self.0.retain(|_, (_, at)| recent(at));
            if self.0.len() >= limits::PEER_COMPLAINTS_MAX {
                return false;
            }
        }
        self.0.insert(about.into(), (reason.into(), now));
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_same_is_told_once_in_a_while_and_memory_is_bounded() {
        let start = Instant::now();
        let mut complaints = Complaints::default();
        assert!(complaints.is_news(start, "a", "away"));
        assert!(!complaints.is_news(start, "a", "away"));
        assert!(complaints.is_news(start, "a", "wrong") && complaints.is_news(start, "b", "away"));
        let later = start + limits::PEER_COMPLAINT_EVERY;
        assert!(complaints.is_news(later, "a", "wrong"));
        for number in 0..2 * limits::PEER_COMPLAINTS_MAX {
            complaints.is_news(later, &number.to_string(), "away");
        }
        assert_eq!(complaints.0.len(), limits::PEER_COMPLAINTS_MAX);
    }
}
