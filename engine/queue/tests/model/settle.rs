//! Ends of leases and of messages in the model.

use super::Shard;
use super::message::State;
use super::mutation::Mutation;
use super::queue::Queue;
use overtake_base::UnixMillis;
use overtake_base::queue_config::Backoff;
use overtake_queue::answer::SettleOutcome;
use overtake_queue::command::{Extension, LeaseKey, Return};

const ERROR_BYTES_MAX: usize = 4_096;
const HISTORY_ENTRIES_MAX: usize = 10;

impl Queue {
    /// The message whose lease this is and runs.
    fn leased_now(&mut self, shard: &Shard, key: LeaseKey) -> Result<usize, SettleOutcome> {
        let dead_is_known = shard.has(Mutation::DeadIsStale);
        let known = self.messages.iter().position(|message| {
            message.sequence == Some(key.sequence) && (dead_is_known || !message.is_dead())
        });
        let at = known.ok_or(SettleOutcome::Unknown)?;
        let message = &self.messages[at];
        let any_delivery = shard.has(Mutation::AnyDeliveryAcks);
        match message.state {
            State::Leased { until, .. }
                if until > shard.now && (any_delivery || message.deliveries == key.deliveries) =>
            {
                Ok(at)
            }
            _ => {
                self.totals.stale_receipts += 1;
                Err(SettleOutcome::Stale)
            }
        }
    }

    pub fn ack(&mut self, shard: &mut Shard, key: LeaseKey) -> SettleOutcome {
        let at = match self.leased_now(shard, key) {
            Ok(at) => at,
            Err(outcome) => return outcome,
        };
        if shard.has(Mutation::AckFreesKey) {
            let id = self.messages[at].id;
            self.keys.retain(|(_, first, _)| *first != id);
        }
        self.totals.acked += 1;
        self.remove(shard, at);
        SettleOutcome::Ok
    }

    pub fn extend(&mut self, shard: &mut Shard, extension: &Extension) -> SettleOutcome {
        let at = match self.leased_now(shard, extension.key) {
            Ok(at) => at,
            Err(outcome) => return outcome,
        };
        let mut state = self.messages[at].state.clone();
        if let State::Leased { until, .. } = &mut state {
            *until = shard.now.plus_ms(extension.lease_ms);
        }
        self.set_state(shard, at, state);
        SettleOutcome::Ok
    }

    pub fn release(&mut self, shard: &mut Shard, returned: &Return) -> SettleOutcome {
        let at = match self.leased_now(shard, returned.key) {
            Ok(at) => at,
            Err(outcome) => return outcome,
        };
        self.totals.releases += 1;
        let text = returned.error.as_deref().map(cut);
        if let Some(text) = text {
            self.messages[at].last_text = Some(text.into());
        }
        self.fail(shard, at, text.unwrap_or("released"), returned.delay_ms);
        SettleOutcome::Ok
    }

    /// A delivery failed. The message dies of too many failures; else it expires if its time is over; else it returns.
    fn fail(&mut self, shard: &mut Shard, at: usize, what: &str, delay_ms: Option<u64>) {
        self.note(shard, at, what);
        let message = &mut self.messages[at];
        message.failures += 1;
        let failures = message.failures;
        let deaths_door = self.config.max_deliveries + u32::from(shard.has(Mutation::OneFailureMore));
        if failures >= deaths_door {
            self.die(shard, at);
            return;
        }
        if message.expires_at(shard) <= shard.now {
            self.expire(shard, at);
            return;
        }
        if shard.has(Mutation::ReturnRenewsLife) {
            message.since = shard.now;
        }
        if shard.has(Mutation::ReturnToTheTail) {
            shard.last_sequence += 1;
            message.sequence = Some(overtake_base::Sequence(shard.last_sequence));
        }
        let delay_ms = delay_ms.filter(|ms| *ms > 0 || !shard.has(Mutation::ZeroDelayBacksOff));
        let counted = failures - u32::from(shard.has(Mutation::BackoffLagsBehind) && failures > 1);
        let backoff_ms = self.config.backoff.map_or(0, |backoff| backoff_ms(backoff, counted));
        let until = shard.now.plus_ms(delay_ms.unwrap_or(backoff_ms));
        let state = if until > shard.now { State::Delayed { until } } else { State::Visible };
        self.set_state(shard, at, state);
    }

    fn die(&mut self, shard: &mut Shard, at: usize) {
        self.totals.dead_lettered += 1;
        let now = shard.now;
        self.set_state(shard, at, State::Dead { at: now });
    }

    pub fn expire(&mut self, shard: &mut Shard, at: usize) {
        if self.config.dead_letter_expired {
            self.note(shard, at, "expired");
            self.die(shard, at);
        } else {
            self.totals.expired += 1;
            self.remove(shard, at);
        }
    }

    fn note(&mut self, shard: &Shard, at: usize, what: &str) {
        let history = &mut self.messages[at].history;
        history.push((shard.now, what.into()));
        let most = HISTORY_ENTRIES_MAX + usize::from(shard.has(Mutation::LongHistory));
        if history.len() > most {
            history.remove(0);
        }
    }

    /// The time came that the message was waiting for.
    pub fn message_due(&mut self, shard: &mut Shard, change: u64) {
        let Some(at) = self.messages.iter().position(|message| message.changed == change) else { return };
        let message = &self.messages[at];
        let expired: UnixMillis = message.expires_at(shard);
        match message.state {
            State::Leased { .. } => {
                self.totals.lease_expirations += 1;
                self.fail(shard, at, "lease expired", None);
            }
            State::Delayed { .. } | State::Visible if expired <= shard.now => self.expire(shard, at),
            State::Delayed { .. } if message.sequence.is_none() => self.appear(shard, at),
            State::Delayed { .. } => self.set_state(shard, at, State::Visible),
            State::Visible | State::Dead { .. } => {}
        }
    }
}

/// `first_s` × `factor`^(failures − 1), at most `max_s`; in milliseconds, rounded down. The factor is kept as a fraction.
fn backoff_ms(backoff: Backoff, failures: u32) -> u64 {
    let common = |d: &u64| backoff.factor_micro.is_multiple_of(*d);
    let divisor = [1_000_000, 500_000, 250_000, 125_000, 100_000, 1].into_iter().find(common);
    let divisor = divisor.expect("1 divides everything");
    let factor = u128::from(backoff.factor_micro / divisor);
    let over = u128::from(1_000_000 / divisor);
    let (mut delay, mut parts) = (u128::from(backoff.first_s) * 1_000, 1);
    let max_ms = u128::from(backoff.max_s) * 1_000;
    for _ in 1..failures {
        if delay == 0 || delay / parts >= max_ms || factor == over {
            break;
        }
        (delay, parts) = (delay * factor, parts * over);
    }
    (delay / parts).min(max_ms) as u64
}

/// A text cut at its end to what is kept of it, between characters.
fn cut(text: &str) -> &str {
    let end = text.char_indices().map(|(at, c)| at + c.len_utf8()).take_while(|end| *end <= ERROR_BYTES_MAX);
    &text[..end.last().unwrap_or(0)]
}
