//! What a checkpoint holds of a replica, and a snapshot of it: the state machine's own bytes, and in a cluster before them who
//! is in the shard's group as of an entry of its log. A node by itself writes the state alone.
//!
//! ```text
//! u32 magic | u8 version | u8 kind (0 a replica, 1 none: it was here once) | membership | the state
//! ```
//! The magic is no beginning of a state.

use overtake_base::{Malformed, Reader, Writer};
use overtake_replication::Membership;
use overtake_replication::types::EntryKind;

pub use overtake_replication::{MembershipChange, Role};

/// The kind of log entries that change who is in a shard's group.
pub const MEMBERSHIP: u8 = EntryKind::Membership as u8;

const MAGIC: u32 = u32::from_le_bytes(*b"OVRP");
const VERSION: u8 = 1;
const HERE: u8 = 0;
const GONE: u8 = 1;

/// What is known of a replica beside its state.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum ReplicaHead {
    /// Nothing: it is of a node by itself, or of before memberships changed.
    Plain,
    /// Who is in its group.
    Of(Membership),
    /// There is no replica here any more. What it promised is forgotten: it must not vote before it is given a new state.
    Gone,
}

/// Appends the head; the state is to follow.
pub fn encode(head: &ReplicaHead, out: &mut Vec<u8>) {
    let mut out = Writer(out);
    let (kind, membership) = match head {
        ReplicaHead::Plain => return,
        ReplicaHead::Of(membership) => (HERE, membership.clone()),
        ReplicaHead::Gone => (GONE, Membership::default()),
    };
    out.u32(MAGIC);
    out.u8(VERSION);
    out.u8(kind);
    membership.encode(&mut out);
}

/// The head, and the state's own bytes.
///
/// # Errors
/// Where the bytes begin as a head does, and are none.
pub fn split(bytes: &[u8]) -> Result<(ReplicaHead, &[u8]), Malformed> {
    let mut input = Reader::new(bytes);
    if input.u32("magic") != Ok(MAGIC) {
        return Ok((ReplicaHead::Plain, bytes));
    }
    if input.u8("version of a replica's head")? != VERSION {
        return Err(Malformed("version of a replica's head"));
    }
    let kind = input.u8("kind of a replica")?;
    let membership = Membership::decode(&mut input)?;
    let head = match kind {
        HERE if !membership.voters.is_empty() => ReplicaHead::Of(membership),
        GONE if membership == Membership::default() => ReplicaHead::Gone,
        _ => return Err(Malformed("kind of a replica")),
    };
    Ok((head, input.raw(input.left(), "state")?))
}

#[cfg(test)]
mod tests {
    use super::*;
    use overtake_base::NodeId;

    #[test]
    fn a_head_is_read_as_it_was_written_and_golden() {
        let membership = Membership { index: 7, ..Membership::of(vec![NodeId(2)]) };
        for (head, golden) in [
            (ReplicaHead::Plain, &b""[..]),
            (
                ReplicaHead::Of(membership),
                &[b'O', b'V', b'R', b'P', 1, 0, 7, 0, 0, 0, 0, 0, 0, 0, 1, 2, 0, 0, 0, 0, 0, 0, 0, 0, 0],
            ),
            (ReplicaHead::Gone, &[b'O', b'V', b'R', b'P', 1, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0]),
        ] {
            let mut bytes = Vec::new();
            encode(&head, &mut bytes);
            assert_eq!(bytes, golden);
            bytes.extend_from_slice(b"OVMS state");
            assert_eq!(split(&bytes), Ok((head.clone(), &b"OVMS state"[..])));
            for cut in 4..golden.len() {
                assert!(split(&bytes[..cut]).is_err(), "{head:?} cut at {cut}");
            }
        }
        assert_eq!(split(b"OVMS"), Ok((ReplicaHead::Plain, &b"OVMS"[..])));
        assert!(split(b"OVRP\x02").is_err() && split(b"OVRP\x01\x02\0\0\0\0\0\0\0\0\0\0\0").is_err());
    }
}
