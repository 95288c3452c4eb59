//! The record of one message, and the slab that holds a shard's records. Bodies are not here: a record says in which
//! log entry its payload stands.

use crate::answer::{PayloadRef, Place};
use crate::life_cycle::{Event, State};
use overtake_base::hash::Map;
use overtake_base::{Level, MessageId, QueueId, Sequence, UnixMillis};
use std::collections::{BTreeSet, VecDeque};
use std::sync::Arc;

/// No slot: end of a list.
pub(crate) const NONE: u32 = u32::MAX;
/// `ttl_ms` of a message that said nothing: the queue's retention, when it first becomes visible.
pub(crate) const TTL_OF_QUEUE: u64 = u64::MAX;
/// The sequence of a message that was not visible yet; real ones begin at 1.
pub(crate) const NO_SEQUENCE: Sequence = Sequence(0);

/// The client made the id: it stays remembered for the dedup window.
pub(crate) const CLIENT_MADE_ID: u8 = 1;
/// The current lease was a share delivery.
pub(crate) const SHARE: u8 = 1 << 1;
/// The current lease counted as an inversion.
pub(crate) const INVERSION: u8 = 1 << 2;
/// The current lease was charged to the shard's scheduler.
pub(crate) const CHARGED: u8 = 1 << 3;
/// The wait for the first delivery has been recorded.
pub(crate) const WAIT_RECORDED: u8 = 1 << 4;
/// There is an [`Extra`] for this message.
pub(crate) const EXTRA: u8 = 1 << 5;

/// What belongs to the current lease only.
pub(crate) const LEASE_FLAGS: u8 = SHARE | INVERSION | CHARGED;

/// One message.
#[derive(Clone, Copy)]
pub(crate) struct Message {
    id: [u64; 2],
    pub(crate) payload: PayloadRef,
    /// [`NO_SEQUENCE`] until it first becomes visible.
    pub(crate) sequence: Sequence,
    pub(crate) enqueued_at: UnixMillis,
    /// First visibility; after a redrive, that of the redrive.
    pub(crate) since: UnixMillis,
    /// By state: visible again (delayed), lease expiry (leased), time of death (dead).
    pub(crate) due: UnixMillis,
    /// Time to live from `since`, or [`TTL_OF_QUEUE`] before it is known.
    pub(crate) ttl_ms: u64,
    /// Which of the shard's settings of timers set this one's; 0 without a timer. It goes with the message when it leaves
    /// memory: timers of the same millisecond fire in this order, wherever the messages were meanwhile.
    pub(crate) order: u64,
    pub(crate) queue: QueueId,
    pub(crate) deliveries: u32,
    /// Failed deliveries, counted from 0 again after a redrive.
    pub(crate) failures: u32,
    pub(crate) body_bytes: u32,
    /// Neighbours in the timer list; `next` is also the free list's link.
    pub(crate) previous: u32,
    pub(crate) next: u32,
    pub(crate) level: Level,
    pub(crate) state: State,
    pub(crate) flags: u8,
}

const _: () = assert!(size_of::<Message>() <= 120, "memory for each message that is not in a block");

impl Message {
    pub(crate) fn new(id: MessageId, queue: QueueId, level: Level, payload: PayloadRef) -> Self {
        Self {
            id: split(id),
            payload,
            sequence: NO_SEQUENCE,
            enqueued_at: UnixMillis(0),
            since: UnixMillis(0),
            due: UnixMillis(0),
            ttl_ms: TTL_OF_QUEUE,
            order: 0,
            queue,
            deliveries: 0,
            failures: 0,
            body_bytes: 0,
            previous: NONE,
            next: NONE,
            level,
            state: State::Delayed,
            flags: 0,
        }
    }

    pub(crate) fn id(&self) -> MessageId {
        MessageId(u128::from(self.id[0]) << 64 | u128::from(self.id[1]))
    }

    /// When its time to live ends; never before its first visibility.
    pub(crate) fn expires_at(&self) -> UnixMillis {
        if self.sequence == NO_SEQUENCE { UnixMillis::NEVER } else { self.since.plus_ms(self.ttl_ms) }
    }

    /// When something happens to it by itself, in its present state. A leased message does not expire.
    pub(crate) fn timer_at(&self) -> Option<UnixMillis> {
        match self.state {
            State::Delayed => Some(self.due.min(self.expires_at())),
            State::Visible => Some(self.expires_at()),
            State::Leased => Some(self.due),
            State::Dead | State::Gone => None,
        }
    }

    pub(crate) fn has(&self, flag: u8) -> bool {
        self.flags & flag != 0
    }

    /// Changes the state as the life-cycle table says.
    pub(crate) fn happens(&mut self, event: Event) {
        let next = self.state.after(event);
        // A transition that the table does not know would put a message into two places at once.
        assert!(next.is_some(), "a message cannot {event:?} in state {:?}", self.state);
        self.state = next.unwrap_or(State::Gone);
    }
}

fn split(id: MessageId) -> [u64; 2] {
    [(id.0 >> 64) as u64, id.0 as u64]
}

/// Why a delivery failed, or a message died.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) enum Cause {
    LeaseExpired,
    Released,
    Expired,
    /// A release with a text.
    Text(Arc<str>),
}

impl Cause {
    pub(crate) fn text(&self) -> &str {
        match self {
            Self::LeaseExpired => "lease expired",
            Self::Released => "released",
            Self::Expired => "expired",
            Self::Text(text) => text,
        }
    }
}

/// What only some messages have.
#[derive(Clone, Default)]
pub(crate) struct Extra {
    /// Label of the worker that has the lease.
    pub(crate) worker: Option<Arc<str>>,
    /// The last text that a release gave.
    pub(crate) last_text: Option<Arc<str>>,
    /// The last failures, oldest first.
    pub(crate) history: VecDeque<(UnixMillis, Cause)>,
    /// The redrive job that this dead letter waits for.
    pub(crate) job: Option<u32>,
}

impl Extra {
    /// Bytes of all texts.
    pub(crate) fn text_bytes(&self) -> usize {
        let history: usize = self.history.iter().map(|(_, cause)| cause.text().len()).sum();
        history + self.last_text.as_ref().map_or(0, |text| text.len())
    }
}

/// The last text that a release gave, else the last cause; none where no delivery failed yet.
pub(crate) fn last_error(extra: &Extra) -> Option<&str> {
    extra.last_text.as_deref().or_else(|| extra.history.back().map(|(_, cause)| cause.text()))
}

const CHUNK_BITS: u32 = 9;
const CHUNK_MESSAGES: usize = 1 << CHUNK_BITS;

/// Some slots, and those of them that are free: a list through their messages.
struct Chunk {
    messages: [Message; CHUNK_MESSAGES],
    free: u32,
    used: u32,
}

/// A shard's messages by slot. Grows by chunks, so that growth never copies what is there, and lets go of them again.
#[derive(Default)]
pub(crate) struct Messages {
    /// None where nothing is in it.
    chunks: Vec<Option<Box<Chunk>>>,
    len: usize,
    /// Chunks that are there and have free slots; the first ones are filled first, so that others become empty.
    with_room: BTreeSet<u32>,
    /// Places in `chunks` without one.
    gone: BTreeSet<u32>,
    extras: Map<u32, Box<Extra>>,
}

const fn split_slot(slot: u32) -> (usize, usize) {
    ((slot >> CHUNK_BITS) as usize, slot as usize & (CHUNK_MESSAGES - 1))
}

impl core::ops::Index<u32> for Messages {
    type Output = Message;
    fn index(&self, slot: u32) -> &Message {
        let (chunk, at) = split_slot(slot);
        match &self.chunks[chunk] {
            Some(chunk) => &chunk.messages[at],
            None => no_message(slot),
        }
    }
}

impl core::ops::IndexMut<u32> for Messages {
    fn index_mut(&mut self, slot: u32) -> &mut Message {
        let (chunk, at) = split_slot(slot);
        match &mut self.chunks[chunk] {
            Some(chunk) => &mut chunk.messages[at],
            None => no_message(slot),
        }
    }
}

/// An index that names a message which is no more: as wrong as one past the end.
#[cold]
fn no_message(slot: u32) -> ! {
    panic!("no message has slot {slot}")
}

impl Messages {
    /// Messages there are.
    pub(crate) fn len(&self) -> usize {
        self.len
    }

    pub(crate) fn insert(&mut self, message: Message) -> u32 {
        let number = self.with_room.first().copied().unwrap_or_else(|| self.grow());
        let Some(chunk) = &mut self.chunks[number as usize] else { no_message(number << CHUNK_BITS) };
        let slot = chunk.free;
        let at = split_slot(slot).1;
        chunk.free = chunk.messages[at].next;
        chunk.messages[at] = message;
        chunk.used += 1;
        if chunk.free == NONE {
            self.with_room.remove(&number);
        }
        self.len += 1;
        slot
    }

    /// A new chunk; gives its number.
    fn grow(&mut self) -> u32 {
        let number = self.gone.pop_first().unwrap_or(self.chunks.len() as u32);
        let vacant = PayloadRef { place: Place::Entry(0), offset: 0, length: 0 };
        let mut message = Message::new(MessageId(0), QueueId(0), Level(0), vacant);
        message.state = State::Gone;
        let start = number << CHUNK_BITS;
        let mut chunk = Box::new(Chunk { messages: [message; CHUNK_MESSAGES], free: start, used: 0 });
        for (at, slot) in chunk.messages.iter_mut().zip(start + 1..) {
            at.next = slot;
        }
        chunk.messages[CHUNK_MESSAGES - 1].next = NONE;
        match self.chunks.get_mut(number as usize) {
            Some(place) => *place = Some(chunk),
            None => self.chunks.push(Some(chunk)),
        }
        self.with_room.insert(number);
        number
    }

    pub(crate) fn remove(&mut self, slot: u32) {
        self.len -= 1;
        if self[slot].has(EXTRA) {
            self.extras.remove(&slot);
        }
        let (number, at) = split_slot(slot);
        let Some(chunk) = &mut self.chunks[number] else { no_message(slot) };
        let message = &mut chunk.messages[at];
        message.state = State::Gone;
        message.flags = 0;
        message.next = chunk.free;
        chunk.free = slot;
        chunk.used -= 1;
        let number = number as u32;
        // One with room stays, so that a message that comes and goes makes none each time.
        if chunk.used == 0 && self.with_room.iter().any(|other| *other != number) {
            self.chunks[number as usize] = None;
            self.with_room.remove(&number);
            self.gone.insert(number);
        } else {
            self.with_room.insert(number);
        }
    }

    pub(crate) fn extra(&self, slot: u32) -> Option<&Extra> {
        if self[slot].has(EXTRA) { self.extras.get(&slot).map(|extra| &**extra) } else { None }
    }

    /// The message's extra; made where it has none.
    pub(crate) fn extra_mut(&mut self, slot: u32) -> &mut Extra {
        self[slot].flags |= EXTRA;
        self.extras.entry(slot).or_default()
    }

    /// The message's extra, if it has one.
    pub(crate) fn extra_if_any(&mut self, slot: u32) -> Option<&mut Extra> {
        if self[slot].has(EXTRA) { self.extras.get_mut(&slot).map(|extra| &mut **extra) } else { None }
    }

    /// Puts the label of a lease's worker down; most messages never have an extra for anything else.
    pub(crate) fn take_worker(&mut self, slot: u32) -> Option<Arc<str>> {
        let extra = self.extra_if_any(slot)?;
        let worker = extra.worker.take();
        if extra.history.is_empty() && extra.last_text.is_none() && extra.job.is_none() {
            self.extras.remove(&slot);
            self[slot].flags &= !EXTRA;
        }
        worker
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn message(id: u128) -> Message {
        Message::new(
            MessageId(id),
            QueueId(1),
            Level(0),
            PayloadRef { place: Place::Entry(1), offset: 0, length: 8 },
        )
    }

    #[test]
    fn slots_are_used_again() {
        let mut messages = Messages::default();
        let slots: Vec<u32> = (0..2_000).map(|id| messages.insert(message(id))).collect();
        assert!(slots.iter().zip(0u128..).all(|(slot, id)| messages[*slot].id() == MessageId(id)));
        for slot in &slots[..1_000] {
            messages.remove(*slot);
        }
        let again: Vec<u32> = (0..1_000).map(|id| messages.insert(message(id))).collect();
        let living: BTreeSet<u32> = slots[1_000..].iter().chain(&again).copied().collect();
        assert_eq!(living.len(), 2_000, "no slot has two messages");
        assert!(again.iter().zip(0u128..).all(|(slot, id)| messages[*slot].id() == MessageId(id)));
        assert!(
            slots.iter().zip(0u128..).skip(1_000).all(|(slot, id)| messages[*slot].id() == MessageId(id))
        );
        assert_eq!((messages.len(), messages.chunks.len()), (2_000, 4));
    }

    /// After a burst memory is given back.
    #[test]
    fn chunks_without_messages_are_let_go_of() {
        let mut messages = Messages::default();
        let there = |messages: &Messages| messages.chunks.iter().flatten().count();
        let slots: Vec<u32> = (0..5_000).map(|id| messages.insert(message(id))).collect();
        assert_eq!(there(&messages), 10);
        let (stays, go) = slots.split_last().unwrap();
        go.iter().for_each(|slot| messages.remove(*slot));
        // The one with a message, and one with room at most.
        assert!(there(&messages) <= 2, "{}", there(&messages));
        assert_eq!(messages[*stays].id(), MessageId(4_999));
        messages.remove(*stays);
        assert_eq!((messages.len(), there(&messages)), (0, 1));
        let again: Vec<u32> = (0..5_000).map(|id| messages.insert(message(id))).collect();
        assert!(again.iter().zip(0..).all(|(slot, id)| messages[*slot].id() == MessageId(id)));
        assert_eq!((messages.chunks.len(), messages.gone.len()), (10, 0));
    }

    #[test]
    fn an_extra_goes_with_its_message() {
        let mut messages = Messages::default();
        let slot = messages.insert(message(1));
        messages.extra_mut(slot).worker = Some("w".into());
        assert_eq!(messages.take_worker(slot).as_deref(), Some("w"));
        assert!(messages.extra(slot).is_none() && messages.extras.is_empty());
        messages.extra_mut(slot).last_text = Some("t".into());
        messages.remove(slot);
        assert!(messages.extras.is_empty());
    }

    #[test]
    #[should_panic(expected = "cannot Ack")]
    fn the_life_cycle_is_kept() {
        message(1).happens(Event::Ack);
    }

    #[test]
    fn ids_survive() {
        assert_eq!(message(u128::MAX - 7).id(), MessageId(u128::MAX - 7));
    }
}
