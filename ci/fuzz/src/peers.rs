//! What peers of a group of replicas send: any sequence of messages must leave a replica that goes on.

use overtake_base::{NodeId, ShardId};
use overtake_replication::{Group, GroupConfig, GroupOutput, RecoveredGroup};

const VICTIM: NodeId = NodeId(1);

/// The data is messages, each with a byte for its sender and what happens besides, and a byte for its length.
pub(crate) fn message(mut data: &[u8]) {
    let voters = (1..=3).map(NodeId).collect();
    let config = GroupConfig { shard: ShardId(9), node: VICTIM, voters, seed: 1 };
    let Ok(mut group) = Group::new(config, RecoveredGroup::default()) else { return };
    let mut output = GroupOutput::default();
    while let [what, length, rest @ ..] = data {
        let (message, rest) = rest.split_at(usize::from(*length).min(rest.len()));
        data = rest;
        match what % 8 {
            0 => (0..=what / 8).for_each(|_| group.tick()),
            1 => group.campaign(),
            2 => drop(group.propose(bytes::Bytes::copy_from_slice(message))),
            3 => {
                group.output(&mut output);
                if let Some(number) = output.persist {
                    group.persisted(number);
                }
                if let Some(last) = output.committed.last() {
                    group.applied(last.index);
                }
            }
            sender => drop(group.step(NodeId(u64::from(sender % 4)), message)),
        }
    }
    group.output(&mut output);
}
