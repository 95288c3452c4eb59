//! Enqueues that wait while more messages come than can leave memory. Without this a producer that is faster than the
//! disk takes two writes of a message would fill the memory; with it, it is answered as fast as messages leave.

use crate::Core;
use crate::mesh::{Caller, ShardRequest};
use overtake_base::footprint::{HOT_MESSAGE_BYTES, HOT_OF_URGENT_TIMES};
use overtake_base::{Level, ShardId};
use overtake_queue::cold::Loaded;
use overtake_queue::command::{Command, NewMessage};
use std::collections::VecDeque;

/// Enqueues wait from so many times the messages on that are to be in memory.
const FULL_TIMES: u64 = 2;

/// See the module's text.
#[derive(Default)]
pub(crate) struct Pressure {
    /// In order; so that what one producer sends stays in order, what comes later waits too.
    waiting: VecDeque<(Caller, ShardId, ShardRequest)>,
    /// About how much memory those take.
    waiting_bytes: usize,
    /// See [`Pressure::is_overflowing`].
    overflowing: bool,
    /// Messages that may still be taken in this turn, and messages of the most urgent level; none: as many as come.
    room: Option<(u64, u64)>,
}

/// How many messages a request enqueues, and whether all are of the most urgent level; none where it is no enqueue. A
/// message whose key is claimed on another shard waits before the claim: a claim that is not ended holds up others.
fn enqueued(request: &ShardRequest) -> Option<(u64, bool)> {
    match request {
        ShardRequest::Command(Command::Enqueue { messages, .. }) => {
            Some((messages.len() as u64, messages.iter().all(|message| message.priority == Level(0))))
        }
        ShardRequest::Command(Command::Claim { .. }) => Some((1, false)),
        _ => None,
    }
}

/// About how much memory a request takes that waits.
fn held_bytes(request: &ShardRequest) -> usize {
    match request {
        ShardRequest::Command(Command::Enqueue { messages, .. }) => {
            let of = |message: &NewMessage| HOT_MESSAGE_BYTES + message.body.len() + message.headers.len();
            messages.iter().map(of).sum()
        }
        _ => HOT_MESSAGE_BYTES,
    }
}

impl Pressure {
    /// The enqueue that is being served came while more waited than may.
    pub(crate) fn is_overflowing(&self) -> bool {
        self.overflowing
    }

    fn wait(&mut self, caller: Caller, shard: ShardId, request: ShardRequest) {
        self.waiting_bytes += held_bytes(&request);
        self.waiting.push_back((caller, shard, request));
    }

    /// Whether there is room for a request; takes it then.
    fn takes(&mut self, request: &ShardRequest) -> bool {
        let (Some((room, urgent_room)), Some((messages, urgent))) = (&mut self.room, enqueued(request))
        else {
            return true;
        };
        let takes = if urgent { *urgent_room } else { *room } > 0;
        if takes {
            *room = room.saturating_sub(messages);
            *urgent_room = urgent_room.saturating_sub(messages);
        }
        takes
    }

    /// Whether a fresh request need not wait: it does where others do, unless it is more urgent.
    fn takes_fresh(&mut self, request: &ShardRequest) -> bool {
        let first = self.waiting.is_empty() || enqueued(request).is_none_or(|(_, urgent)| urgent);
        first && self.takes(request)
    }

    /// The next one of those that wait, if there is room for it.
    fn next(&mut self) -> Option<(Caller, ShardId, ShardRequest)> {
        let (caller, shard, request) = self.waiting.pop_front()?;
        if self.takes(&request) {
            self.waiting_bytes -= held_bytes(&request);
            return Some((caller, shard, request));
        }
        self.waiting.push_front((caller, shard, request));
        None
    }
}

impl Core {
    /// Serves a request of a shard, or lets it wait where it is an enqueue and memory is full.
    pub(crate) fn serve_or_hold(&mut self, caller: Caller, shard: ShardId, request: ShardRequest) {
        if self.pressure.takes_fresh(&request) {
            self.serve_request(caller, shard, request, Loaded::default());
        } else if self.pressure.waiting_bytes > self.config.backlog_bytes_max
            && matches!(request, ShardRequest::Command(Command::Enqueue { .. }))
        {
            // As many as wait for the disk: who comes now is refused, and comes again later.
            self.pressure.overflowing = true;
            self.serve_request(caller, shard, request, Loaded::default());
            self.pressure.overflowing = false;
        } else {
            self.counters.enqueues_held += 1;
            self.pressure.wait(caller, shard, request);
        }
    }

    /// Once a turn: how much may be taken, and what has waited for that. Nothing waits unless messages are leaving: where
    /// they cannot, to wait would help nobody.
    pub(crate) fn let_in(&mut self, hot: u64) {
        let max = self.config.cold.hot_messages_max;
        // While requests wait for what is on disk nothing leaves, for a moment.
        let leaving = hot > max && !self.stopping && (self.messages_leave() || self.has_blocked());
        self.pressure.room = leaving.then(|| {
            ((max * FULL_TIMES).saturating_sub(hot), (max * HOT_OF_URGENT_TIMES).saturating_sub(hot))
        });
        while let Some((caller, shard, request)) = self.pressure.next() {
            self.serve_request(caller, shard, request, Loaded::default());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cluster::Address;
    use overtake_base::{CoreId, MessageId, NodeId, QueueId};
    use overtake_queue::command::VisibleWhen;

    fn enqueue(levels: &[u8]) -> ShardRequest {
        let message = |level: &u8| NewMessage {
            id: MessageId::new(1, 1),
            client_made_id: false,
            priority: Level(*level),
            visible: VisibleWhen::Now,
            dedup_key: None,
            expires_in_ms: None,
            headers: bytes::Bytes::new(),
            body: bytes::Bytes::new(),
        };
        ShardRequest::Command(Command::Enqueue {
            queue: QueueId(1),
            messages: levels.iter().map(message).collect(),
        })
    }

    fn ask(pressure: &mut Pressure, request: ShardRequest) -> bool {
        let takes = pressure.takes_fresh(&request);
        if !takes {
            let at = Address { node: NodeId(1), core: CoreId(0) };
            pressure.wait(Caller { at, link: 0, call: 1 }, ShardId(0), request);
        }
        takes
    }

    #[test]
    fn what_comes_later_waits_behind_what_waits_unless_it_is_urgent() {
        let mut pressure = Pressure { room: Some((3, 5)), ..Pressure::default() };
        assert!(
            ask(&mut pressure, enqueue(&[4, 4])) && ask(&mut pressure, enqueue(&[4, 4])),
            "some room is room"
        );
        assert!(!ask(&mut pressure, enqueue(&[3])), "none is left");
        assert!(!ask(&mut pressure, enqueue(&[4, 0])), "a less urgent one would go past those before it");
        assert!(ask(&mut pressure, enqueue(&[0, 0])), "only of the most urgent level");
        assert!(!ask(&mut pressure, enqueue(&[0])), "of which there are enough too");
        assert!(ask(&mut pressure, ShardRequest::Command(Command::Purge { queue: QueueId(1) })));
        pressure.room = Some((1, 3));
        assert!(!ask(&mut pressure, enqueue(&[1])), "three came before");
        assert!(pressure.next().is_some(), "the first of them");
        assert!(pressure.next().is_none(), "it took the room");
        pressure.room = None;
        assert!((0..3).all(|_| pressure.next().is_some()) && pressure.next().is_none());
        assert_eq!((pressure.waiting.len(), pressure.waiting_bytes), (0, 0));
    }
}
