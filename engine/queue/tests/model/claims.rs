//! Dedup keys of messages that live on another shard.

use super::Shard;
use super::mutation::Mutation;
use super::queue::Queue;
use bytes::Bytes;
use overtake_base::limits::{CLAIM_MS, CLAIMS_OF_KEY_MAX};
use overtake_base::{MessageId, UnixMillis};
use overtake_queue::answer::{ClaimOutcome, EnqueueOutcome, KeyState, PendingClaim};
use overtake_queue::command::{ClaimEnd, ClaimTicket, NewMessage};

/// A key that is claimed for a message.
pub struct Claim {
    key: Bytes,
    id: MessageId,
    /// Of the claims that have not come to nothing.
    numbers: Vec<u64>,
    made: UnixMillis,
    window_ms: u64,
}

/// No message is stored under this key's claims up to one any more.
pub struct Fence {
    id: MessageId,
    key: Bytes,
    number: u64,
}

impl Claim {
    fn ends(&self) -> UnixMillis {
        self.made.plus_ms(CLAIM_MS).plus_ms(self.window_ms)
    }

    fn newest(&self) -> ClaimTicket {
        let number = self.numbers.iter().copied().max().expect("a claim has a number");
        ClaimTicket { number, deadline: self.made.plus_ms(CLAIM_MS) }
    }
}

impl Queue {
    fn pending(&self, key: &[u8], now: UnixMillis) -> Option<&Claim> {
        self.claims.iter().find(|claim| claim.key == key && claim.ends() > now)
    }

    pub fn key_state(&self, key: &[u8], now: UnixMillis) -> KeyState {
        if self.config.dedup_window_s == 0 {
            return KeyState::Free;
        }
        if let Some(first) = self.key_claimed(key, now) {
            return KeyState::Taken(first);
        }
        self.pending(key, now).map_or(KeyState::Free, |claim| {
            let age_ms = now.since(claim.made);
            KeyState::Pending(PendingClaim { id: claim.id, claim: claim.newest(), age_ms })
        })
    }

    pub fn claim(&mut self, shard: &Shard, key: &Bytes, id: MessageId) -> ClaimOutcome {
        if self.config.dedup_window_s == 0 {
            return ClaimOutcome::Off;
        }
        match self.key_state(key, shard.now) {
            KeyState::Taken(first) => return ClaimOutcome::Taken(first),
            KeyState::Pending(pending) => {
                let claims = self.pending(key, shard.now).map_or(0, |claim| claim.numbers.len());
                if pending.id != id || claims == CLAIMS_OF_KEY_MAX {
                    return ClaimOutcome::Pending(pending);
                }
            }
            KeyState::Free => self.claims.retain(|claim| claim.key != key),
        }
        self.claims_made += 1;
        let (number, made) = (self.claims_made, shard.now);
        let window_ms = self.config.dedup_window_s * 1_000;
        match self.claims.iter_mut().find(|claim| claim.key == key) {
            Some(claim) => {
                claim.numbers.push(number);
                (claim.made, claim.window_ms) = (made, window_ms);
            }
            None => {
                let numbers = vec![number];
                self.claims.push(Claim { key: key.clone(), id, numbers, made, window_ms });
            }
        }
        ClaimOutcome::Claimed(ClaimTicket { number, deadline: made.plus_ms(CLAIM_MS) })
    }

    pub fn end_claim(&mut self, shard: &Shard, key: &Bytes, id: MessageId, end: ClaimEnd) {
        let ours = |claim: &&mut Claim| claim.key == key && claim.id == id && claim.ends() > shard.now;
        let Some(claim) = self.claims.iter_mut().find(ours) else { return };
        let over = match end {
            ClaimEnd::Stored(at) => {
                let stored_by = at.min(shard.now).min(claim.newest().deadline);
                self.keys.retain(|(.., end)| *end > shard.now);
                self.keys.push((key.clone(), id, stored_by.plus_ms(claim.window_ms)));
                true
            }
            ClaimEnd::NotStored(number) => {
                claim.numbers.retain(|other| *other != number);
                claim.numbers.is_empty() || shard.has(Mutation::OneAttemptEndsAll)
            }
            ClaimEnd::Void(number) => {
                claim.newest().number == number || shard.has(Mutation::OldFenceVoidsNewClaim)
            }
        };
        if over {
            self.claims.retain(|claim| claim.key != key);
        }
    }

    pub fn fence_claim(
        &mut self,
        shard: &Shard,
        key: &Bytes,
        id: MessageId,
        claim: ClaimTicket,
    ) -> Option<UnixMillis> {
        let stored = self.stored_under(id, key, shard.now);
        if stored.is_none() && !shard.has(Mutation::FenceIsALook) {
            self.fences.push(Fence { id, key: key.clone(), number: claim.number });
        }
        stored
    }

    /// When, by the window that the queue has now.
    pub fn stored_under(&self, id: MessageId, key: &[u8], now: UnixMillis) -> Option<UnixMillis> {
        let (_, end, _) = self.ids.iter().find(|(stored, end, under)| {
            *stored == id && *end > now && under.as_ref().is_some_and(|under| under == key)
        })?;
        Some(UnixMillis(end.0.saturating_sub(self.config.dedup_window_s * 1_000)))
    }

    pub fn store_claimed(
        &mut self,
        shard: &mut Shard,
        index: u64,
        claim: ClaimTicket,
        message: &NewMessage,
        entry: &[u8],
    ) -> EnqueueOutcome {
        let key = message.dedup_key.clone().unwrap_or_default();
        if self.id_lives(message.id, shard.now) {
            let before = self.stored_under(message.id, &key, shard.now);
            return before.map_or(EnqueueOutcome::Duplicate(message.id), EnqueueOutcome::StoredBefore);
        }
        let fenced = self
            .fences
            .iter()
            .any(|fence| fence.id == message.id && fence.key == key && fence.number >= claim.number);
        if fenced || shard.now > claim.deadline && !shard.has(Mutation::ClaimsNeverLapse) {
            return EnqueueOutcome::Late;
        }
        if let Some(reason) = self.refusal(shard, message.body.len() as u64) {
            self.totals.refused[reason as usize] += 1;
            return EnqueueOutcome::Refused(reason);
        }
        self.ids.retain(|(_, end, _)| *end > shard.now);
        let end = shard.now.plus_ms(self.config.dedup_window_s * 1_000);
        self.ids.push((message.id, end, Some(key)));
        self.take_in(shard, index, message, entry);
        EnqueueOutcome::Stored
    }
}
