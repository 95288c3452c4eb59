//! Every bound of the system, once. Names end in their unit. Relations between bounds are proved at compile time
//! at the end of this file.

/// Longest queue name, in bytes.
pub const QUEUE_NAME_BYTES_MAX: usize = 128;
/// Longest tenant name, in bytes.
pub const TENANT_NAME_BYTES_MAX: usize = 64;
/// Longest bearer token, in bytes.
pub const TOKEN_BYTES_MAX: usize = 256;
/// Most priority levels a queue can have.
pub const LEVELS_MAX: usize = 100;
/// Levels of a queue that does not say.
pub const LEVELS_DEFAULT: u8 = 5;
/// Longest message body, in bytes after decoding.
pub const BODY_BYTES_MAX: usize = 131_072;
/// Names and values of one message's headers together, in bytes.
pub const HEADERS_BYTES_MAX: usize = 4_096;
/// Longest dedup key, in bytes. The shortest is one byte.
pub const DEDUP_KEY_BYTES_MAX: usize = 256;
/// Furthest a delay may reach, in seconds (366 days).
pub const DELAY_S_MAX: u64 = 31_622_400;
/// Most messages of one enqueue request.
pub const BATCH_MESSAGES_MAX: usize = 1_000;
/// Largest request, in bytes, on HTTP and on the binary protocol.
pub const REQUEST_BYTES_MAX: usize = 2 * 1024 * 1024;
/// Largest frame of the binary protocol in either direction, in bytes, length prefix not counted.
pub const FRAME_BYTES_MAX: usize = 8 * 1024 * 1024;
/// Largest message between cores of different nodes, in bytes: a frame's worth of raft entries with its head.
pub const PEER_MESSAGE_BYTES_MAX: usize = FRAME_BYTES_MAX + 64 * 1024;
/// Largest id of a node: it stands in certificates' names and configuration files, which hold no larger number.
pub const NODE_ID_MAX: u64 = i64::MAX as u64;
/// Longest name of a zone, in bytes.
pub const ZONE_BYTES_MAX: usize = 64;
/// Bytes of a node's address.
pub const NODE_ADDRESS_BYTES_MAX: usize = 255;
/// Nodes of a cluster, at most.
pub const NODES_MAX: usize = 64;
/// Most messages of one receive.
pub const RECEIVE_MESSAGES_MAX: u32 = 1_000;
/// Payload bytes that one receive stops after; one message is always allowed.
pub const RECEIVE_BYTES_MAX: usize = 4 * 1024 * 1024;
/// Shards that one receive takes messages from at a time.
pub const RECEIVE_PULLS_MAX: usize = 24;
/// Largest payload of a stored message, in bytes: a body, and headers of one byte each with the lengths of their texts.
pub const PAYLOAD_BYTES_MAX: usize = BODY_BYTES_MAX + HEADERS_BYTES_MAX + (HEADERS_BYTES_MAX + 1) * 8 + 12;
/// Longest wait of one receive, in seconds.
pub const WAIT_S_MAX: u32 = 20;
/// Longest lease, in seconds.
pub const LEASE_S_MAX: u32 = 43_200;
/// Lease of a queue that does not say, in seconds.
pub const LEASE_S_DEFAULT: u32 = 30;
/// Longest worker label, in bytes.
pub const WORKER_BYTES_MAX: usize = 128;
/// Longest error text kept with a release, in bytes; longer texts are cut at their end.
pub const ERROR_BYTES_MAX: usize = 4_096;
/// Most receipts of one settle request, all three lists together.
pub const SETTLE_RECEIPTS_MAX: usize = 3_000;
/// Longest textual receipt that is parsed, in bytes; a longer one is malformed.
pub const RECEIPT_BYTES_MAX: usize = 64;
/// Most ids of one redrive request.
pub const REDRIVE_IDS_MAX: usize = 1_000;
/// Most entries of one page of a listing.
pub const LIST_LIMIT_MAX: u32 = 1_000;
/// Entries of one page of a listing that does not say.
pub const LIST_LIMIT_DEFAULT: u32 = 100;
/// Failed deliveries before a message is dead, at most.
pub const MAX_DELIVERIES_MAX: u32 = 1_000_000;
/// Failed deliveries before a message is dead, of a queue that does not say.
pub const MAX_DELIVERIES_DEFAULT: u32 = 5;
/// Upper end of `aging_s`, `dedup_window_s`, `retention_s` and `starvation_s`, in seconds.
pub const PERIOD_S_MAX: u64 = 31_622_400;
/// Dedup window of a queue that does not say, in seconds.
pub const DEDUP_WINDOW_S_DEFAULT: u64 = 600;
/// Retention of a queue that does not say, in seconds (4 days).
pub const RETENTION_S_DEFAULT: u64 = 345_600;
/// Aging step of a queue that does not say, in seconds.
pub const AGING_S_DEFAULT: u64 = 1_800;
/// Starvation alert of a queue that does not say, in seconds.
pub const STARVATION_S_DEFAULT: u64 = 60;
/// Upper end of `max_depth` and `max_bytes`.
pub const DEPTH_MAX: u64 = 1_000_000_000_000_000;
/// Upper end of rate caps and of `max_per_s`, per second.
pub const RATE_MAX: u64 = 1_000_000_000;
/// Upper end of `reserve` and `floor`, in parts per million.
pub const SHARE_PPM_MAX: u32 = 500_000;
/// Upper end of one level's weight, in millionths.
pub const WEIGHT_MICRO_MAX: u64 = 1_000_000_000 * 1_000_000;
/// Shards of a node, at most. The last shard id is the directory's.
pub const SHARDS_MAX: u16 = 1_024;
/// Cores of a node, at most.
pub const CORES_MAX: u16 = 64;
/// Queues of a node, at most.
pub const QUEUES_MAX: usize = 100_000;
/// Furthest a client-made id's time may be from now, in milliseconds (24 h).
pub const CLIENT_ID_SKEW_MS_MAX: u64 = 86_400_000;
/// How long a claim of a dedup key lets its message be stored on another shard, in milliseconds. Two nodes whose clocks
/// differ by more refuse such messages; nothing else depends on it.
pub const CLAIM_MS: u64 = 60_000;
/// Claims of one dedup key for one message that may be under way at once.
pub const CLAIMS_OF_KEY_MAX: usize = 64;
/// History entries kept with a message.
pub const HISTORY_ENTRIES_MAX: usize = 10;
/// How long a level two or more levels more urgent may be visible before a delivery counts as an inversion, in ms.
pub const INVERSION_BOUND_MS: u64 = 100;
/// Bytes of payloads that a block of cold messages is closed at.
pub const BLOCK_PAYLOAD_BYTES_TARGET: u64 = 1024 * 1024;
/// Messages of one block of cold messages, at most.
pub const BLOCK_MESSAGES_MAX: u32 = 4_096;
/// Bytes in front of each payload in a block: its checksum.
pub const BLOCK_PAYLOAD_PREFIX_BYTES: u32 = 8;

/// Requests of one session that have no answer yet, waiting receives among them.
pub const SESSION_REQUESTS_MAX: usize = 16_384;
/// Requests of one connection that wait until its client has taken earlier answers.
pub const PARKED_REQUESTS_MAX: usize = 1_024;
/// Messages of one page of a listing, in bytes; one message always passes.
pub const PAGE_BYTES_MAX: usize = 4 * 1024 * 1024;
/// What a listed message takes beside its payload and texts, in bytes.
pub const LISTED_BYTES_MAX: usize = 512;

const _: () = {
    assert!(PAGE_BYTES_MAX < FRAME_BYTES_MAX);
    assert!(
        LISTED_BYTES_MAX
            + BODY_BYTES_MAX
            + HEADERS_BYTES_MAX
            + DEDUP_KEY_BYTES_MAX
            + (HISTORY_ENTRIES_MAX + 1) * (ERROR_BYTES_MAX + 16)
            < PAGE_BYTES_MAX
    );
    assert!(REQUEST_BYTES_MAX < FRAME_BYTES_MAX);
    assert!(RECEIVE_BYTES_MAX + BODY_BYTES_MAX + RECEIVE_MESSAGES_MAX as usize * 512 < FRAME_BYTES_MAX);
    assert!(
        RECEIVE_BYTES_MAX / RECEIVE_PULLS_MAX >= PAYLOAD_BYTES_MAX,
        "each shard may always give one message"
    );
    assert!(BODY_BYTES_MAX + HEADERS_BYTES_MAX + DEDUP_KEY_BYTES_MAX < REQUEST_BYTES_MAX);
    assert!(LEVELS_MAX < 128, "level sets are one u128");
    assert!(RECEIVE_MESSAGES_MAX as usize <= SETTLE_RECEIPTS_MAX);
};
