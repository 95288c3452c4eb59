//! Statistics: waits in logarithmic buckets over the last minutes, and the sum of several shards' parts.

use crate::answer::{QueueStats, Totals};
use overtake_base::{Malformed, Reader, UnixMillis, Writer};
use std::collections::BTreeMap;

/// Waits up to this are exact; longer ones fall into buckets of 1/64 of their power of two, so at most 1.6 % off.
const EXACT_MS: u64 = 128;
const BUCKET_BITS: u32 = 6;
/// Minutes that a wait is shown, the current one not counted.
const MINUTES: u64 = 5;

/// Waits of one level, by minute.
#[derive(Clone, Default)]
pub(crate) struct Waits(Vec<Minute>);

#[derive(Clone)]
struct Minute {
    minute: u64,
    counts: BTreeMap<u16, u32>,
}

impl Waits {
    /// Counts one wait.
    pub(crate) fn record(&mut self, wait_ms: u64, now: UnixMillis) {
        let minute = now.0 / 60_000;
        if self.0.last().is_none_or(|last| last.minute < minute) {
            self.0.retain(|old| old.minute + MINUTES >= minute);
            self.0.push(Minute { minute, counts: BTreeMap::new() });
        }
        if let Some(last) = self.0.last_mut() {
            let count = last.counts.entry(bucket_of(wait_ms)).or_default();
            *count = count.saturating_add(1);
        }
    }

    /// (wait in ms, count) over the last minutes, by wait.
    pub(crate) fn counts(&self, now: UnixMillis) -> Vec<(u64, u64)> {
        let mut sum: BTreeMap<u16, u64> = BTreeMap::new();
        for minute in self.0.iter().filter(|minute| minute.minute + MINUTES >= now.0 / 60_000) {
            for (bucket, count) in &minute.counts {
                *sum.entry(*bucket).or_default() += u64::from(*count);
            }
        }
        sum.into_iter().map(|(bucket, count)| (wait_of(bucket), count)).collect()
    }

    pub(crate) fn encode(&self, out: &mut Writer<'_>) {
        out.u8(u8::try_from(self.0.len()).unwrap_or(u8::MAX));
        for minute in &self.0 {
            out.u64(minute.minute);
            out.u32(minute.counts.len() as u32);
            for (bucket, count) in &minute.counts {
                out.u16(*bucket);
                out.u32(*count);
            }
        }
    }

    pub(crate) fn decode(input: &mut Reader<'_>) -> Result<Self, Malformed> {
        let minutes = input.u8("wait minutes")?;
        (0..minutes).map(|_| Minute::decode(input)).collect::<Result<_, _>>().map(Self)
    }
}

impl Minute {
    fn decode(input: &mut Reader<'_>) -> Result<Self, Malformed> {
        let minute = input.u64("wait minute")?;
        if minute > u64::MAX / 60_000 {
            return Err(Malformed("wait minute"));
        }
        let count = input.count(usize::MAX, 6, "waits")?;
        let counts = (0..count)
            .map(|_| Ok((input.u16("wait")?, input.u32("wait count")?)))
            .collect::<Result<_, Malformed>>()?;
        Ok(Self { minute, counts })
    }
}

fn bucket_of(wait_ms: u64) -> u16 {
    if wait_ms < EXACT_MS {
        return wait_ms as u16;
    }
    let power = 63 - wait_ms.leading_zeros() - BUCKET_BITS;
    ((u64::from(power) << BUCKET_BITS) + (wait_ms >> power)) as u16
}

/// The longest wait of a bucket.
fn wait_of(bucket: u16) -> u64 {
    let bucket = u64::from(bucket);
    if bucket < EXACT_MS {
        return bucket;
    }
    let power = (bucket >> BUCKET_BITS) - 1;
    let digits = bucket - (power << BUCKET_BITS);
    ((u128::from(digits + 1) << power) - 1).min(u128::from(u64::MAX)) as u64
}

/// The wait in ms that a fraction `quantile` (0..=1) of those counted does not exceed; none without any.
#[must_use]
pub fn wait_quantile(waits: &[(u64, u64)], quantile: f64) -> Option<u64> {
    let total: u64 = waits.iter().map(|(_, count)| count).sum();
    let wanted = ((quantile * total as f64).ceil() as u64).clamp(1, total.max(1));
    let mut seen = 0;
    waits.iter().find_map(|(wait_ms, count)| {
        seen += count;
        (seen >= wanted).then_some(*wait_ms)
    })
}

impl Totals {
    /// Adds another shard's totals.
    pub fn add(&mut self, other: &Self) {
        self.enqueued += other.enqueued;
        self.acked += other.acked;
        self.cancelled += other.cancelled;
        self.purged += other.purged;
        self.expired += other.expired;
        self.dead_lettered += other.dead_lettered;
        self.redriven += other.redriven;
        self.deliveries += other.deliveries;
        self.share_deliveries += other.share_deliveries;
        self.inversions += other.inversions;
        self.lease_expirations += other.lease_expirations;
        self.releases += other.releases;
        self.stale_receipts += other.stale_receipts;
        self.starvation_events += other.starvation_events;
        self.refused.iter_mut().zip(other.refused).for_each(|(sum, more)| *sum += more);
    }

    /// Appends the bytes, which [`Totals::decode`] reads.
    pub fn encode(&self, out: &mut Writer<'_>) {
        self.fields().iter().for_each(|field| out.u64(*field));
    }

    /// Reads what [`Totals::encode`] wrote.
    pub fn decode(input: &mut Reader<'_>) -> Result<Self, Malformed> {
        let mut field = || input.u64("totals");
        Ok(Self {
            enqueued: field()?,
            acked: field()?,
            cancelled: field()?,
            purged: field()?,
            expired: field()?,
            dead_lettered: field()?,
            redriven: field()?,
            deliveries: field()?,
            share_deliveries: field()?,
            inversions: field()?,
            lease_expirations: field()?,
            releases: field()?,
            stale_receipts: field()?,
            starvation_events: field()?,
            refused: [field()?, field()?, field()?, field()?, field()?],
        })
    }

    fn fields(&self) -> [u64; 19] {
        let [depth, bytes, rate, disk, no_quorum] = self.refused;
        [
            self.enqueued,
            self.acked,
            self.cancelled,
            self.purged,
            self.expired,
            self.dead_lettered,
            self.redriven,
            self.deliveries,
            self.share_deliveries,
            self.inversions,
            self.lease_expirations,
            self.releases,
            self.stale_receipts,
            self.starvation_events,
            depth,
            bytes,
            rate,
            disk,
            no_quorum,
        ]
    }
}

impl QueueStats {
    /// Adds another shard's part.
    pub fn add(&mut self, other: &Self) {
        add_each(&mut self.visible, &other.visible);
        add_each(&mut self.delayed, &other.delayed);
        add_each(&mut self.leased, &other.leased);
        self.dead += other.dead;
        self.body_bytes += other.body_bytes;
        grow(&mut self.oldest_since, other.oldest_since.len());
        for (oldest, since) in self.oldest_since.iter_mut().zip(&other.oldest_since) {
            *oldest = match (*oldest, *since) {
                (Some(a), Some(b)) => Some(a.min(b)),
                (a, b) => a.or(b),
            };
        }
        grow(&mut self.waits, other.waits.len());
        for (sum, more) in self.waits.iter_mut().zip(&other.waits) {
            merge(sum, more);
        }
        self.totals.add(&other.totals);
        merge(&mut self.workers, &other.workers);
    }
}

fn grow<T: Default + Clone>(list: &mut Vec<T>, len: usize) {
    if list.len() < len {
        list.resize(len, T::default());
    }
}

fn add_each(sums: &mut Vec<u64>, more: &[u64]) {
    grow(sums, more.len());
    sums.iter_mut().zip(more).for_each(|(sum, more)| *sum += more);
}

/// Adds up two lists of (key, count) that are sorted by key.
fn merge<K: Ord + Clone>(sum: &mut Vec<(K, u64)>, more: &[(K, u64)]) {
    if more.is_empty() {
        return;
    }
    let mut all: BTreeMap<K, u64> = sum.drain(..).collect();
    for (key, count) in more {
        *all.entry(key.clone()).or_default() += count;
    }
    sum.extend(all);
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn buckets_are_close_and_in_order(wait in any::<u64>(), other in any::<u64>()) {
            let shown = wait_of(bucket_of(wait));
            prop_assert!(shown >= wait && shown - wait <= wait / 64);
            prop_assert_eq!(bucket_of(shown), bucket_of(wait));
            prop_assert_eq!(bucket_of(wait).cmp(&bucket_of(other)).is_lt() && wait >= other, false);
        }

        #[test]
        fn parts_add_up_in_any_order(a in counts(), b in counts()) {
            let part = |waits: &Vec<(u64, u64)>| QueueStats {
                visible: vec![1; waits.len()],
                waits: vec![waits.clone()],
                workers: waits.iter().map(|(k, n)| (k.to_string().into(), *n)).collect::<BTreeMap<_, _>>()
                    .into_iter().collect(),
                ..QueueStats::default()
            };
            let (mut one, mut other) = (part(&a), part(&b));
            one.add(&part(&b));
            other.add(&part(&a));
            prop_assert_eq!(&one, &other);
            let sum = |list: &Vec<(u64, u64)>| list.iter().map(|(_, n)| n).sum::<u64>();
            prop_assert_eq!(sum(&one.waits[0]), sum(&a) + sum(&b));
        }
    }

    fn counts() -> impl Strategy<Value = Vec<(u64, u64)>> {
        prop::collection::btree_map(0u64..20, 1u64..9, 0..9).prop_map(|map| map.into_iter().collect())
    }

    #[test]
    fn quantiles_of_known_waits() {
        let waits = [(1, 50), (10, 49), (100, 1)];
        assert_eq!(wait_quantile(&waits, 0.5), Some(1));
        assert_eq!(wait_quantile(&waits, 0.99), Some(10));
        assert_eq!(wait_quantile(&waits, 0.999), Some(100));
        assert_eq!(wait_quantile(&[], 0.5), None);
    }

    #[test]
    fn waits_are_forgotten_after_minutes() {
        let mut waits = Waits::default();
        waits.record(7, UnixMillis(0));
        waits.record(9, UnixMillis(4 * 60_000));
        assert_eq!(waits.counts(UnixMillis(5 * 60_000)), [(7, 1), (9, 1)]);
        assert_eq!(waits.counts(UnixMillis(6 * 60_000)), [(9, 1)]);
        let mut bytes = Vec::new();
        waits.encode(&mut Writer(&mut bytes));
        let restored = Waits::decode(&mut Reader::new(&bytes)).unwrap();
        assert_eq!(restored.counts(UnixMillis(0)), waits.counts(UnixMillis(0)));
    }
}
