//! One message of the model.

use super::Shard;
use super::mutation::Mutation;
use overtake_base::{Level, MessageId, Sequence, UnixMillis};
use overtake_queue::answer::PayloadRef;

#[derive(Clone, PartialEq, Eq, Debug)]
pub enum State {
    Delayed {
        until: UnixMillis,
    },
    Visible,
    Leased {
        until: UnixMillis,
        worker: Option<Box<str>>,
        /// What the delivery counted besides itself, to be taken back by an unlease.
        share: bool,
        inversion: bool,
        /// The shard's scheduler chose it.
        scheduled: bool,
    },
    Dead {
        at: UnixMillis,
    },
}

#[derive(Clone, Debug)]
pub struct Message {
    pub id: MessageId,
    pub level: Level,
    pub payload: PayloadRef,
    pub body_bytes: u64,
    pub enqueued_at: UnixMillis,
    pub state: State,
    /// Its place in the shard, from its first visibility on.
    pub sequence: Option<Sequence>,
    /// Its first visibility; a redrive is a new one.
    pub since: UnixMillis,
    /// Time to live; that of the queue is known at the first visibility.
    pub ttl_ms: Option<u64>,
    pub deliveries: u32,
    pub failures: u32,
    pub last_text: Option<Box<str>>,
    pub history: Vec<(UnixMillis, Box<str>)>,
    /// The redrive job that brings this dead letter back.
    pub job: Option<u64>,
    /// When its state was last changed or its lease extended, in the order of all such changes of the shard.
    pub changed: u64,
}

impl Message {
    pub fn is_visible(&self) -> bool {
        self.state == State::Visible
    }

    pub fn is_leased(&self) -> bool {
        matches!(self.state, State::Leased { .. })
    }

    pub fn is_delayed(&self) -> bool {
        matches!(self.state, State::Delayed { .. })
    }

    pub fn is_dead(&self) -> bool {
        matches!(self.state, State::Dead { .. })
    }

    /// The end of its time to live.
    pub fn expires_at(&self, shard: &Shard) -> UnixMillis {
        match (self.sequence, self.ttl_ms) {
            (Some(_), Some(ttl_ms)) if shard.has(Mutation::LifeRunsFromEnqueue) => {
                self.enqueued_at.plus_ms(ttl_ms)
            }
            (Some(_), Some(ttl_ms)) => self.since.plus_ms(ttl_ms),
            _ => UnixMillis::NEVER,
        }
    }

    /// When something happens to it by itself.
    pub fn due(&self, shard: &Shard) -> Option<UnixMillis> {
        let expires_at = self.expires_at(shard);
        let due = match self.state {
            State::Delayed { until } if shard.has(Mutation::DueEarly) => UnixMillis(until.0 - 1),
            State::Delayed { until } => until.min(expires_at),
            State::Visible => expires_at,
            State::Leased { until, .. } if shard.has(Mutation::LeaseLate) => until.plus_ms(1),
            State::Leased { until, .. } => until,
            State::Dead { .. } => UnixMillis::NEVER,
        };
        (due != UnixMillis::NEVER).then_some(due)
    }
}
