//! Journals stay as short as they should be: at the end of a run one queue goes on by itself, and what is idle meanwhile on
//! the same cores must not keep what its entries are written to.

use super::run::ClusterRun;
use crate::ending::{Driver, End};
use crate::run::Stopped;
use overtake_base::QueueConfigPatch;
use overtake_wire::message::{EnqueueMessage, Receive, Request, Response, Settle};

const NANOS_PER_MS: u64 = 1_000_000;
/// Bursts of messages, each of which is enqueued, received and acked by itself; checkpoints come with them, and what all
/// replicas hold is told between them.
const BURSTS: usize = 4;
const MESSAGES: usize = 50;
const PAUSE_MS: u64 = 1_500;
/// Rounds of checkpoints after which what is not needed any more must be gone.
const ROUNDS: u64 = 4;
/// Segments beside those of the rounds: being written, kept by the last entries of idle shards, and one for each of its
/// neighbours.
const SEGMENTS: u64 = 8;
const NAME: &str = "goes-on";

impl ClusterRun {
    /// See the module's text. Nothing is left in any queue but dead letters; where there are some, or what is enqueued may
    /// be refused, there is nothing to be seen.
    pub(super) fn journals_stay_short(&mut self, end: &End) -> Result<(), Stopped> {
        let shape = &self.plan.swarm.shape;
        let (segment_bytes, checkpoint_bytes) = (shape.segment_bytes, shape.checkpoint_bytes);
        let dead = end.queues.iter().flatten().any(|queue| !queue.dead.is_empty());
        if !self.plan.goes_on || dead || shape.enqueue_per_s.is_some() {
            return Ok(());
        }
        let before = self.journals();
        self.go_on()?;
        for ((name, before), (_, after)) in before.iter().zip(self.journals()) {
            let written = after.bytes_written.saturating_sub(before.bytes_written);
            let most = ROUNDS * checkpoint_bytes / segment_bytes + SEGMENTS;
            let rounds = written / checkpoint_bytes.max(segment_bytes);
            if rounds > ROUNDS && after.segments_live as u64 > most {
                let (had, has) = (before.segments_live, after.segments_live);
                return Err(format!(
                    "the journal of {name} has {has} segments, {most} would do; it had {had} before {written} bytes of one queue"
                )
                .into());
            }
        }
        Ok(())
    }

    fn journals(&self) -> Vec<(String, overtake_log::JournalUsage)> {
        let of_node = |(node, value): (usize, &crate::node::SimNode)| {
            let cores = value.cores.iter().enumerate().filter_map(move |(core, slot)| {
                let usage = slot.core.as_ref()?.journal_usage();
                Some((format!("node {} core {core}", node + 1), usage))
            });
            cores.collect::<Vec<_>>()
        };
        self.world.nodes.iter().enumerate().flat_map(of_node).collect()
    }

    fn go_on(&mut self) -> Result<(), Stopped> {
        // A queue that no plan knows: no checker looks at it.
        let queue = self.plan.swarm.queues.len();
        let patch = QueueConfigPatch { shards: Some(Some(1)), ..QueueConfigPatch::default() };
        self.ask(queue, Request::PutQueue { queue: NAME.into(), patch })?;
        for _ in 0..BURSTS {
            for _ in 0..MESSAGES {
                let messages = vec![EnqueueMessage { body: "x".into(), ..EnqueueMessage::default() }];
                self.ask(queue, Request::Enqueue { queue: NAME.into(), messages })?;
                let received = self.ask(queue, Request::Receive(Receive::new(NAME)))?;
                let Response::Received { messages } = received else {
                    return Err(format!("{NAME}: {received:?}").into());
                };
                let ack = messages.iter().map(|message| message.receipt.to_string()).collect();
                let settle = Settle { queue: NAME.into(), ack, ..Settle::default() };
                self.ask(queue, Request::Settle(settle))?;
            }
            self.until(self.world.time_ns() + PAUSE_MS * NANOS_PER_MS)?;
        }
        Ok(())
    }
}
