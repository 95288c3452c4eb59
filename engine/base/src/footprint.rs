//! What a node keeps in memory and on disk whatever its backlog is: bounds of the server, which capacity planning counts
//! with. They are here so that both have the same ones.

/// Messages of one core that are in memory before others leave it.
pub const HOT_MESSAGES_MAX: u64 = 200_000;
/// The most urgent level waits to be taken only from so many times that on: the most that there ever are.
pub const HOT_OF_URGENT_TIMES: u64 = 4;
/// About what a message in memory takes: its record, its places in lane and indexes.
pub const HOT_MESSAGE_BYTES: usize = 256;
/// Recent log entries, with the bodies in them, all cores of a node together.
pub const ENTRY_CACHE_BYTES: usize = 512 * 1024 * 1024;
/// Accepted bytes of one core that may wait for its disk.
pub const BACKLOG_BYTES_MAX: usize = 64 * 1024 * 1024;
/// Answers of one core on their way to clients that have not taken them.
pub const ANSWER_BYTES_MAX: usize = 256 * 1024 * 1024;
/// What is remembered of a client-made id until the end of its dedup window, at most: it stands in a table that is half
/// empty after it grew, and in a list of ends.
pub const REMEMBERED_ID_BYTES: usize = 140;
/// Journal that is needed before checkpoints and blocks make it shorter, all cores of a node together.
pub const JOURNAL_BYTES_MAX: u64 = 768 * 1024 * 1024;
/// Log that each shard keeps for replicas that are away.
pub const LOG_KEEP_BYTES: u64 = 64 * 1024 * 1024;
/// Part of a disk that is kept free for acks and leases, at most.
pub const KEPT_FREE_BYTES_MAX: u64 = 1024 * 1024 * 1024;
