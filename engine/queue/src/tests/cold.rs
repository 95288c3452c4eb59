//! Runs and blocks: what leaves memory still counts, still stands in its place, and comes back as it was.

use super::{QUEUE, Shard, message, strict};
use crate::answer::{Answer, PayloadRef, Place, SettleOutcome, Spilled, ViewState};
use crate::blocks::{Block, BlockDraft};
use crate::cold::{Loaded, NeedsBlocks};
use crate::command::*;
use crate::machine::PeekFilter;
use crate::run::Run;
use crate::scheduler::LevelSet;
use bytes::Bytes;
use overtake_base::{BlockId, Level, MessageId, QueueConfig, QueueId, Sequence, UnixMillis};

impl Shard {
    fn draft(&mut self) -> BlockDraft {
        let mut drafts = Vec::new();
        self.machine.drain_drafts(|draft| drafts.push(draft));
        assert_eq!(drafts.len(), 1, "{drafts:?}");
        drafts.remove(0)
    }

    fn gone(&mut self) -> Vec<BlockId> {
        let mut gone = Vec::new();
        self.machine.drain_gone_blocks(|block| gone.push(block));
        gone
    }

    fn thaw(&mut self, block: BlockId, records: &Bytes) -> bool {
        match self.one(Command::Thaw { queue: QUEUE, block, records: records.clone() }) {
            Answer::Thawed(thawed) => thawed,
            other => panic!("{other:?}"),
        }
    }
}

fn lane(count: u128, config: QueueConfig) -> Shard {
    let mut shard = Shard::new(config);
    shard.stored((1..=count).map(|id| message(id, 1)).collect());
    shard
}

#[test]
fn a_lease_never_passes_over_a_run() {
    let mut shard = lane(10, strict());
    shard.stored(vec![message(50, 3)]);
    assert_eq!(shard.spill_lane(1, 2, 5), 5);
    let draft = shard.draft();
    assert_eq!(shard.stats().visible[1], 10);
    assert_eq!((shard.machine.hot_messages(), shard.machine.cold_messages()), (6, 5));
    assert_eq!(shard.ids(4), [1, 2], "neither the messages behind the run nor a less urgent level");
    assert_eq!(shard.ids(4), [0u128; 0]);
    let lease = Lease { max: 1, max_bytes: 99, lease_ms: None, worker: None, choice: LevelChoice::Scheduled };
    let needs = shard.machine.needs(&Command::Lease { queue: QUEUE, lease }, 1, &Loaded::default());
    assert_eq!(needs.thaw, [draft.block]);
    assert!(shard.thaw(draft.block, &draft.records));
    assert!(!shard.thaw(draft.block, &draft.records), "only once");
    assert_eq!(shard.ids(9), [3, 4, 5, 6, 7, 8, 9, 10, 50]);
}

#[test]
fn a_lease_begins_without_the_runs_of_other_levels() {
    let lease = |choice| Command::Lease {
        queue: QUEUE,
        lease: Lease { max: 5, max_bytes: 999, lease_ms: None, worker: None, choice },
    };
    let picks = |picks: &[(u8, bool)]| LevelChoice::Picks {
        picks: picks
            .iter()
            .map(|(level, share)| Pick { level: Level(*level), count: 2, share: *share })
            .collect(),
        barred: LevelSet::default(),
    };
    let begins = |shard: &Shard, choice| shard.machine.may_begin(&lease(choice), 5);
    let mut shard = lane(10, strict());
    shard.stored(vec![message(50, 0), message(60, 3)]);
    assert_eq!(shard.spill_lane(1, 2, 5), 5);
    let draft = shard.draft();
    assert_eq!(
        shard.machine.needs(&lease(LevelChoice::Scheduled), 5, &Loaded::default()).thaw,
        [draft.block]
    );
    // With one urgent message it begins at once, and ends at the run.
    assert!(begins(&shard, LevelChoice::Scheduled) && begins(&shard, LevelChoice::UpTo(Level(4))));
    // As part of a receive over several shards it must not end before what was picked: other parts go on.
    assert!(begins(&shard, picks(&[(0, false)])) && begins(&shard, picks(&[(0, false), (3, false)])));
    assert!(!begins(&shard, picks(&[(0, false), (1, false)])));
    assert!(!begins(&shard, picks(&[(1, false)])) && !begins(&shard, picks(&[(1, true)])));
    let of_one = shard.machine.needs(&lease(picks(&[(0, false)])), 5, &Loaded::default());
    assert!(of_one.is_empty(), "a run of a level that is not picked is not waited for");
    assert_eq!(shard.ids(1), [50]);
    // Now its own level would be short.
    assert!(!begins(&shard, LevelChoice::Scheduled) && !begins(&shard, LevelChoice::UpTo(Level(4))));
    assert!(!begins(&shard, picks(&[(3, false)])), "level 1 goes first");
    assert!(begins(&shard, picks(&[(3, true)])));
    assert!(!begins(&shard, LevelChoice::UpTo(Level(0))), "there is nothing");
    assert!(shard.thaw(draft.block, &draft.records));
    assert!(begins(&shard, LevelChoice::Scheduled));
}

#[test]
fn entries_that_lost_their_last_message_in_memory_are_told_once() {
    let mut shard = Shard::new(strict());
    shard.stored((1..=4).map(|id| message(id, 1)).collect());
    let first = shard.machine.applied();
    shard.stored((5..=8).map(|id| message(id, 1)).collect());
    let second = shard.machine.applied();
    assert!(shard.machine.holds_payloads(Place::Entry(first)));
    assert!(!shard.machine.holds_payloads(Place::Entry(second + 1)));
    let leased = shard.lease(4);
    for delivery in &leased[1..] {
        assert_eq!(shard.ack(delivery.key), SettleOutcome::Ok);
    }
    assert_eq!(shard.machine.take_emptied_entries(), [0u64; 0]);
    assert_eq!(shard.ack(leased[0].key), SettleOutcome::Ok);
    assert_eq!(shard.machine.take_emptied_entries(), [first]);
    assert!(!shard.machine.holds_payloads(Place::Entry(first)));
    assert_eq!(shard.spill_lane(1, 0, 4), 4);
    let draft = shard.draft();
    assert_eq!(shard.machine.take_emptied_entries(), [second]);
    assert!(shard.machine.holds_payloads(Place::Block(draft.block)));
}

#[test]
fn what_returns_into_a_run_is_delivered_in_its_place() {
    let mut shard = lane(10, strict());
    let leased = shard.lease(3);
    assert_eq!(shard.spill_lane(1, 0, 7), 7);
    let draft = shard.draft();
    shard.release(leased[1].key, None, None);
    assert_eq!(shard.ids(5), [2], "it stands before the run");
    shard.thaw(draft.block, &draft.records);
    assert_eq!(shard.ids(5), [4, 5, 6, 7, 8]);
}

#[test]
fn receipts_of_messages_in_runs_are_stale_and_of_none_unknown() {
    let mut shard = lane(9, strict());
    let leased = shard.lease(9);
    for at in [0, 2, 4, 6] {
        shard.release(leased[at].key, None, None);
    }
    assert_eq!(shard.ack(leased[3].key), SettleOutcome::Ok);
    assert_eq!(shard.spill_lane(1, 0, 9), 4);
    assert_eq!(shard.ack(leased[2].key), SettleOutcome::Stale);
    assert_eq!(shard.ack(leased[3].key), SettleOutcome::Unknown, "acked, between two of the run");
    assert_eq!(shard.ack(leased[5].key), SettleOutcome::Ok, "still leased, between two of the run");
    let made_up = LeaseKey { sequence: Sequence(0), deliveries: 1 };
    assert_eq!(shard.ack(made_up), SettleOutcome::Unknown);
    assert_eq!(shard.stats().totals.stale_receipts, 1);
}

#[test]
fn purge_and_delete_drop_runs_whole_and_count_them() {
    let mut shard = lane(8, strict());
    let later = |id: u128| NewMessage { visible: VisibleWhen::AfterMs(60_000), ..message(id, 2) };
    shard.stored((21..=24).map(later).collect());
    shard.spill_lane(1, 1, 5);
    shard.spill(SpillWhat::Delayed, 3);
    let blocks: Vec<BlockId> = shard.machine.blocks().collect();
    assert_eq!((shard.stats().delayed[2], shard.stats().body_bytes), (4, 12 * 4));
    assert_eq!(shard.one(Command::Purge { queue: QUEUE }), Answer::Purged(12));
    assert_eq!(shard.stats().totals.purged, 12);
    assert_eq!((shard.stats().body_bytes, shard.machine.summary(QUEUE).unwrap().depth), (0, 0));
    assert_eq!(shard.gone(), blocks);
    shard.stored((1..=8).map(|id| message(id, 1)).collect());
    shard.spill_lane(1, 0, 8);
    assert_eq!(shard.one(Command::Delete { queue: QUEUE }), Answer::Done);
    assert_eq!((shard.gone().len(), shard.machine.cold_messages()), (1, 0));
}

#[test]
fn a_run_that_is_over_is_dropped_whole_unless_the_queue_keeps_what_expires() {
    let with_ttl = |id: u128| NewMessage { expires_in_ms: Some(1_000 + id as u64), ..message(id, 1) };
    for keeps in [false, true] {
        let mut shard = Shard::new(QueueConfig { dead_letter_expired: keeps, ..strict() });
        shard.stored((1..=6).map(with_ttl).collect());
        shard.spill_lane(1, 0, 6);
        let draft = shard.draft();
        let end = UnixMillis(shard.now + 1_006);
        assert_eq!(shard.machine.next_due_run(), UnixMillis(shard.now + 1_001));
        assert_eq!(shard.machine.next_deadline() == end, !keeps, "it must come back first");
        let due: Vec<BlockId> = shard.machine.due_runs(UnixMillis(shard.now + 1_001), 5).collect();
        assert_eq!(due, if keeps { vec![draft.block] } else { vec![] }, "it is over within the slack");
        assert_eq!(shard.machine.due_runs(UnixMillis(shard.now + 1_001), 4).count(), 1);
        assert_eq!(shard.machine.due_runs(UnixMillis(shard.now + 1_000), 0).count(), 0);
        shard.pass(1_006);
        let stats = shard.stats();
        assert_eq!((stats.totals.expired, stats.visible[1]), if keeps { (0, 6) } else { (6, 0) });
        if keeps {
            shard.thaw(draft.block, &draft.records);
            shard.pass(0);
            assert_eq!((shard.stats().dead, shard.total_visible()), (6, 0));
        }
    }
}

#[test]
fn what_expires_soon_stays_in_memory_and_a_run_goes_around_it() {
    for keeps in [false, true] {
        let mut shard = Shard::new(QueueConfig { dead_letter_expired: keeps, ..strict() });
        let soon = |id: u128| NewMessage { expires_in_ms: Some(299), ..message(id, 1) };
        let later = |id: u128| NewMessage { expires_in_ms: Some(300), ..message(id, 1) };
        let mixed = |id: u128| if id.is_multiple_of(3) { soon(id) } else { later(id) };
        shard.stored((1..=9).map(mixed).chain((10..=40).map(soon)).chain([later(41)]).collect());
        let horizon = UnixMillis(shard.now + 300);
        let spill = |shard: &mut Shard| {
            let what = SpillWhat::Lane { level: Level(1), keep: 2 };
            let up_to_index = shard.index;
            let spill =
                Spill { what, up_to_index, horizon, messages_min: 1, messages_max: 20, bytes_max: u64::MAX };
            match shard.one(Command::Spill { queue: QUEUE, spill }) {
                Answer::Spilled(spilled) => spilled.payloads,
                other => panic!("{other:?}"),
            }
        };
        assert_eq!(spill(&mut shard), 4, "4, 5, 7 and 8");
        assert_eq!(spill(&mut shard), 0, "a walk is not longer than a block");
        let draft = shard.draft();
        assert_eq!(shard.machine.due_runs(UnixMillis(shard.now + 299), 0).count(), 0);
        assert_eq!(shard.ids(9), [1, 2, 3], "a lease does not pass over the run");
        assert!(shard.thaw(draft.block, &draft.records));
        assert_eq!(shard.ids(9), [4, 5, 6, 7, 8, 9, 10, 11, 12]);
        shard.pass(299);
        // The leased ones are not over before they come back.
        assert_eq!(shard.stats().visible[1], 1);
    }
}

#[test]
fn what_came_back_between_two_runs_may_leave_again() {
    let mut shard = lane(50, strict());
    let runs: Vec<BlockDraft> = (0..4)
        .map(|_| {
            assert_eq!(shard.spill_lane(1, 10, 10), 10);
            shard.draft()
        })
        .collect();
    let longest = |shard: &Shard| shard.machine.longest_lane(10, |_, _| true);
    assert_eq!(longest(&shard), None);
    for back in [2, 1] {
        assert!(shard.thaw(runs[back].block, &runs[back].records));
    }
    assert_eq!(longest(&shard), Some((QUEUE, Level(1), 20)));
    // As one run of what fits, and one of the rest.
    assert_eq!([shard.spill_lane(1, 10, 15), shard.spill_lane(1, 10, 15)], [15, 5]);
    assert_eq!((shard.machine.hot_messages(), shard.machine.cold_messages()), (10, 40));
    assert_eq!(longest(&shard), None);
    let mut drafts = Vec::new();
    shard.machine.drain_drafts(|draft| drafts.push(draft));
    let mut left = vec![runs[0].clone(), drafts[0].clone(), drafts[1].clone(), runs[3].clone()].into_iter();
    let mut seen = Vec::new();
    loop {
        seen.extend(shard.ids(50));
        let Some(run) = left.next() else { break };
        assert!(shard.thaw(run.block, &run.records));
    }
    assert_eq!(seen, (1..=50).collect::<Vec<u128>>());
}

#[test]
fn delayed_messages_leave_from_the_end_and_come_back_in_time() {
    let mut shard = Shard::new(strict());
    let due = |id: u128, ms: u64| NewMessage { visible: VisibleWhen::AfterMs(ms), ..message(id, 1) };
    shard.stored(vec![due(1, 300), due(2, 100), due(3, 200), due(4, 300)]);
    let (what, up_to_index, horizon) = (SpillWhat::Delayed, shard.index, UnixMillis(shard.now + 300));
    let spill = Spill { what, up_to_index, horizon, messages_min: 1, messages_max: 9, bytes_max: u64::MAX };
    let spilled = shard.one(Command::Spill { queue: QUEUE, spill });
    assert_eq!(spilled, Answer::Spilled(Spilled { payloads: 2, next: None }));
    let draft = shard.draft();
    shard.stored(vec![due(5, 300)]);
    assert_eq!(shard.machine.next_due_run(), UnixMillis(shard.now + 300));
    shard.thaw(draft.block, &draft.records);
    shard.pass(300);
    // 5 is due in the same millisecond, but came later.
    assert_eq!(shard.ids(9), [2, 3, 1, 4, 5]);
}

#[test]
fn only_what_stood_in_the_log_when_the_leader_decided_is_taken() {
    let mut shard = lane(3, strict());
    let up_to_index = shard.index;
    let spill = |what| Spill {
        what,
        up_to_index,
        horizon: UnixMillis(0),
        messages_min: 1,
        messages_max: 9,
        bytes_max: u64::MAX,
    };
    let command = |what| Command::Spill { queue: QUEUE, spill: spill(what) };
    let enqueue = Command::Enqueue { queue: QUEUE, messages: vec![message(4, 1)] };
    let what = SpillWhat::Lane { level: Level(1), keep: 0 };
    let answers = shard.apply(vec![enqueue, command(what), command(what)]);
    let payloads = |answer: &Answer| match answer {
        Answer::Spilled(spilled) => spilled.payloads,
        other => panic!("{other:?}"),
    };
    assert_eq!(payloads(&answers[1]), 3);
    assert_eq!(payloads(&answers[2]), 0, "an entry makes one block");
    assert_eq!(shard.draft().payloads.len(), 3);
    // Fewer than the least, more bytes than the most, a level beyond the queue's.
    let few = Spill { messages_min: 2, up_to_index: shard.index, ..spill(what) };
    assert_eq!(payloads(&shard.one(Command::Spill { queue: QUEUE, spill: few })), 0);
    assert_eq!(shard.spill_lane(77, 0, 9), 0);
    shard.stored((5..=9).map(|id| message(id, 1)).collect());
    // A payload is 12 bytes, and 8 stand in front of it.
    let small = Spill { bytes_max: 45, up_to_index: shard.index, ..spill(what) };
    assert_eq!(payloads(&shard.one(Command::Spill { queue: QUEUE, spill: small })), 2);
}

#[test]
fn payloads_move_out_of_the_log_and_out_of_sparse_blocks() {
    let mut shard = lane(10, strict());
    let leased = shard.lease(10);
    assert_eq!(shard.machine.oldest_live_index(), Some(shard.index - 2));
    assert_eq!(shard.spill(SpillWhat::Payloads { dead: false, after: None }, 99), 10);
    let first = shard.draft();
    assert_eq!((shard.machine.oldest_live_index(), first.records.len()), (None, 0));
    for delivery in &leased[..5] {
        shard.ack(delivery.key);
    }
    assert_eq!(shard.spill(SpillWhat::Payloads { dead: false, after: None }, 99), 0, "half of it is needed");
    shard.ack(leased[5].key);
    assert_eq!(shard.spill(SpillWhat::Payloads { dead: false, after: None }, 99), 4);
    let second = shard.draft();
    assert_eq!(shard.gone(), [first.block]);
    assert_eq!(second.payloads[0], PayloadRef { place: Place::Block(first.block), ..second.payloads[0] });
    // The seventh of the first block: each takes 12 bytes and 8 in front.
    assert_eq!(second.payloads[0].offset, 8 + 6 * 20);
    for delivery in &leased[6..] {
        shard.ack(delivery.key);
    }
    assert_eq!(shard.gone(), [second.block]);
    assert_eq!(shard.machine.blocks().count(), 0);
}

#[test]
fn a_walk_over_payloads_goes_on_where_it_ended() {
    let mut shard = lane(10, strict());
    let mut after = None;
    let mut moved = Vec::new();
    loop {
        let what = SpillWhat::Payloads { dead: false, after };
        let up_to_index = shard.index;
        let spill = Spill {
            what,
            up_to_index,
            horizon: UnixMillis(0),
            messages_min: 1,
            messages_max: 4,
            bytes_max: u64::MAX,
        };
        let Answer::Spilled(spilled) = shard.one(Command::Spill { queue: QUEUE, spill }) else { panic!() };
        moved.push(spilled.payloads);
        after = spilled.next;
        if after.is_none() {
            break;
        }
    }
    assert_eq!(moved, [4, 4, 2]);
}

#[test]
fn reads_look_into_runs_only_where_they_must() {
    let mut shard = lane(100, strict());
    shard.spill_lane(1, 20, 30);
    let draft = shard.draft();
    shard.spill_lane(1, 0, 30);
    let all = PeekFilter { visible: true, delayed: true, leased: true, priority: None };
    let peek = |after: Option<u128>, limit, loaded: &Loaded| {
        let views = shard.machine.peek(QUEUE, all, after.map(MessageId), limit, loaded);
        views.map(|views| views.iter().map(|view| view.id.0).collect::<Vec<_>>())
    };
    let mut loaded = Loaded::default();
    assert_eq!(peek(None, 20, &loaded), Ok((1..=20).collect()));
    assert_eq!(peek(Some(80), 99, &loaded), Ok((81..=100).collect()));
    assert_eq!(peek(Some(10), 20, &loaded), Err(NeedsBlocks(vec![draft.block])));
    assert!(shard.machine.load(draft.block, &draft.records[1..], |_| true, &mut loaded).is_err());
    shard.machine.load(draft.block, &draft.records, |_| true, &mut loaded).unwrap();
    assert_eq!(peek(Some(10), 20, &loaded), Ok((11..=30).collect()));
    assert_eq!(peek(Some(10), 40, &loaded), Ok((11..=50).collect()), "the other run begins later");
    let seen = shard.machine.inspect(QUEUE, MessageId(33), &loaded).unwrap().unwrap();
    assert_eq!(seen.state, ViewState::Visible { ahead: Some(32) });
    assert_eq!(seen.payload.place, Place::Block(draft.block));
    let hot = shard.machine.inspect(QUEUE, MessageId(100), &loaded).unwrap().unwrap();
    assert_eq!(hot.state, ViewState::Visible { ahead: Some(99) }, "runs count");
    let cancel = Command::Cancel { queue: QUEUE, id: MessageId(33) };
    assert_eq!(shard.machine.needs(&cancel, 1, &Loaded::default()).read, [draft.block]);
    assert_eq!(shard.machine.needs(&cancel, 1, &loaded).thaw, [draft.block]);
}

#[test]
fn only_client_made_ids_are_looked_for_when_messages_come() {
    let mut shard = Shard::new(strict());
    let made = |id: u128| NewMessage { client_made_id: id.is_multiple_of(2), ..message(id * 1_000, 1) };
    shard.stored((1..=40).map(made).collect());
    shard.spill_lane(1, 0, 40);
    let draft = shard.draft();
    let needs = |id: u128, client_made_id, loaded: &Loaded| {
        let messages = vec![NewMessage { client_made_id, ..message(id, 1) }];
        shard.machine.needs(&Command::Enqueue { queue: QUEUE, messages }, 1, loaded)
    };
    let none = Loaded::default();
    assert_eq!(needs(2_000, true, &none).read, [draft.block]);
    assert!(needs(2_000, false, &none).is_empty());
    let alarms = (2_001..6_000).filter(|id| id % 2_000 != 0 && !needs(*id, true, &none).is_empty()).count();
    assert!(alarms < 60, "{alarms} false alarms of 4,000");
    assert!(needs(40_001, true, &none).is_empty());
    let mut loaded = Loaded::default();
    shard.machine.load(draft.block, &draft.records, |id| id == MessageId(2_000), &mut loaded).unwrap();
    assert_eq!(needs(2_000, true, &loaded).thaw, [draft.block]);
    assert_eq!(loaded.len(), 1, "what nobody asked for is not kept");
    shard.machine.load(draft.block, &draft.records, |id| id == MessageId(4_000), &mut loaded).unwrap();
    assert_eq!(shard.machine.id_lookup(QUEUE, MessageId(4_000), UnixMillis(0), &loaded), Ok(true));
    assert_eq!(shard.machine.id_lookup(QUEUE, MessageId(4_001), UnixMillis(0), &loaded), Ok(false));
    assert!(shard.machine.needs(&Command::Purge { queue: QUEUE }, 1, &none).is_empty());
    assert!(shard.machine.needs(&Command::Purge { queue: QueueId(1) }, 1, &none).is_empty());
}

/// What a message in a run costs: mixed levels (so that sequences have gaps) and client-made ids are the worst case.
#[test]
fn a_message_in_a_run_costs_less_than_four_bytes_of_memory() {
    for (client_made_id, levels, bytes_max) in [(false, 1, 1.0), (true, 5, 4.0)] {
        let mut shard = Shard::new(strict());
        let messages = 20_000u64;
        for first in (0..messages).step_by(500) {
            let ids = (first..first + 500).map(|n| NewMessage {
                client_made_id,
                ..message(u128::from(n) << 70 | 7, (n % levels) as u8)
            });
            shard.stored(ids.collect());
        }
        for level in 0..levels {
            while shard.spill_lane(level as u8, 0, 1_000) > 0 {}
        }
        assert_eq!((shard.machine.cold_messages(), shard.machine.hot_messages()), (messages, 0));
        let blocks = &shard.machine.shared.blocks;
        // A block stands in three ordered maps or sets and in its lane's; nodes of those are half full at worst.
        let nodes = size_of::<(BlockId, Block)>() + 3 * size_of::<(UnixMillis, u64, BlockId)>();
        let of = |block: &Block| {
            let run = block.run.as_ref().unwrap();
            2 * nodes + size_of::<Run>() + run.gaps.len() + run.filter.len()
        };
        let bytes: usize = blocks.blocks.values().map(of).sum();
        let each = bytes as f64 / messages as f64;
        println!("{each} bytes a message in runs");
        assert!(each < bytes_max, "{each}");
    }
}
