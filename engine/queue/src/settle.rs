//! Ends of leases: acks, extensions, releases, expiries; and ends of messages: too many failures, time to live.

use crate::answer::SettleOutcome;
use crate::codec::cut;
use crate::command::{Extension, LeaseKey, Return};
use crate::life_cycle::{Event, State};
use crate::message::Cause;
use crate::queue::Queue;
use crate::shared::Shared;
use overtake_base::UnixMillis;
use overtake_base::limits::{ERROR_BYTES_MAX, HISTORY_ENTRIES_MAX};
use overtake_base::planted::{Bug, is_planted};

impl Queue {
    /// The message whose lease this is, also where the lease has expired and nobody has noticed yet.
    pub(crate) fn leased_under(&self, shared: &Shared, key: LeaseKey) -> Option<u32> {
        let slot = shared.by_sequence(key.sequence)?;
        let message = &shared.messages[slot];
        let fits = message.queue == self.id
            && message.state == State::Leased
            && (message.deliveries == key.deliveries || is_planted(Bug::OldReceipt));
        fits.then_some(slot)
    }

    /// The message whose current lease this is. A lease is over at its expiry, also before the shard has come to
    /// returning the message.
    fn current(&mut self, shared: &Shared, key: LeaseKey) -> Result<u32, SettleOutcome> {
        let known = shared.by_sequence(key.sequence).filter(|slot| shared.messages[*slot].queue == self.id);
        // A message in a run is visible: it is there, and nobody has a lease of it.
        if known.is_none() && !self.is_cold(shared, key.sequence.0) {
            return Err(SettleOutcome::Unknown);
        }
        let current = self.leased_under(shared, key).filter(|slot| shared.messages[*slot].due > shared.time);
        current.ok_or_else(|| {
            self.totals.stale_receipts += 1;
            SettleOutcome::Stale
        })
    }

    pub(crate) fn ack(&mut self, shared: &mut Shared, key: LeaseKey) -> SettleOutcome {
        match self.current(shared, key) {
            Ok(slot) => {
                self.totals.acked += 1;
                self.shift(shared, slot, Event::Ack, |_, _| {});
                SettleOutcome::Ok
            }
            Err(outcome) => outcome,
        }
    }

    pub(crate) fn extend(&mut self, shared: &mut Shared, extension: Extension) -> SettleOutcome {
        match self.current(shared, extension.key) {
            Ok(slot) => {
                shared.clear_timer(slot);
                let from =
                    if is_planted(Bug::ExtendFromExpiry) { shared.messages[slot].due } else { shared.time };
                shared.messages[slot].due = from.plus_ms(extension.lease_ms);
                shared.set_timer(slot);
                SettleOutcome::Ok
            }
            Err(outcome) => outcome,
        }
    }

    pub(crate) fn release(&mut self, shared: &mut Shared, returned: &Return) -> SettleOutcome {
        match self.current(shared, returned.key) {
            Ok(slot) => {
                self.totals.releases += 1;
                let text = |error: &str| Cause::Text(cut(error, ERROR_BYTES_MAX).into());
                let cause = returned.error.as_deref().map_or(Cause::Released, text);
                let delay_ms = returned.delay_ms.filter(|_| !is_planted(Bug::ReleaseAtOnce));
                self.fail(shared, slot, cause, delay_ms);
                SettleOutcome::Ok
            }
            Err(outcome) => outcome,
        }
    }

    pub(crate) fn expire_lease(&mut self, shared: &mut Shared, slot: u32) {
        self.totals.lease_expirations += 1;
        self.fail(shared, slot, Cause::LeaseExpired, None);
    }

    /// A delivery failed: the message returns to its place, at once or later, or dies.
    fn fail(&mut self, shared: &mut Shared, slot: u32, cause: Cause, delay_ms: Option<u64>) {
        let now = shared.time;
        let message = &mut shared.messages[slot];
        let counts = cause != Cause::LeaseExpired || !is_planted(Bug::ExpiryIsNoFailure);
        message.failures = message.failures.saturating_add(u32::from(counts));
        let failures = message.failures;
        if failures >= self.config.max_deliveries + u32::from(is_planted(Bug::OneMoreDelivery)) {
            self.totals.dead_lettered += 1;
            self.shift(shared, slot, Event::GiveUp, |shared, slot| {
                remember(shared, slot, cause);
                shared.messages[slot].due = now;
            });
            return;
        }
        if message.expires_at() <= now {
            remember(shared, slot, cause);
            return self.expire(shared, slot);
        }
        let backoff_ms = || self.config.backoff.map_or(0, |backoff| backoff.delay_ms(failures));
        let delay_ms = delay_ms.unwrap_or_else(backoff_ms);
        let event = if delay_ms == 0 { Event::Return } else { Event::ReturnLater };
        self.shift(shared, slot, event, |shared, slot| {
            remember(shared, slot, cause);
            if is_planted(Bug::ReturnToTail) {
                shared.appear(slot, 0);
            }
            shared.messages[slot].due = now.plus_ms(delay_ms);
        });
    }

    /// The message's time to live is over, and no lease runs.
    pub(crate) fn expire(&mut self, shared: &mut Shared, slot: u32) {
        let now = shared.time;
        if self.config.dead_letter_expired {
            self.totals.dead_lettered += 1;
            self.shift(shared, slot, Event::ExpireToDead, |shared, slot| {
                remember(shared, slot, Cause::Expired);
                shared.messages[slot].due = now;
            });
        } else {
            self.totals.expired += u64::from(!is_planted(Bug::ExpiryNotCounted));
            self.shift(shared, slot, Event::Expire, |_, _| {});
        }
    }

    /// The message's timer fired.
    pub(crate) fn timer_fired(&mut self, shared: &mut Shared, slot: u32) {
        let message = &shared.messages[slot];
        match message.state {
            State::Leased => self.expire_lease(shared, slot),
            State::Visible => self.expire(shared, slot),
            State::Delayed if message.expires_at() <= shared.time => self.expire(shared, slot),
            State::Delayed => self.become_visible(shared, slot),
            State::Dead | State::Gone => {}
        }
    }

    fn become_visible(&mut self, shared: &mut Shared, slot: u32) {
        let first = shared.messages[slot].sequence == crate::message::NO_SEQUENCE;
        let retention_ms = self.retention_ms();
        self.shift(shared, slot, Event::Due, |shared, slot| {
            if first {
                shared.appear(slot, retention_ms);
            }
        });
    }
}

/// Adds to the message's history, of which the last entries are kept.
fn remember(shared: &mut Shared, slot: u32, cause: Cause) {
    let now: UnixMillis = shared.time;
    let extra = shared.messages.extra_mut(slot);
    if let Cause::Text(text) = &cause {
        extra.last_text = Some(text.clone());
    }
    if extra.history.len() == HISTORY_ENTRIES_MAX {
        extra.history.pop_front();
    }
    extra.history.push_back((now, cause));
}
