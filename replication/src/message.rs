//! The bytes of peers' messages. Our own format: the library's protobuf is never parsed. The transport authenticates
//! and checks them (QUIC's AEAD), so there is no checksum of ours; everything else is checked here and in `guard`.
//!
//! ```text
//! u8 version | u16 shard | u64 to | u8 kind | u64 term | fields of the kind, in the order of the enum below
//! entries: u32 count, then each: u64 term | u8 kind | u32 length | data
//! ```
//! The index of an entry is not written: entries follow each other from `index` + 1 on.

use crate::NUMBER_MAX;
use crate::group::ENTRY_BYTES_MAX;
use crate::membership::MembershipChange;
use crate::tail::{from_raft as from_raft_entry, to_raft as to_raft_entry};
use crate::types::{EntryKind, LogEntry};
use bytes::Bytes;
use overtake_base::{Malformed, NodeId, Reader, ShardId, Writer};
use raft::CAMPAIGN_TRANSFER;
use raft::eraftpb::{Entry, Message, MessageType};

const VERSION: u8 = 4;
/// Most entries of one message.
const ENTRIES_MAX: usize = 1 << 20;
/// Bytes of an entry without its data.
const ENTRY_HEAD_BYTES: usize = 13;
/// An append message holds one entry, or as many as stay below this many bytes.
pub const APPEND_BYTES_MAX: usize = 1024 * 1024;

const _: () = assert!(
    ENTRY_BYTES_MAX + APPEND_BYTES_MAX <= overtake_base::limits::FRAME_BYTES_MAX,
    "any one message fits a frame"
);

/// Where a message belongs.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Address {
    /// The group.
    pub shard: ShardId,
    /// The receiver.
    pub to: NodeId,
}

/// A peer's message.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct PeerMessage {
    /// The sender's term (a pre-vote: the one it would have).
    pub term: u64,
    /// What it says.
    pub kind: PeerMessageKind,
}

/// What a peer can say.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum PeerMessageKind {
    /// Entries (term, kind, data) after `index`, which is of `log_term`.
    Append { index: u64, log_term: u64, commit: u64, entries: Vec<(u64, EntryKind, Bytes)> },
    /// Has the log up to `index`; or `reject`: does not match there, try at `hint`, which is of `hint_term`; or, `snapshot`,
    /// has no state, and needs a snapshot of at least that index before any log is of use; 0 = not so.
    AppendResponse { index: u64, commit: u64, reject: bool, hint: u64, hint_term: u64, snapshot: u64 },
    /// Wants a vote (`pre`: would get one) with a log that ends at `index`. `transfer`: the leader asked it to.
    RequestVote { pre: bool, transfer: bool, index: u64, log_term: u64, commit: u64, commit_term: u64 },
    /// Gives a vote, or not.
    Vote { pre: bool, reject: bool, commit: u64, commit_term: u64 },
    /// Leads; up to `commit` (which the receiver has) is committed. `read` names a read that waits for a quorum to say
    /// that it still leads; 0 = none.
    Heartbeat { commit: u64, read: u64 },
    /// Hears.
    HeartbeatResponse { commit: u64, read: u64 },
    /// Leads, and wants the receiver, which has the whole log, to lead instead.
    TimeoutNow,
    /// Leads, holds entries from `first` on only, and can give a state that holds everything up to `index`.
    Snapshot { index: u64, first: u64 },
}

impl PeerMessageKind {
    /// Whether it answers something.
    pub fn is_answer(&self) -> bool {
        matches!(self, Self::AppendResponse { .. } | Self::Vote { .. } | Self::HeartbeatResponse { .. })
    }

    fn number(&self) -> u8 {
        match self {
            Self::Append { .. } => APPEND,
            Self::AppendResponse { .. } => APPEND_RESPONSE,
            Self::RequestVote { pre: false, .. } => REQUEST_VOTE,
            Self::RequestVote { pre: true, .. } => REQUEST_PRE_VOTE,
            Self::Vote { pre: false, .. } => VOTE,
            Self::Vote { pre: true, .. } => PRE_VOTE,
            Self::Heartbeat { .. } => HEARTBEAT,
            Self::HeartbeatResponse { .. } => HEARTBEAT_RESPONSE,
            Self::TimeoutNow => TIMEOUT_NOW,
            Self::Snapshot { .. } => SNAPSHOT,
        }
    }
}

const APPEND: u8 = 1;
const APPEND_RESPONSE: u8 = 2;
const REQUEST_VOTE: u8 = 3;
const REQUEST_PRE_VOTE: u8 = 4;
const VOTE: u8 = 5;
const PRE_VOTE: u8 = 6;
const HEARTBEAT: u8 = 7;
const HEARTBEAT_RESPONSE: u8 = 8;
const TIMEOUT_NOW: u8 = 9;
const SNAPSHOT: u8 = 10;

/// Encodes what the library wants sent, of a log whose oldest entry that can be read is `first`. Kinds that this crate
/// never lets it produce come out as nothing.
pub fn encode(shard: ShardId, first: u64, message: Message) -> Option<(NodeId, Bytes)> {
    let to = NodeId(message.to);
    let message = from_raft(first, message)?;
    Some((to, Bytes::from(encode_one(Address { shard, to }, &message))))
}

fn from_raft(first: u64, mut m: Message) -> Option<PeerMessage> {
    let kind = match m.get_msg_type() {
        MessageType::MsgAppend => append_from_raft(&mut m),
        MessageType::MsgAppendResponse => PeerMessageKind::AppendResponse {
            index: m.index,
            commit: m.commit,
            reject: m.reject,
            hint: m.reject_hint,
            hint_term: m.log_term,
            snapshot: m.request_snapshot,
        },
        MessageType::MsgRequestVote | MessageType::MsgRequestPreVote => PeerMessageKind::RequestVote {
            pre: m.get_msg_type() == MessageType::MsgRequestPreVote,
            transfer: m.context == CAMPAIGN_TRANSFER,
            index: m.index,
            log_term: m.log_term,
            commit: m.commit,
            commit_term: m.commit_term,
        },
        MessageType::MsgRequestVoteResponse | MessageType::MsgRequestPreVoteResponse => {
            PeerMessageKind::Vote {
                pre: m.get_msg_type() == MessageType::MsgRequestPreVoteResponse,
                reject: m.reject,
                commit: m.commit,
                commit_term: m.commit_term,
            }
        }
        MessageType::MsgHeartbeat => PeerMessageKind::Heartbeat { commit: m.commit, read: read_of(&m) },
        MessageType::MsgHeartbeatResponse => {
            PeerMessageKind::HeartbeatResponse { commit: m.commit, read: read_of(&m) }
        }
        MessageType::MsgTimeoutNow => PeerMessageKind::TimeoutNow,
        MessageType::MsgSnapshot => {
            PeerMessageKind::Snapshot { index: m.get_snapshot().get_metadata().index, first }
        }
        _ => return None,
    };
    Some(PeerMessage { term: m.term, kind })
}

/// The number of the read that a heartbeat carries; 0 = none.
fn read_of(m: &Message) -> u64 {
    m.context.as_ref().try_into().map_or(0, u64::from_le_bytes)
}

/// The library's form of a read's number.
pub fn read_context(read: u64) -> Vec<u8> {
    if read == 0 { Vec::new() } else { read.to_le_bytes().to_vec() }
}

fn append_from_raft(m: &mut Message) -> PeerMessageKind {
    let (index, log_term, commit) = (m.index, m.log_term, m.commit);
    let entries = (index + 1..)
        .zip(core::mem::take(&mut m.entries))
        .map(|(index, entry)| {
            assert!(
                entry.index == index,
                "an entry that arrives under another index corrupts the follower's log"
            );
            let entry = from_raft_entry(entry);
            (entry.term, entry.kind, entry.data)
        })
        .collect();
    PeerMessageKind::Append { index, log_term, commit, entries }
}

fn encode_one(address: Address, message: &PeerMessage) -> Vec<u8> {
    let data_bytes = match &message.kind {
        PeerMessageKind::Append { entries, .. } => {
            entries.iter().map(|(.., data)| data.len() + ENTRY_HEAD_BYTES).sum()
        }
        _ => 0,
    };
    let mut bytes = Vec::with_capacity(64 + data_bytes);
    let mut out = Writer(&mut bytes);
    out.u8(VERSION);
    out.u16(address.shard.0);
    out.u64(address.to.0);
    out.u8(message.kind.number());
    out.u64(message.term);
    match &message.kind {
        PeerMessageKind::Append { index, log_term, commit, entries } => {
            numbers(&mut out, [index, log_term, commit]);
            out.u32(u32::try_from(entries.len()).unwrap_or(u32::MAX));
            for (term, kind, data) in entries {
                out.u64(*term);
                out.u8(*kind as u8);
                out.bytes(data);
            }
        }
        PeerMessageKind::AppendResponse { index, commit, reject, hint, hint_term, snapshot } => {
            numbers(&mut out, [index, commit]);
            out.bool(*reject);
            numbers(&mut out, [hint, hint_term, snapshot]);
        }
        PeerMessageKind::RequestVote { transfer, index, log_term, commit, commit_term, .. } => {
            out.bool(*transfer);
            numbers(&mut out, [index, log_term, commit, commit_term]);
        }
        PeerMessageKind::Vote { reject, commit, commit_term, .. } => {
            out.bool(*reject);
            numbers(&mut out, [commit, commit_term]);
        }
        PeerMessageKind::Heartbeat { commit, read } | PeerMessageKind::HeartbeatResponse { commit, read } => {
            numbers(&mut out, [commit, read]);
        }
        PeerMessageKind::TimeoutNow => {}
        PeerMessageKind::Snapshot { index, first } => numbers(&mut out, [index, first]),
    }
    bytes
}

fn numbers<const N: usize>(out: &mut Writer<'_>, numbers: [&u64; N]) {
    numbers.into_iter().for_each(|number| out.u64(*number));
}

/// Reads a message. Every number of the result is below [`NUMBER_MAX`], terms are not 0, and entries are in order.
pub fn decode(bytes: &[u8]) -> Result<(Address, PeerMessage), Malformed> {
    let mut input = Reader::new(bytes);
    if input.u8("message version")? != VERSION {
        return Err(Malformed("message version"));
    }
    let address = Address { shard: ShardId(input.u16("shard")?), to: NodeId(input.u64("receiver")?) };
    let kind = input.u8("message kind")?;
    let term = number(&mut input, "term")?;
    if term == 0 {
        return Err(Malformed("term"));
    }
    let kind = decode_kind(&mut input, kind, term)?;
    input.finish("end of message")?;
    Ok((address, PeerMessage { term, kind }))
}

fn decode_kind(input: &mut Reader<'_>, kind: u8, term: u64) -> Result<PeerMessageKind, Malformed> {
    Ok(match kind {
        APPEND => decode_append(input, term)?,
        APPEND_RESPONSE => PeerMessageKind::AppendResponse {
            index: number(input, "index")?,
            commit: number(input, "commit")?,
            reject: input.bool("reject")?,
            hint: number(input, "hint")?,
            hint_term: number(input, "hint term")?,
            snapshot: number(input, "wanted snapshot")?,
        },
        REQUEST_VOTE | REQUEST_PRE_VOTE => PeerMessageKind::RequestVote {
            pre: kind == REQUEST_PRE_VOTE,
            transfer: input.bool("transfer")?,
            index: number(input, "index")?,
            log_term: number(input, "log term")?,
            commit: number(input, "commit")?,
            commit_term: number(input, "commit term")?,
        },
        VOTE | PRE_VOTE => PeerMessageKind::Vote {
            pre: kind == PRE_VOTE,
            reject: input.bool("reject")?,
            commit: number(input, "commit")?,
            commit_term: number(input, "commit term")?,
        },
        HEARTBEAT => {
            PeerMessageKind::Heartbeat { commit: number(input, "commit")?, read: input.u64("read")? }
        }
        HEARTBEAT_RESPONSE => {
            PeerMessageKind::HeartbeatResponse { commit: number(input, "commit")?, read: input.u64("read")? }
        }
        TIMEOUT_NOW => PeerMessageKind::TimeoutNow,
        SNAPSHOT => {
            PeerMessageKind::Snapshot { index: number(input, "index")?, first: number(input, "first")? }
        }
        _ => return Err(Malformed("message kind")),
    })
}

fn decode_append(input: &mut Reader<'_>, term: u64) -> Result<PeerMessageKind, Malformed> {
    let index = number(input, "index")?;
    let log_term = number(input, "log term")?;
    let commit = number(input, "commit")?;
    if (index == 0) != (log_term == 0) {
        return Err(Malformed("log term"));
    }
    let count = input.count(ENTRIES_MAX, ENTRY_HEAD_BYTES, "entries")?;
    let mut entries = Vec::with_capacity(count);
    let mut newest_term = log_term;
    for _ in 0..count {
        let entry_term = input.u64("entry term")?;
        if entry_term < newest_term.max(1) || entry_term > term {
            return Err(Malformed("entry term"));
        }
        newest_term = entry_term;
        let kind = match input.u8("entry kind")? {
            0 => EntryKind::Normal,
            1 => EntryKind::Membership,
            _ => return Err(Malformed("entry kind")),
        };
        let data = input.bytes(ENTRY_BYTES_MAX, "entry")?;
        if kind == EntryKind::Membership {
            MembershipChange::decode(data)?;
        }
        entries.push((entry_term, kind, Bytes::copy_from_slice(data)));
    }
    Ok(PeerMessageKind::Append { index, log_term, commit, entries })
}

fn number(input: &mut Reader<'_>, what: &'static str) -> Result<u64, Malformed> {
    let number = input.u64(what)?;
    if number < NUMBER_MAX { Ok(number) } else { Err(Malformed(what)) }
}

/// The library's form of a message.
pub fn to_raft(from: NodeId, to: NodeId, message: PeerMessage) -> Message {
    let mut m = Message { from: from.0, to: to.0, term: message.term, ..Message::default() };
    let kind = match message.kind {
        PeerMessageKind::Append { index, log_term, commit, entries } => {
            (m.index, m.log_term, m.commit) = (index, log_term, commit);
            let entries: Vec<Entry> = (index + 1..)
                .zip(entries)
                .map(|(index, (term, kind, data))| to_raft_entry(&LogEntry { term, index, kind, data }))
                .collect();
            m.set_entries(entries.into());
            MessageType::MsgAppend
        }
        PeerMessageKind::AppendResponse { index, commit, reject, hint, hint_term, snapshot } => {
            (m.index, m.commit, m.reject, m.request_snapshot) = (index, commit, reject, snapshot);
            (m.reject_hint, m.log_term) = (hint, hint_term);
            MessageType::MsgAppendResponse
        }
        PeerMessageKind::RequestVote { pre, transfer, index, log_term, commit, commit_term } => {
            if transfer {
                m.context = Bytes::from_static(CAMPAIGN_TRANSFER);
            }
            (m.index, m.log_term, m.commit, m.commit_term) = (index, log_term, commit, commit_term);
            if pre { MessageType::MsgRequestPreVote } else { MessageType::MsgRequestVote }
        }
        PeerMessageKind::Vote { pre, reject, commit, commit_term } => {
            (m.reject, m.commit, m.commit_term) = (reject, commit, commit_term);
            if pre { MessageType::MsgRequestPreVoteResponse } else { MessageType::MsgRequestVoteResponse }
        }
        PeerMessageKind::Heartbeat { commit, read } => {
            (m.commit, m.context) = (commit, read_context(read).into());
            MessageType::MsgHeartbeat
        }
        PeerMessageKind::HeartbeatResponse { commit, read } => {
            (m.commit, m.context) = (commit, read_context(read).into());
            MessageType::MsgHeartbeatResponse
        }
        PeerMessageKind::TimeoutNow => MessageType::MsgTimeoutNow,
        PeerMessageKind::Snapshot { index, .. } => {
            m.mut_snapshot().mut_metadata().index = index;
            MessageType::MsgSnapshot
        }
    };
    m.set_msg_type(kind);
    m
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const ADDRESS: Address = Address { shard: ShardId(0x0102), to: NodeId(3) };

    fn all_kinds() -> Vec<PeerMessageKind> {
        let change = MembershipChange(vec![(crate::Role::None, NodeId(1))]).encode();
        let entries =
            vec![(2, EntryKind::Normal, Bytes::from_static(b"ab")), (4, EntryKind::Membership, change)];
        let vote_request = |pre| PeerMessageKind::RequestVote {
            pre,
            transfer: !pre,
            index: 5,
            log_term: 2,
            commit: 4,
            commit_term: 1,
        };
        let vote = |pre| PeerMessageKind::Vote { pre, reject: true, commit: 4, commit_term: 1 };
        vec![
            PeerMessageKind::Append { index: 5, log_term: 2, commit: 4, entries },
            PeerMessageKind::AppendResponse {
                index: 5,
                commit: 4,
                reject: true,
                hint: 3,
                hint_term: 1,
                snapshot: 2,
            },
            vote_request(false),
            vote_request(true),
            vote(false),
            vote(true),
            PeerMessageKind::Heartbeat { commit: 4, read: 6 },
            PeerMessageKind::HeartbeatResponse { commit: 4, read: 0 },
            PeerMessageKind::TimeoutNow,
            PeerMessageKind::Snapshot { index: 9, first: 8 },
        ]
    }

    #[test]
    fn every_kind_is_read_as_it_was_written_also_by_way_of_the_library() {
        for (number, kind) in (1..).zip(all_kinds()) {
            let message = PeerMessage { term: 7, kind };
            let bytes = encode_one(ADDRESS, &message);
            assert_eq!(bytes[11], number, "the number of a kind");
            assert_eq!(decode(&bytes), Ok((ADDRESS, message.clone())));
            let there = to_raft(NodeId(9), ADDRESS.to, message.clone());
            assert_eq!(encode(ADDRESS.shard, 8, there), Some((ADDRESS.to, Bytes::from(bytes.clone()))));
            for cut in 0..bytes.len() {
                assert!(decode(&bytes[..cut]).is_err(), "{message:?} cut at {cut}");
            }
            assert!(decode(&[&bytes[..], &[0]].concat()).is_err(), "{message:?} and a byte");
        }
    }

    #[test]
    fn golden_bytes() {
        let bytes = |kind| encode_one(ADDRESS, &PeerMessage { term: 7, kind });
        let all: Vec<u8> = all_kinds().into_iter().flat_map(bytes).collect();
        assert_eq!(all.len(), 86 + 61 + 53 + 53 + 37 + 37 + 36 + 36 + 20 + 36);
        let append: Vec<u8> = [
            &[4, 2, 1][..],
            &[3, 0, 0, 0, 0, 0, 0, 0, 1],
            &[7, 0, 0, 0, 0, 0, 0, 0, 5, 0, 0, 0, 0, 0, 0, 0],
            &[2, 0, 0, 0, 0, 0, 0, 0, 4, 0, 0, 0, 0, 0, 0, 0],
            &[2, 0, 0, 0],
            &[2, 0, 0, 0, 0, 0, 0, 0, 0, 2, 0, 0, 0, b'a', b'b'],
            &[4, 0, 0, 0, 0, 0, 0, 0, 1, 10, 0, 0, 0, 1, 3, 1, 0, 0, 0, 0, 0, 0, 0],
        ]
        .concat();
        assert_eq!(&all[..append.len()], append);
        assert_eq!(
            overtake_base::checksum::checksum(0, &all),
            0x6149_4f86_20cc_00e5,
            "the layout changed: raise the version"
        );
    }

    #[test]
    fn entries_out_of_order_are_no_message() {
        let append = |index, log_term, terms: &[u64]| {
            let entries = terms.iter().map(|term| (*term, EntryKind::Normal, Bytes::new())).collect();
            let kind = PeerMessageKind::Append { index, log_term, commit: 0, entries };
            decode(&encode_one(ADDRESS, &PeerMessage { term: 7, kind })).is_ok()
        };
        assert!(append(5, 3, &[3, 4, 7]));
        assert!(!append(5, 3, &[2]), "older than the entry before");
        assert!(!append(5, 3, &[5, 4]), "going down");
        assert!(!append(5, 3, &[8]), "newer than the leader");
        assert!(!append(0, 0, &[0]), "of no term");
        assert!(!append(0, 3, &[]) && !append(5, 0, &[]), "a place without a term");
        assert!(!append(NUMBER_MAX, 3, &[]), "out of range");
    }

    #[test]
    fn unknown_kinds_of_the_library_are_not_sent() {
        for kind in [MessageType::MsgReadIndex, MessageType::MsgTransferLeader, MessageType::MsgPropose] {
            let mut message = Message { to: 2, term: 1, ..Message::default() };
            message.set_msg_type(kind);
            assert_eq!(encode(ADDRESS.shard, 1, message), None);
        }
    }

    proptest! {
        #[test]
        fn any_bytes_are_read_without_panic(bytes: Vec<u8>, kind in 0..12_u8) {
            let head = [&[4, 2, 1, 3, 0, 0, 0, 0, 0, 0, 0, kind, 1, 0, 0, 0, 0, 0, 0, 0][..], &bytes].concat();
            if let Ok((address, message)) = decode(&head) {
                prop_assert_eq!(encode_one(address, &message), head, "one spelling");
            }
        }
    }
}
