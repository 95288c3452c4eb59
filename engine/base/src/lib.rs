//! The words every other crate shares: ids, time, limits, queue configuration, the byte codec, checksums and
//! seeded random streams. Deterministic: nothing here reads a clock, a socket, a file or the operating system's
//! randomness.

pub mod checksum;
pub mod codec;
pub mod footprint;
pub mod hash;
pub mod ids;
pub mod limits;
pub mod planted;
pub mod queue_config;
pub mod random;
pub mod routing;
pub mod time;

pub use codec::{Malformed, Reader, Writer};
pub use ids::{BlockId, CoreId, Level, MessageId, NodeId, QueueId, QueueName, Receipt, Sequence, ShardId};
pub use queue_config::{QueueConfig, QueueConfigPatch};
pub use time::{Now, UnixMillis};
