//! What runs exercised: a fault or operation that never happens is seen here.

use crate::groups::GroupReport;
use crate::history::{History, Outcome};
use crate::run::Run;
use overtake_wire::message::{Request, Response, Settled};
use std::collections::BTreeMap;

/// Virtual time of the node, in milliseconds.
const SIMULATED_MS: &str = "simulated milliseconds";

/// What clients do and learn, counted by answer.
const ANSWERED: [&str; 20] = [
    "requests refused",
    "enqueues answered as repeats",
    "messages stored",
    "messages refused",
    "deliveries",
    "deliveries to a share",
    "deliveries after the first",
    "empty receives",
    "waiting receives that woke",
    "receipts accepted",
    "stale receipts",
    "unknown receipts",
    "messages purged",
    "dead letters redriven",
    "dead letters listed",
    "messages cancelled",
    "queues deleted",
    "configurations changed",
    "messages shown",
    "statistics shown",
];

/// Counts by name.
#[derive(Clone, Default, Debug, PartialEq, Eq)]
pub struct Summary(pub BTreeMap<&'static str, u64>);

impl Summary {
    /// Counts what a run did.
    #[must_use]
    pub fn of(run: &Run, to_the_end: bool) -> Self {
        let mut summary = Self::default();
        summary.add("runs", 1);
        summary.add("runs that came to their end", u64::from(to_the_end));
        let faults = run.fault_counters();
        for (name, count) in [
            ("power losses", faults.power_losses),
            ("power losses while the node is down", faults.power_losses_while_down),
            ("killed processes", faults.kills),
            ("recoveries that were ended too", faults.ends_in_recovery),
            ("lives ended by a failed disk operation", faults.ends_for_failures),
            ("runs ended by a damaged disk", faults.ends_for_damage),
            ("starts refused on a full disk", faults.full_disk_starts),
            ("clean stops", faults.stops),
            ("jumps of the wall clock", faults.wall_jumps),
            ("wall clocks that stood still", faults.wall_freezes),
            ("runs with a drifting wall clock", u64::from(run.plan.faults.wall_drift_ppm != 0)),
            ("hanging disks", faults.hangs),
            ("full disks", faults.full_disks),
            ("clients that went away", faults.disconnects),
            ("full rings between cores", faults.mesh_stalls),
            ("pauses", faults.pauses),
            ("frames on a clogged link", run.world.link_slow.times),
            ("slow messages between cores", run.world.mesh_slow.times),
            ("starts", run.world.starts),
            ("recoveries that came to serve", run.world.recoveries),
            ("states compared after a restart", run.world.digests_compared),
            (SIMULATED_MS, run.world.time_ns() / 1_000_000),
        ] {
            summary.add(name, count);
        }
        for slot in &run.world.node.cores {
            let disk = slot.disk.counters;
            for (name, count) in [
                ("disk operations", disk.operations),
                ("disk reads", disk.reads),
                ("slow disk operations", disk.slow),
                ("disk operations without room", disk.full),
                ("torn writes", disk.torn_writes),
                ("lost writes", disk.lost_writes),
                ("half made files", disk.half_made_files),
                ("writes left in a cache", disk.cached_writes),
                ("cached writes lost with the power", disk.uncached_writes),
                ("rotten bits", disk.rotten_bits),
                ("vanished writes", disk.vanished_writes),
                ("misdirected writes", disk.misdirected_writes),
                ("writes with stale sectors", disk.stale_sectors),
                ("damaged checkpoints", disk.damaged_checkpoints),
                ("read errors", disk.read_errors),
                ("write errors", disk.write_errors),
                ("sync errors", disk.sync_errors),
                ("file errors", disk.file_errors),
                ("checkpoints", disk.checkpoints),
                ("segments begun", disk.segments_begun),
            ] {
                summary.add(name, count);
            }
            for (name, count) in slot.core.iter().flat_map(overtake_core::Core::seldom_counts) {
                summary.add(name, count);
            }
        }
        ANSWERED.iter().for_each(|name| summary.add(name, 0));
        summary.count_calls(&run.history);
        summary
    }

    /// Counts what was asked and answered.
    pub fn count_calls(&mut self, history: &History) {
        for call in &history.calls {
            self.add("requests", 1);
            self.add("requests whose fate nobody knows", u64::from(matches!(call.outcome, Outcome::Lost)));
            if let Some((_, response)) = call.answer() {
                self.count(&call.request, response);
            }
        }
    }

    /// Counts what a cluster of replicas did.
    pub fn count_groups(&mut self, groups: &GroupReport) {
        let counters = groups.counters;
        for (name, count) in [
            ("groups: crashes", counters.crashes),
            ("groups: restarts", counters.restarts),
            ("groups: partitions", counters.partitions),
            ("groups: messages delivered", counters.delivered),
            ("groups: messages lost", counters.dropped),
            ("groups: terms with a leader", groups.elections),
            ("groups: entries committed", groups.committed),
        ] {
            self.add(name, count);
        }
    }

    fn count(&mut self, request: &Request, response: &Response) {
        match (request, response) {
            (_, Response::Refused(_)) => self.add("requests refused", 1),
            (_, Response::Enqueued { results }) => {
                for result in results {
                    let name = match result {
                        Ok(enqueued) if enqueued.duplicate => "enqueues answered as repeats",
                        Ok(_) => "messages stored",
                        Err(_) => "messages refused",
                    };
                    self.add(name, 1);
                }
            }
            (_, Response::Received { messages }) => {
                self.add("deliveries", messages.len() as u64);
                self.add("deliveries to a share", messages.iter().filter(|m| m.share).count() as u64);
                self.add(
                    "deliveries after the first",
                    messages.iter().filter(|m| m.deliveries > 1).count() as u64,
                );
                self.add("empty receives", u64::from(messages.is_empty()));
                let waited = matches!(request, Request::Receive(receive) if receive.wait_s > 0);
                self.add("waiting receives that woke", u64::from(waited && !messages.is_empty()));
            }
            (_, Response::Settled { ack, extend, release }) => {
                for settled in ack.iter().chain(extend).chain(release) {
                    let name = match settled {
                        Settled::Ok => "receipts accepted",
                        Settled::Stale => "stale receipts",
                        Settled::Unknown => "unknown receipts",
                    };
                    self.add(name, 1);
                }
            }
            (Request::Purge { .. }, Response::Purged { purged }) => self.add("messages purged", *purged),
            (_, Response::Redriven { moved }) => self.add("dead letters redriven", *moved),
            (Request::Cancel { .. }, Response::Done) => self.add("messages cancelled", 1),
            (_, Response::QueuePut { created: false, .. }) => self.add("configurations changed", 1),
            (_, Response::Peeked { messages, .. }) => self.add("messages shown", messages.len() as u64),
            (_, Response::Stats(_)) => self.add("statistics shown", 1),
            (Request::DeleteQueue { .. }, Response::Done) => self.add("queues deleted", 1),
            (_, Response::DeadLetters { messages, .. }) => {
                self.add("dead letters listed", messages.len() as u64)
            }
            _ => {}
        }
    }

    /// Adds to one count.
    pub fn add(&mut self, name: &'static str, count: u64) {
        *self.0.entry(name).or_default() += count;
    }

    /// Adds another summary.
    pub fn merge(&mut self, other: &Self) {
        other.0.iter().for_each(|(name, count)| self.add(name, *count));
    }
}

impl Summary {
    /// Virtual time of all runs.
    #[must_use]
    pub fn simulated_ms(&self) -> u64 {
        self.0.get(SIMULATED_MS).copied().unwrap_or(0)
    }

    /// Names of what is counted and never happened.
    pub fn never_happened(&self) -> impl Iterator<Item = &'static str> + '_ {
        self.0.iter().filter(|(_, count)| **count == 0).map(|(name, _)| *name)
    }
}
