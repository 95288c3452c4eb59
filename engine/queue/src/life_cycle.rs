//! The life of a message as one table: which event leads from which state to which. Everything that changes a message's
//! state asks this table, so a change that the contract does not know cannot happen silently.
//!
//! ```text
//!            enqueue                    due                      lease
//!   (new) ───────────────▶ Delayed ───────────────▶ Visible ───────────────▶ Leased ──ack──▶ Gone
//!     └────────────────────────────────────────────▶  ▲ ▲ ◀── return, unlease ── │
//!                            ▲                        │                          │
//!                            └──── return later ──────┼──────────────────────────┤
//!                                                  redrive                       ▼
//!                                                     └─────────── Dead ◀── too many failures, expired
//! ```

/// Where a message stands.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
#[repr(u8)]
pub enum State {
    /// Waits for its time: its first one, or a later one after a failed delivery.
    Delayed = 0,
    /// Can be delivered.
    Visible = 1,
    /// Delivered, its lease runs.
    Leased = 2,
    /// In the dead-letter queue.
    Dead = 3,
    /// Acked, cancelled, purged or expired: it is no more.
    Gone = 4,
}

/// What can happen to a message.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum Event {
    /// Its time came.
    Due,
    /// Delivered.
    Lease,
    /// A lease that reached nobody is undone.
    Unlease,
    /// Done.
    Ack,
    /// A failed delivery: back at once.
    Return,
    /// A failed delivery: back after a delay.
    ReturnLater,
    /// A failed delivery, one too many.
    GiveUp,
    /// Its time to live is over.
    Expire,
    /// Its time to live is over, and the queue keeps expired messages.
    ExpireToDead,
    /// Brought back from the dead-letter queue.
    Redrive,
    /// Deleted by id.
    Cancel,
    /// Deleted with its queue's backlog.
    Purge,
    /// Deleted with its queue's dead letters.
    PurgeDead,
}

impl State {
    /// The state that `event` leads to, or none where it cannot happen here.
    #[must_use]
    pub const fn after(self, event: Event) -> Option<Self> {
        use Event as E;
        use State as S;
        Some(match (self, event) {
            (S::Delayed, E::Due) | (S::Leased, E::Return | E::Unlease) | (S::Dead, E::Redrive) => S::Visible,
            (S::Visible, E::Lease) => S::Leased,
            (S::Leased, E::ReturnLater) => S::Delayed,
            (S::Leased, E::GiveUp) | (S::Delayed | S::Visible | S::Leased, E::ExpireToDead) => S::Dead,
            (S::Leased, E::Ack)
            | (S::Delayed | S::Visible, E::Cancel | E::Purge)
            | (S::Delayed | S::Visible | S::Leased, E::Expire)
            | (S::Dead, E::PurgeDead) => S::Gone,
            _ => return None,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::{Event, State};

    #[test]
    fn the_whole_table() {
        use Event::*;
        let events = [
            Due,
            Lease,
            Unlease,
            Ack,
            Return,
            ReturnLater,
            GiveUp,
            Expire,
            ExpireToDead,
            Redrive,
            Cancel,
            Purge,
            PurgeDead,
        ];
        let row = |state: State| -> String {
            let letter = |event| match state.after(event) {
                None => '-',
                Some(State::Delayed) => 'd',
                Some(State::Visible) => 'v',
                Some(State::Leased) => 'l',
                Some(State::Dead) => 'x',
                Some(State::Gone) => '0',
            };
            events.into_iter().map(letter).collect()
        };
        // Columns in the order of `events`: one look shows what may happen in which state.
        assert_eq!(row(State::Delayed), "v------0x-00-");
        assert_eq!(row(State::Visible), "-l-----0x-00-");
        assert_eq!(row(State::Leased), "--v0vdx0x----");
        assert_eq!(row(State::Dead), "---------v--0");
        assert_eq!(row(State::Gone), "-------------");
    }
}
