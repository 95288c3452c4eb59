//! Writes well-formed inputs into the corpora, for the fuzzer to begin with: `cargo run -p overtake-fuzz --example seeds`.

#![allow(clippy::unwrap_used, reason = "a tool for developers ends with the reason")]

use bytes::Bytes;
use overtake_base::{
    BlockId, CoreId, Level, MessageId, NodeId, QueueConfig, QueueConfigPatch, QueueId, ShardId, UnixMillis,
    Writer,
};
use overtake_config::EXAMPLE;
use overtake_core::mesh::{MeshMessage, Read, ShardReply, ShardRequest};
use overtake_core::state::{self, ReplicaHead};
use overtake_log::Record;
use overtake_log::batch::{BatchHeader, HEADER_BYTES};
use overtake_log::checkpoint::{CheckpointHeader, state_checksum};
use overtake_log::disk::BLOCK_BYTES;
use overtake_log::lanes::block::{BlockHeader, join_payloads};
use overtake_log::lanes::file::LaneFileHeader;
use overtake_log::segment::SegmentHeader;
use overtake_queue::answer::{Answer, EnqueueOutcome};
use overtake_queue::command::{
    Batch, Command, Lease, LeaseKey, LevelChoice, NewMessage, Redrive, RedriveSelection, Return, VisibleWhen,
};
use overtake_queue::directory::{Directory, DirectoryCommand, encode_commands};
use overtake_queue::entry::encode_batch;
use overtake_queue::machine::Machine;
use overtake_queue::members::{Holders, Member, MemberState, Members, MembersCommand};
use overtake_replication::{Membership, MembershipChange, Role};
use overtake_wire::message::{EnqueueMessage, Receive, Request, Response, Settle};
use overtake_wire::peer::PeerHello;
use overtake_wire::{LENGTH_BYTES, encode_request, encode_response};
use std::path::Path;

const QUEUE: QueueId = QueueId(1);

fn keep(target: &str, name: &str, bytes: &[u8]) {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("corpus").join(target);
    std::fs::create_dir_all(&folder).unwrap();
    std::fs::write(folder.join(name), bytes).unwrap();
}

fn main() {
    wire();
    shard();
    directory();
    let mut session = Vec::new();
    for (what, length) in [(1, 0), (3, 0), (2, 4), (3, 0), (0, 0), (9 * 8, 0), (3, 0), (5, 20), (6, 30_u8)] {
        session.extend([what, length]);
        session.extend((0..length).map(|byte| byte.wrapping_mul(7)));
    }
    keep("peer-message", "session", &session);
    keep(
        "journal",
        "two-segments",
        &[2, 0, 0, 0, 3, 2, 0, 1, 1, 4, 9, 9, 9, 9, 1, 1, 0, 3, 0, 0, 0, 0, 0, 0, 2, 1, 2, 3],
    );
    keep("journal", "checkpoints", &[1, 0, 0, 0, 0, 2, 2, 1, 3, 1, 2, 3, 0, 0, 0, 1, 0, 4, 1, 2, 3, 4]);
    mesh();
    members();
    data_files();
    lane_files();
    names();
    config();
    keep(
        "http-raw",
        "every-header",
        b"overtake-priority: 1\novertake-deliver-at: 2030-01-01T00:00:00Z\novertake-dedup-key: k\n\
          overtake-expires-in-s: 60\novertake-id: m_01MCC5RM026NYHPACPXVJZW7KV\novertake-header-a: b\n\nbody",
    );
    keep("http-raw", "delayed", b"Overtake-Priority: 0\nOvertake-Delay-S: 30\nhost: a\n\n");
    for (name, body) in [
        (
            "message",
            r#"{"body":"aGVsbG8=","priority":0,"delay_s":1.5,"headers":{"a":"b"},"expires_in_s":60}"#,
        ),
        ("batch", r#"{"messages":[{"body":"","priority":1},{"body":"eA==","priority":2,"dedup_key":"k"}]}"#),
        (
            "settle",
            r#"{"ack":["r_1_2_3"],"extend":[{"receipt":"r_1_2_4","lease_s":5}],"release":["r_1_2_5"]}"#,
        ),
        ("receive", r#"{"max":10,"wait_s":20,"lease_s":30,"max_priority":1,"worker":"w"}"#),
        ("redrive", r#"{"all":true,"priority":1,"max_per_s":10,"dry_run":false}"#),
        (
            "config",
            r#"{"levels":5,"scheduling":"weighted","weights":[50,25,13,7,5],"reserve":0.1,"max_depth":null}"#,
        ),
        ("query", "state=visible&priority=1&limit=10&after=m_01MCC5RM026NYHPACPXVJZW7KV"),
    ] {
        keep("http", name, body.as_bytes());
    }
}

fn config() {
    let keys = EXAMPLE.lines().filter_map(|line| line.strip_prefix('#').filter(|key| !key.starts_with(' ')));
    let every_key = keys.collect::<Vec<_>>().join("\n");
    let twice = "node_id = 1\n[[peers]]\nid = 2\naddress = 'a:1'\n[[peers]]\nid = 2\naddress = '[::1]:2'";
    for (name, text) in [
        ("example", EXAMPLE),
        ("every-key", &every_key),
        ("a-peer-twice", twice),
        ("unknown-key", "data = \"x\"\nhtp = 1"),
        (
            "inline",
            "tokens = [{ token = 'a', tenant = 'b', rights = ['read'] }]\njoin = ['a:1', \"\\u00e9\"]",
        ),
        ("not-ended", "zone = \"a\n[[tenants]]\nname = 'b"),
        ("peer", "2@node2:7402/b,4,10.0.0.2:7401"),
    ] {
        keep("config", name, text.as_bytes());
    }
}

fn wire() {
    let message = EnqueueMessage {
        priority: 1,
        dedup_key: Some("key".into()),
        headers: vec![("trace".into(), "1".into())],
        body: "hello".into(),
        ..EnqueueMessage::default()
    };
    let requests = [
        Request::Hello { token: String::new() },
        Request::Enqueue { queue: "q".into(), messages: vec![message] },
        Request::Receive(Receive { worker: Some("w".into()), max_priority: Some(2), ..Receive::new("q") }),
        Request::Settle(Settle { queue: "q".into(), ack: vec!["r_1_2_3".into()], ..Settle::default() }),
        Request::PutQueue { queue: "q".into(), patch: QueueConfigPatch::default() },
        Request::Stats { queue: "q".into() },
        Request::DlqList { queue: "q".into(), limit: 3, after: None },
    ];
    let mut stream = vec![7];
    for (number, request) in requests.iter().enumerate() {
        let mut frame = Vec::new();
        encode_request(number as u64, request, &mut frame);
        keep("client-request", &format!("request-{number}"), &frame[LENGTH_BYTES..]);
        stream.extend(frame);
    }
    keep("client-frames", "requests", &stream);
    let responses =
        [Response::Done, Response::Purged { purged: 3 }, Response::Received { messages: Vec::new() }];
    for (number, response) in responses.iter().enumerate() {
        let mut frame = Vec::new();
        encode_response(number as u64, response, &mut frame);
        keep("client-response", &format!("response-{number}"), &frame[LENGTH_BYTES..]);
    }
}

fn message(id: u128, visible: VisibleWhen) -> NewMessage {
    NewMessage {
        id: MessageId(id),
        client_made_id: id.is_multiple_of(2),
        priority: Level((id % 5) as u8),
        visible,
        dedup_key: id.is_multiple_of(3).then(|| "key".into()),
        expires_in_ms: id.is_multiple_of(4).then_some(5_000),
        headers: Bytes::new(),
        body: "body".into(),
    }
}

fn shard() {
    let key = |sequence, deliveries| LeaseKey { sequence: overtake_base::Sequence(sequence), deliveries };
    let config = QueueConfig { max_deliveries: 1, ..QueueConfig::with_defaults(5, 1) };
    let lease = Lease {
        max: 3,
        max_bytes: 1 << 20,
        lease_ms: Some(1_000),
        worker: Some("w".into()),
        choice: LevelChoice::Scheduled,
    };
    let redrive = Redrive {
        selection: RedriveSelection::All,
        priority: None,
        rate_per_1000_s: Some(1_000),
        room: None,
    };
    let batches = [
        (1_000, vec![Command::Configure { queue: QUEUE, version: 1, config }]),
        (
            2_000,
            vec![Command::Enqueue {
                queue: QUEUE,
                messages: (1..8)
                    .map(|id| message(id, if id == 5 { VisibleWhen::AfterMs(500) } else { VisibleWhen::Now }))
                    .collect(),
            }],
        ),
        (2_500, vec![Command::Lease { queue: QUEUE, lease }]),
        (
            2_600,
            vec![Command::Settle {
                queue: QUEUE,
                ack: vec![key(1, 1)],
                extend: Vec::new(),
                release: vec![Return { key: key(2, 1), delay_ms: None, error: Some("why".into()) }],
            }],
        ),
        (9_000, vec![Command::Redrive { queue: QUEUE, redrive }, Command::Purge { queue: QUEUE }]),
    ];
    let (mut machine, mut log, mut answers) = (Machine::new(ShardId(1)), Vec::new(), Vec::new());
    for (index, (time, commands)) in batches.into_iter().enumerate() {
        let mut entry = Vec::new();
        encode_batch(&Batch { time: UnixMillis(time), commands }, &mut entry);
        log.extend(u16::try_from(entry.len()).unwrap().to_le_bytes());
        log.extend(&entry);
        machine.apply(index as u64 + 1, &entry.into(), &mut answers).unwrap();
        let mut snapshot = Vec::new();
        machine.snapshot(&mut snapshot);
        keep("shard-snapshot", &format!("after-{index}"), &snapshot[..snapshot.len() - size_of::<u64>()]);
    }
    keep("shard-entry", "a-life", &log);
}

fn mesh() {
    let command = Command::Enqueue { queue: QUEUE, messages: vec![message(1, VisibleWhen::Now)] };
    let call = |request| MeshMessage::Call { call: 1, shard: ShardId(2), request };
    let queues = Request::ListQueues { limit: 3, after: None };
    let messages = [
        call(ShardRequest::Command(command)),
        call(ShardRequest::Read(Read::Lookup { queue: QUEUE, key: Some("k".into()), id: None })),
        MeshMessage::Reply {
            call: 2,
            reply: ShardReply::Answer(Answer::Enqueued(vec![EnqueueOutcome::Stored])),
            summary: None,
        },
        MeshMessage::Forward {
            call: 3,
            tenant: "default".into(),
            request: queues,
            rate_checked: true,
            wait_ms: 5,
        },
        MeshMessage::ForwardReply { call: 3, response: Response::Done },
        MeshMessage::Raft { messages: vec![(ShardId(1), "words".into())] },
        MeshMessage::Held { shards: vec![(ShardId(1), 7)] },
    ];
    for (number, message) in messages.iter().enumerate() {
        let mut bytes = Vec::new();
        assert!(overtake_core::codec::encode(message, &mut bytes));
        keep("mesh-message", &format!("message-{number}"), &bytes);
    }
}

/// A segment with two batches, and a checkpoint, of the store and core that the target takes for its own.
fn data_files() {
    let (store, core) = (5, CoreId(0));
    let header = SegmentHeader { core, store, sequence: 1, oldest: 1, segment_bytes: 12_288 };
    let mut segment = header.encode_block();
    let mut previous = 0;
    for number in 1..=2 {
        let mut batch = vec![0; HEADER_BYTES];
        Record::Entry { shard: ShardId(1), term: 1, index: number, kind: 0, data: b"data" }
            .encode(&mut batch);
        let payload_bytes = (batch.len() - HEADER_BYTES) as u32;
        let (sequence, offset) = (1, segment.len() as u64);
        let (durable, epoch, records) = (number - 1, 1, 1);
        let header = BatchHeader {
            core,
            store,
            sequence,
            offset,
            number,
            durable,
            previous,
            epoch,
            records,
            payload_bytes,
        };
        previous = header.seal(&mut batch);
        segment.extend(batch);
    }
    keep("data-file", "segment", &[&[0], &segment[..]].concat());
    let state = b"state";
    let header = CheckpointHeader {
        core,
        store,
        shard: ShardId(1),
        serial: 1,
        index: 2,
        term: 1,
        state_bytes: state.len() as u64,
        state_checksum: state_checksum(state),
    };
    keep("data-file", "checkpoint", &[&[1], &header.encode_file(state)[..]].concat());
}

fn directory() {
    let put = |name: &str| DirectoryCommand::Put {
        tenant: "default".into(),
        name: name.parse().unwrap(),
        patch: QueueConfigPatch::default(),
        create_only: false,
    };
    let entry = encode_commands(&[put("one"), put("two")]);
    keep("directory-entry", "two-queues", &entry);
    let mut directory = Directory::new(8);
    directory.apply(1, &entry).unwrap();
    keep("directory-snapshot", "two-queues", &directory.snapshot());
}

/// What the target takes for the number that is right, where it draws one.
const RIGHT: u8 = 0;

fn lane_files() {
    // Two files: of each the header's three numbers, then blocks of a shard, with records and payloads.
    let header = [RIGHT; 3];
    let block = |shard: u8, records: u8, payloads: &[u8]| {
        let mut bytes = vec![shard, RIGHT, records];
        bytes.extend((0..16 * u16::from(records)).map(|byte| byte as u8));
        bytes.push(payloads.len() as u8);
        payloads.iter().for_each(|length| {
            bytes.push(*length);
            bytes.extend(vec![9; 16 * usize::from(*length)]);
        });
        bytes.extend([RIGHT; 4]);
        bytes
    };
    let file =
        |blocks: &[Vec<u8>]| [&header[..], &[blocks.len() as u8], &blocks.concat(), &[0, RIGHT]].concat();
    let one = file(&[block(0, 3, &[1, 2]), block(1, 0, &[4])]);
    let other = file(&[block(2, 2, &[])]);
    keep("lanes", "two-files", &[&[1], &one[..], &other].concat());
    keep("lanes", "one-file", &[&[0], &one[..], &[RIGHT; 12]].concat());

    let (store, core) = (5, CoreId(0));
    let header = LaneFileHeader { core, store, sequence: 1, file_bytes: 16_384, previous_end: 0 };
    let mut bytes = header.encode();
    bytes.resize(BLOCK_BYTES, 0);
    for number in 1..=2 {
        let (records, payloads) = (b"records", join_payloads(BlockId(number), &["payload".into()]));
        let mut header = BlockHeader::of(core, store, ShardId(1), BlockId(number), records, &payloads);
        (header.sequence, header.offset) = (1, bytes.len() as u64);
        bytes.extend(header.encode_block(&[records, &payloads]));
    }
    keep("data-file", "lane", &[&[2], &bytes[..]].concat());
}

fn members() {
    let membership = Membership { index: 7, ..Membership::of(vec![NodeId(1), NodeId(2)]) };
    for (name, head) in [("head", ReplicaHead::Of(membership)), ("gone", ReplicaHead::Gone)] {
        let mut bytes = vec![0];
        state::encode(&head, &mut bytes);
        keep("members", name, &[&bytes[..], b"state"].concat());
    }
    let change = MembershipChange(vec![(Role::Voter, NodeId(3)), (Role::None, NodeId(1))]);
    keep("members", "change", &[&[1], &change.encode()[..]].concat());
    let member = |id: u64| {
        let (address, http) = (format!("h{id}:1").into(), String::new().into());
        (NodeId(id), Member { zone: "a".into(), address, http, cores: 2, state: MemberState::Active })
    };
    let members = Members {
        version: 3,
        founded: 5,
        rebalancing: false,
        nodes: (1..=3).map(member).collect(),
        gone: [NodeId(9)].into(),
        shards: vec![Holders::of((1..=3).map(NodeId).collect())],
        directory: Holders::of((1..=3).map(NodeId).collect()),
    };
    keep("members", "cluster", &[&[2], &members.to_bytes()[..]].concat());
    let move_one =
        MembersCommand::Move { shard: ShardId(1), adding: Some(NodeId(4)), removing: Some(NodeId(2)) };
    for (name, command) in [("found", MembersCommand::Found(Box::new(members))), ("move", move_one)] {
        let mut bytes = vec![3];
        command.encode(&mut Writer(&mut bytes));
        keep("members", name, &bytes);
    }
}

fn names() {
    let hello = PeerHello { node: NodeId(2), core: CoreId(1), cores: 2, cluster: 3, store: 4, map: 5 };
    let mut frame = Vec::new();
    hello.encode(&mut frame);
    keep("peer-greeting", "hello", &frame[LENGTH_BYTES..]);
    for (name, text) in [
        ("message", "m_01MCC5RM026NYHPACPXVJZW7KV"),
        ("receipt", "r_1_2_3"),
        ("queue", "work.fast_1"),
        ("file", "lane-00000001.segment"),
    ] {
        keep("names", name, text.as_bytes());
    }
}
