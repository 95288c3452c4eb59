//! Application error codes of stream resets, stop requests and connection closes by a server.

/// Nothing was wrong.
pub const NONE: u32 = 0;
/// A frame was too large, or not a frame.
pub const FRAME: u32 = 1;
/// The client did not read answers, or did not complete a request, for too long.
pub const STALLED: u32 = 2;
/// More answers waited for the client than are kept.
pub const UNREAD: u32 = 3;
/// The server is stopping.
pub const STOPPING: u32 = 4;
/// The client greeted with a version that the server does not speak.
pub const VERSION: u32 = 5;
