//! The contract of scheduling on one shard, where shares are exact by construction: counts over many deliveries, not
//! chance.

use overtake_e2e::answer::Message;
use overtake_e2e::stats::total;
use overtake_e2e::time::sleep_past;
use overtake_e2e::{Queue, Server, now_ms};
use serde_json::{Value, json};

/// Shares are counted in whole messages: at any moment each may be this many away from its exact part.
const ROUNDING: f64 = 2.0;

fn create(server: &Server, name: &str, mut config: Value) -> Queue {
    config["shards"] = 1.into();
    server.create(name, config)
}

/// The next `count` deliveries, taken `max` at a time; each receive but the last brings as many.
fn deliver(queue: &Queue, count: usize, max: usize) -> Vec<Message> {
    let mut messages = Vec::new();
    while messages.len() < count {
        let more = queue.receive(json!({"max": max.min(count - messages.len()), "lease_s": 600}));
        assert_eq!(more.len(), max.min(count - messages.len()), "all are visible on one shard");
        messages.extend(more);
    }
    messages
}

fn of_level(messages: &[Message], level: u64) -> usize {
    messages.iter().filter(|message| message.priority == level).count()
}

/// Each level got its part of the deliveries.
#[track_caller]
fn check_parts(messages: &[Message], parts: &[f64]) {
    for (level, part) in (0..).zip(parts) {
        let (got, exact) = (of_level(messages, level) as f64, part * messages.len() as f64);
        assert!((got - exact).abs() <= ROUNDING, "level {level} got {got}, its part is {exact}");
    }
}

/// After no receive had a set of levels had less than its part. One receive brought `max` messages, most urgent first.
#[track_caller]
fn check_never_below(messages: &[Message], max: usize, levels: std::ops::RangeInclusive<u64>, part: f64) {
    let (mut got, mut count) = (0.0, 0.0);
    for receive in messages.chunks(max) {
        got += receive.iter().filter(|message| levels.contains(&message.priority)).count() as f64;
        count += receive.len() as f64;
        let exact = part * count;
        assert!(
            got >= exact - ROUNDING,
            "after {count} deliveries {levels:?} had {got}, their part is {exact}"
        );
    }
}

#[test]
fn weighted_gives_the_reserve_and_the_floor_under_a_flood_of_level_0() {
    let server = Server::start();
    for max in [1, 64] {
        let queue = create(&server, &format!("flood-{max}"), json!({}));
        queue.fill(&[0], 600);
        queue.fill(&[1, 2, 3, 4], 60);
        let messages = deliver(&queue, 600, max);
        // Reserve 0.1 of all. Of it the floor takes 0.05, shared 7 : 5; the rest is shared 25 : 13.
        let (high, low) = (0.05 / 38.0, 0.05 / 12.0);
        check_parts(&messages, &[0.9, 25.0 * high, 13.0 * high, 7.0 * low, 5.0 * low]);
        check_never_below(&messages, max, 1..=4, 0.1);
        check_never_below(&messages, max, 3..=4, 0.05);
        for level in 0..5 {
            let numbers: Vec<String> =
                messages.iter().filter(|m| m.priority == level).map(Message::text).collect();
            let expected: Vec<String> =
                (0..numbers.len()).map(|number| format!("{level}-{number}")).collect();
            assert_eq!(numbers, expected, "first in first out within a level");
        }
        let marked = messages.iter().filter(|message| message.share).count() as u64;
        let less_urgent = messages.len() - of_level(&messages, 0);
        assert_eq!(marked, less_urgent as u64, "what overtook level 0 is marked");
        let stats = queue.stats();
        assert_eq!((total(&stats, "share_deliveries"), total(&stats, "inversions")), (marked, 0));
    }
}

#[test]
fn weighted_shares_what_level_0_leaves_by_weight() {
    let server = Server::start();
    let queue = create(&server, "leftover", json!({}));
    queue.fill(&[1, 2, 3, 4], 300);
    let messages = deliver(&queue, 500, 50);
    check_parts(&messages, &[0.0, 0.5, 0.26, 0.14, 0.1]);

    let two = create(&server, "two", json!({}));
    two.fill(&[2, 4], 300);
    check_parts(&deliver(&two, 360, 40), &[0.0, 0.0, 13.0 / 18.0, 0.0, 5.0 / 18.0]);

    let floor = create(&server, "floor", json!({"weights": [1, 1_000, 1_000, 1, 1], "floor": 0.2}));
    floor.fill(&[1, 2, 3, 4], 300);
    check_parts(&deliver(&floor, 500, 25), &[0.0, 0.4, 0.4, 0.1, 0.1]);
}

#[test]
fn reserve_and_floor_are_those_of_the_queue() {
    let server = Server::start();
    let none = create(&server, "none", json!({"reserve": 0, "floor": 0}));
    none.fill(&[0, 1, 4], 100);
    let messages = deliver(&none, 100, 10);
    assert_eq!(of_level(&messages, 0), 100, "without reserve and floor level 0 is first");
    assert!(messages.iter().all(|message| !message.share));

    let only_floor = create(&server, "only-floor", json!({"reserve": 0, "floor": 0.1}));
    only_floor.fill(&[0, 1, 2, 3, 4], 400);
    let messages = deliver(&only_floor, 400, 20);
    check_parts(&messages, &[0.9, 0.0, 0.0, 0.1 * 7.0 / 12.0, 0.1 * 5.0 / 12.0]);
    check_never_below(&messages, 20, 3..=4, 0.1);

    let half = create(&server, "half", json!({"reserve": 0.5, "floor": 0, "weights": [9, 3, 1, 1, 1]}));
    half.fill(&[0, 1, 2], 400);
    check_parts(&deliver(&half, 400, 16), &[0.5, 0.375, 0.125, 0.0, 0.0]);
    // An update acts on later deliveries.
    half.update(json!({"reserve": 0}));
    let messages = deliver(&half, 100, 16);
    assert!(of_level(&messages, 0) >= 99, "{}", of_level(&messages, 0));

    let two_levels = create(&server, "two-levels", json!({"levels": 2}));
    two_levels.fill(&[0, 1], 300);
    check_parts(&deliver(&two_levels, 300, 30), &[0.9, 0.1]);
    let one_level = create(&server, "one-level", json!({"levels": 1}));
    one_level.fill(&[0], 20);
    assert_eq!(deliver(&one_level, 20, 7).len(), 20);
}

#[test]
fn a_hundred_levels_are_scheduled_like_five() {
    let server = Server::start();
    let queue = create(&server, "hundred", json!({"levels": 100, "floor": 0.1}));
    queue.fill(&[0, 50, 98, 99], 300);
    let messages = deliver(&queue, 300, 30);
    assert!((of_level(&messages, 0) as f64 - 270.0).abs() <= ROUNDING);
    check_never_below(&messages, 30, 1..=99, 0.1);
    check_never_below(&messages, 30, 98..=99, 0.1);
    let strict = create(&server, "hundred-strict", json!({"levels": 100, "scheduling": "strict"}));
    strict.fill(&(0..100).rev().collect::<Vec<u64>>(), 2);
    let levels: Vec<u64> = deliver(&strict, 200, 33).iter().map(|message| message.priority).collect();
    assert_eq!(levels, (0..100).flat_map(|level| [level, level]).collect::<Vec<_>>());
}

#[test]
fn strict_knows_no_shares() {
    let server = Server::start();
    let queue = create(&server, "strict", json!({"scheduling": "strict", "reserve": 0.5, "floor": 0.5}));
    queue.fill(&[4, 3, 2, 1, 0], 50);
    let messages = deliver(&queue, 250, 8);
    let levels: Vec<u64> = messages.iter().map(|message| message.priority).collect();
    assert!(levels.is_sorted(), "{levels:?}");
    assert!(messages.iter().all(|message| !message.share));
    assert_eq!(total(&queue.stats(), "share_deliveries"), 0);
}

#[test]
fn receives_with_max_priority_take_no_part_in_shares() {
    let server = Server::start();
    let queue = create(&server, "ceiling", json!({}));
    queue.fill(&[0, 1], 600);
    queue.fill(&[4], 100);
    let mut taken = 0;
    while taken < 300 {
        let messages = queue.receive(json!({"max": 20, "max_priority": 1, "lease_s": 600}));
        assert!(messages.iter().all(|message| message.priority == 0 && !message.share), "{messages:?}");
        taken += messages.len();
    }
    assert_eq!(total(&queue.stats(), "share_deliveries"), 0);
    let messages = deliver(&queue, 100, 10);
    assert!((of_level(&messages, 0) as f64 - 90.0).abs() <= ROUNDING, "nothing is owed for what went before");
    check_never_below(&messages, 10, 4..=4, 0.05);
}

#[test]
fn aging_lets_what_waited_long_win() {
    let server = Server::start();
    let no_shares = json!({"scheduling": "aging", "reserve": 0, "floor": 0, "levels": 3, "aging_s": 1});
    let queue = create(&server, "aging", no_shares);
    let old = queue.put(2, "waits");
    sleep_past(now_ms() + 2_100);
    let young = queue.put(0, "is new");
    let middle = queue.put(1, "is new");
    let messages = deliver(&queue, 3, 1);
    let got: Vec<&String> = messages.iter().map(|message| &message.id).collect();
    assert_eq!(
        got,
        [&old, &young, &middle],
        "two seconds make level 2 as urgent as level 0, and it is older"
    );
    assert!(messages.iter().all(|message| !message.share), "what age wins is not a share");

    let slow = create(&server, "slow", json!({"scheduling": "aging", "reserve": 0, "floor": 0}));
    slow.fill(&[4, 0, 2], 5);
    let levels: Vec<u64> = deliver(&slow, 15, 4).iter().map(|message| message.priority).collect();
    assert_eq!(levels, [0, 0, 0, 0, 0, 2, 2, 2, 2, 2, 4, 4, 4, 4, 4]);

    let shares = create(&server, "shares", json!({"scheduling": "aging"}));
    shares.fill(&[0], 300);
    shares.fill(&[3], 100);
    let messages = deliver(&shares, 300, 10);
    check_never_below(&messages, 10, 1..=4, 0.1);
    check_never_below(&messages, 10, 3..=4, 0.05);
}
