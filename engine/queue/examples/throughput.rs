//! How fast one shard's state machine is on one core: enqueue, lease and ack cycles a second, through encoded log
//! entries as in production, with an empty queue and with a backlog; and what a message of the backlog costs in memory.
//!
//! `cargo run --release -p overtake-queue --example throughput`

use bytes::Bytes;
use overtake_base::{Level, MessageId, QueueConfig, QueueId, ShardId, UnixMillis};
use overtake_queue::answer::Answer;
use overtake_queue::command::{Batch, Command, Lease, LeaseKey, LevelChoice, NewMessage, VisibleWhen};
use overtake_queue::entry::encode_batch;
use overtake_queue::machine::Machine;
use std::time::{Duration, Instant};

const QUEUE: QueueId = QueueId(1);
const LEVELS: u8 = 5;
const BODY_BYTES: usize = 100;

struct Bench {
    machine: Machine,
    index: u64,
    time: u64,
    ids: u128,
    encoding: Duration,
    applying: Duration,
}

impl Bench {
    fn new() -> Self {
        let mut bench = Self {
            machine: Machine::new(ShardId(0)),
            index: 0,
            time: 1_700_000_000_000,
            ids: 0,
            encoding: Duration::ZERO,
            applying: Duration::ZERO,
        };
        bench.apply(vec![Command::Configure {
            queue: QUEUE,
            version: 1,
            config: QueueConfig::with_defaults(LEVELS, 1),
        }]);
        bench
    }

    fn apply(&mut self, commands: Vec<Command>) -> Vec<Answer> {
        self.index += 1;
        self.time += 1;
        let start = Instant::now();
        let mut entry = Vec::new();
        encode_batch(&Batch { time: UnixMillis(self.time), commands }, &mut entry);
        let entry = Bytes::from(entry);
        let encoded = Instant::now();
        let mut answers = Vec::new();
        if let Err(error) = self.machine.apply(self.index, &entry, &mut answers) {
            println!("{error}");
        }
        self.encoding += encoded - start;
        self.applying += encoded.elapsed();
        answers
    }

    fn messages(&mut self, count: u32) -> Command {
        let body = Bytes::from(vec![7; BODY_BYTES]);
        let messages = (0..count)
            .map(|n| {
                self.ids += 1;
                NewMessage {
                    id: MessageId::new(self.time, self.ids),
                    client_made_id: false,
                    priority: Level((n % u32::from(LEVELS)) as u8),
                    visible: VisibleWhen::Now,
                    dedup_key: None,
                    expires_in_ms: None,
                    headers: Bytes::new(),
                    body: body.clone(),
                }
            })
            .collect();
        Command::Enqueue { queue: QUEUE, messages }
    }

    /// One entry with all three steps: what was leased by the entry before is acked.
    fn cycle(&mut self, batch: u32, leased: &mut Vec<LeaseKey>) {
        let lease = Lease {
            max: batch,
            max_bytes: u64::MAX,
            lease_ms: None,
            worker: None,
            choice: LevelChoice::Scheduled,
        };
        let settle = Command::Settle {
            queue: QUEUE,
            ack: core::mem::take(leased),
            extend: Vec::new(),
            release: Vec::new(),
        };
        let commands = vec![settle, self.messages(batch), Command::Lease { queue: QUEUE, lease }];
        for answer in self.apply(commands) {
            if let Answer::Leased(deliveries) = answer {
                leased.extend(deliveries.iter().map(|delivery| delivery.key));
            }
        }
    }

    fn run(&mut self, cycles: u32, batch: u32) {
        (self.encoding, self.applying) = (Duration::ZERO, Duration::ZERO);
        let mut leased = Vec::new();
        for _ in 0..cycles / batch {
            self.cycle(batch, &mut leased);
        }
        let per_s = |time: Duration| f64::from(cycles) / time.as_secs_f64() / 1e3;
        println!(
            "  batches of {batch:>4}: {:>5.0} thousand cycles/s applied, {:>5.0} with encoding",
            per_s(self.applying),
            per_s(self.applying + self.encoding)
        );
    }
}

/// Resident memory of this process in bytes, where the system says.
fn resident_bytes() -> u64 {
    let status = std::fs::read_to_string("/proc/self/statm").unwrap_or_default();
    status.split(' ').nth(1).and_then(|pages| pages.parse::<u64>().ok()).unwrap_or(0) * 4_096
}

fn main() {
    let mut bench = Bench::new();
    for backlog in [0u32, 1_000_000] {
        println!("backlog of {backlog}:");
        let before = resident_bytes();
        for _ in 0..backlog / 1_000 {
            let command = bench.messages(1_000);
            bench.apply(vec![command]);
        }
        if backlog > 0 {
            let each = (resident_bytes() - before) / u64::from(backlog);
            println!("  {each} bytes of memory a message");
        }
        for batch in [1, 10, 100, 1_000] {
            bench.run(1_000_000, batch);
        }
    }
    let start = Instant::now();
    let mut bytes = Vec::new();
    bench.machine.snapshot(&mut bytes);
    println!("snapshot: {} MB in {} ms", bytes.len() / 1_000_000, start.elapsed().as_millis());
}
