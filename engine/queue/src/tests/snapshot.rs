//! The bytes of entries and snapshots: golden ones, restored ones, damaged ones.

use super::{QUEUE, Shard, message, strict};
use crate::answer::{PayloadRef, Place};
use crate::command::*;
use crate::entry::{decode_batch, encode_batch, read_payload};
use crate::machine::Machine;
use bytes::Bytes;
use overtake_base::{BlockId, Level, MessageId, QueueConfig, QueueId, Sequence, ShardId, UnixMillis};
use proptest::prelude::*;

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// One of each command that has fields of its own.
fn every_command() -> Batch {
    let key = LeaseKey { sequence: Sequence(9), deliveries: 2 };
    let choices = [
        LevelChoice::Scheduled,
        LevelChoice::UpTo(Level(3)),
        LevelChoice::Picks {
            picks: vec![Pick { level: Level(1), count: 4, share: true }],
            barred: [Level(0), Level(2)].into_iter().collect(),
        },
    ];
    let lease = |choice| Lease { max: 5, max_bytes: 6, lease_ms: Some(7), worker: Some("w".into()), choice };
    let selections = [
        RedriveSelection::All,
        RedriveSelection::Ids(vec![MessageId(1)]),
        RedriveSelection::FromPriority(Level(2)),
    ];
    let message = NewMessage {
        id: MessageId(0x0102_0304),
        client_made_id: true,
        priority: Level(1),
        visible: VisibleWhen::AfterMs(8),
        dedup_key: Some("k".into()),
        expires_in_ms: Some(9),
        headers: Bytes::from_static(b"h"),
        body: Bytes::from_static(b"body"),
    };
    let mut commands = vec![
        Command::Configure { queue: QueueId(1), version: 2, config: QueueConfig::with_defaults(2, 1) },
        Command::Delete { queue: QueueId(1) },
        Command::Enqueue { queue: QueueId(1), messages: vec![message.clone()] },
        Command::Unlease { queue: QueueId(1), leases: vec![key] },
        Command::Settle {
            queue: QueueId(1),
            ack: vec![key],
            extend: vec![Extension { key, lease_ms: 3 }],
            release: vec![Return { key, delay_ms: Some(4), error: Some("e".into()) }],
        },
        Command::Cancel { queue: QueueId(1), id: MessageId(5) },
        Command::Purge { queue: QueueId(1) },
        Command::PurgeDeadLetters { queue: QueueId(1) },
        Command::NoteRefused { queue: QueueId(1), reason: RefusedReason::NoQuorum, count: 6 },
    ];
    let (queue, key, id) = (QueueId(1), Bytes::from("k"), MessageId(5));
    let claim = ClaimTicket { number: 7, deadline: UnixMillis(8) };
    let ends = [ClaimEnd::Stored(UnixMillis(9)), ClaimEnd::NotStored(7), ClaimEnd::Void(7)];
    commands.extend([
        Command::Claim { queue, key: key.clone(), id },
        Command::StoreClaimed { queue, claim, message },
        Command::FenceClaim { queue, key: key.clone(), id, claim },
    ]);
    commands.extend(ends.map(|end| Command::EndClaim { queue, key: key.clone(), id, end }));
    commands.extend(choices.map(|choice| Command::Lease { queue: QueueId(1), lease: lease(choice) }));
    commands.push(Command::RedriveTurns { queue: QUEUE, room: Room { messages: 13, bytes: 14 } });
    commands.extend(selections.map(|selection| Command::Redrive {
        queue: QueueId(1),
        redrive: Redrive {
            selection,
            priority: Some(Level(0)),
            rate_per_1000_s: Some(10),
            room: Some(Room { messages: 11, bytes: 12 }),
        },
    }));
    let kinds = [
        SpillWhat::Lane { level: Level(2), keep: 3 },
        SpillWhat::Delayed,
        SpillWhat::Payloads { dead: true, after: Some(MessageId(5)) },
    ];
    commands.extend(kinds.map(|what| Command::Spill {
        queue: QueueId(1),
        spill: Spill {
            what,
            up_to_index: 6,
            horizon: UnixMillis(0),
            messages_min: 7,
            messages_max: 8,
            bytes_max: 9,
        },
    }));
    let records = Bytes::from_static(b"records");
    commands.push(Command::Thaw { queue: QueueId(1), block: BlockId(7), records });
    Batch { time: UnixMillis(0x1122), commands }
}

fn encoded(batch: &Batch) -> Bytes {
    let mut entry = Vec::new();
    encode_batch(batch, &mut entry);
    entry.into()
}

#[test]
fn golden_bytes_of_an_entry() {
    let commands = every_command().commands;
    let one = |command: &Command| {
        hex(&encoded(&Batch { time: UnixMillis(0x1122), commands: vec![command.clone()] }))
    };
    // format, time, count, tag, queue; then for an enqueue: count, id, client-made, priority, visible, key, expiry,
    // headers, body.
    assert_eq!(
        one(&commands[2]),
        "04221100000000000001000000\
         0301000000\
         01000000\
         04030201000000000000000000000000\
         0101\
         020800000000000000\
         01010000006b\
         010900000000000000\
         0100000068\
         04000000626f6479"
            .replace(char::is_whitespace, "")
    );
    assert_eq!(
        one(&commands[4]),
        "0422110000000000000100000006010000000100000009000000000000000200000001000000090000000000000002000000\
         03000000000000000100000009000000000000000200000001040000000000000001010000006\
         5"
        .replace(char::is_whitespace, "")
    );
    // Claimed: tag, queue, number, deadline, then the message as above.
    assert!(one(&commands[10]).starts_with(
        "0422110000000000000100000015010000000700000000000000080000000000000004030201000000000000000000000000"
    ));
    // Ended as not stored: tag, queue, key, id, how, number.
    assert_eq!(
        one(&commands[13]),
        "04221100000000000001000000\
         1601000000\
         010000006b\
         05000000000000000000000000000000\
         010700000000000000"
            .replace(char::is_whitespace, "")
    );
    // The whole of it, so that no command's bytes change unseen.
    let all = encoded(&every_command());
    assert_eq!((all.len(), overtake_base::hash::stable(&all)), GOLDEN);
}

/// Length and hash of the entry with every command.
const GOLDEN: (usize, u64) = (993, 6_334_859_929_328_790_374);

#[test]
fn an_entry_is_read_as_it_was_written() {
    let batch = every_command();
    let entry = encoded(&batch);
    assert_eq!(decode_batch(&entry), Ok(batch));
    for cut in 0..entry.len() {
        assert!(decode_batch(&entry.slice(..cut)).is_err());
    }
}

#[test]
fn a_payload_is_found_where_its_message_says() {
    let mut shard = Shard::new(strict());
    let with = NewMessage { headers: Bytes::from_static(b"hh"), ..message(1, 0) };
    let batch = Batch {
        time: UnixMillis(shard.now),
        commands: vec![
            Command::Enqueue { queue: QUEUE, messages: vec![message(2, 1), with] },
            Command::Lease {
                queue: QUEUE,
                lease: Lease {
                    max: 1,
                    max_bytes: 99,
                    lease_ms: None,
                    worker: None,
                    choice: LevelChoice::Scheduled,
                },
            },
        ],
    };
    let entry = encoded(&batch);
    let mut answers = Vec::new();
    shard.machine.apply(1_000, &entry, &mut answers).unwrap();
    let crate::answer::Answer::Leased(deliveries) = &answers[1] else { panic!("{answers:?}") };
    let payload = read_payload(&entry, deliveries[0].payload).unwrap();
    assert_eq!((&payload.headers[..], &payload.body[..]), (&b"hh"[..], &b"body"[..]));
    assert_eq!(deliveries[0].payload.place, Place::Entry(1_000));
    assert_eq!(shard.machine.oldest_live_index(), Some(1_000));
    let beyond = PayloadRef { offset: u32::MAX, ..deliveries[0].payload };
    assert!(read_payload(&entry, beyond).is_err());
}

#[test]
fn the_log_never_goes_back() {
    let mut machine = Machine::new(ShardId(0));
    let tick = encoded(&Batch { time: UnixMillis(50), commands: vec![] });
    assert_eq!(machine.apply(4, &tick, &mut Vec::new()), Ok(()));
    assert!(machine.apply(4, &tick, &mut Vec::new()).is_err());
    let earlier = encoded(&Batch { time: UnixMillis(40), commands: vec![] });
    assert_eq!(machine.apply(5, &earlier, &mut Vec::new()), Ok(()));
    assert_eq!((machine.time(), machine.applied()), (UnixMillis(50), 5));
}

fn filled() -> Machine {
    let mut shard = Shard::new(QueueConfig { max_deliveries: 2, ..QueueConfig::with_defaults(5, 1) });
    let keyed = |id: u128| NewMessage {
        dedup_key: Some(id.to_string().into()),
        client_made_id: true,
        ..message(id, 1)
    };
    shard.stored((1..=20).map(keyed).collect());
    for delivery in shard.lease(6) {
        shard.release(delivery.key, Some(u64::from(delivery.id.0 as u32 % 3) * 500), Some("err"));
    }
    shard.pass(400);
    shard.lease(5).iter().for_each(|delivery| {
        shard.release(delivery.key, None, None);
    });
    shard.redrive(RedriveSelection::All, Some(10));
    shard.lease(3);
    for (key, id) in [("claimed", 30), ("claimed", 30), ("also", 31)] {
        shard.claim(key, id);
    }
    let claim = ClaimTicket { number: 9, deadline: UnixMillis(shard.now + 50) };
    shard.one(Command::FenceClaim { queue: QUEUE, key: "fenced".into(), id: MessageId(32), claim });
    let later = |id: u128| NewMessage { visible: VisibleWhen::AfterMs(60_000), ..message(id, 2) };
    shard.stored((31..=36).map(later).collect());
    shard.spill(SpillWhat::Lane { level: Level(1), keep: 1 }, 4);
    shard.spill(SpillWhat::Delayed, 4);
    shard.spill(SpillWhat::Payloads { dead: false, after: None }, 4);
    assert_eq!((shard.machine.cold_messages(), shard.machine.blocks().count()), (8, 3));
    shard.machine
}

#[test]
fn golden_bytes_of_a_snapshot() {
    let mut bytes = Vec::new();
    filled().snapshot(&mut bytes);
    // Magic, format, shard.
    assert_eq!(hex(&bytes[..7]), "4f564d53050300");
    assert_eq!((bytes.len(), overtake_base::hash::stable(&bytes)), (3_149, 4_709_320_277_494_082_393));
}

/// Where a record's numbers follow those of the record before, it takes little.
#[test]
fn a_record_in_a_snapshot_takes_less_than_forty_bytes() {
    let mut shard = Shard::new(strict());
    let length = |shard: &Shard| {
        let mut bytes = Vec::new();
        shard.machine.snapshot(&mut bytes);
        bytes.len()
    };
    let before = length(&shard);
    for first in (1..=10_000u128).step_by(100) {
        let id = |n: u128| (n << 80) | (n.wrapping_mul(0x9e37_79b9_7f4a_7c15_f39c_c060_5ced_c835) >> 48);
        shard.stored((first..first + 100).map(|n| message(id(n), 1)).collect());
        shard.pass(1);
    }
    let each = (length(&shard) - before) as f64 / 10_000.0;
    println!("{each} bytes a record");
    assert!(each < 40.0, "{each}");
}

#[test]
fn a_snapshot_of_another_shard_or_with_a_flipped_bit_is_refused() {
    let machine = filled();
    let mut bytes = Vec::new();
    machine.snapshot(&mut bytes);
    assert!(Machine::restore(ShardId(4), &bytes).is_err());
    let restored = Machine::restore(ShardId(3), &bytes).unwrap();
    assert_eq!(restored.digest(), machine.digest());
    let mut again = Vec::new();
    restored.snapshot(&mut again);
    assert_eq!(again, bytes);
    for at in (0..bytes.len()).step_by(7) {
        let mut damaged = bytes.clone();
        damaged[at] ^= 4;
        assert!(Machine::restore(ShardId(3), &damaged).is_err());
        assert!(Machine::restore(ShardId(3), &bytes[..at]).is_err());
    }
}

proptest! {
    #[test]
    fn bytes_from_anywhere_are_refused_without_panic(
        at in 0usize..20_000, value: u8, cut in 0usize..10_000, entry in prop::collection::vec(any::<u8>(), 0..200),
    ) {
        // A wrong snapshot under a right checksum: refused, or a state that works.
        let mut bytes = Vec::new();
        filled().snapshot(&mut bytes);
        let content = bytes.len() - 8;
        bytes[at % content] = value;
        if cut % 3 == 0 { bytes.truncate(cut % content); } else { bytes.truncate(content); }
        let sum = overtake_base::checksum::checksum(0x6d61_6368_696e_6501, &bytes);
        bytes.extend_from_slice(&sum.to_le_bytes());
        if let Ok(mut machine) = Machine::restore(ShardId(3), &bytes) {
            let tick = encoded(&Batch { time: UnixMillis(u64::MAX), commands: vec![] });
            let _ = machine.apply(machine.applied().saturating_add(1), &tick, &mut Vec::new());
            let purge = encoded(&Batch { time: UnixMillis(0), commands: vec![Command::Purge { queue: QUEUE }] });
            let _ = machine.apply(machine.applied().saturating_add(1), &purge, &mut Vec::new());
            let _ = (machine.next_deadline(), machine.digest());
        }
        let mut damaged = encoded(&every_command()).to_vec();
        let place = at % damaged.len();
        damaged[place] = value;
        for entry in [Bytes::from(entry), damaged.into()] {
            if let Ok(batch) = decode_batch(&entry) {
                prop_assert_eq!(encoded(&batch), entry);
            }
        }
    }
}
