//! Payloads for replies: out of memory where they are, else read from the journal or from blocks.

use crate::Core;
use crate::cold::ReadFor;
use crate::mesh::{Caller, ShardReply};
use crate::page::Page;
use bytes::Bytes;
use overtake_base::hash::Map;
use overtake_base::{MessageId, QueueId, ShardId};
use overtake_log::lanes::BlockPart;
use overtake_queue::answer::{DeadLetterView, Delivery, MessageView, PayloadRef, Place};
use overtake_queue::entry::{Payload, read_payload};
use std::collections::BTreeMap;

/// Replies that need payloads.
pub(crate) enum FetchKind {
    Leased(Vec<Delivery>),
    /// With the id up to which the page is whole, where there is more.
    Peeked(Vec<MessageView>, Option<MessageId>),
    Dead(Vec<DeadLetterView>, Option<MessageId>),
}

impl FetchKind {
    fn payloads(&self) -> Vec<PayloadRef> {
        match self {
            Self::Leased(items) => items.iter().map(|item| item.payload).collect(),
            Self::Peeked(items, _) => items.iter().map(|item| item.payload).collect(),
            Self::Dead(items, _) => items.iter().map(|item| item.payload).collect(),
        }
    }

    fn with(self, payloads: Vec<Payload>) -> ShardReply {
        match self {
            Self::Leased(items) => ShardReply::Leased(items.into_iter().zip(payloads).collect()),
            Self::Peeked(items, upto) => {
                ShardReply::Peeked(Page { items: items.into_iter().zip(payloads).collect(), upto })
            }
            Self::Dead(items, upto) => {
                ShardReply::DeadLetters(Page { items: items.into_iter().zip(payloads).collect(), upto })
            }
        }
    }
}

/// A reply that waits for payloads.
struct Fetch {
    caller: Caller,
    shard: ShardId,
    queue: QueueId,
    kind: FetchKind,
    references: Vec<PayloadRef>,
    payloads: Vec<Option<Payload>>,
    /// Reads under way.
    reading: usize,
}

/// Replies that wait for payloads.
#[derive(Default)]
pub(crate) struct Fetches {
    fetches: BTreeMap<u64, Fetch>,
    /// Which reply a read is for, and what it reads.
    reads: Map<u64, (u64, BlockPart)>,
}

impl Fetches {
    /// The lowest log index of an entry that a reply of the shard is read from.
    pub(crate) fn oldest_entry(&self, shard: ShardId) -> Option<u64> {
        let of_shard = self.fetches.values().filter(|fetch| fetch.shard == shard);
        let entries = of_shard.flat_map(|fetch| &fetch.references).filter_map(|reference| {
            if let Place::Entry(index) = reference.place { Some(index) } else { None }
        });
        entries.min()
    }

    /// What a read is of, and the reply that it is for.
    fn take(&mut self, read: u64) -> Option<(BlockPart, u64, Fetch)> {
        let (token, part) = self.reads.remove(&read)?;
        let mut fetch = self.fetches.remove(&token)?;
        fetch.reading -= 1;
        Some((part, token, fetch))
    }
}

impl Core {
    /// Completes a reply with the payloads it names, from memory or from disk.
    pub(crate) fn fetch(&mut self, caller: Caller, shard: ShardId, queue: QueueId, kind: FetchKind) {
        let drafts = &self.storage.drafts;
        let references: Vec<PayloadRef> =
            kind.payloads().into_iter().map(|payload| drafts.resolve(shard, payload)).collect();
        let payloads = vec![None; references.len()];
        let mut fetch = Fetch { caller, shard, queue, kind, references, payloads, reading: 0 };
        let token = self.next_number();
        let mut missing: BTreeMap<Place, Vec<PayloadRef>> = BTreeMap::new();
        for (reference, payload) in fetch.references.iter().zip(&mut fetch.payloads) {
            let whole = self.storage.cache.get(shard, reference.place);
            match whole.map(|whole| read_payload(whole, *reference)) {
                Some(Ok(read)) => *payload = Some(read),
                Some(Err(malformed)) => {
                    return self.payload_lost(shard, reference.place, &malformed.to_string());
                }
                None => missing.entry(reference.place).or_default().push(*reference),
            }
        }
        for (place, references) in missing {
            let parts = match place {
                Place::Entry(_) => vec![BlockPart::Whole],
                Place::Block(_) => crate::blocks::parts(&references),
            };
            for part in parts {
                self.counters.payload_reads += 1;
                fetch.reading += 1;
                let part_token = self.next_number();
                self.storage.fetches.reads.insert(part_token, (token, part));
                let asked = match place {
                    Place::Entry(index) => self.storage.read_entry(shard, index, part_token),
                    Place::Block(block) => {
                        self.cold.reads.insert(part_token, ((shard, block), ReadFor::Fetch));
                        self.storage.read_block(shard, block, part, part_token)
                    }
                };
                if !asked {
                    return self.payload_lost(shard, place, "it is not on disk");
                }
            }
        }
        self.put_out_operations();
        self.go_on_fetching(token, fetch);
    }

    fn go_on_fetching(&mut self, token: u64, fetch: Fetch) {
        if fetch.reading > 0 {
            self.storage.fetches.fetches.insert(token, fetch);
            return;
        }
        let payloads: Vec<Payload> = fetch.payloads.into_iter().flatten().collect();
        assert!(
            payloads.len() == fetch.references.len(),
            "a body would be delivered with another message's id"
        );
        let reply = fetch.kind.with(payloads);
        self.reply(fetch.caller, fetch.shard, Some(fetch.queue), reply);
    }

    /// What payloads of a reply stand in was read: all of it, or one payload. None: it is gone.
    pub(crate) fn payloads_fetched(&mut self, read: u64, shard: ShardId, place: Place, bytes: Option<Bytes>) {
        let Some((part, token, mut fetch)) = self.storage.fetches.take(read) else { return };
        let filled = match (&bytes, part) {
            (None, _) => {
                drop_place(&mut fetch, place);
                Ok(())
            }
            (Some(bytes), BlockPart::Payload { offset, length }) => {
                fill_one(&mut fetch, (place, offset, length), bytes)
            }
            (Some(bytes), _) => fill(&mut fetch, place, bytes),
        };
        if let Err(detail) = filled {
            return self.payload_lost(shard, place, &detail);
        }
        let needed = |replica: &crate::replica::Replica| replica.machine.holds_payloads(place);
        if let (Some(bytes), BlockPart::Whole) = (bytes, part)
            && self.replicas.get(&shard).is_some_and(needed)
        {
            self.storage.cache.insert(shard, place, bytes);
        }
        self.go_on_fetching(token, fetch);
    }

    fn payload_lost(&mut self, shard: ShardId, place: Place, why: &str) {
        let place = match place {
            Place::Entry(index) => format!("log entry {index}"),
            Place::Block(block) => format!("block {block}"),
        };
        self.fatal(format!("shard {shard}: the payload in {place} cannot be read: {why}"));
        self.storage.fail();
    }
}

fn fill(fetch: &mut Fetch, place: Place, whole: &Bytes) -> Result<(), String> {
    for (reference, payload) in fetch.references.iter().zip(&mut fetch.payloads) {
        if reference.place == place {
            *payload = Some(read_payload(whole, *reference).map_err(|malformed| malformed.to_string())?);
        }
    }
    Ok(())
}

/// Takes in one payload that was read by itself.
fn fill_one(
    fetch: &mut Fetch,
    (place, offset, length): (Place, u32, u32),
    bytes: &Bytes,
) -> Result<(), String> {
    for (reference, payload) in fetch.references.iter().zip(&mut fetch.payloads) {
        if (reference.place, reference.offset, reference.length) == (place, offset, length) {
            let alone = PayloadRef { offset: 0, ..*reference };
            *payload = Some(read_payload(bytes, alone).map_err(|malformed| malformed.to_string())?);
        }
    }
    Ok(())
}

/// Takes the items of a released entry out of a fetch.
fn drop_place(fetch: &mut Fetch, place: Place) {
    let keep: Vec<bool> = fetch.references.iter().map(|reference| reference.place != place).collect();
    fn retain<T>(items: &mut Vec<T>, keep: &[bool]) {
        let mut keep = keep.iter();
        items.retain(|_| *keep.next().unwrap_or(&true));
    }
    retain(&mut fetch.references, &keep);
    retain(&mut fetch.payloads, &keep);
    match &mut fetch.kind {
        FetchKind::Leased(items) => retain(items, &keep),
        FetchKind::Peeked(items, _) => retain(items, &keep),
        FetchKind::Dead(items, _) => retain(items, &keep),
    }
}
