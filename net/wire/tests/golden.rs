//! The bytes of every kind of request and response, pinned. A difference is a change of the protocol: it needs a new
//! version, and then the files are written anew with
//! `OVERTAKE_GOLDEN=write cargo test -p overtake-wire --test golden`.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use bytes::Bytes;
use overtake_base::queue_config::{Backoff, QueueConfig, QueueConfigPatch, RateCaps, Scheduling, Starvation};
use overtake_base::{MessageId, UnixMillis};
use overtake_wire::message::*;
use overtake_wire::{
    RequestKind, ResponseKind, decode_request, decode_response, encode_request, encode_response,
};
use std::collections::BTreeSet;
use std::fmt::Write as _;
use std::path::PathBuf;

const ID: MessageId = MessageId(0x0001_0203_0405_0607_0809_0a0b_0c0d_0e0f);
const TIME: UnixMillis = UnixMillis(1_700_000_000_123);

fn headers() -> Headers {
    vec![("traceparent".into(), "00-1".into()), ("é".into(), String::new())]
}

fn full_message() -> EnqueueMessage {
    EnqueueMessage {
        priority: 3,
        id: Some(ID),
        delay: Delay::At(TIME),
        dedup_key: Some(Bytes::from_static(b"key")),
        expires_in_s: Some(60),
        headers: headers(),
        body: Bytes::from_static(b"body"),
    }
}

fn requests() -> Vec<Request> {
    let queue = || "mail".to_owned();
    vec![
        Request::Hello { token: "secret".into() },
        Request::PutQueue { queue: queue(), patch: QueueConfigPatch::default() },
        Request::PutQueue { queue: queue(), patch: full_patch() },
        Request::GetQueue { queue: queue() },
        Request::ListQueues { limit: 100, after: Some("a".into()) },
        Request::DeleteQueue { queue: queue() },
        Request::Enqueue {
            queue: queue(),
            messages: vec![
                EnqueueMessage::default(),
                full_message(),
                EnqueueMessage { delay: Delay::AfterS(5), ..EnqueueMessage::default() },
            ],
        },
        Request::Receive(Receive {
            queue: queue(),
            max: 10,
            wait_s: 20,
            lease_s: Some(30),
            max_priority: Some(1),
            worker: Some("w1".into()),
        }),
        Request::CancelReceive { request: 7 },
        Request::Settle(Settle {
            queue: queue(),
            ack: vec!["r_1_2_3".into()],
            extend: vec![Extend { receipt: "r_1_3_1".into(), lease_s: 60 }],
            release: vec![
                Release { receipt: "r_1_4_1".into(), delay_s: None, error: None },
                Release { receipt: "r_1_5_1".into(), delay_s: Some(9), error: Some("boom".into()) },
            ],
        }),
        Request::Stats { queue: queue() },
        Request::Peek {
            queue: queue(),
            states: PeekStates { visible: true, delayed: false, leased: true },
            priority: Some(4),
            limit: 2,
            after: None,
        },
        Request::Inspect { queue: queue(), id: ID },
        Request::Cancel { queue: queue(), id: ID },
        Request::Purge { queue: queue() },
        Request::DlqList { queue: queue(), limit: 5, after: None },
        redrive(RedriveSelection::All),
        redrive(RedriveSelection::Ids(vec![ID])),
        redrive(RedriveSelection::FromPriority(2)),
        Request::DlqPurge { queue: queue() },
        Request::Cluster,
        Request::Ready,
        Request::Metrics,
        Request::Undelivered { queue: queue(), receipts: vec!["r_1_2_3".into(), "r_1_3_1".into()] },
        Request::ChangeCluster(ClusterChange::Add(NewNode {
            id: 4,
            zone: "a".into(),
            address: "h:7402".into(),
            http: "h:7401".into(),
            cores: 2,
        })),
        Request::ChangeCluster(ClusterChange::Drain { node: 4, undo: true, force: false }),
        Request::ChangeCluster(ClusterChange::Remove { node: 4, force: true }),
        Request::ChangeCluster(ClusterChange::Replace { dead: 4, new: 5 }),
        Request::ChangeCluster(ClusterChange::Rebalance),
    ]
}

fn full_patch() -> QueueConfigPatch {
    QueueConfigPatch {
        levels: Some(Some(3)),
        shards: Some(None),
        scheduling: Some(Some(Scheduling::Strict)),
        weights_micro: Some(Some(vec![3_000_000, 2_000_000, 1_000_000])),
        reserve_ppm: Some(Some(1)),
        floor_ppm: Some(Some(2)),
        aging_s: Some(Some(3)),
        max_deliveries: Some(Some(4)),
        lease_s: Some(Some(5)),
        dedup_window_s: Some(Some(6)),
        retention_s: Some(Some(7)),
        max_depth: Some(Some(8)),
        max_bytes: Some(Some(9)),
        rate_caps: Some(Some(RateCaps { queue: Some(10), levels: [(1, 11)].into() })),
        dead_letter_expired: Some(Some(true)),
        backoff: Some(Some(Backoff { first_s: 12, factor_micro: 2_000_000, max_s: 13 })),
        starvation: Some(Some(Starvation::PerLevel(vec![14, 15, 16]))),
    }
}

fn redrive(selection: RedriveSelection) -> Request {
    Request::DlqRedrive(Redrive {
        queue: "mail".into(),
        selection,
        priority: Some(1),
        max_per_s: Some(50),
        dry_run: true,
    })
}

fn refusal() -> Refusal {
    Refusal {
        code: ErrorCode::Depth,
        field: Some("body".into()),
        detail: "full".into(),
        retry_after_ms: Some(1_000),
        stored_unknown: true,
    }
}

fn responses() -> Vec<Response> {
    let config = || QueueConfig::with_defaults(5, 8);
    vec![
        Response::Refused(refusal()),
        Response::Welcome { node: 1, core: 2, cores: 4, version: "0.1.0".into() },
        Response::QueuePut { created: true, config: config() },
        Response::Queue { config: config() },
        Response::Queues {
            queues: vec![QueueListed { name: "mail".into(), config: config(), depth: 9 }],
            next: Some("mail".into()),
        },
        Response::Done,
        Response::Enqueued {
            results: vec![Ok(Enqueued { id: ID, shard: 19, duplicate: true }), Err(refusal())],
        },
        Response::Received { messages: vec![delivered()] },
        Response::Settled {
            ack: vec![Settled::Ok, Settled::Stale],
            extend: vec![Settled::Unknown],
            release: vec![],
        },
        Response::Stats(stats()),
        Response::Peeked { messages: vec![peeked()], next: None },
        Response::Inspected(inspected()),
        Response::Purged { purged: 12 },
        Response::DeadLetters { messages: vec![dead_letter()], next: None },
        Response::Redriven { moved: 13 },
        Response::Cluster {
            nodes: vec![NodeStatus {
                id: 1,
                zone: "a".into(),
                http: "127.0.0.1:7401".into(),
                alive: true,
                state: NodeState::Draining,
                replicas: 9,
            }],
            shards: vec![ShardStatus {
                shard: 3,
                leader: Some(1),
                replicas: vec![1, 2],
                adding: Some(4),
                removing: None,
            }],
        },
        Response::Readiness { not_ready: vec![1, 2] },
        Response::Metrics {
            values: vec![Metric {
                name: "overtake_x".into(),
                labels: vec![("queue".into(), "mail".into())],
                value: 1.5,
                counter: true,
            }],
        },
        Response::ClusterChanged { members: Bytes::from_static(b"members") },
    ]
}

fn delivered() -> Delivered {
    Delivered {
        id: ID,
        priority: 4,
        receipt: "r_19_123456_2".parse().unwrap(),
        deliveries: 2,
        enqueued_at: TIME,
        lease_expires_at: TIME.plus_s(30),
        headers: headers(),
        share: true,
        body: Bytes::from_static(b"body"),
    }
}

fn peeked() -> PeekedMessage {
    PeekedMessage {
        id: ID,
        priority: 4,
        state: MessageState::Leased,
        deliveries: 1,
        enqueued_at: TIME,
        deliver_at: None,
        lease_expires_at: Some(TIME.plus_s(30)),
        headers: headers(),
        body: Bytes::from_static(b"body"),
    }
}

fn inspected() -> Inspected {
    Inspected {
        id: ID,
        priority: 2,
        state: MessageState::Delayed,
        shard: 5,
        enqueued_at: TIME,
        deliver_at: Some(TIME.plus_s(60)),
        lease_expires_at: None,
        worker: Some("w1".into()),
        deliveries: 3,
        ahead: Some(17),
        why: "delayed".into(),
    }
}

fn dead_letter() -> DeadLetter {
    DeadLetter {
        id: ID,
        priority: 1,
        deliveries: 5,
        last_error: "boom".into(),
        dead_at: TIME.plus_s(90),
        history: vec![(TIME, "delivered".into())],
        enqueued_at: TIME,
        headers: headers(),
        body: Bytes::from_static(b"body"),
    }
}

fn stats() -> Stats {
    Stats {
        visible: vec![1, 2],
        delayed: vec![3, 4],
        leased: vec![5, 6],
        dlq: 7,
        oldest_age_ms: vec![Some(8), None],
        wait_ms: vec![Some(WaitMs { p50: 0.5, p99: 1.0, p999: 2.0 }), None],
        totals: Totals {
            enqueued: 1,
            acked: 2,
            cancelled: 3,
            purged: 4,
            expired: 5,
            dead_lettered: 6,
            redriven: 7,
            deliveries: 8,
            share_deliveries: 9,
            inversions: 10,
            lease_expirations: 11,
            releases: 12,
            stale_receipts: 13,
            starvation_events: 14,
            refused_depth: 15,
            refused_bytes: 16,
            refused_rate: 17,
            refused_disk: 18,
            refused_no_quorum: 19,
        },
        workers: vec![("w1".into(), 5)],
    }
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().fold(String::new(), |mut text, byte| {
        let _ = write!(text, "{byte:02x}");
        text
    })
}

/// Compares with the file, or writes it where the environment says so.
fn check(file: &str, what: &str, lines: &[String]) {
    let path = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("golden").join(file);
    let text = format!(
        "# {what}, whole frames with length prefix: kind, then hex. Written by tests/golden.rs, which has the values.\n{}\n",
        lines.join("\n")
    );
    if std::env::var("OVERTAKE_GOLDEN").is_ok_and(|value| value == "write") {
        std::fs::write(&path, &text).unwrap();
    }
    assert_eq!(std::fs::read_to_string(&path).unwrap(), text, "the bytes of the protocol changed");
}

#[test]
fn requests_have_the_bytes_they_always_had() {
    let mut kinds = BTreeSet::new();
    let mut lines = Vec::new();
    for (id, request) in (1..).zip(requests()) {
        let mut bytes = Vec::new();
        encode_request(id, &request, &mut bytes);
        assert_eq!(decode_request(&Bytes::copy_from_slice(&bytes[4..])), Ok((id, request.clone())));
        kinds.insert(request.kind());
        lines.push(format!("{:?} {}", request.kind(), hex(&bytes)));
    }
    assert_eq!(kinds, RequestKind::ALL.iter().copied().collect(), "each kind has a sample");
    check("requests.txt", "Requests", &lines);
}

#[test]
fn responses_have_the_bytes_they_always_had() {
    let mut kinds = BTreeSet::new();
    let mut lines = Vec::new();
    for (id, response) in (1..).zip(responses()) {
        let mut bytes = Vec::new();
        encode_response(id, &response, &mut bytes);
        assert_eq!(decode_response(&Bytes::copy_from_slice(&bytes[4..])), Ok((id, response.clone())));
        kinds.insert(response.kind());
        lines.push(format!("{:?} {}", response.kind(), hex(&bytes)));
    }
    assert_eq!(kinds, ResponseKind::ALL.iter().copied().collect(), "each kind has a sample");
    check("responses.txt", "Responses", &lines);
}
