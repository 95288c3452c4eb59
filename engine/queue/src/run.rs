//! A run: messages of one lane, or delayed messages of one queue, that are in a block and not in memory. In memory stays
//! what counts and look-ups need: about a byte a message, often less.
//!
//! The bytes of a run's records are the fields of its messages (see `record.rs`), one message after the other.

use crate::answer::{PayloadRef, Place};
use crate::blocks::next_offset;
use crate::life_cycle::State;
use crate::message::{EXTRA, Extra, Message, NO_SEQUENCE};
use crate::record::{FIELDS_BYTES_MIN, read_fields, write_fields};
use crate::shared::Shared;
use overtake_base::checksum::checksum;
use overtake_base::limits::BLOCK_PAYLOAD_PREFIX_BYTES;
use overtake_base::planted::{Bug, is_planted};
use overtake_base::{BlockId, Level, Malformed, MessageId, QueueId, Reader, UnixMillis, Writer};

const RECORDS_DOMAIN: u64 = u64::from_le_bytes(*b"runrecs1");
const FILTER_DOMAIN: u64 = u64::from_le_bytes(*b"runids01");
/// Bits of the filter for each id, and how many of them an id sets: about one look-up of 300 is a false alarm.
const FILTER_BITS: usize = 12;
const FILTER_PROBES: u64 = 8;

/// What a run is made of.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) enum RunKind {
    /// Visible messages of a lane, by sequence.
    Visible(Level),
    /// Messages that were never visible, by due time; how many of each level.
    Delayed(Box<[(Level, u32)]>),
}

/// What stays in memory of a run.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Run {
    pub(crate) kind: RunKind,
    pub(crate) count: u32,
    pub(crate) body_bytes: u64,
    /// Sequences of the first and last; due times where they are delayed.
    pub(crate) first: u64,
    pub(crate) last: u64,
    /// First visibility of the first.
    pub(crate) first_since: UnixMillis,
    /// First and last end of a time to live.
    pub(crate) expires: (UnixMillis, UnixMillis),
    /// Place of the last one to expire among timers of that millisecond.
    pub(crate) last_order: u64,
    /// Lowest and highest id.
    pub(crate) ids: (MessageId, MessageId),
    /// The other sequences as differences; empty where they follow each other without gaps.
    pub(crate) gaps: Box<[u8]>,
    /// Which client-made ids may be here; empty where there are none.
    pub(crate) filter: Box<[u8]>,
    /// Checksum of the records: what comes back must be what went out.
    pub(crate) checksum: u64,
}

/// A message that is read out of a run.
pub(crate) type Thawed = (Message, Option<Extra>);

/// Checksum of a run's records.
pub(crate) fn records_checksum(records: &[u8]) -> u64 {
    checksum(RECORDS_DOMAIN, records)
}

impl Run {
    /// The run of these messages, which are in order, and its records' bytes.
    pub(crate) fn of(shared: &Shared, kind: RunKind, slots: &[u32]) -> (Self, Vec<u8>) {
        let mut records = Vec::with_capacity(slots.len() * (FIELDS_BYTES_MIN + 8));
        let mut previous = None;
        for slot in slots {
            let message = &shared.messages[*slot];
            write_fields(&mut Writer(&mut records), previous, message, shared.messages.extra(*slot));
            previous = Some(message);
        }
        let messages = || slots.iter().map(|slot| &shared.messages[*slot]);
        let visible = matches!(kind, RunKind::Visible(_));
        let key = |message: &Message| if visible { message.sequence.0 } else { message.due.0 };
        let last_to_expire = messages().map(|message| (message.expires_at(), message.order)).max();
        let (last_end, last_order) = last_to_expire.unwrap_or((UnixMillis::NEVER, 0));
        let run = Self {
            count: slots.len() as u32,
            body_bytes: messages().map(|message| u64::from(message.body_bytes)).sum(),
            first: messages().next().map_or(0, key),
            last: messages().next_back().map_or(0, key),
            first_since: messages().next().map_or(UnixMillis(0), |message| message.since),
            expires: (messages().map(Message::expires_at).min().unwrap_or(UnixMillis::NEVER), last_end),
            last_order,
            ids: (
                messages().map(Message::id).min().unwrap_or(MessageId(0)),
                messages().map(Message::id).max().unwrap_or(MessageId(0)),
            ),
            gaps: if visible { gaps(messages().map(|message| message.sequence.0)) } else { Box::default() },
            filter: filter(messages()),
            checksum: records_checksum(&records),
            kind,
        };
        (run, records)
    }

    /// When the first of its messages expires or is due.
    pub(crate) fn starts_at(&self) -> UnixMillis {
        match self.kind {
            RunKind::Visible(_) => self.expires.0,
            RunKind::Delayed(_) => UnixMillis(self.first),
        }
    }

    /// How many of its messages have a lower sequence.
    pub(crate) fn rank(&self, sequence: u64) -> u64 {
        if sequence > self.last {
            return u64::from(self.count);
        }
        self.sequences().take_while(|own| *own < sequence).count() as u64
    }

    /// Whether one of its messages has this sequence.
    pub(crate) fn has_sequence(&self, sequence: u64) -> bool {
        (self.first..=self.last).contains(&sequence)
            && (self.gaps.is_empty() || self.sequences().any(|own| own == sequence))
    }

    fn sequences(&self) -> impl Iterator<Item = u64> + '_ {
        let mut input = Reader::new(&self.gaps);
        let mut sequence = self.first;
        (0..self.count).map(move |at| {
            if at > 0 {
                sequence = sequence.saturating_add(1).saturating_add(input.varint("gap").unwrap_or(0));
            }
            sequence
        })
    }

    /// Whether the id lies between the lowest and the highest one here.
    pub(crate) fn spans(&self, id: MessageId) -> bool {
        self.ids.0 <= id && id <= self.ids.1
    }

    /// Whether a message with this client-made id may be here. False alarms are rare.
    pub(crate) fn may_hold(&self, id: MessageId) -> bool {
        let bits = self.filter.len() as u64 * 8;
        let set = |bit: u64| self.filter[(bit / 8) as usize] & 1 << (bit % 8) != 0;
        bits > 0 && self.spans(id) && probes(id, bits).all(set) && !is_planted(Bug::ColdIdsForgotten)
    }

    pub(crate) fn encode(&self, out: &mut Writer<'_>) {
        match &self.kind {
            RunKind::Visible(level) => {
                out.u8(0);
                out.u8(level.0);
            }
            RunKind::Delayed(levels) => {
                out.u8(1);
                out.u8(levels.len() as u8);
                for (level, count) in levels {
                    out.u8(level.0);
                    out.u32(*count);
                }
            }
        }
        out.u32(self.count);
        out.u64(self.body_bytes);
        out.u64(self.first);
        out.u64(self.last);
        out.u64(self.first_since.0);
        out.u64(self.expires.0.0);
        out.u64(self.expires.1.0);
        out.u64(self.last_order);
        out.u128(self.ids.0.0);
        out.u128(self.ids.1.0);
        out.bytes(&self.gaps);
        out.bytes(&self.filter);
        out.u64(self.checksum);
    }

    /// Fails where a level is none of the queue's.
    pub(crate) fn check_levels(&self, levels: u8) -> Result<(), Malformed> {
        let known = match &self.kind {
            RunKind::Visible(level) => level.0 < levels,
            RunKind::Delayed(counts) => counts.iter().all(|(level, _)| level.0 < levels),
        };
        if known { Ok(()) } else { Err(Malformed("run level")) }
    }

    pub(crate) fn decode(input: &mut Reader<'_>) -> Result<Self, Malformed> {
        let level = |input: &mut Reader<'_>| Ok(Level(input.u8("run level")?));
        let kind = match input.u8("run kind")? {
            0 => RunKind::Visible(level(input)?),
            1 => {
                let count = input.u8("run levels")?;
                let each = (0..count).map(|_| Ok((level(input)?, input.u32("run level count")?)));
                RunKind::Delayed(each.collect::<Result<_, Malformed>>()?)
            }
            _ => return Err(Malformed("run kind")),
        };
        let run = Self {
            kind,
            count: input.u32("run count")?,
            body_bytes: input.u64("run bytes")?,
            first: input.u64("run first")?,
            last: input.u64("run last")?,
            first_since: UnixMillis(input.u64("run since")?),
            expires: (UnixMillis(input.u64("run expires")?), UnixMillis(input.u64("run expires")?)),
            last_order: input.u64("run order")?,
            ids: (MessageId(input.u128("run ids")?), MessageId(input.u128("run ids")?)),
            gaps: input.bytes(usize::MAX, "run gaps")?.into(),
            filter: input.bytes(usize::MAX, "run filter")?.into(),
            checksum: input.u64("run checksum")?,
        };
        let counted = match &run.kind {
            RunKind::Visible(_) => run.count,
            RunKind::Delayed(levels) => levels.iter().fold(0, |sum: u32, (_, n)| sum.saturating_add(*n)),
        };
        let visible = matches!(run.kind, RunKind::Visible(_));
        let sound = run.count > 0
            // No message has more, and sums of them must not overflow.
            && run.body_bytes <= u64::from(run.count) * u64::from(u32::MAX)
            && run.count == counted
            && run.first <= run.last
            && (!visible || run.sequences().last() == Some(run.last));
        if sound { Ok(run) } else { Err(Malformed("run")) }
    }
}

fn gaps(sequences: impl Iterator<Item = u64>) -> Box<[u8]> {
    let mut bytes = Vec::new();
    let mut previous: Option<u64> = None;
    for sequence in sequences {
        if let Some(previous) = previous {
            Writer(&mut bytes).varint(sequence - previous - 1);
        }
        previous = Some(sequence);
    }
    if bytes.iter().all(|gap| *gap == 0) { Box::default() } else { bytes.into() }
}

fn filter<'a>(messages: impl Iterator<Item = &'a Message> + Clone) -> Box<[u8]> {
    let made = messages.filter(|message| message.has(crate::message::CLIENT_MADE_ID));
    let bytes = (made.clone().count() * FILTER_BITS).div_ceil(8);
    let mut filter = vec![0; bytes];
    for message in made {
        for bit in probes(message.id(), bytes as u64 * 8) {
            filter[(bit / 8) as usize] |= 1 << (bit % 8);
        }
    }
    filter.into()
}

fn probes(id: MessageId, bits: u64) -> impl Iterator<Item = u64> {
    let hash = checksum(FILTER_DOMAIN, &id.0.to_le_bytes());
    let (one, two) = (hash >> 32, hash & 0xffff_ffff | 1);
    (0..FILTER_PROBES).map(move |probe| (one + probe * two) % bits)
}

/// Reads a run's records. Their payloads stand in the block, one after the other.
pub(crate) fn read_records(
    records: &[u8],
    block: BlockId,
    queue: QueueId,
    run: &Run,
) -> Result<Vec<Thawed>, Malformed> {
    let mut input = Reader::new(records);
    let state = if matches!(run.kind, RunKind::Visible(_)) { State::Visible } else { State::Delayed };
    if records_checksum(records) != run.checksum || records.len() / FIELDS_BYTES_MIN < run.count as usize {
        return Err(Malformed("records of a run"));
    }
    let mut messages: Vec<Thawed> = Vec::with_capacity(run.count as usize);
    let mut offset = BLOCK_PAYLOAD_PREFIX_BYTES;
    for _ in 0..run.count {
        let previous = messages.last().map(|(message, _)| message);
        let payload = PayloadRef { place: Place::Block(block), offset, length: 0 };
        let (mut message, extra) = read_fields(&mut input, previous, queue, payload)?;
        message.state = state;
        let placed = (message.sequence == NO_SEQUENCE) == (state == State::Delayed);
        let level = match &run.kind {
            RunKind::Visible(level) => *level == message.level,
            RunKind::Delayed(levels) => levels.iter().any(|(level, _)| *level == message.level),
        };
        if !placed || !level || message.has(EXTRA) {
            return Err(Malformed("record of a run"));
        }
        offset = next_offset(offset, message.payload.length);
        messages.push((message, extra));
    }
    input.finish("records of a run")?;
    Ok(messages)
}
