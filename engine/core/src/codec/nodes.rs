//! The bytes of what nodes ask each other about their clocks, and about what replicas promised.

use super::{list, number, read_list};
use crate::mesh::MeshMessage;
use overtake_base::{Malformed, Reader, ShardId, UnixMillis, Writer};
use overtake_queue::members::Members;
use std::sync::Arc;

const CLOCK_ASK: u8 = 19;
const CLOCK: u8 = 20;
const REPLICA_ASK: u8 = 21;
const REPLICA_TOLD: u8 = 22;
const MEMBERS: u8 = 23;
const VOUCH_ASK: u8 = 24;
const VOUCHED: u8 = 25;
const STUCK: u8 = 26;

pub(super) fn encode(message: &MeshMessage, out: &mut Writer<'_>) {
    match message {
        MeshMessage::ReplicaAsk { number: ask, shards } => {
            number(out, REPLICA_ASK, *ask);
            list(out, shards, |out, (shard, last)| {
                out.u16(shard.0);
                out.u64(*last);
            });
        }
        MeshMessage::ReplicaTold { number: ask, shards } => {
            number(out, REPLICA_TOLD, *ask);
            list(out, shards, |out, (shard, term, last)| {
                out.u16(shard.0);
                out.u64(*term);
                out.u64(*last);
            });
        }
        MeshMessage::ClockAsk { asked_ns } => number(out, CLOCK_ASK, *asked_ns),
        MeshMessage::Clock { asked_ns, wall, time } => {
            number(out, CLOCK, *asked_ns);
            out.u64(wall.0);
            out.option(*time, |out, time| out.u64(time.0));
        }
        MeshMessage::VouchAsk { shard, index } | MeshMessage::Vouched { shard, index } => {
            out.u8(if matches!(message, MeshMessage::Vouched { .. }) { VOUCHED } else { VOUCH_ASK });
            out.u16(shard.0);
            out.u64(*index);
        }
        MeshMessage::Stuck { stuck } => {
            out.u8(STUCK);
            out.bool(*stuck);
        }
        MeshMessage::Members { members } => {
            out.u8(MEMBERS);
            members.encode(out);
        }
        _ => {}
    }
}

pub(super) fn decode(kind: u8, input: &mut Reader<'_>) -> Result<MeshMessage, Malformed> {
    Ok(match kind {
        REPLICA_ASK => MeshMessage::ReplicaAsk {
            number: input.u64("number")?,
            shards: read_list(input, 10, |input| Ok((ShardId(input.u16("shard")?), input.u64("last")?)))?,
        },
        REPLICA_TOLD => MeshMessage::ReplicaTold {
            number: input.u64("number")?,
            shards: read_list(input, 18, |input| {
                let (shard, term, last) = (input.u16("shard")?, input.u64("term")?, input.u64("last")?);
                if term >= 1 << 62 { Err(Malformed("term")) } else { Ok((ShardId(shard), term, last)) }
            })?,
        },
        VOUCH_ASK | VOUCHED => {
            let (shard, index) = (ShardId(input.u16("shard")?), input.u64("index")?);
            if kind == VOUCHED {
                MeshMessage::Vouched { shard, index }
            } else {
                MeshMessage::VouchAsk { shard, index }
            }
        }
        STUCK => MeshMessage::Stuck { stuck: input.bool("stuck")? },
        MEMBERS => MeshMessage::Members { members: Arc::new(Members::decode(input)?) },
        CLOCK_ASK => MeshMessage::ClockAsk { asked_ns: input.u64("asked")? },
        CLOCK => MeshMessage::Clock {
            asked_ns: input.u64("asked")?,
            wall: clock(input)?,
            time: input.option("time", clock)?,
        },
        _ => return Err(Malformed("mesh kind")),
    })
}

/// A clock's reading: adding to it never overflows.
fn clock(input: &mut Reader<'_>) -> Result<UnixMillis, Malformed> {
    input.u64("clock").and_then(|ms| if ms < 1 << 62 { Ok(UnixMillis(ms)) } else { Err(Malformed("clock")) })
}
