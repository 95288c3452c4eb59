//! What goes into a core and what comes out: closed enums, so that the shell and the simulator carry everything and
//! decide nothing.

use crate::cluster::Address;
use crate::mesh::MeshMessage;
use bytes::Bytes;
use overtake_base::ShardId;
use overtake_log::disk::{DiskCompletion, DiskOperation};
use overtake_queue::answer::Summary;
use overtake_queue::members::Members;
use std::sync::Arc;

/// One client session: a stream of a connection of this core. Numbers are given by the shell and never used twice.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct SessionId(pub u64);

/// One connection of a client to this core, which may carry several sessions. Numbers are given by the shell and never
/// used twice.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct ConnectionId(pub u64);

/// Something that happened.
#[derive(Debug)]
pub enum Event {
    /// A client opened a session on a connection.
    SessionOpened { session: SessionId, connection: ConnectionId },
    /// A whole frame arrived, without its length prefix.
    Frame { session: SessionId, frame: Bytes },
    /// The session is gone; nothing more will come from it and nothing can be sent to it.
    SessionClosed { session: SessionId },
    /// Answers of the session are off the shell's hands: taken by the network, or dropped. In the end that is each byte of
    /// each [`Output::Frame`], also of sessions that are closed; none is told twice.
    Taken { session: SessionId, bytes: usize },
    /// Another core says something. Messages of one core arrive in the order sent, those of another node between a
    /// [`Event::PeerUp`] and the next [`Event::PeerDown`] of it.
    Mesh { from: Address, message: MeshMessage },
    /// A link to a core of another node is there; the peer has shown that it is that core.
    PeerUp { peer: Address },
    /// The link is gone, and what was under way on it is lost. Nothing of it arrives after the next [`Event::PeerUp`].
    PeerDown { peer: Address },
    /// A disk operation ended.
    Disk(DiskCompletion),
    /// The board's newest summary of a queue on another core's shard. `version` grows with the shard's log.
    Summary { shard: ShardId, version: u64, summary: Summary },
    /// Time passed; [`crate::Core::next_wake`] has come.
    Tick,
    /// Stop taking requests, finish what is under way, then put out [`Output::Stopped`].
    Stop,
}

/// Something to do. Within one drain the shell carries out publishes first, then mesh messages and disk operations,
/// then frames: an answer must not reach a client before the board shows what it answered.
#[derive(Debug)]
pub enum Output {
    /// Send a frame, length prefix included.
    Frame { session: SessionId, frame: Bytes },
    /// Close the session with an application error code.
    CloseSession { session: SessionId, code: u32, reason: &'static str },
    /// Say something to another core. To one of another node: by its link; without one it is lost, as what is under way
    /// on a link that breaks.
    Mesh { to: Address, message: MeshMessage },
    /// Start a disk operation.
    Disk(DiskOperation),
    /// Put a summary on the board; `gone` frees its place (the queue was deleted).
    Publish { shard: ShardId, version: u64, summary: Summary, gone: bool },
    /// Something an operator should know, such as damage that another copy stands in for.
    Warning(String),
    /// The journal is open, and it is the first that this folder is known to have. The shell remembers durably that
    /// there is one ([`crate::CoreConfig::journal_begun`]) before it carries out anything else of this drain: a promise
    /// that leaves the core would otherwise be forgotten without a trace where the journal's files are removed.
    JournalBegun,
    /// Who is in the cluster, and where, from now on: links are to be made accordingly. The data folder is to keep it (it may
    /// lag: a node that starts with an older one is told again).
    Members(Arc<Members>),
    /// This node was removed from its cluster: it holds nothing, and is to end.
    Removed,
    /// Recovery is done: this core serves.
    Serving,
    /// Everything that was under way when [`Event::Stop`] came is finished and durable.
    Stopped,
    /// This core cannot go on without risking what it answered. The shell ends the process at once, with this text.
    Fatal(String),
}
