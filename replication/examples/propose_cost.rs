//! Measures what one proposed entry costs a group of one voter, from the proposal until it is applied, with an
//! instant disk: `cargo run --release -p overtake-replication --example propose_cost`.

use bytes::Bytes;
use overtake_base::{NodeId, ShardId};
use overtake_replication::{Group, GroupConfig, GroupError, GroupOutput, RecoveredGroup};
use std::time::Instant;

const ENTRIES: u64 = 1_000_000;
const ENTRY_BYTES: usize = 1_024;

fn main() -> Result<(), GroupError> {
    for entries_a_turn in [1, 8, 64] {
        let started = Instant::now();
        let applied = run(entries_a_turn)?;
        let nanoseconds = started.elapsed().as_nanos() / u128::from(applied);
        println!("{entries_a_turn:3} entries a turn: {nanoseconds} ns an entry");
    }
    Ok(())
}

fn run(entries_a_turn: u64) -> Result<u64, GroupError> {
    let config = GroupConfig { shard: ShardId(0), node: NodeId(1), voters: vec![NodeId(1)], seed: 1 };
    let mut group = Group::new(config, RecoveredGroup::default())?;
    group.campaign();
    let data = Bytes::from(vec![7; ENTRY_BYTES]);
    let mut out = GroupOutput::default();
    let mut applied = 0;
    while applied < ENTRIES {
        for _ in 0..entries_a_turn {
            group.propose(data.clone())?;
        }
        while group.has_output() {
            group.output(&mut out);
            if let Some(number) = out.persist {
                group.persisted(number);
            }
            if let Some(entry) = out.committed.last() {
                applied = entry.index;
                group.applied(applied);
                group.compact(applied.saturating_sub(1_000));
            }
        }
    }
    Ok(applied)
}
