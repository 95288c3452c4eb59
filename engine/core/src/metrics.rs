//! Counters of a core and figures of queues, for monitoring.

use crate::Core;
use overtake_base::UnixMillis;
use overtake_queue::answer::{Answer, EnqueueOutcome, QueueStats, SettleOutcome};
use overtake_wire::message::Metric;

/// Queues whose figures are shown, the first by name: what a look costs is bounded.
const QUEUES_SHOWN_MAX: usize = 200;

/// Counted since the process started.
#[derive(Clone, Copy, Default, Debug)]
pub(crate) struct Counters {
    pub requests: u64,
    pub requests_parked: u64,
    pub receives_turned_back: u64,
    pub enqueued: u64,
    pub deliveries: u64,
    pub acked: u64,
    pub refused_disk: u64,
    pub payload_reads: u64,
    pub checkpoints: u64,
    pub peer_messages_refused: u64,
    pub spills: u64,
    /// Times that the disk hung.
    pub disk_hangs: u64,
    /// Enqueues that waited for messages to leave memory.
    pub enqueues_held: u64,
    pub thaws: u64,
    pub blocks_drafted: u64,
    pub blocks_written: u64,
    pub blocks_freed: u64,
    pub requests_blocked: u64,
    pub scrubbed_bytes: u64,
    pub scrub_passes: u64,
    pub damage_found: u64,
}

impl Counters {
    /// What a shard of this core answered to a caller.
    pub(crate) fn count(&mut self, answer: &Answer) {
        match answer {
            Answer::Enqueued(outcomes) => {
                self.enqueued += outcomes.iter().filter(|o| **o == EnqueueOutcome::Stored).count() as u64;
            }
            Answer::Settled { ack, .. } => {
                self.acked += ack.iter().filter(|o| **o == SettleOutcome::Ok).count() as u64;
            }
            _ => {}
        }
    }
}

impl Core {
    /// What happens seldom, since this core started, by name, so that a run without any of it is seen.
    #[must_use]
    pub fn seldom_counts(&self) -> [(&'static str, u64); 14] {
        let counters = &self.counters;
        let lanes = self.storage.lanes().map(overtake_log::lanes::Lanes::usage).unwrap_or_default();
        [
            ("spills", counters.spills),
            ("thaws", counters.thaws),
            ("blocks drafted", counters.blocks_drafted),
            ("blocks written", counters.blocks_written),
            ("blocks freed", counters.blocks_freed),
            ("requests that waited for blocks", counters.requests_blocked),
            ("disks that hung", counters.disk_hangs),
            ("enqueues that waited for memory", counters.enqueues_held),
            ("bytes of blocks copied", lanes.bytes_copied),
            ("bytes looked through", counters.scrubbed_bytes),
            ("passes over the disk", counters.scrub_passes),
            ("places found damaged before they were needed", counters.damage_found),
            ("requests that waited for answers to be read", counters.requests_parked),
            ("receives whose messages went back unread", counters.receives_turned_back),
        ]
    }

    /// This core's values; those of several cores are added up.
    pub(crate) fn own_metrics(&self) -> Vec<Metric> {
        let usage = self.storage.usage();
        let lanes = self.storage.lanes().map(overtake_log::lanes::Lanes::usage).unwrap_or_default();
        let hot: usize = self.replicas.values().map(|replica| replica.machine.hot_messages()).sum();
        let cold: u64 = self.replicas.values().map(|replica| replica.machine.cold_messages()).sum();
        let counters = &self.counters;
        let counted = [
            ("overtake_requests_total", counters.requests),
            ("overtake_requests_parked_total", counters.requests_parked),
            ("overtake_receives_turned_back_total", counters.receives_turned_back),
            ("overtake_enqueued_total", counters.enqueued),
            ("overtake_deliveries_total", counters.deliveries),
            ("overtake_acked_total", counters.acked),
            ("overtake_refused_disk_total", counters.refused_disk),
            ("overtake_payload_reads_total", counters.payload_reads),
            ("overtake_checkpoints_total", counters.checkpoints),
            ("overtake_peer_messages_refused_total", counters.peer_messages_refused),
            ("overtake_journal_written_bytes_total", usage.bytes_written),
            ("overtake_journal_batches_total", usage.batches_written),
            ("overtake_checkpoints_written_bytes_total", self.storage.checkpoints.bytes_written()),
            ("overtake_disk_hangs_total", counters.disk_hangs),
            ("overtake_spills_total", counters.spills),
            ("overtake_thaws_total", counters.thaws),
            ("overtake_blocks_written_total", counters.blocks_written),
            ("overtake_blocks_freed_total", counters.blocks_freed),
            ("overtake_requests_blocked_total", counters.requests_blocked),
            ("overtake_enqueues_held_total", counters.enqueues_held),
            ("overtake_lanes_written_bytes_total", lanes.bytes_written),
            ("overtake_lanes_copied_bytes_total", lanes.bytes_copied),
            ("overtake_scrubbed_bytes_total", counters.scrubbed_bytes),
            ("overtake_scrub_passes_total", counters.scrub_passes),
            ("overtake_scrub_damage_total", counters.damage_found),
        ];
        let own_queues = if self.host.is_some() { self.directory.len() } else { 0 };
        let measured = [
            ("overtake_sessions", self.sessions.count() as f64),
            ("overtake_peer_links", self.links.all_up().count() as f64),
            ("overtake_shards_led", self.replicas.values().filter(|replica| replica.serves()).count() as f64),
            ("overtake_waiting_receives", self.waiting.count() as f64),
            ("overtake_operations", self.operations.len() as f64),
            ("overtake_queues", own_queues as f64),
            ("overtake_journal_segments", usage.segments_live as f64),
            ("overtake_journal_file_bytes", usage.file_bytes as f64),
            ("overtake_journal_backlog_bytes", usage.backlog_bytes as f64),
            ("overtake_lane_file_bytes", lanes.file_bytes as f64),
            ("overtake_lane_live_bytes", lanes.live_bytes as f64),
            ("overtake_messages_in_memory", hot as f64),
            ("overtake_messages_on_disk_only", cold as f64),
            ("overtake_blocked_requests", self.cold.blocked() as f64),
            ("overtake_entry_cache_bytes", self.storage.cache_bytes() as f64),
            ("overtake_disk_full", f64::from(u8::from(self.storage.is_full()))),
        ];
        let metric = |name: &str, value: f64, counter| Metric {
            name: name.into(),
            labels: Vec::new(),
            value,
            counter,
        };
        counted
            .into_iter()
            .map(|(name, value)| metric(name, value as f64, true))
            .chain(measured.into_iter().map(|(name, value)| metric(name, value, false)))
            .collect()
    }

    /// This core's part of the figures of a tenant's queues: the shards that it leads, so that all nodes together tell of
    /// each shard once.
    pub(crate) fn own_queues(&self, tenant: &str) -> Vec<(Box<str>, QueueStats)> {
        let queues = self.directory.list(tenant, None).take(QUEUES_SHOWN_MAX);
        queues
            .map(|(name, entry)| {
                let mut sum = QueueStats::default();
                let led = self.replicas.values().filter(|replica| replica.serves());
                let parts = led.filter_map(|replica| replica.machine.stats(entry.record.id, self.time));
                parts.for_each(|part| sum.add(&part));
                (name.into(), sum)
            })
            .collect()
    }
}

/// The figures of one queue, all its shards together.
pub(crate) fn queue_metrics(queue: &str, stats: &QueueStats, now: UnixMillis) -> Vec<Metric> {
    let metric = |name: &str, label: &[(&str, &str)], value: f64, counter| {
        let labels = [("queue", queue)].into_iter().chain(label.iter().copied());
        Metric {
            name: format!("overtake_queue_{name}"),
            labels: labels.map(|(name, value)| (name.into(), value.into())).collect(),
            value,
            counter,
        }
    };
    let mut all = Vec::new();
    for (state, levels) in
        [("visible", &stats.visible), ("delayed", &stats.delayed), ("leased", &stats.leased)]
    {
        for (level, number) in levels.iter().enumerate() {
            let level = format!("p{level}");
            all.push(metric("messages", &[("level", &level), ("state", state)], *number as f64, false));
        }
    }
    for (level, since) in stats.oldest_since.iter().enumerate() {
        let Some(since) = since else { continue };
        let age_s = now.since(*since) as f64 / 1_000.0;
        all.push(metric("oldest_age_seconds", &[("level", &format!("p{level}"))], age_s, false));
    }
    all.push(metric("dead_letters", &[], stats.dead as f64, false));
    all.push(metric("body_bytes", &[], stats.body_bytes as f64, false));
    let totals = &stats.totals;
    let counted = [
        ("enqueued_total", totals.enqueued),
        ("deliveries_total", totals.deliveries),
        ("acked_total", totals.acked),
        ("expired_total", totals.expired),
        ("dead_lettered_total", totals.dead_lettered),
        ("redriven_total", totals.redriven),
        ("lease_expirations_total", totals.lease_expirations),
        ("releases_total", totals.releases),
        ("starvation_events_total", totals.starvation_events),
    ];
    all.extend(counted.map(|(name, value)| metric(name, &[], value as f64, true)));
    let reasons = ["depth", "bytes", "rate", "disk", "no_quorum"];
    let refused = reasons.iter().zip(totals.refused);
    all.extend(refused.map(|(reason, n)| metric("refused_total", &[("reason", reason)], n as f64, true)));
    all
}
