//! Arbitrary requests and responses, of every kind.

use bytes::Bytes;
use overtake_base::queue_config::{Backoff, QueueConfig, QueueConfigPatch, RateCaps, Scheduling, Starvation};
use overtake_base::{MessageId, Receipt, Sequence, ShardId, UnixMillis};
use overtake_wire::message::*;
use proptest::collection::vec;
use proptest::option::of;
use proptest::prelude::*;

fn text() -> BoxedStrategy<String> {
    ".{0,12}".boxed()
}

fn bytes() -> BoxedStrategy<Bytes> {
    vec(any::<u8>(), 0..40).prop_map(Bytes::from).boxed()
}

fn id() -> BoxedStrategy<MessageId> {
    any::<u128>().prop_map(MessageId).boxed()
}

fn time() -> BoxedStrategy<UnixMillis> {
    any::<u64>().prop_map(UnixMillis).boxed()
}

fn headers() -> BoxedStrategy<Headers> {
    vec((text(), text()), 0..4).boxed()
}

fn config() -> BoxedStrategy<QueueConfig> {
    (1u8..=100, 1u16..=1_024, any::<bool>(), of(1u64..1_000))
        .prop_map(|(levels, shards, dead_letter_expired, max_depth)| QueueConfig {
            dead_letter_expired,
            max_depth,
            backoff: max_depth.map(|first_s| Backoff { first_s, factor_micro: 1_500_000, max_s: 9 }),
            rate_caps: RateCaps { queue: max_depth, levels: [(0, 7)].into() },
            ..QueueConfig::with_defaults(levels, shards)
        })
        .boxed()
}

fn patch() -> BoxedStrategy<QueueConfigPatch> {
    (of(of(any::<u8>())), of(of(any::<u64>())), of(of(vec(any::<u64>(), 0..9))), of(of(any::<bool>())))
        .prop_map(|(levels, number, list, flag)| QueueConfigPatch {
            levels,
            max_bytes: number,
            weights_micro: list.clone(),
            dead_letter_expired: flag,
            scheduling: Some(Some(Scheduling::Aging)),
            starvation: list.map(|list| list.map(Starvation::PerLevel)),
            ..QueueConfigPatch::default()
        })
        .boxed()
}

fn enqueue_message() -> BoxedStrategy<EnqueueMessage> {
    let delay =
        prop_oneof![Just(Delay::None), time().prop_map(Delay::At), any::<u64>().prop_map(Delay::AfterS),];
    (any::<u32>(), of(id()), delay, of(bytes()), of(any::<u64>()), headers(), bytes())
        .prop_map(|(priority, id, delay, dedup_key, expires_in_s, headers, body)| EnqueueMessage {
            priority,
            id,
            delay,
            dedup_key,
            expires_in_s,
            headers,
            body,
        })
        .boxed()
}

fn receive() -> BoxedStrategy<Request> {
    (text(), any::<u32>(), any::<u32>(), of(any::<u32>()), of(any::<u32>()), of(text()))
        .prop_map(|(queue, max, wait_s, lease_s, max_priority, worker)| {
            Request::Receive(Receive { queue, max, wait_s, lease_s, max_priority, worker })
        })
        .boxed()
}

fn settle() -> BoxedStrategy<Request> {
    let extend = (text(), any::<u32>()).prop_map(|(receipt, lease_s)| Extend { receipt, lease_s });
    let release = (text(), of(any::<u64>()), of(text())).prop_map(|(receipt, delay_s, error)| Release {
        receipt,
        delay_s,
        error,
    });
    (text(), vec(text(), 0..5), vec(extend, 0..5), vec(release, 0..5))
        .prop_map(|(queue, ack, extend, release)| Request::Settle(Settle { queue, ack, extend, release }))
        .boxed()
}

fn peek() -> BoxedStrategy<Request> {
    (text(), any::<[bool; 3]>(), of(any::<u32>()), any::<u32>(), of(text()))
        .prop_map(|(queue, [visible, delayed, leased], priority, limit, after)| Request::Peek {
            queue,
            states: PeekStates { visible, delayed, leased },
            priority,
            limit,
            after,
        })
        .boxed()
}

fn redrive() -> BoxedStrategy<Request> {
    let selection = prop_oneof![
        Just(RedriveSelection::All),
        vec(id(), 0..5).prop_map(RedriveSelection::Ids),
        any::<u32>().prop_map(RedriveSelection::FromPriority),
    ];
    (text(), selection, of(any::<u32>()), of(any::<u64>()), any::<bool>())
        .prop_map(|(queue, selection, priority, max_per_s, dry_run)| {
            Request::DlqRedrive(Redrive { queue, selection, priority, max_per_s, dry_run })
        })
        .boxed()
}

/// Requests of every kind.
pub fn request() -> impl Strategy<Value = Request> {
    let named = (text(), id(), 0usize..7).prop_map(|(queue, id, kind)| match kind {
        0 => Request::GetQueue { queue },
        1 => Request::DeleteQueue { queue },
        2 => Request::Stats { queue },
        3 => Request::Purge { queue },
        4 => Request::DlqPurge { queue },
        5 => Request::Inspect { queue, id },
        _ => Request::Cancel { queue, id },
    });
    let page = (text(), any::<u32>(), of(text()), any::<bool>()).prop_map(|(queue, limit, after, dead)| {
        if dead { Request::DlqList { queue, limit, after } } else { Request::ListQueues { limit, after } }
    });
    prop_oneof![
        text().prop_map(|token| Request::Hello { token }),
        (text(), patch()).prop_map(|(queue, patch)| Request::PutQueue { queue, patch }),
        (text(), vec(enqueue_message(), 0..6))
            .prop_map(|(queue, messages)| Request::Enqueue { queue, messages }),
        any::<u64>().prop_map(|request| Request::CancelReceive { request }),
        (text(), vec(text(), 0..6)).prop_map(|(queue, receipts)| Request::Undelivered { queue, receipts }),
        named,
        page,
        receive(),
        settle(),
        peek(),
        redrive(),
        prop_oneof![Just(Request::Cluster), Just(Request::Ready), Just(Request::Metrics)],
        cluster_change().prop_map(Request::ChangeCluster),
    ]
}

fn refusal() -> BoxedStrategy<Refusal> {
    (0usize..13, of(text()), text(), of(any::<u32>()), any::<bool>())
        .prop_map(|(code, field, detail, retry_after_ms, stored_unknown)| Refusal {
            code: ErrorCode::ALL[code],
            field,
            detail,
            retry_after_ms,
            stored_unknown,
        })
        .boxed()
}

fn delivered() -> BoxedStrategy<Delivered> {
    let receipt = (any::<u16>(), any::<u64>(), any::<u32>()).prop_map(|(shard, sequence, deliveries)| {
        Receipt { shard: ShardId(shard), sequence: Sequence(sequence), deliveries }
    });
    (id(), any::<u8>(), receipt, any::<u32>(), time(), time(), headers(), any::<bool>(), bytes())
        .prop_map(
            |(id, priority, receipt, deliveries, enqueued_at, lease_expires_at, headers, share, body)| {
                Delivered {
                    id,
                    priority,
                    receipt,
                    deliveries,
                    enqueued_at,
                    lease_expires_at,
                    headers,
                    share,
                    body,
                }
            },
        )
        .boxed()
}

fn state() -> BoxedStrategy<MessageState> {
    prop_oneof![
        Just(MessageState::Visible),
        Just(MessageState::Delayed),
        Just(MessageState::Leased),
        Just(MessageState::Dead)
    ]
    .boxed()
}

fn peeked() -> BoxedStrategy<PeekedMessage> {
    (id(), any::<u8>(), state(), any::<u32>(), time(), of(time()), of(time()), headers(), bytes())
        .prop_map(
            |(id, priority, state, deliveries, enqueued_at, deliver_at, lease_expires_at, headers, body)| {
                PeekedMessage {
                    id,
                    priority,
                    state,
                    deliveries,
                    enqueued_at,
                    deliver_at,
                    lease_expires_at,
                    headers,
                    body,
                }
            },
        )
        .boxed()
}

fn inspected() -> BoxedStrategy<Response> {
    (
        (id(), any::<u8>(), state(), any::<u16>(), time()),
        of(time()),
        of(text()),
        any::<u32>(),
        of(any::<u64>()),
    )
        .prop_map(|((id, priority, state, shard, enqueued_at), deliver_at, worker, deliveries, ahead)| {
            Response::Inspected(Inspected {
                id,
                priority,
                state,
                shard,
                enqueued_at,
                deliver_at,
                lease_expires_at: deliver_at,
                why: worker.clone().unwrap_or_default(),
                worker,
                deliveries,
                ahead,
            })
        })
        .boxed()
}

fn dead_letter() -> BoxedStrategy<DeadLetter> {
    (id(), any::<u8>(), any::<u32>(), text(), time(), vec((time(), text()), 0..4), headers(), bytes())
        .prop_map(|(id, priority, deliveries, last_error, dead_at, history, headers, body)| DeadLetter {
            id,
            priority,
            deliveries,
            last_error,
            dead_at,
            history,
            enqueued_at: UnixMillis(dead_at.0 / 2),
            headers,
            body,
        })
        .boxed()
}

fn stats() -> BoxedStrategy<Response> {
    let wait = of((0.0f64..1e6, 0.0f64..1e6).prop_map(|(p50, p99)| WaitMs { p50, p99, p999: 1.5 }));
    (vec(any::<u64>(), 0..6), vec(of(any::<u64>()), 0..6), vec(wait, 0..6), vec((text(), any::<u64>()), 0..4))
        .prop_map(|(counts, oldest_age_ms, wait_ms, workers)| {
            Response::Stats(Stats {
                visible: counts.clone(),
                delayed: counts.iter().map(|count| count / 2).collect(),
                leased: counts.iter().map(|count| count / 3).collect(),
                dlq: counts.first().copied().unwrap_or(3),
                oldest_age_ms,
                wait_ms,
                totals: Totals { enqueued: 5, stale_receipts: 7, refused_no_quorum: 9, ..Totals::default() },
                workers,
            })
        })
        .boxed()
}

fn cluster_change() -> BoxedStrategy<ClusterChange> {
    let new = (any::<u64>(), text(), text(), text(), any::<u16>())
        .prop_map(|(id, zone, address, http, cores)| NewNode { id, zone, address, http, cores });
    prop_oneof![
        new.prop_map(ClusterChange::Add),
        (any::<u64>(), any::<bool>(), any::<bool>()).prop_map(|(node, undo, force)| ClusterChange::Drain {
            node,
            undo,
            force
        }),
        (any::<u64>(), any::<bool>()).prop_map(|(node, force)| ClusterChange::Remove { node, force }),
        (any::<u64>(), any::<u64>()).prop_map(|(dead, new)| ClusterChange::Replace { dead, new }),
        Just(ClusterChange::Rebalance),
    ]
    .boxed()
}

fn cluster() -> BoxedStrategy<Response> {
    let state = prop_oneof![
        Just(NodeState::Joining),
        Just(NodeState::Active),
        Just(NodeState::Draining),
        Just(NodeState::Lost)
    ];
    let node = (any::<u64>(), text(), text(), any::<bool>(), state, any::<u32>()).prop_map(
        |(id, zone, http, alive, state, replicas)| NodeStatus { id, zone, http, alive, state, replicas },
    );
    let node_id = || of(any::<u64>());
    let shard = (any::<u16>(), node_id(), vec(any::<u64>(), 0..4), node_id(), node_id()).prop_map(
        |(shard, leader, replicas, adding, removing)| ShardStatus {
            shard,
            leader,
            replicas,
            adding,
            removing,
        },
    );
    (vec(node, 0..4), vec(shard, 0..4))
        .prop_map(|(nodes, shards)| Response::Cluster { nodes, shards })
        .boxed()
}

fn metrics() -> BoxedStrategy<Response> {
    let metric = (text(), vec((text(), text()), 0..3), -1e9f64..1e9, any::<bool>())
        .prop_map(|(name, labels, value, counter)| Metric { name, labels, value, counter });
    vec(metric, 0..5).prop_map(|values| Response::Metrics { values }).boxed()
}

fn enqueued() -> BoxedStrategy<Response> {
    let stored = (id(), any::<u16>(), any::<bool>()).prop_map(|(id, shard, duplicate)| Enqueued {
        id,
        shard,
        duplicate,
    });
    vec(prop_oneof![stored.prop_map(Ok), refusal().prop_map(Err)], 0..6)
        .prop_map(|results| Response::Enqueued { results })
        .boxed()
}

fn settled() -> BoxedStrategy<Response> {
    let list = || vec(prop_oneof![Just(Settled::Ok), Just(Settled::Stale), Just(Settled::Unknown)], 0..6);
    (list(), list(), list())
        .prop_map(|(ack, extend, release)| Response::Settled { ack, extend, release })
        .boxed()
}

fn queues() -> BoxedStrategy<Response> {
    let listed = (text(), config(), any::<u64>()).prop_map(|(name, config, depth)| QueueListed {
        name,
        config,
        depth,
    });
    (vec(listed, 0..3), of(text())).prop_map(|(queues, next)| Response::Queues { queues, next }).boxed()
}

/// Responses of every kind.
pub fn response() -> impl Strategy<Value = Response> {
    prop_oneof![
        refusal().prop_map(Response::Refused),
        (any::<u64>(), any::<u16>(), any::<u16>(), text())
            .prop_map(|(node, core, cores, version)| Response::Welcome { node, core, cores, version }),
        (any::<bool>(), config()).prop_map(|(created, config)| Response::QueuePut { created, config }),
        config().prop_map(|config| Response::Queue { config }),
        queues(),
        Just(Response::Done),
        enqueued(),
        vec(delivered(), 0..5).prop_map(|messages| Response::Received { messages }),
        settled(),
        stats(),
        (vec(peeked(), 0..5), of(text())).prop_map(|(messages, next)| Response::Peeked { messages, next }),
        inspected(),
        any::<u64>().prop_map(|purged| Response::Purged { purged }),
        (vec(dead_letter(), 0..4), of(text()))
            .prop_map(|(messages, next)| Response::DeadLetters { messages, next }),
        any::<u64>().prop_map(|moved| Response::Redriven { moved }),
        cluster(),
        vec(any::<u16>(), 0..6).prop_map(|not_ready| Response::Readiness { not_ready }),
        metrics(),
    ]
}
