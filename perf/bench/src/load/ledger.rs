//! Verification: an account of every message of one run, from its sending to its ack. Events go in, violations of the
//! contract come out. Pure: times are given.
//!
//! Only what is certain is told: an answer that was lost, or a receive that was answered after its lease had run out, may
//! explain what would else be a violation, and then it does.

use super::finished::Finished;
use super::order::Order;
use super::pages::Pages;
use core::fmt;
use overtake_client::{MessageId, Settled};

/// How far the clocks of server and client may be apart before a lease is said to have ended early, in milliseconds.
const CLOCK_MS: u64 = 100;
/// Violations that are kept as text; all are counted.
const TOLD_MAX: usize = 20;

/// A promise that was broken.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum Broken {
    /// Confirmed, not acked, and not there.
    Lost,
    /// Delivered again while its lease ran, or after its ack.
    Twice,
    /// Delivered although it was refused, or its dedup key belongs to another, or it was never sent.
    Phantom,
    /// Another level, id or body than was sent.
    Changed,
    /// Delivered before its time.
    Early,
    /// Delivered after one two levels less urgent, over the bound.
    Order,
    /// A repeat of a dedup key or id was answered with another id, or stored.
    Dedup,
    /// A lease or its receipt did not count while it ran.
    Lease,
}

impl Broken {
    /// What it is, for people.
    #[must_use]
    pub const fn text(self) -> &'static str {
        match self {
            Self::Lost => "lost",
            Self::Twice => "delivered twice without a cause",
            Self::Phantom => "delivered though never stored",
            Self::Changed => "changed",
            Self::Early => "delivered early",
            Self::Order => "overtaken by a less urgent message",
            Self::Dedup => "deduplication failed",
            Self::Lease => "lease ended early",
        }
    }
}

/// A violation, with the message it is about.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Violation {
    /// Which promise.
    pub broken: Broken,
    /// What shows it.
    pub detail: String,
}

impl fmt::Display for Violation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.broken.text(), self.detail)
    }
}

/// Violations: all counted, the first ones told.
#[derive(Clone, Debug, Default)]
pub struct Violations {
    /// How many of each kind.
    pub counts: std::collections::BTreeMap<Broken, u64>,
    /// The first ones.
    pub told: Vec<Violation>,
}

impl Violations {
    fn add(&mut self, broken: Broken, detail: impl FnOnce() -> String) {
        *self.counts.entry(broken).or_default() += 1;
        if self.told.len() < TOLD_MAX {
            self.told.push(Violation { broken, detail: detail() });
        }
    }

    /// All of them.
    #[must_use]
    pub fn total(&self) -> u64 {
        self.counts.values().sum()
    }
}

/// A message under way.
#[derive(Clone, Debug)]
struct Entry {
    level: u8,
    /// None where another process sent it and only its deliveries are seen.
    id: Option<MessageId>,
    /// When it may be seen, in nanoseconds.
    visible_ns: u64,
    confirmed_ns: Option<u64>,
    /// Its enqueue has no known fate, and will get none.
    unknown: bool,
    delayed: bool,
    lease: Option<Lease>,
    failures: u32,
}

/// The newest delivery of a message.
#[derive(Clone, Copy, Debug)]
struct Lease {
    deliveries: u32,
    expires_ms: u64,
    /// It was given back, or may have been.
    given_back: bool,
}

/// One message as it was delivered.
#[derive(Clone, Copy, Debug)]
pub struct Delivery {
    /// Its number.
    pub number: u64,
    /// Its id.
    pub id: MessageId,
    /// Its level.
    pub level: u8,
    /// When it may be seen, as its stamp says.
    pub visible_ns: u64,
    /// How often it was delivered.
    pub deliveries: u32,
    /// End of its lease, in milliseconds since 1970.
    pub lease_expires_ms: u64,
    /// Given to a share.
    pub share: bool,
    /// When its receive was sent and answered, in nanoseconds since 1970.
    pub received_ns: (u64, u64),
    /// The receive took any level.
    pub any_level: bool,
}

/// What a delivery is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Seen {
    /// The first one of this message.
    First,
    /// One that followed a failure of `failures` known ones.
    Again {
        /// Failed deliveries before.
        failures: u32,
    },
    /// Its lease had run out when it came: nothing can be said.
    Late,
    /// It should not be.
    Wrong,
}

/// How a settle was tried.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct SettleTry {
    /// The message.
    pub number: u64,
    /// Its deliveries when it was leased.
    pub deliveries: u32,
    /// It was an ack; else a release.
    pub ack: bool,
    /// An earlier try has no known fate.
    pub repeated: bool,
}

/// The account of one run.
#[derive(Clone, Debug)]
pub struct Ledger {
    /// Messages of this run are sent here; without it only deliveries are seen.
    own: bool,
    entries: Pages<Entry>,
    finished: Finished,
    order: Order,
    /// Messages that are confirmed and not acked.
    outstanding: u64,
    /// What was broken.
    pub violations: Violations,
}

impl Ledger {
    /// An account that sees everything (`own`), or only deliveries.
    #[must_use]
    pub fn new(own: bool) -> Self {
        Self {
            own,
            entries: Pages::default(),
            finished: Finished::default(),
            order: Order::default(),
            outstanding: 0,
            violations: Violations::default(),
        }
    }

    /// Messages confirmed and not acked yet.
    #[must_use]
    pub const fn outstanding(&self) -> u64 {
        self.outstanding
    }

    /// A message is about to be sent.
    pub fn sent(&mut self, number: u64, id: MessageId, level: u8, visible_ns: u64, delayed: bool) {
        let entry = Entry {
            level,
            id: Some(id),
            visible_ns,
            confirmed_ns: None,
            unknown: false,
            delayed,
            lease: None,
            failures: 0,
        };
        self.entries.insert(number, entry);
    }

    /// It was confirmed as `id`. `first` is the id that its dedup key belongs to already, where it repeats one.
    pub fn confirmed(
        &mut self,
        number: u64,
        id: MessageId,
        duplicate: bool,
        first: Option<MessageId>,
        now_ns: u64,
    ) {
        if let Some(first) = first {
            if !duplicate || id != first {
                self.violations.add(Broken::Dedup, || {
                    format!("message {number} repeats the key of {first} and was answered with {id}, duplicate: {duplicate}")
                });
            }
            self.finish(number);
            return;
        }
        // Acked already: it was delivered before its confirmation came.
        let Some(entry) = self.entries.get_mut(number) else { return };
        if entry.id != Some(id) {
            let sent = entry.id;
            self.violations.add(Broken::Dedup, || {
                format!("message {number} was sent as {} and confirmed as {id}", shown(sent))
            });
        }
        if entry.confirmed_ns.replace(now_ns).is_none() {
            self.outstanding += 1;
        }
    }

    /// It was refused, for certain: nothing was stored.
    pub fn refused(&mut self, number: u64) {
        self.finish(number);
    }

    /// Nobody knows whether it was stored, and nobody will ask again.
    pub fn unknown(&mut self, number: u64) {
        if let Some(entry) = self.entries.get_mut(number) {
            entry.unknown = true;
        }
    }

    fn finish(&mut self, number: u64) {
        if self.entries.remove(number).is_some_and(|entry| entry.confirmed_ns.is_some()) {
            self.outstanding -= 1;
        }
        self.finished.insert(number);
    }

    /// It was delivered.
    pub fn delivered(&mut self, delivery: &Delivery) -> Seen {
        let Delivery { number, level, id, received_ns: (start_ns, end_ns), .. } = *delivery;
        if delivery.any_level && !delivery.share {
            self.order.delivered(usize::from(level), start_ns, end_ns);
        }
        let now_ms = end_ns / 1_000_000;
        if delivery.lease_expires_ms <= now_ms {
            return Seen::Late;
        }
        if self.finished.contains(number) {
            let kind = if delivery.deliveries > 1 || !self.own { Broken::Twice } else { Broken::Phantom };
            self.violations.add(kind, || match kind {
                Broken::Twice => format!(
                    "{id}, message {number}, came again, as delivery {}, after its ack was confirmed",
                    delivery.deliveries
                ),
                _ => format!(
                    "{id}, message {number}, was delivered for the first time after its enqueue had been refused or \
                     answered as a repeat of another message"
                ),
            });
            return Seen::Wrong;
        }
        if !self.own && self.entries.get(number).is_none() {
            self.entries.insert(
                number,
                Entry {
                    level,
                    id: Some(id),
                    visible_ns: delivery.visible_ns,
                    confirmed_ns: None,
                    unknown: false,
                    delayed: true,
                    lease: None,
                    failures: 0,
                },
            );
        }
        let Some(entry) = self.entries.get_mut(number) else {
            self.violations.add(Broken::Phantom, || {
                format!("{id} says that it is message {number}, which was not sent")
            });
            return Seen::Wrong;
        };
        if entry.level != level || entry.id != Some(id) || entry.visible_ns != delivery.visible_ns {
            let (sent, sent_level) = (entry.id, entry.level);
            self.violations.add(Broken::Changed, || {
                format!(
                    "message {number} was sent as {} at P{sent_level} and came as {id} at P{level}",
                    shown(sent)
                )
            });
        }
        if end_ns < entry.visible_ns && entry.delayed {
            let early_ms = (entry.visible_ns - end_ns) / 1_000_000;
            if early_ms > CLOCK_MS {
                self.violations
                    .add(Broken::Early, || format!("{id}, message {number}, came {early_ms} ms early"));
            }
        }
        let last = entry.lease.replace(Lease {
            deliveries: delivery.deliveries,
            expires_ms: delivery.lease_expires_ms,
            given_back: false,
        });
        let Some(last) = last else {
            self.check_order(delivery);
            return if delivery.deliveries == 1 { Seen::First } else { self.again(number) };
        };
        let ended = last.given_back || now_ms + CLOCK_MS >= last.expires_ms;
        if delivery.deliveries <= last.deliveries || !ended {
            self.violations.add(Broken::Twice, || {
                format!(
                    "{id}, message {number}, came as delivery {} while delivery {} had {} ms of its lease left",
                    delivery.deliveries,
                    last.deliveries,
                    last.expires_ms.saturating_sub(now_ms)
                )
            });
            return Seen::Wrong;
        }
        self.again(number)
    }

    fn again(&mut self, number: u64) -> Seen {
        let failures = self.entries.get_mut(number).map_or(0, |entry| {
            entry.failures += 1;
            entry.failures
        });
        Seen::Again { failures }
    }

    /// The bound on order, for a first delivery of a message that was not delayed.
    fn check_order(&mut self, delivery: &Delivery) {
        let Some(entry) = self.entries.get(delivery.number) else { return };
        let (Some(confirmed_ns), false, 1) = (entry.confirmed_ns, entry.delayed, delivery.deliveries) else {
            return;
        };
        let (level, start_ns) = (usize::from(delivery.level), delivery.received_ns.0);
        if let Some(other) = self.order.overtaken(level, confirmed_ns, start_ns) {
            let waited_ms = start_ns.saturating_sub(confirmed_ns) / 1_000_000;
            self.violations.add(Broken::Order, || {
                format!("{} at P{level} waited {waited_ms} ms while P{other} was delivered", delivery.id)
            });
        }
    }

    /// A release is about to be sent: from now on the message may be delivered again.
    pub fn giving_back(&mut self, number: u64) {
        if let Some(lease) = self.entries.get_mut(number).and_then(|entry| entry.lease.as_mut()) {
            lease.given_back = true;
        }
    }

    /// A settle was answered.
    pub fn settled(&mut self, tried: SettleTry, outcome: Settled, now_ns: u64) {
        let SettleTry { number, deliveries, ack, repeated } = tried;
        // After a lost answer of an ack the message may be gone.
        let outcome = if ack && repeated && outcome == Settled::Unknown { Settled::Ok } else { outcome };
        if outcome == Settled::Ok {
            if ack {
                self.finish(number);
            }
            return;
        }
        let Some(lease) = self.entries.get(number).and_then(|entry| entry.lease) else { return };
        let running = lease.deliveries == deliveries && now_ns / 1_000_000 + CLOCK_MS < lease.expires_ms;
        if running && !repeated {
            self.violations.add(Broken::Lease, || {
                let what = if ack { "ack" } else { "release" };
                format!("message {number}: {what} of delivery {deliveries} was answered {outcome:?} while its lease ran")
            });
        }
    }

    /// What is confirmed and was not acked: number and id. Each must still be on the server.
    #[must_use]
    pub fn left(&self) -> Vec<(u64, MessageId)> {
        let confirmed = self.entries.iter().filter(|(_, entry)| self.own && entry.confirmed_ns.is_some());
        let mut left: Vec<_> = confirmed.filter_map(|(number, entry)| Some((number, entry.id?))).collect();
        left.sort_unstable();
        left
    }

    /// A message of [`Ledger::left`] is not on the server.
    pub fn missing(&mut self, number: u64) {
        let Some(entry) = self.entries.get(number) else { return };
        let (id, level) = (shown(entry.id), entry.level);
        self.violations.add(Broken::Lost, || {
            format!("{id}, message {number} at P{level}, was confirmed and is not there")
        });
    }

    /// A body of the load tool came back damaged.
    pub fn damaged(&mut self, id: MessageId) {
        self.violations.add(Broken::Changed, || format!("the body of {id} is damaged"));
    }
}

fn shown(id: Option<MessageId>) -> String {
    id.map_or_else(|| "?".into(), |id| id.to_string())
}

#[cfg(test)]
#[path = "ledger_tests.rs"]
mod tests;
