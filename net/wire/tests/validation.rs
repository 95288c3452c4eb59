//! Each bound: its ends are accepted, one step beyond is refused, the field is named as in the HTTP contract.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use bytes::Bytes;
use overtake_base::MessageId;
use overtake_wire::message::*;

fn receive() -> Receive {
    Receive { queue: "q".into(), max: 10, wait_s: 0, lease_s: None, max_priority: None, worker: None }
}

/// Checks that the first is accepted and the second refused for `field`.
fn bound(field: &str, inside: &Request, outside: &Request) {
    assert_eq!(inside.validate(), Ok(()), "{field}");
    let refusal = outside.validate().unwrap_err();
    assert_eq!((refusal.code, refusal.field.as_deref()), (ErrorCode::Invalid, Some(field)));
    assert!(refusal.detail.contains(field), "{}", refusal.detail);
}

fn received(change: impl FnOnce(&mut Receive)) -> Request {
    let mut receive = receive();
    change(&mut receive);
    Request::Receive(receive)
}

#[test]
fn bounds_of_a_receive() {
    bound("max", &received(|r| r.max = 1), &received(|r| r.max = 0));
    bound("max", &received(|r| r.max = 1_000), &received(|r| r.max = 1_001));
    bound("wait_s", &received(|r| r.wait_s = 20), &received(|r| r.wait_s = 21));
    bound("lease_s", &received(|r| r.lease_s = Some(1)), &received(|r| r.lease_s = Some(0)));
    bound("lease_s", &received(|r| r.lease_s = Some(43_200)), &received(|r| r.lease_s = Some(43_201)));
    bound(
        "max_priority",
        &received(|r| r.max_priority = Some(99)),
        &received(|r| r.max_priority = Some(100)),
    );
    let worker = |bytes: usize| received(|r| r.worker = Some("w".repeat(bytes)));
    bound("worker", &worker(128), &worker(129));
    bound("queue", &received(|r| r.queue = "a".repeat(128)), &received(|r| r.queue = ".a".into()));
}

#[test]
fn every_request_that_names_a_queue_has_its_name_checked() {
    let queue = String::new();
    let id = MessageId(1);
    for request in [
        Request::PutQueue { queue: queue.clone(), patch: Default::default() },
        Request::GetQueue { queue: queue.clone() },
        Request::DeleteQueue { queue: queue.clone() },
        Request::Enqueue { queue: queue.clone(), messages: vec![EnqueueMessage::default()] },
        received(|r| r.queue.clear()),
        Request::Settle(Settle::default()),
        Request::Stats { queue: queue.clone() },
        Request::Inspect { queue: queue.clone(), id },
        Request::Cancel { queue: queue.clone(), id },
        Request::Purge { queue: queue.clone() },
        Request::DlqPurge { queue: queue.clone() },
        Request::DlqList { queue, limit: 1, after: None },
    ] {
        assert_eq!(request.validate().unwrap_err().field.as_deref(), Some("queue"), "{request:?}");
    }
}

#[test]
fn bounds_of_an_enqueue_and_of_its_messages_are_told_apart() {
    let enqueue = |count| Request::Enqueue {
        queue: "q".into(),
        messages: vec![EnqueueMessage { priority: 1_000, ..Default::default() }; count],
    };
    bound("messages", &enqueue(1_000), &enqueue(1_001));
    bound("messages", &enqueue(1), &enqueue(0));
    let refused = |message: EnqueueMessage| {
        let refusal = message.validate().unwrap_err();
        (refusal.code, refusal.field.unwrap_or_default())
    };
    let base = EnqueueMessage::default();
    let invalid = |field: &str| (ErrorCode::Invalid, field.to_owned());
    assert_eq!(refused(EnqueueMessage { priority: 100, ..base.clone() }), invalid("priority"));
    assert_eq!(
        refused(EnqueueMessage { delay: Delay::AfterS(31_622_401), ..base.clone() }),
        invalid("delay_s")
    );
    assert_eq!(
        refused(EnqueueMessage { dedup_key: Some(Bytes::new()), ..base.clone() }),
        invalid("dedup_key")
    );
    assert_eq!(
        refused(EnqueueMessage { dedup_key: Some(vec![0; 257].into()), ..base.clone() }),
        invalid("dedup_key")
    );
    assert_eq!(refused(EnqueueMessage { expires_in_s: Some(0), ..base.clone() }), invalid("expires_in_s"));
    let body = |bytes: usize| EnqueueMessage { body: vec![0; bytes].into(), ..EnqueueMessage::default() };
    assert_eq!(body(131_072).validate(), Ok(()));
    assert_eq!(refused(body(131_073)), (ErrorCode::TooLarge, "body".into()));
    let largest = EnqueueMessage {
        priority: 99,
        delay: Delay::AfterS(31_622_400),
        dedup_key: Some(vec![0; 256].into()),
        expires_in_s: Some(31_622_400),
        headers: vec![("n".repeat(96), "v".repeat(4_000))],
        ..base
    };
    assert_eq!(largest.validate(), Ok(()));
}

#[test]
fn headers_are_bounded_and_named_once() {
    let with = |headers: Headers| EnqueueMessage { headers, ..EnqueueMessage::default() }.validate();
    let refused = |headers| with(headers).unwrap_err().field;
    assert_eq!(refused(vec![("n".repeat(97), "v".repeat(4_000))]).as_deref(), Some("headers"));
    for others in [0, 3, 20] {
        let mut headers: Headers = (0..others).map(|n| (format!("h{n}"), String::new())).collect();
        headers.push(("twice".into(), "1".into()));
        assert_eq!(with(headers.clone()), Ok(()));
        headers.push(("twice".into(), "2".into()));
        assert_eq!(refused(headers).as_deref(), Some("headers"));
    }
}

#[test]
fn bounds_of_a_settle() {
    let settle = |change: fn(&mut Settle)| {
        let mut settle = Settle { queue: "q".into(), ..Settle::default() };
        change(&mut settle);
        Request::Settle(settle)
    };
    let extend = |receipt: &str, lease_s| Extend { receipt: receipt.into(), lease_s };
    let extends = |lease_s| {
        Request::Settle(Settle { queue: "q".into(), extend: vec![extend("r", lease_s)], ..Settle::default() })
    };
    bound("lease_s", &extends(43_200), &extends(43_201));
    bound("lease_s", &extends(1), &extends(0));
    let releases = |delay_s| {
        let release = Release { receipt: "r".into(), delay_s: Some(delay_s), error: None };
        Request::Settle(Settle { queue: "q".into(), release: vec![release], ..Settle::default() })
    };
    bound("delay_s", &releases(31_622_400), &releases(31_622_401));
    let many = |count: usize| {
        let ack = (0..count).map(|n| n.to_string()).collect();
        Request::Settle(Settle { queue: "q".into(), ack, ..Settle::default() })
    };
    bound("ack", &many(3_000), &many(3_001));
    let once = settle(|s| s.ack = vec!["r_1_1_1".into(), "r_1_2_1".into()]);
    bound("ack", &once, &settle(|s| s.ack = vec!["r_1_1_1".into(), "r_1_1_1".into()]));
    let across = settle(|s| {
        s.ack = vec!["r_1_1_1".into()];
        s.release = vec![Release { receipt: "r_1_1_1".into(), ..Release::default() }];
    });
    assert_eq!(across.validate().unwrap_err().field.as_deref(), Some("release"));
}

#[test]
fn bounds_of_listings_and_redrives() {
    let list = |limit, after: usize| Request::ListQueues { limit, after: Some("a".repeat(after)) };
    bound("limit", &list(1_000, 0), &list(1_001, 0));
    bound("limit", &list(1, 0), &list(0, 0));
    bound("after", &list(1, 512), &list(1, 513));
    let peek = |visible, priority| Request::Peek {
        queue: "q".into(),
        states: PeekStates { visible, delayed: false, leased: false },
        priority,
        limit: 1,
        after: None,
    };
    bound("state", &peek(true, None), &peek(false, None));
    bound("priority", &peek(true, Some(99)), &peek(true, Some(100)));
    let redrive = |selection, priority, max_per_s| {
        Request::DlqRedrive(Redrive { queue: "q".into(), selection, priority, max_per_s, dry_run: false })
    };
    let ids = |count| redrive(RedriveSelection::Ids(vec![MessageId(1); count]), None, None);
    bound("ids", &ids(1_000), &ids(1_001));
    bound("ids", &ids(1), &ids(0));
    let from = |level| redrive(RedriveSelection::FromPriority(level), None, None);
    bound("from_priority", &from(99), &from(100));
    let to = |level| redrive(RedriveSelection::All, Some(level), None);
    bound("priority", &to(99), &to(100));
    let rate = |rate| redrive(RedriveSelection::All, None, Some(rate));
    bound("max_per_s", &rate(1_000_000_000), &rate(1_000_000_001));
    bound("max_per_s", &rate(0), &rate(u64::MAX));
    let hello = |bytes: usize| Request::Hello { token: "t".repeat(bytes) };
    bound("token", &hello(256), &hello(257));
}
