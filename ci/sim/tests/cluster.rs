//! Several nodes' contract in virtual time: quorum commits, failover, restarts.

use overtake_base::{MessageId, ShardId};
use overtake_core::{AnswerConfig, ColdConfig, ScrubConfig, SessionId};
use overtake_sim::arena::Arena as _;
use overtake_sim::cluster::world::ClusterWorld;
use overtake_sim::disk::DiskProfile;
use overtake_sim::disk::damage::Damage;
use overtake_sim::node::NodeShape;
use overtake_sim::world::Notice;
use overtake_wire::message::{
    Delivered, EnqueueMessage, ErrorCode, Receive, Refusal, Request, Response, Settle,
};

const NANOS_PER_MS: u64 = 1_000_000;
/// The contract: another replica serves within this after a leader is lost.
const FAILOVER_MS_MAX: u64 = 2_000;

fn shape(cores: u16, shards: u16) -> NodeShape {
    NodeShape {
        cores,
        shards,
        segment_bytes: 4 * 1024 * 1024,
        entry_bytes_max: 2 * 1024 * 1024,
        enqueue_per_s: None,
        cache_bytes: 64 * 1024,
        checkpoint_bytes: 64 * 1024,
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
struct Client {
    world: ClusterWorld,
    session: SessionId,
    request: u64,
    ids: u128,
    /// Messages that other sessions were answered with.
    others: Vec<Delivered>,
}

impl Client {
    fn new(seed: u64, nodes: usize, cores: u16, shards: u16) -> Self {
        Self::of(seed, nodes, &shape(cores, shards))
    }

    fn of(seed: u64, nodes: usize, shape: &NodeShape) -> Self {
        let mut world = ClusterWorld::new(seed, nodes, shape);
        let session = world.connect_to(0);
        let mut client = Self { world, session, request: 0, ids: 0, others: Vec::new() };
        client.until_well(10_000);
        client
    }

    fn until_well(&mut self, ms: u64) {
        for _ in 0..ms {
            if self.world.is_well() {
                return;
            }
            self.pass(1);
        }
        panic!("not well: {:?}, {:?}", self.world.ailment(), self.world.fatal);
    }

    fn pass(&mut self, ms: u64) {
        self.world.set_timer(ms * NANOS_PER_MS, u64::MAX);
        loop {
            match self.world.next_notice() {
                Some(Notice::Timer { .. }) => return,
                other => self.keep(other),
            }
        }
    }

    fn keep(&mut self, notice: Option<Notice>) {
        match notice {
            Some(Notice::Response { response: Response::Received { messages }, .. }) => {
                self.others.extend(messages);
            }
            Some(_) => {}
            None => panic!("nothing will ever happen: {:?}", self.world.fatal),
        }
    }

    fn go_to(&mut self, node: usize) {
        self.session = self.world.connect_to(node);
    }

    fn ask(&mut self, body: &Request) -> Response {
        self.request += 1;
        let wanted = self.request;
        assert!(self.world.send(self.session, wanted, body).is_some());
        loop {
            match self.world.next_notice() {
                Some(Notice::Response { session, request, response })
                    if (session, request) == (self.session, wanted) =>
                {
                    return response;
                }
                other => self.keep(other),
            }
        }
    }

    fn enqueue(&mut self, queue: &str, priority: u32, body: &str) -> Result<MessageId, Refusal> {
        self.ids += 1;
        let id = Some(MessageId::new(self.world.now().wall.0, self.ids));
        let body = body.to_owned().into();
        let message = EnqueueMessage { id, priority, body, ..EnqueueMessage::default() };
        let request = Request::Enqueue { queue: queue.into(), messages: vec![message] };
        loop {
            let refusal = match self.ask(&request) {
                Response::Enqueued { mut results } => match results.remove(0) {
                    Ok(enqueued) => return Ok(enqueued.id),
                    Err(refusal) => refusal,
                },
                Response::Refused(refusal) => refusal,
                other => panic!("{other:?}"),
            };
            // As clients do: the same id again, where nobody knows.
            if !refusal.stored_unknown {
                return Err(refusal);
            }
        }
    }

    fn receive(&mut self, queue: &str, max: u32, wait_s: u32) -> Vec<Delivered> {
        match self.ask(&Request::Receive(Receive { max, wait_s, ..Receive::new(queue) })) {
            Response::Received { messages } => messages,
            other => panic!("{other:?}"),
        }
    }

    fn ack(&mut self, queue: &str, messages: &[Delivered]) {
        let ack = messages.iter().map(|message| message.receipt.to_string()).collect();
        let response = self.ask(&Request::Settle(Settle { queue: queue.into(), ack, ..Settle::default() }));
        assert!(matches!(response, Response::Settled { .. }), "{response:?}");
    }

    /// Shards of queues that a node leads.
    fn leads(&self, node: usize) -> usize {
        let cores = self.world.nodes[node].cores.iter().filter_map(|slot| slot.core.as_ref());
        cores.map(|core| core.leads().filter(|(shard, _)| *shard != ShardId::DIRECTORY).count()).sum()
    }

    /// Everything that is there.
    fn drain(&mut self, queue: &str) -> Vec<MessageId> {
        let mut ids = Vec::new();
        loop {
            let messages = self.receive(queue, 100, 0);
            if messages.is_empty() {
                ids.sort();
                return ids;
            }
            self.ack(queue, &messages);
            ids.extend(messages.iter().map(|message| message.id));
        }
    }
}

#[test]
fn any_node_serves_any_queue() {
    for (seed, nodes, cores, shards) in [(1, 3, 1, 1), (2, 3, 2, 8), (3, 2, 2, 4), (4, 5, 1, 7), (5, 4, 2, 8)]
    {
        let mut client = Client::new(seed, nodes, cores, shards);
        let mut ids = Vec::new();
        for n in 0..20u32 {
            client.go_to(n as usize % nodes);
            ids.push(client.enqueue("work", n % 5, &format!("body {n}")).unwrap());
        }
        // Heads travel to nodes without a replica at their own pace.
        client.pass(50);
        client.go_to(nodes - 1);
        ids.sort();
        assert_eq!(client.drain("work"), ids, "{nodes} nodes, {cores} cores, {shards} shards");
    }
}

#[test]
fn what_was_answered_survives_the_loss_of_any_one_node_and_is_back_in_time() {
    for seed in 0..12 {
        let lost = seed as usize % 3;
        let mut client = Client::new(seed, 3, 2, 8);
        client.go_to((lost + 1) % 3);
        let mut ids: Vec<_> = (0..40u32).map(|n| client.enqueue("work", n % 5, "x").unwrap()).collect();
        client.world.end(lost, seed % 2 == 0);
        let lost_ns = client.world.time_ns();
        // Every shard takes messages again: enough of them for each to get one.
        for n in 0..40u32 {
            let id = client.enqueue("work", n % 5, "y");
            ids.push(id.unwrap_or_else(|refusal| panic!("seed {seed}: {refusal:?}")));
        }
        let took_ms = (client.world.time_ns() - lost_ns) / NANOS_PER_MS;
        assert!(took_ms < FAILOVER_MS_MAX, "seed {seed}: {took_ms} ms");
        client.pass(FAILOVER_MS_MAX);
        ids.sort();
        assert_eq!(client.drain("work"), ids, "seed {seed}");
        client.world.start(lost);
        client.until_well(10_000);
        assert!(client.drain("work").is_empty());
    }
}

#[test]
fn what_was_answered_survives_a_power_loss_of_all_nodes() {
    for seed in 0..6 {
        let mut client = Client::new(seed, 3, 2, 4);
        let mut ids: Vec<_> = (0..30u32).map(|n| client.enqueue("work", n % 5, "x").unwrap()).collect();
        (0..3).for_each(|node| drop(client.world.end(node, false)));
        (0..3).for_each(|node| client.world.start(node));
        client.until_well(10_000);
        client.go_to(1);
        ids.sort();
        assert_eq!(client.drain("work"), ids, "seed {seed}");
    }
}

#[test]
fn a_minority_answers_nothing_and_says_so() {
    let mut client = Client::new(7, 3, 1, 2);
    client.enqueue("work", 0, "x").unwrap();
    client.world.cut(0, 1, false);
    client.world.cut(0, 2, false);
    client.pass(2_500);
    let refusal = client.enqueue("work", 0, "y").unwrap_err();
    assert_eq!((refusal.code, refusal.stored_unknown), (ErrorCode::NoQuorum, false));
    let stats = client.ask(&Request::Stats { queue: "work".into() });
    assert!(matches!(stats, Response::Refused(refusal) if refusal.code == ErrorCode::NoQuorum));
    // The others go on without it; and so does it, once it can reach them.
    client.go_to(1);
    client.enqueue("work", 0, "z").unwrap();
    client.world.heal();
    client.until_well(10_000);
    client.pass(500);
    client.go_to(0);
    assert_eq!(client.drain("work").len(), 2);
}

#[test]
fn a_node_that_was_away_for_long_catches_up_from_the_journals_of_the_others() {
    for seed in 0..4 {
        let mut client = Client::new(seed, 3, 1, 2);
        client.world.end(2, false);
        // More than is kept in memory for it.
        let body = "x".repeat(100_000);
        let mut ids: Vec<_> = (0..100).map(|_| client.enqueue("work", 0, &body).unwrap()).collect();
        client.world.start(2);
        client.until_well(10_000);
        // Without the new one a quorum needs the one that was away.
        client.pass(2_000);
        client.world.end(1, false);
        client.pass(FAILOVER_MS_MAX);
        client.go_to(2);
        ids.sort();
        assert_eq!(client.drain("work"), ids, "seed {seed}");
    }
}

#[test]
fn a_node_that_lacks_more_than_the_others_keep_is_rebuilt_while_they_serve() {
    for seed in 0..6 {
        let cores = if seed % 2 == 0 { 1 } else { 2 };
        let mut client = Client::of(
            seed,
            3,
            &NodeShape {
                checkpoint_bytes: 16 * 1024,
                log_keep_bytes: 2_000,
                snapshot_part_bytes: 1_000,
                ..shape(cores, 2)
            },
        );
        client.enqueue("work", 0, "first").unwrap();
        client.world.end(2, false);
        let churn = |client: &mut Client| {
            for _ in 0..100 {
                client.enqueue("work", 0, &"x".repeat(200)).unwrap();
                let messages = client.receive("work", 2, 0);
                client.ack("work", &messages);
            }
        };
        client.pass(FAILOVER_MS_MAX);
        churn(&mut client);
        // What lives stays in old entries, and the snapshot brings them.
        let mut ids: Vec<_> = (0..20)
            .map(|n| client.enqueue("old", 0, &format!("{n} {}", "y".repeat(2_000))).unwrap())
            .collect();
        churn(&mut client);
        client.world.start(2);
        // Work goes on meanwhile, and another node is lost before it is through.
        for n in 0..40 {
            ids.push(client.enqueue("old", 0, &n.to_string()).unwrap());
        }
        client.until_well(10_000);
        client.pass(5_000);
        assert!(client.world.rebuilt > 0, "seed {seed}");
        client.world.end(1, seed % 2 == 0);
        client.pass(FAILOVER_MS_MAX);
        client.go_to(2);
        ids.sort();
        assert_eq!(client.drain("old"), ids, "seed {seed}");
        // What it got lasts.
        client.world.start(1);
        client.until_well(10_000);
        client.world.end(2, false);
        client.world.start(2);
        client.until_well(10_000);
    }
}

#[test]
fn a_damaged_disk_is_repaired_by_the_other_nodes_and_votes_for_nobody_before() {
    for seed in 0..8 {
        let damage = if seed < 6 { Damage::Vanished } else { Damage::Gone };
        let mut client = Client::new(seed, 3, 1, 3);
        let mut ids: Vec<_> = (0..60).map(|n| client.enqueue("work", n % 5, "x").unwrap()).collect();
        client.world.end(2, false);
        client.world.damaged = Some(2);
        assert!(client.world.nodes[2].cores[0].disk.damage(damage).is_some(), "seed {seed}");
        // Not all that hold a replica can be asked: nothing is given up, and nobody is voted for.
        client.world.end(1, seed % 2 == 0);
        client.world.start(2);
        client.pass(6_000);
        assert_eq!(client.world.given_up, 0, "seed {seed}");
        client.go_to(0);
        assert_eq!(client.enqueue("work", 0, "no quorum").unwrap_err().code, ErrorCode::NoQuorum);
        client.world.start(1);
        client.until_well(10_000);
        assert_eq!(client.world.given_up, 1, "seed {seed}");
        // From here on it is as good as any other, also over a restart.
        client.world.end(2, false);
        client.world.start(2);
        client.until_well(10_000);
        client.world.end(0, false);
        client.pass(FAILOVER_MS_MAX);
        client.go_to(2);
        ids.push(client.enqueue("work", 0, "y").unwrap());
        ids.sort();
        let found = client.drain("work");
        assert!(ids.iter().all(|id| found.contains(id)), "seed {seed}");
    }
}

#[test]
fn a_damaged_disk_of_a_core_without_replicas_is_begun_anew() {
    for seed in 0..3 {
        // The only shard is core 0's everywhere.
        let mut client = Client::new(seed, 3, 2, 1);
        client.enqueue("work", 0, "x").unwrap();
        for _ in 0..30 {
            client.world.end(2, true);
            client.world.start(2);
            client.until_well(10_000);
        }
        client.world.end(2, true);
        client.world.damaged = Some(2);
        let disk = &mut client.world.nodes[2].cores[1].disk;
        assert!((0..100).any(|_| disk.damage(Damage::Vanished).is_some()), "seed {seed}");
        for _ in 0..2 {
            client.world.start(2);
            client.until_well(10_000);
            client.world.end(2, true);
        }
        assert_eq!(client.world.given_up, 1, "seed {seed}");
        client.world.start(2);
        client.until_well(10_000);
        client.go_to(2);
        assert_eq!(client.drain("work").len(), 1, "seed {seed}");
    }
}

#[test]
fn a_wall_clock_that_jumps_while_its_node_is_down_ends_no_lease() {
    for (seed, jump_ms) in [(0, 3_600_000), (1, -3_600_000), (2, 86_400_000)] {
        let mut client = Client::new(seed, 3, 1, 3);
        client.go_to(1);
        client.enqueue("work", 0, "x").unwrap();
        let receive = Receive { lease_s: Some(60), ..Receive::new("work") };
        assert!(
            matches!(client.ask(&Request::Receive(receive)), Response::Received { messages } if messages.len() == 1)
        );
        // It comes back with the time of the others, and may lead again.
        for node in [0, 2] {
            client.world.end(node, true);
            client.world.nodes[node].wall_offset_ms += if node == 0 { jump_ms } else { 0 };
            client.pass(3_000);
            client.world.start(node);
            client.until_well(10_000);
        }
        client.pass(20_000);
        client.go_to(1);
        assert!(client.receive("work", 1, 0).is_empty(), "seed {seed}: the lease ended early");
        client.pass(36_000);
        assert_eq!(client.receive("work", 1, 0).len(), 1, "seed {seed}: the lease never ended");
    }
}

#[test]
fn a_node_whose_wall_clock_is_off_leads_nothing() {
    let mut client = Client::new(3, 3, 1, 6);
    client.pass(2_000);
    client.world.nodes[1].wall_offset_ms += 3_600_000;
    client.pass(8_000);
    assert_eq!(client.leads(1), 0);
    client.world.nodes[1].wall_offset_ms = 0;
    client.pass(20_000);
    assert!(client.leads(1) > 0, "it leads again");
}

#[test]
fn waiters_wake_across_nodes_and_follow_their_home() {
    for seed in 0..8 {
        let mut client = Client::new(seed, 3, 1, 3);
        client.enqueue("work", 0, "first").unwrap();
        assert_eq!(client.receive("work", 1, 0).len(), 1);
        let waits: Vec<SessionId> = (0..3).map(|node| client.world.connect_to(node)).collect();
        for session in &waits {
            let receive = Receive { wait_s: 20, ..Receive::new("work") };
            assert!(client.world.send(*session, 1, &Request::Receive(receive)).is_some());
        }
        client.pass(500);
        if seed % 2 == 0 {
            // Whoever is home to the waiters may be this one.
            client.world.end(2, false);
            client.pass(3_000);
        }
        client.go_to(1);
        let bodies: Vec<String> = (0..3).map(|n| format!("body {n}")).collect();
        for body in &bodies {
            client.enqueue("work", 1, body).unwrap();
        }
        client.pass(1_000);
        let expected = if seed % 2 == 0 { 2 } else { 3 };
        assert_eq!(client.others.len(), expected, "seed {seed}");
    }
}

#[test]
fn depth_over_several_nodes_is_exact_both_ways() {
    use overtake_base::QueueConfigPatch;
    for seed in 0..6 {
        let mut client = Client::new(seed, 3, 2, 8);
        let patch = QueueConfigPatch { max_depth: Some(Some(5)), ..QueueConfigPatch::default() };
        let created = client.ask(&Request::PutQueue { queue: "small".into(), patch });
        assert!(matches!(created, Response::QueuePut { created: true, .. }), "{created:?}");
        for n in 0..5 {
            client.go_to(n % 3);
            client.enqueue("small", 0, &format!("{n}")).unwrap();
        }
        assert_eq!(client.enqueue("small", 0, "one too many").unwrap_err().code, ErrorCode::Depth);
        client.pass(50);
        let message = client.receive("small", 1, 0);
        assert!(client.enqueue("small", 0, "a lease makes no room").is_err());
        client.ack("small", &message);
        client.go_to(0);
        client.enqueue("small", 0, "an ack does").unwrap();
        assert!(client.enqueue("small", 0, "full again").is_err());
    }
}

#[test]
fn a_node_that_is_told_to_stop_hands_its_leaders_over_first() {
    for seed in 0..4 {
        let mut client = Client::new(seed, 3, 2, 8);
        client.enqueue("work", 0, "x").unwrap();
        client.world.ask_to_stop(0);
        for _ in 0..1_000 {
            if client.world.nodes[0].is_stopped() {
                break;
            }
            client.pass(1);
        }
        assert!(client.world.nodes[0].is_stopped(), "seed {seed}");
        client.world.end(0, true);
        client.go_to(1);
        // Nobody has to notice that it is gone.
        let before_ns = client.world.time_ns();
        for n in 0..40u32 {
            client.enqueue("work", n % 5, "y").unwrap();
        }
        let took_ms = (client.world.time_ns() - before_ns) / NANOS_PER_MS;
        assert!(took_ms < 500, "seed {seed}: {took_ms} ms");
    }
}

#[test]
fn leaders_go_back_to_where_they_are_preferred() {
    let mut client = Client::new(9, 3, 2, 6);
    client.world.end(1, true);
    client.pass(3_000);
    client.world.start(1);
    client.until_well(10_000);
    client.pass(12_000);
    assert_eq!([0, 1, 2].map(|node| client.leads(node)), [2, 2, 2]);
}

#[test]
fn a_leader_that_leads_again_does_not_wait_for_what_it_proposed_before() {
    for seed in 0..6 {
        let mut client = Client::new(seed, 3, 1, 1);
        client.enqueue("work", 0, "x").unwrap();
        client.pass(4_000);
        let leads = |client: &Client, node: usize| {
            let core = client.world.nodes[node].cores[0].core.as_ref().unwrap();
            core.leads().any(|(shard, _)| shard.0 == 0)
        };
        let leader = (0..3).find(|node| leads(&client, *node)).unwrap();
        client.go_to(leader);
        (0..3).filter(|node| *node != leader).for_each(|node| client.world.cut(leader, node, false));
        // It takes many before it notices, each in an entry of its own. The others will have fewer.
        for n in 0..50 {
            let messages = vec![EnqueueMessage { body: "lost".into(), ..EnqueueMessage::default() }];
            let request = Request::Enqueue { queue: "work".into(), messages };
            assert!(client.world.send(client.session, 1_000 + n, &request).is_some());
            client.pass(1);
        }
        client.pass(3_000);
        assert!(!leads(&client, leader), "seed {seed}");
        client.world.heal();
        client.until_well(10_000);
        client.pass(10_000);
        assert!(leads(&client, leader), "seed {seed}: it is the one that is preferred");
        for n in 0..10u32 {
            client.go_to(n as usize % 3);
            let before_ns = client.world.time_ns();
            client.enqueue("work", 0, &n.to_string()).unwrap();
            let took_ms = (client.world.time_ns() - before_ns) / NANOS_PER_MS;
            assert!(took_ms < 100, "seed {seed}: {took_ms} ms");
        }
        assert_eq!(client.drain("work").len(), 11, "seed {seed}");
    }
}

#[test]
fn the_same_seed_gives_the_same_trace() {
    let trace = |seed| {
        let mut client = Client::new(seed, 3, 2, 4);
        client.enqueue("work", 0, "x").unwrap();
        client.pass(500);
        client.world.trace()
    };
    assert_eq!(trace(3), trace(3));
    assert_ne!(trace(3), trace(4));
}

#[test]
fn a_leader_whose_disk_hangs_lets_others_lead() {
    let mut client = Client::new(31, 3, 1, 4);
    let ids: Vec<MessageId> = (0..8).map(|_| client.enqueue("q", 0, "x").unwrap()).collect();
    client.go_to(1);
    assert!(client.leads(0) > 0, "node 1 leads something");
    let until_ns = client.world.time_ns() + 20_000 * NANOS_PER_MS;
    client.world.nodes[0].cores[0].disk.hangs_until_ns = until_ns;
    // Something has to be under way on the disk for anyone to know.
    let more: Vec<MessageId> = (0..8).map(|_| client.enqueue("q", 0, "x").unwrap()).collect();
    client.pass(FAILOVER_MS_MAX);
    assert_eq!(client.leads(0), 0, "its disk hangs");
    let drained = client.drain("q");
    assert!(ids.iter().chain(&more).all(|id| drained.contains(id)), "everything comes meanwhile");
    client.pass(15_000);
    assert_eq!(client.leads(0), 0, "nor does it get to lead by preference");
    client.pass(15_000);
    assert!(client.leads(0) > 0, "its disk goes on");
}
