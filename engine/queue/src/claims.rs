//! Dedup keys of messages that live on another shard.
//!
//! A message lives on its id's shard, where its id is known to be the only one. Where its dedup key belongs to another
//! shard, both shards must agree, and whoever carries the words between them may die after any of them:
//!
//! 1. `Claim`, on the key's shard: the key is now *pending* for this id. Nothing else is stored under it meanwhile.
//! 2. `StoreClaimed`, on the id's shard: stored, with the key's hash remembered beside the id; or it is a repeat, or
//!    refused.
//! 3. `EndClaim`, on the key's shard: the key answers for the message, or is free again. Nobody needs to wait for it.
//!
//! What is left pending is settled by whoever meets it next. `FenceClaim` asks the id's shard whether the message was
//! stored under the key; if not, the same log entry forbids it for every claim up to that one. So a pending key is either
//! confirmed or void, and no clock or memory of a core decides which. Fences are kept until the claims' deadline, after
//! which the id's shard refuses them by its own time.
//!
//! Each claim has a number. That an attempt of one claimer came to nothing takes back only its own number: the key stays
//! pending while another attempt for the same message may still store it.

use crate::answer::{ClaimOutcome, EnqueueOutcome, PendingClaim};
use crate::codec::{RawMessage, read_ticket, write_ticket};
use crate::command::{ClaimEnd, ClaimTicket};
use crate::dedup::key_hash;
use crate::queue::Queue;
use crate::shared::Shared;
use overtake_base::limits::{CLAIM_MS, CLAIMS_OF_KEY_MAX};
use overtake_base::planted::{Bug, is_planted};
use overtake_base::{Malformed, MessageId, Reader, UnixMillis, Writer};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

/// Claims of a queue's keys on this shard, and fences against claims on other shards.
#[derive(Default)]
pub(crate) struct Claims {
    last_number: u64,
    keys: BTreeMap<Arc<[u8]>, Pending>,
    ends: BTreeSet<(UnixMillis, Arc<[u8]>)>,
    fences: BTreeMap<(MessageId, u64), ClaimTicket>,
    fence_ends: BTreeSet<(UnixMillis, MessageId, u64)>,
}

/// A key that is claimed for a message.
struct Pending {
    id: MessageId,
    /// Claims that may still store the message, in the order made; at least one.
    numbers: Vec<u64>,
    /// Shard time of the newest one.
    at: UnixMillis,
    window_ms: u64,
}

impl Pending {
    fn deadline(&self) -> UnixMillis {
        self.at.plus_ms(CLAIM_MS)
    }

    /// The message's own window is over by then, however late it was stored.
    fn until(&self) -> UnixMillis {
        self.deadline().plus_ms(self.window_ms)
    }

    fn newest(&self) -> ClaimTicket {
        ClaimTicket { number: self.numbers.last().copied().unwrap_or(0), deadline: self.deadline() }
    }
}

impl Claims {
    /// The claim of this key that nobody has ended.
    pub(crate) fn pending(&self, key: &[u8], now: UnixMillis) -> Option<PendingClaim> {
        if self.keys.is_empty() || is_planted(Bug::UnheldClaims) {
            return None;
        }
        let pending = self.keys.get(key).filter(|pending| pending.until() > now)?;
        Some(PendingClaim { id: pending.id, claim: pending.newest(), age_ms: now.since(pending.at) })
    }

    fn claim(&mut self, key: &[u8], id: MessageId, now: UnixMillis, window_ms: u64) -> ClaimTicket {
        let mut numbers = match self.remove(key) {
            Some(before) if before.id == id && before.until() > now => before.numbers,
            _ => Vec::new(),
        };
        self.last_number += 1;
        numbers.push(self.last_number);
        let pending = Pending { id, numbers, at: now, window_ms };
        let ticket = pending.newest();
        self.insert(key.into(), pending);
        ticket
    }

    fn insert(&mut self, key: Arc<[u8]>, pending: Pending) {
        self.ends.insert((pending.until(), key.clone()));
        self.keys.insert(key, pending);
    }

    fn remove(&mut self, key: &[u8]) -> Option<Pending> {
        let (key, pending) = self.keys.remove_entry(key)?;
        self.ends.remove(&(pending.until(), key));
        Some(pending)
    }

    /// Ends a claim; gives the end of the key's window where it answers for the message now.
    fn end(&mut self, key: &[u8], id: MessageId, end: ClaimEnd, now: UnixMillis) -> Option<UnixMillis> {
        let pending = self.keys.get_mut(key).filter(|pending| pending.id == id && pending.until() > now)?;
        match end {
            ClaimEnd::Stored(at) => {
                // Before this, and before the deadline, whatever the other shard's clock shows.
                let until = at.min(now).min(pending.deadline()).plus_ms(pending.window_ms);
                self.remove(key);
                return (until > now).then_some(until);
            }
            ClaimEnd::NotStored(number) => {
                pending.numbers.retain(|other| *other != number);
                if pending.numbers.is_empty() {
                    self.remove(key);
                }
            }
            ClaimEnd::Void(number) => {
                if pending.newest().number == number {
                    self.remove(key);
                }
            }
        }
        None
    }

    fn fence(&mut self, id: MessageId, key: u64, claim: ClaimTicket, now: UnixMillis) {
        let known = self.fences.get(&(id, key)).copied();
        if claim.deadline < now || known.is_some_and(|known| known.number >= claim.number) {
            return;
        }
        if let Some(known) = known {
            self.fence_ends.remove(&(known.deadline, id, key));
        }
        self.insert_fence(id, key, claim);
    }

    fn insert_fence(&mut self, id: MessageId, key: u64, claim: ClaimTicket) {
        self.fences.insert((id, key), claim);
        self.fence_ends.insert((claim.deadline, id, key));
    }

    /// Whether a message may not be stored under this claim any more.
    fn is_late(&self, id: MessageId, key: u64, claim: ClaimTicket, now: UnixMillis) -> bool {
        let fenced = || self.fences.get(&(id, key)).is_some_and(|fence| fence.number >= claim.number);
        now > claim.deadline || fenced()
    }

    /// When something can be forgotten next.
    pub(crate) fn next_end(&self) -> UnixMillis {
        let keys = self.ends.first().map_or(UnixMillis::NEVER, |(until, _)| *until);
        // At the deadline itself the fence is still needed.
        let fences = self.fence_ends.first().map_or(UnixMillis::NEVER, |(until, ..)| until.plus_ms(1));
        keys.min(fences)
    }

    /// Forgets what is over, at most `max` of each kind.
    pub(crate) fn forget(&mut self, now: UnixMillis, max: usize) {
        for _ in 0..max {
            let Some((until, key)) = self.ends.first().filter(|(until, _)| *until <= now) else { break };
            let (until, key) = (*until, key.clone());
            self.ends.remove(&(until, key.clone()));
            self.keys.remove(&key);
        }
        for _ in 0..max {
            let Some(first) = self.fence_ends.first().copied().filter(|(until, ..)| *until < now) else {
                break;
            };
            self.fence_ends.remove(&first);
            self.fences.remove(&(first.1, first.2));
        }
    }

    /// Appends what still counts at `now`.
    pub(crate) fn encode(&self, out: &mut Writer<'_>, now: UnixMillis) {
        out.u64(self.last_number);
        let keys = self.keys.iter().filter(|(_, pending)| pending.until() > now);
        out.u32(u32::try_from(keys.clone().count()).unwrap_or(u32::MAX));
        for (key, pending) in keys {
            out.bytes(key);
            out.u128(pending.id.0);
            out.u64(pending.at.0);
            out.u64(pending.window_ms);
            out.u32(u32::try_from(pending.numbers.len()).unwrap_or(u32::MAX));
            pending.numbers.iter().for_each(|number| out.u64(*number));
        }
        let fences = self.fences.iter().filter(|(_, claim)| claim.deadline >= now);
        out.u32(u32::try_from(fences.clone().count()).unwrap_or(u32::MAX));
        for ((id, key), claim) in fences {
            out.u128(id.0);
            out.u64(*key);
            write_ticket(out, claim);
        }
    }

    pub(crate) fn decode(input: &mut Reader<'_>) -> Result<Self, Malformed> {
        let mut claims = Self { last_number: input.u64("last claim")?, ..Self::default() };
        for _ in 0..input.count(usize::MAX, 48, "claimed keys")? {
            let key: Arc<[u8]> = input.bytes(usize::MAX, "claimed key")?.into();
            let id = MessageId(input.u128("claimed id")?);
            let at = UnixMillis(input.u64("claim time")?);
            let window_ms = input.u64("claim window")?;
            let count = input.count(CLAIMS_OF_KEY_MAX, 8, "claims")?;
            let numbers: Vec<u64> = (0..count).map(|_| input.u64("claim")).collect::<Result<_, _>>()?;
            if numbers.is_empty() || !numbers.is_sorted() || claims.keys.contains_key(&key) {
                return Err(Malformed("claims"));
            }
            claims.insert(key, Pending { id, numbers, at, window_ms });
        }
        for _ in 0..input.count(usize::MAX, 40, "fences")? {
            let id = MessageId(input.u128("fenced id")?);
            let key = input.u64("fenced key")?;
            let claim = read_ticket(input)?;
            if claims.fences.contains_key(&(id, key)) {
                return Err(Malformed("fence twice"));
            }
            claims.insert_fence(id, key, claim);
        }
        Ok(claims)
    }
}

impl Queue {
    /// On the key's shard.
    pub(crate) fn claim(&mut self, shared: &mut Shared, key: &[u8], id: MessageId) -> ClaimOutcome {
        let now = shared.time;
        let window_ms = self.config.dedup_window_s.saturating_mul(1_000);
        if window_ms == 0 {
            return ClaimOutcome::Off;
        }
        if let Some(first) = self.dedup.by_key(key, now) {
            return ClaimOutcome::Taken(first);
        }
        if let Some(pending) = self.dedup.claims.pending(key, now) {
            let has_room = |pending: &Pending| pending.numbers.len() < CLAIMS_OF_KEY_MAX;
            if pending.id != id || !self.dedup.claims.keys.get(key).is_some_and(has_room) {
                return ClaimOutcome::Pending(pending);
            }
        }
        let ticket = self.dedup.claims.claim(key, id, now, window_ms);
        self.schedule_forgetting(shared);
        ClaimOutcome::Claimed(ticket)
    }

    /// On the key's shard.
    pub(crate) fn end_claim(&mut self, shared: &mut Shared, key: &[u8], id: MessageId, end: ClaimEnd) {
        if let Some(until) = self.dedup.claims.end(key, id, end, shared.time) {
            self.dedup.remember_key(key, id, until);
        }
        self.schedule_forgetting(shared);
    }

    /// On the id's shard.
    pub(crate) fn store_claimed(
        &mut self,
        shared: &mut Shared,
        index: u64,
        claim: ClaimTicket,
        raw: &RawMessage<'_>,
    ) -> EnqueueOutcome {
        let now = shared.time;
        let key = raw.dedup_key.unwrap_or_default();
        if self.dedup.has_id(raw.id, now) || self.find(shared, raw.id).is_some() {
            let before = self.stored_under(raw.id, key, now);
            return before.map_or(EnqueueOutcome::Duplicate(raw.id), EnqueueOutcome::StoredBefore);
        }
        if self.dedup.claims.is_late(raw.id, key_hash(key), claim, now) {
            return EnqueueOutcome::Late;
        }
        if let Err(reason) = self.room_for(raw.body.len() as u64) {
            self.totals.refused[reason as usize] += 1;
            return EnqueueOutcome::Refused(reason);
        }
        let window_ms = self.config.dedup_window_s.saturating_mul(1_000);
        if window_ms > 0 {
            self.dedup.remember_id(raw.id, now.plus_ms(window_ms), Some(key));
            self.schedule_forgetting(shared);
        }
        self.take_in(shared, index, raw)
    }

    /// On the id's shard.
    pub(crate) fn fence_claim(
        &mut self,
        shared: &mut Shared,
        key: &[u8],
        id: MessageId,
        claim: ClaimTicket,
    ) -> Option<UnixMillis> {
        let stored = self.stored_under(id, key, shared.time);
        if stored.is_none() {
            self.dedup.claims.fence(id, key_hash(key), claim, shared.time);
            self.schedule_forgetting(shared);
        }
        stored
    }

    /// When the message with this id was stored under a key that was claimed on another shard; none where it was not, or
    /// its window is over.
    pub(crate) fn stored_under(&self, id: MessageId, key: &[u8], now: UnixMillis) -> Option<UnixMillis> {
        let until = self.dedup.id_under(id, key, now)?;
        Some(UnixMillis(until.0.saturating_sub(self.config.dedup_window_s.saturating_mul(1_000))))
    }
}
