//! A client of one simulated node, for tests that say step by step what happens.

#![allow(dead_code, reason = "each test takes what it needs")]

use overtake_base::QueueConfigPatch;
use overtake_core::{AnswerConfig, ColdConfig, ScrubConfig, SessionId};
use overtake_sim::disk::DiskProfile;
use overtake_sim::node::NodeShape;
use overtake_sim::world::{Notice, World};
use overtake_wire::message::{
    Delivered, EnqueueMessage, Enqueued, Receive, Refusal, Request, Response, Settle, Settled, Stats,
};

pub fn shape(cores: u16, shards: u16) -> NodeShape {
    NodeShape {
        cores,
        shards,
        segment_bytes: 4 * 1024 * 1024,
        entry_bytes_max: overtake_log::record::DATA_BYTES_MAX,
        enqueue_per_s: None,
        cache_bytes: 64 * 1024,
        checkpoint_bytes: 256 * 1024,
        log_keep_bytes: u64::MAX,
        snapshot_part_bytes: 64 * 1024,
        writes_in_flight_max: 4,
        cold: ColdConfig { lane_file_bytes: 1024 * 1024, ..ColdConfig::of_cores(cores) },
        answers: AnswerConfig::default(),
        scrub: ScrubConfig::default(),
        disk: DiskProfile::default(),
    }
}

/// One client, asking one thing after the other.
pub struct Client {
    pub world: World,
    pub session: SessionId,
    request: u64,
}

impl Client {
    pub fn new(seed: u64, cores: u16, shards: u16) -> Self {
        Self::of_shape(seed, shape(cores, shards))
    }

    pub fn of_shape(seed: u64, shape: NodeShape) -> Self {
        let mut world = World::new(seed, shape);
        let session = world.connect();
        let mut client = Self { world, session, request: 0 };
        client.until_serving();
        client
    }

    pub fn until_serving(&mut self) {
        for _ in 0..1_000 {
            if self.world.node.is_serving() {
                return;
            }
            self.world.set_timer(1_000_000, u64::MAX);
            self.world.next_notice();
        }
        panic!("the node does not serve: {:?}", self.world.fatal);
    }

    pub fn ask(&mut self, body: &Request) -> Response {
        let request = self.send(body);
        self.answer(request)
    }

    pub fn send(&mut self, body: &Request) -> u64 {
        self.request += 1;
        assert!(self.world.send(self.session, self.request, body));
        self.request
    }

    pub fn answer(&mut self, wanted: u64) -> Response {
        loop {
            match self.world.next_notice() {
                Some(Notice::Response { request, response, .. }) if request == wanted => return response,
                Some(_) => {}
                None => panic!("no answer will ever come: {:?}", self.world.fatal),
            }
        }
    }

    pub fn enqueue(&mut self, queue: &str, priority: u32, body: &str) -> Result<Enqueued, Refusal> {
        let message = EnqueueMessage { priority, body: body.to_owned().into(), ..EnqueueMessage::default() };
        match self.ask(&Request::Enqueue { queue: queue.into(), messages: vec![message] }) {
            Response::Enqueued { mut results } => results.remove(0),
            Response::Refused(refusal) => Err(refusal),
            other => panic!("{other:?}"),
        }
    }

    pub fn receive(&mut self, queue: &str, max: u32, wait_s: u32) -> Vec<Delivered> {
        let receive =
            Receive { queue: queue.into(), max, wait_s, lease_s: None, max_priority: None, worker: None };
        match self.ask(&Request::Receive(receive)) {
            Response::Received { messages } => messages,
            other => panic!("{other:?}"),
        }
    }

    pub fn ack(&mut self, queue: &str, receipt: String) -> Settled {
        match self.ask(&Request::Settle(Settle {
            queue: queue.into(),
            ack: vec![receipt],
            ..Settle::default()
        })) {
            Response::Settled { ack, .. } => ack[0],
            other => panic!("{other:?}"),
        }
    }

    pub fn stats(&mut self, queue: &str) -> Stats {
        match self.ask(&Request::Stats { queue: queue.into() }) {
            Response::Stats(stats) => stats,
            other => panic!("{other:?}"),
        }
    }

    /// Lets so many milliseconds pass.
    pub fn pass(&mut self, ms: u64) {
        let number = self.world.time_ns();
        self.world.set_timer(ms * 1_000_000, number);
        while !matches!(self.world.next_notice(), Some(Notice::Timer { number: timer }) if timer == number) {}
    }

    pub fn put(&mut self, queue: &str, patch: QueueConfigPatch) {
        let put = Request::PutQueue { queue: queue.into(), patch };
        assert!(matches!(self.ask(&put), Response::QueuePut { .. }));
    }

    /// Stores so many messages of a level in one request.
    pub fn fill(&mut self, queue: &str, priority: u32, count: usize) {
        let message = || EnqueueMessage { priority, body: "x".into(), ..EnqueueMessage::default() };
        let messages = (0..count).map(|_| message()).collect();
        let Response::Enqueued { results } = self.ask(&Request::Enqueue { queue: queue.into(), messages })
        else {
            panic!("no results")
        };
        assert!(results.iter().all(Result::is_ok), "{results:?}");
    }

    pub fn received(&mut self, receive: Receive) -> Vec<Delivered> {
        match self.ask(&Request::Receive(receive)) {
            Response::Received { messages } => messages,
            other => panic!("{other:?}"),
        }
    }

    /// Disk operations so far that are no reads: what is on disk is looked through also while nothing happens.
    pub fn disk_writes(&self) -> u64 {
        let counters = self.world.node.cores.iter().map(|core| core.disk.counters);
        counters.map(|counters| counters.operations - counters.reads).sum()
    }
}
