//! What runs exercised: a fault or operation that never happens is seen here.

use crate::history::Outcome;
use crate::run::Run;
use overtake_wire::message::{Request, Response, Settled};
use std::collections::BTreeMap;

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
            ("clean stops", faults.stops),
            ("jumps of the wall clock", faults.wall_jumps),
            ("hanging disks", faults.hangs),
            ("full disks", faults.full_disks),
            ("clients that went away", faults.disconnects),
            ("states compared after a restart", run.world.digests_compared),
        ] {
            summary.add(name, count);
        }
        for slot in &run.world.node.cores {
            let disk = slot.disk.counters;
            summary.add("disk operations", disk.operations);
            summary.add("disk reads", disk.reads);
            summary.add("slow disk operations", disk.slow);
            summary.add("disk operations without room", disk.full);
            summary.add("torn writes", disk.torn_writes);
            summary.add("lost writes", disk.lost_writes);
            summary.add("rotten bits", disk.rotten_bits);
            summary.add("read errors", disk.read_errors);
            for (name, count) in slot.core.iter().flat_map(overtake_core::Core::cold_counts) {
                summary.add(name, count);
            }
        }
        for call in &run.history.calls {
            summary.add("requests", 1);
            summary.add("requests whose fate nobody knows", u64::from(matches!(call.outcome, Outcome::Lost)));
            if let Some((_, response)) = call.answer() {
                summary.count(&call.request, response);
            }
        }
        summary
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
