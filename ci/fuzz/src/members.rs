//! Who is in a cluster and in a group: what stands in front of a replica's state, in the log, and in the data folder. What is
//! understood is written again and understood in the same way.

use overtake_base::{Reader, Writer};
use overtake_core::state::{self, ReplicaHead};
use overtake_queue::members::{Members, MembersCommand};
use overtake_replication::MembershipChange;

/// The first byte says what the rest is taken for.
pub(crate) fn members(data: &[u8]) {
    let Some((kind, bytes)) = data.split_first() else { return };
    match kind % 4 {
        0 => head(bytes),
        1 => change(bytes),
        2 => cluster(bytes),
        _ => command(bytes),
    }
}

fn head(bytes: &[u8]) {
    let Ok((head, rest)) = state::split(bytes) else { return };
    if head == ReplicaHead::Plain {
        return assert_eq!(rest, bytes);
    }
    let mut again = Vec::new();
    state::encode(&head, &mut again);
    again.extend_from_slice(rest);
    assert_eq!(state::split(&again), Ok((head, rest)));
}

fn change(bytes: &[u8]) {
    if let Ok(change) = MembershipChange::decode(bytes) {
        assert_eq!(MembershipChange::decode(&change.encode()), Ok(change));
    }
}

fn cluster(bytes: &[u8]) {
    if let Ok(members) = Members::of_bytes(bytes) {
        // What is asked of it must be answered, whatever it says.
        let _ = members.usable().count();
        assert!(members.nodes.keys().all(|node| members.held_by(*node) <= members.all().count()));
        assert_eq!(Members::of_bytes(&members.to_bytes()), Ok(members));
    }
}

fn command(bytes: &[u8]) {
    if let Ok(command) = MembersCommand::decode(&mut Reader::new(bytes)) {
        let mut again = Vec::new();
        command.encode(&mut Writer(&mut again));
        assert_eq!(MembersCommand::decode(&mut Reader::new(&again)), Ok(command));
    }
}
