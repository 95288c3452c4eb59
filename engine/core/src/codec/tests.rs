//! Every mesh message there and back, its bytes for good, and bytes that are none.

use super::*;
use crate::cluster::{ClusterMap, MapNode};
use crate::mesh::{BlockBytes, SnapshotAsk, SnapshotPart, StateHead, StatePart};
use overtake_base::{BlockId, QueueConfig};
use overtake_queue::command::Command;
use overtake_queue::directory::DirectoryCommand;
use overtake_replication::types::{EntryKind, LogEntry};
use overtake_wire::message::{Receive, Request, Response};
use proptest::prelude::*;

const SHARD: ShardId = ShardId(3);
const QUEUE: QueueId = QueueId(4);

fn call(request: ShardRequest) -> MeshMessage {
    MeshMessage::Call { call: 7, shard: SHARD, request }
}

fn reply(reply: ShardReply) -> MeshMessage {
    MeshMessage::Reply { call: 7, reply, summary: None }
}

fn every_kind() -> Vec<MeshMessage> {
    let at = UnixMillis(1_000);
    let id = MessageId(9);
    let claim = PendingClaim { id, claim: ClaimTicket { number: 3, deadline: at }, age_ms: 4 };
    let level = LevelSummary { level: Level(1), visible: 3, head_since: at };
    let summary = Summary { queue: QUEUE, depth: 5, body_bytes: 6, levels: vec![level] };
    let summary = VersionedSummary { shard: SHARD, version: 8, summary };
    let record = Arc::new(QueueRecord {
        id: QUEUE,
        tenant: "default".into(),
        name: "work".parse().unwrap(),
        version: 2,
        config: QueueConfig::with_defaults(5, 8),
        first_shard: 1,
    });
    let payload = || Payload { headers: Bytes::from_static(b"h"), body: Bytes::from_static(b"body") };
    let key = LeaseKey { sequence: Sequence(4), deliveries: 2 };
    let delivery = Delivery {
        id,
        key,
        priority: Level(2),
        share: true,
        enqueued_at: at,
        lease_expires_at: at,
        payload: ELSEWHERE,
    };
    let view = |state| MessageView {
        id,
        priority: Level(2),
        state,
        deliveries: 1,
        enqueued_at: at,
        sequence: Some(Sequence(3)),
        last_error: Some("no".into()),
        payload: ELSEWHERE,
    };
    let dead = DeadLetterView {
        id,
        priority: Level(0),
        deliveries: 5,
        enqueued_at: at,
        dead_at: at,
        last_error: "no".into(),
        history: vec![(at, "released".into())],
        payload: ELSEWHERE,
    };
    let stats = QueueStats {
        visible: vec![1, 2],
        oldest_since: vec![Some(at), None],
        waits: vec![vec![(5, 6)], vec![]],
        workers: vec![("w".into(), 3)],
        ..QueueStats::default()
    };
    let filter = PeekFilter { visible: true, delayed: false, leased: true, priority: Some(Level(1)) };
    let selection = RedriveSelection::Ids(vec![id]);
    let delete = DirectoryCommand::Delete { tenant: "default".into(), name: "work".parse().unwrap() };
    let outcomes = vec![
        EnqueueOutcome::Stored,
        EnqueueOutcome::Duplicate(id),
        EnqueueOutcome::Refused(RefusedReason::NoQuorum),
        EnqueueOutcome::Pending(claim),
        EnqueueOutcome::StoredBefore(at),
        EnqueueOutcome::Late,
    ];
    let settled =
        Answer::Settled { ack: SETTLED.to_vec(), extend: vec![], release: vec![SettleOutcome::Unknown] };
    let states = [
        ViewState::Visible { ahead: Some(1) },
        ViewState::Delayed { until: at },
        ViewState::Leased { expires_at: at, worker: Some("w".into()) },
        ViewState::Dead,
    ];
    let entries = (3..5).map(|index| LogEntry {
        term: 2,
        index,
        kind: EntryKind::Normal,
        data: Bytes::from_static(b"entry"),
    });
    let entries = entries.collect();
    let head = StateHead { index: 1, term: 2, first: 3, bytes: 4, checksum: 5 };
    let part = |part| MeshMessage::SnapshotPart { shard: SHARD, number: 3, part };
    let mut all = vec![
        call(ShardRequest::Command(Command::Purge { queue: QUEUE })),
        MeshMessage::Reply { call: 1, reply: ShardReply::Summary, summary: Some(summary.clone()) },
        MeshMessage::Forward {
            call: 2,
            tenant: "default".into(),
            request: Request::Receive(Receive::new("work")),
            rate_checked: true,
            wait_ms: 300,
        },
        MeshMessage::ForwardReply { call: 3, response: Response::Done },
        MeshMessage::ForwardMoved { call: 4 },
        MeshMessage::ForwardCancel { call: 5 },
        MeshMessage::DirectorySnapshot { index: 6, records: vec![record.clone()], last: true },
        MeshMessage::DirectoryChange { index: 6, change: 7, record, deleted: false },
        MeshMessage::DirectoryKnown { change: 7 },
        MeshMessage::DirectoryCall { call: 8, command: delete },
        MeshMessage::Waiters { queue: QUEUE, some: true },
        MeshMessage::Leader { shard: SHARD, term: 9, leader: Some(NodeId(2)) },
        MeshMessage::Summaries { summaries: vec![summary] },
        MeshMessage::RoomWanted {
            queue: QUEUE,
            shard: SHARD,
            room: Room { messages: 1, bytes: 2 },
            first: 3,
        },
        MeshMessage::Held { shards: vec![(SHARD, 12)] },
        MeshMessage::VouchAsk { shard: SHARD, index: 13 },
        MeshMessage::Vouched { shard: SHARD, index: 13 },
        MeshMessage::Stuck { stuck: true },
        MeshMessage::Members { members: cluster().members().clone() },
        MeshMessage::ReplicaAsk { number: 3, shards: vec![(SHARD, 4)] },
        MeshMessage::ReplicaTold { number: 3, shards: vec![(SHARD, 4, 5)] },
        MeshMessage::ClockAsk { asked_ns: 5 },
        MeshMessage::Clock { asked_ns: 5, wall: at, time: Some(at) },
        MeshMessage::SnapshotAsk(SnapshotAsk {
            shard: SHARD,
            number: 3,
            staged: Some((4, 5)),
            state: Some((6, 7)),
            block: Some((8, 9)),
        }),
        part(SnapshotPart::Entries { first: 2, entries }),
        part(SnapshotPart::State(StatePart { head, offset: 6, bytes: Bytes::from_static(b"state") })),
        part(SnapshotPart::Block(BlockBytes {
            block: BlockId(7),
            records: 2,
            length: 9,
            offset: 4,
            bytes: Bytes::from_static(b"block"),
        })),
        MeshMessage::Raft { messages: vec![(SHARD, Bytes::from_static(b"raft"))] },
    ];
    let reads = [
        Read::Stats { queue: QUEUE },
        Read::Peek { queue: QUEUE, filter, after: Some(id), limit: 10 },
        Read::Inspect { queue: QUEUE, id },
        Read::DeadLetters { queue: QUEUE, after: None, limit: 10 },
        Read::CountDead { queue: QUEUE, selection },
        Read::CountDead { queue: QUEUE, selection: RedriveSelection::FromPriority(Level(1)) },
        Read::Lookup { queue: QUEUE, key: Some(Bytes::from_static(b"k")), id: Some(id) },
        Read::Summary { queue: QUEUE },
        Read::StoredUnder { queue: QUEUE, id, key: Bytes::from_static(b"k") },
    ];
    all.extend(reads.map(|read| call(ShardRequest::Read(read))));
    let answers = [
        Answer::NoQueue,
        Answer::Done,
        Answer::Enqueued(outcomes),
        Answer::Leased(vec![delivery]),
        settled,
        Answer::Cancelled(CancelOutcome::Dead),
        Answer::Purged(4),
        Answer::Redriven(5),
        Answer::Claim(ClaimOutcome::Claimed(claim.claim)),
        Answer::Claim(ClaimOutcome::Taken(id)),
        Answer::Claim(ClaimOutcome::Pending(claim)),
        Answer::Claim(ClaimOutcome::Off),
        Answer::Fenced(Some(at)),
        Answer::Spilled(Spilled { payloads: 7, next: Some(id) }),
        Answer::Thawed(true),
    ];
    all.extend(answers.map(|answer| reply(ShardReply::Answer(answer))));
    all.extend(states.map(|state| reply(ShardReply::Inspected(Some(view(state))))));
    let page = Page { items: vec![(view(ViewState::Dead), payload())], upto: Some(id) };
    all.extend([
        reply(ShardReply::Leased(vec![(delivery, payload())])),
        reply(ShardReply::Stats(Some(stats))),
        reply(ShardReply::Peeked(page)),
        reply(ShardReply::DeadLetters(Page { items: vec![(dead, payload())], upto: None })),
        reply(ShardReply::Count(6)),
        reply(ShardReply::Found(KeyState::Free)),
        reply(ShardReply::Found(KeyState::Taken(id))),
        reply(ShardReply::Found(KeyState::Pending(claim))),
        reply(ShardReply::NotLeader { term: 3, leader: Some(NodeId(1)), request: None }),
        reply(ShardReply::Failed { unknown: true, detail: UNKNOWN_THERE }),
    ]);
    all
}

fn bytes_of(message: &MeshMessage) -> Bytes {
    let mut bytes = Vec::new();
    assert!(encode(message, &mut bytes), "{message:?}");
    bytes.into()
}

fn cluster() -> ClusterMap {
    let node = |zone: &str| MapNode { zone: zone.into(), cores: 2, ..MapNode::default() };
    ClusterMap::new([(NodeId(1), node("a")), (NodeId(2), node("b"))].into(), 1)
}

#[test]
fn every_message_is_read_as_it_was_written_and_no_part_of_it_is_one() {
    for message in every_kind() {
        let bytes = bytes_of(&message);
        let read = decode(&bytes).unwrap_or_else(|error| panic!("{message:?}: {error}"));
        assert_eq!(format!("{read:?}"), format!("{message:?}"));
        for cut in 0..bytes.len() {
            assert!(decode(&bytes.slice(..cut)).is_err(), "{message:?} cut at {cut}");
        }
        assert!(decode(&[&bytes[..], &[0]].concat().into()).is_err(), "{message:?} and a byte");
    }
}

#[test]
fn golden_bytes() {
    let all: Vec<u8> = every_kind().iter().flat_map(|message| bytes_of(message).to_vec()).collect();
    assert_eq!(
        overtake_base::checksum::checksum(0, &all),
        0xb6a5_070a_3f8e_78e9,
        "the layout changed: raise the version"
    );
    let waiters = bytes_of(&MeshMessage::Waiters { queue: QueueId(0x0102_0304), some: true });
    assert_eq!(waiters[..], [5, 11, 4, 3, 2, 1, 1]);
}

#[test]
fn what_is_said_within_a_node_is_not_sent() {
    let mut bytes = vec![5];
    for message in [
        MeshMessage::Serving { time: UnixMillis(1) },
        call(ShardRequest::Read(Read::Metrics { tenant: "t".into() })),
    ] {
        assert!(!encode(&message, &mut bytes));
        assert_eq!(bytes, [5]);
    }
}

proptest! {
    #[test]
    fn any_bytes_are_read_without_panic(bytes: Vec<u8>, kind in 0..27_u8) {
        let all: Bytes = [&[VERSION, kind][..], &bytes].concat().into();
        if let Ok(message) = decode(&all) {
            prop_assert!(bytes_of(&message).len() <= all.len() + 64);
        }
    }

    #[test]
    fn a_changed_byte_is_read_without_panic(which: usize, at: usize, xor: u8) {
        let all = every_kind();
        let mut bytes = bytes_of(&all[which % all.len()]).to_vec();
        let at = at % bytes.len();
        bytes[at] ^= xor;
        let _ = decode(&bytes.into());
    }
}
