//! Changes of the cluster: what this core was told of it, replicas that come and go by it, and the two leaders that carry a
//! change out. The leader of the directory decides what is to change (`placement`), one step after the other, each in its
//! log. The leader of a shard brings a newcomer up as a learner, exchanges the voters, and says when that is done. Each looks
//! at what is, and does the next thing: whoever leads next goes on, wherever the last one ended.

use crate::cluster::{Address, ClusterMap};
use crate::directory::DirectoryHost;
use crate::errands::Task;
use crate::mesh::MeshMessage;
use crate::replica::Replica;
use crate::sessions::Origin;
use crate::state::{self, ReplicaHead};
use crate::{Core, NO_OPERATION, Output, placement};
use bytes::Bytes;
use overtake_base::planted::{Bug, is_planted};
use overtake_base::{CoreId, NodeId, ShardId};
use overtake_log::{BatchNumber, Record};
use overtake_queue::directory::{Directory, DirectoryCommand, encode_commands};
use overtake_queue::machine::Machine;
use overtake_queue::members::{Holders, MemberState, Members, MembersCommand};
use overtake_replication::types::{GroupConfig, HardState, RecoveredGroup};
use overtake_replication::{Group, Membership, MembershipChange, Role};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

/// Time between two looks of the directory's leader, in nanoseconds.
const LOOK_NS: u64 = 100_000_000;
/// Time until a shard's leader says again what nobody has taken note of, in nanoseconds.
const SAY_AGAIN_NS: u64 = 500_000_000;
/// Checkpoints that say that a replica is gone: both slots, so that no old state is found again.
const GONE_CHECKPOINTS: u8 = 2;

/// See the module's text.
#[derive(Default)]
pub(crate) struct Changes {
    next_look_ns: u64,
    /// The directory's leader: index and term of what it proposed last, until that is applied or lost.
    proposed: Option<(u64, u64)>,
    /// A shard's leader: what was said of the shard, and when.
    said: BTreeMap<ShardId, (u64, u64)>,
    /// A shard's leader: whose disks say what the change at this index made of the shard's voters, and when they were asked.
    vouchers: BTreeMap<ShardId, (u64, BTreeSet<NodeId>, u64)>,
    /// Until which batch the journal must be durable so that this core's disk says so.
    vouching: BTreeMap<(ShardId, Address), (u64, BatchNumber)>,
    /// Replicas that are going.
    going: BTreeMap<ShardId, Going>,
    /// Index and term of checkpoints that say that a replica is gone: none of its log comes behind them.
    pub(crate) gone_at: BTreeMap<ShardId, (u64, u64)>,
    /// Replicas that went, and that came.
    pub(crate) dropped: u64,
    pub(crate) begun: u64,
}

/// A replica that is not wanted here any more: out of memory, and on its way from the disk.
struct Going {
    index: u64,
    term: u64,
    written: u8,
    writing: bool,
}

impl Changes {
    /// Whether a replica is going.
    pub(crate) fn is_going(&self, shard: ShardId) -> bool {
        self.going.contains_key(&shard)
    }
}

impl Core {
    /// What this core knows of the cluster.
    #[must_use]
    pub fn members(&self) -> &Members {
        self.map.members()
    }

    /// Who is in the group of each shard that this core holds, and whether it leads.
    #[must_use]
    pub fn memberships(&self) -> Vec<(ShardId, Membership, bool)> {
        let host = self.host.iter().map(|host| (ShardId::DIRECTORY, &host.group));
        let groups = self.replicas.iter().map(|(shard, replica)| (*shard, &replica.group)).chain(host);
        groups.map(|(shard, group)| (shard, group.membership().clone(), group.is_leader())).collect()
    }

    /// How each group of this core is, in words, for whoever wonders why it does not go on.
    #[must_use]
    pub fn groups_in_words(&self) -> Vec<(ShardId, String)> {
        let host = self.host.iter().map(|host| (ShardId::DIRECTORY, &host.group));
        let groups = self.replicas.iter().map(|(shard, replica)| (*shard, &replica.group)).chain(host);
        let words = |group: &Group| {
            let silent = if group.is_silent() { ", silent" } else { "" };
            let hollow = if group.is_hollow() { ", without a state" } else { "" };
            let (term, last, commit) = (group.term(), group.last_index(), group.commit());
            let leader = group.leader().map_or_else(|| "nobody".to_owned(), |node| format!("node {node}"));
            format!(
                "term {term}, follows {leader}, log to {last}, committed to {commit}{silent}{hollow}, {:?}",
                group.membership()
            )
        };
        let snapshot = |shard| self.snapshots.in_words(shard);
        groups.map(|(shard, group)| (shard, format!("{}{}", words(group), snapshot(shard)))).collect()
    }

    /// Replicas that this core began and gave up by changes of the cluster.
    #[must_use]
    pub fn replicas_moved(&self) -> (u64, u64) {
        (self.changes.begun, self.changes.dropped)
    }

    /// The shards of this core, the directory among them, wherever their replicas are.
    fn candidates(&self) -> impl Iterator<Item = ShardId> + use<> {
        let directory = (self.config.core == CoreId(0)).then_some(ShardId::DIRECTORY);
        self.config.own_shards().chain(directory)
    }

    /// Somebody knows more of the cluster, or as much.
    pub(crate) fn members_told(&mut self, members: Arc<Members>) {
        if self.map.is_single() || members.version <= self.map.members().version {
            return;
        }
        let before = core::mem::replace(&mut self.map, ClusterMap::told(members.clone()));
        let leaves = self.map.members().gone.contains(&self.me.node);
        self.pass_members_on(&members);
        self.out.push(Output::Members(members));
        if leaves {
            self.retired = true;
            return self.out.push(Output::Removed);
        }
        self.fit_replicas();
        // Who follows a shard no more is told its heads.
        let peers: Vec<Address> = self.links.all_up().collect();
        for shard in self.replicas.keys().copied().collect::<Vec<_>>() {
            for peer in &peers {
                if before.replicas(shard).contains(&peer.node)
                    && !self.map.replicas(shard).contains(&peer.node)
                {
                    self.tell_all_heads(shard, *peer);
                }
            }
        }
        self.note_all_reach();
    }

    /// The directory on this core has other members than before: everybody is told.
    pub(crate) fn members_applied(&mut self) {
        let Some(members) = self.host.as_ref().and_then(|host| host.directory.members()) else { return };
        if members.version <= self.map.members().version {
            return;
        }
        let members = Arc::new(members.clone());
        if self.host.as_ref().is_some_and(|host| host.group.is_leader()) {
            for to in self.all_others() {
                self.out
                    .push(Output::Mesh { to, message: MeshMessage::Members { members: members.clone() } });
            }
        }
        self.members_told(members);
    }

    /// Whoever leads the directory may have no link with some node, which does not even know it: so each node tells the others,
    /// first core to first core, and its own cores.
    fn pass_members_on(&mut self, members: &Arc<Members>) {
        if self.me.core != CoreId(0) {
            return;
        }
        let first = self.links.all_up().filter(|peer| peer.core == CoreId(0));
        for to in first.chain(self.siblings()).collect::<Vec<_>>() {
            self.out.push(Output::Mesh { to, message: MeshMessage::Members { members: members.clone() } });
        }
    }

    /// Tells a core what this one knows.
    pub(crate) fn tell_members(&mut self, to: Address) {
        let members = self.map.members();
        if !self.map.is_single() && members.version > 0 {
            self.out.push(Output::Mesh { to, message: MeshMessage::Members { members: members.clone() } });
        }
    }

    /// Begins replicas that are wanted here and gives up those that are not.
    pub(crate) fn fit_replicas(&mut self) {
        if !self.directory.start.recovered || !self.storage.is_running() || self.retired {
            return;
        }
        for shard in self.candidates().collect::<Vec<_>>() {
            let here = if shard == ShardId::DIRECTORY {
                self.host.is_some()
            } else {
                self.replicas.contains_key(&shard)
            };
            let wanted = self.map.is_on(self.me.node, shard);
            if here && !wanted {
                if self.knows_that_it_left(shard) {
                    self.give_up_replica(shard);
                }
            } else if !here && wanted && !self.changes.is_going(shard) {
                self.begin_replica(shard);
            }
        }
    }

    /// Whether what this core was told of a shard's holders is at least as new as what its replica knows itself. A node that
    /// starts may have been told less than it was told before; then its replica may well be one that others count on.
    fn knows_that_it_left(&self, shard: ShardId) -> bool {
        let group = if shard == ShardId::DIRECTORY {
            self.host.as_ref().map(|host| &host.group)
        } else {
            self.replicas.get(&shard).map(|replica| &replica.group)
        };
        let told = self.map.members().holders(shard).map_or(0, |holders| holders.index);
        group.is_some_and(|group| group.is_hollow() || told >= group.membership().index)
    }

    /// A replica that has nothing, and takes no part before the leader has given it a state.
    pub(crate) fn begin_replica(&mut self, shard: ShardId) {
        let Some((journal, _)) = self.storage.journal() else { return };
        journal.expect_anew(shard);
        let (term, vote, _) = journal.hard_state(shard).unwrap_or_default();
        let planted = is_planted(Bug::NewcomerVotes);
        let voters = if planted {
            self.map.replicas(shard).iter().copied().chain([self.me.node]).collect()
        } else {
            Vec::new()
        };
        let config =
            GroupConfig { shard, node: self.me.node, voters, seed: self.config.seed ^ u64::from(shard.0) };
        let hard_state = HardState { term, vote, commit: 0 };
        let recovered = RecoveredGroup { hard_state, ..RecoveredGroup::default() };
        let group = match Group::new(config, recovered) {
            Ok(group) => group,
            Err(error) => return self.fatal(format!("shard {shard}: a new replica cannot begin: {error}")),
        };
        self.changes.begun += 1;
        if shard == ShardId::DIRECTORY {
            self.host = Some(DirectoryHost::new(group, Directory::new(self.config.shards), 0));
        } else {
            let machine = Machine::new(shard);
            let replica = Replica::new(shard, group, machine, 0, self.config.entry_bytes_max);
            self.replicas.insert(shard, replica);
        }
        self.keep_silent(shard);
    }

    /// A replica is not wanted here any more, and its group goes on without it. It is gone from memory at once; what it
    /// promised is on the disk until a checkpoint says that there is no replica: from then on it votes for nobody.
    fn give_up_replica(&mut self, shard: ShardId) {
        let Some(group) = self.group_mut(shard) else { return };
        let (index, term) = (group.last_index().max(1), group.last_term().max(1));
        let before = self.changes.gone_at.get(&shard).copied().unwrap_or_default();
        let (index, term) = (index.max(before.0), term.max(before.1));
        self.changes.gone_at.insert(shard, (index, term));
        self.changes.going.insert(shard, Going { index, term, written: 0, writing: false });
        self.snapshots.forget(shard);
        self.forget_repair(shard);
        self.lead_since_ns.remove(&shard);
        self.held.remove(&shard);
        self.storage.forget_checkpoints(shard);
        if shard == ShardId::DIRECTORY {
            if let Some(host) = self.host.take() {
                self.end_directory_calls(host);
            }
            return;
        }
        self.storage.forget_drafts(shard);
        let Some(mut replica) = self.replicas.remove(&shard) else { return };
        let mut done = Vec::new();
        let reads = replica.give_up(&mut done);
        self.commands_done(shard, &mut done);
        for (caller, read) in reads {
            self.not_leader(caller, shard, crate::mesh::ShardRequest::Read(read));
        }
        self.lead_lost(shard);
    }

    /// Moves what is going on.
    pub(crate) fn advance_going(&mut self) {
        if !self.storage.is_running() {
            return;
        }
        self.vouch();
        for shard in self.changes.going.keys().copied().collect::<Vec<_>>() {
            let busy = self.storage.is_persisting(shard) || !self.storage.may_write_checkpoint();
            let Some(going) = self.changes.going.get_mut(&shard).filter(|going| !going.writing) else {
                continue;
            };
            if going.written >= GONE_CHECKPOINTS {
                self.changes.going.remove(&shard);
                self.changes.dropped += 1;
                self.fit_replicas();
                continue;
            }
            if busy {
                continue;
            }
            going.writing = true;
            let (index, term) = (going.index, going.term);
            let mut state = Vec::new();
            state::encode(&ReplicaHead::Gone, &mut state);
            self.storage.write_checkpoint(shard, index, term, Bytes::from(state));
            self.put_out_operations();
        }
    }

    /// A checkpoint that says that a replica is gone is durable, or found no room. False where it was another one.
    pub(crate) fn gone_written(&mut self, shard: ShardId, written: bool) -> bool {
        let Some(going) = self.changes.going.get_mut(&shard).filter(|going| going.writing) else {
            // It may be one of the replica's own, which was under way when it went.
            return self.changes.is_going(shard);
        };
        going.writing = false;
        if written {
            going.written += 1;
            self.forget_shard(shard);
        }
        true
    }

    /// Nothing that is on the disk of a shard is needed any more.
    pub(crate) fn forget_shard(&mut self, shard: ShardId) {
        if let Some((journal, _)) = self.storage.journal() {
            journal.forget(shard);
        }
        if let Some(lanes) = self.storage.lanes_mut() {
            let blocks: Vec<_> = lanes.blocks_of(shard).collect();
            blocks.into_iter().for_each(|block| lanes.free(shard, block));
        }
    }

    /// What is told of a shard's group where its state goes: into a checkpoint, or to another node.
    pub(crate) fn replica_head(&self, shard: ShardId) -> ReplicaHead {
        let group = if shard == ShardId::DIRECTORY {
            self.host.as_ref().map(|host| &host.group)
        } else {
            self.replicas.get(&shard).map(|replica| &replica.group)
        };
        match group {
            Some(group) if !self.map.is_single() => ReplicaHead::Of(group.membership().clone()),
            _ => ReplicaHead::Plain,
        }
    }

    /// Carries changes on, as a leader of the directory and of shards.
    pub(crate) fn tick_members(&mut self) {
        for shard in self.groups() {
            if !self.is_closed(shard) {
                self.advance_membership(shard);
            }
        }
        if self.now.monotonic_ns >= self.changes.next_look_ns {
            self.changes.next_look_ns = self.now.monotonic_ns + LOOK_NS;
            self.look_at_members();
        }
    }

    fn look_at_members(&mut self) {
        let now_ns = self.now.monotonic_ns;
        let Some(host) = self.host.as_ref().filter(|host| host.group.is_caught_up_as_leader()) else {
            return;
        };
        if let Some((term, index)) = self.changes.proposed {
            if host.group.term() == term && host.applied < index {
                return;
            }
            self.changes.proposed = None;
        }
        let command = match host.directory.members() {
            None => {
                let members = Members { version: 1, ..(**self.map.members()).clone() };
                Some(MembersCommand::Found(Box::new(members)))
            }
            Some(members) => self.next_step(members),
        };
        let Some(command) = command else { return };
        let entry = encode_commands(&[DirectoryCommand::Members(command)]);
        if let Some(host) = &mut self.host
            && let Ok(proposed) = host.group.propose(entry)
        {
            self.changes.proposed = Some(proposed);
            self.changes.next_look_ns = now_ns;
        }
    }

    fn next_step(&self, members: &Members) -> Option<MembersCommand> {
        let answers = |node: NodeId| {
            let cores = members.nodes.get(&node).map_or(0, |member| member.cores);
            let up = |core| self.links.is_up(Address { node, core: CoreId(core) });
            node == self.me.node || cores > 0 && (0..cores).all(up)
        };
        let comes = |(node, member): &(&NodeId, &overtake_queue::members::Member)| {
            member.state == MemberState::Joining && answers(**node)
        };
        if let Some((node, _)) = members.nodes.iter().find(comes) {
            return Some(MembersCommand::SetState { node: *node, state: MemberState::Active, force: false });
        }
        placement::next(members, &answers)
    }

    /// The next thing to be done for a shard that this core leads.
    fn advance_membership(&mut self, shard: ShardId) {
        let Some(group) = self.group_mut(shard).filter(|group| group.is_caught_up_as_leader()) else {
            return;
        };
        let membership = group.membership().clone();
        let Some(mut holders) = self.map.members().holders(shard).cloned() else { return };
        let state = |node: NodeId| self.map.members().nodes.get(&node).map(|member| member.state);
        // Who was given up before it became a voter does not come: the move ends with what is.
        let ends = holders
            .adding
            .is_some_and(|node| state(node) == Some(MemberState::Lost) && !membership.voters.contains(&node));
        if ends {
            (holders.adding, holders.removing) = (None, None);
        }
        let me = self.me.node;
        if membership.is_joint() {
            if membership.voters.contains(&me) {
                self.change(shard, MembershipChange::LEAVE);
            } else {
                self.transfer(shard, &membership.voters);
            }
            return;
        }
        if let Some(next) = next_change(&holders, &membership) {
            let leaves = next.0.contains(&(Role::None, me));
            let comes = next.0.iter().find(|(role, _)| *role == Role::Voter).map(|(_, node)| *node);
            let ready =
                self.group_mut(shard).is_some_and(|group| comes.is_none_or(|node| group.has_caught_up(node)));
            if leaves {
                // Not before the newcomer could take this one's part, so that it is handed over once.
                let others: Vec<NodeId> =
                    membership.voters.iter().copied().filter(|node| *node != me).collect();
                if ready {
                    self.transfer(shard, &others);
                }
            } else if ready {
                self.change(shard, next);
            }
            return;
        }
        // Also where the voters are the same: who was a learner for a while waits to hear that it is none.
        if (holders.index < membership.index || ends)
            && membership.learners.is_empty()
            && self.is_vouched(shard, &membership)
        {
            self.say_who_holds(shard, membership);
        }
    }

    /// What moves of the shards that this core leads, in words.
    pub(crate) fn changes_in_words(&self) -> String {
        let members = self.map.members();
        let host = self.host.as_ref().filter(|host| host.group.is_leader()).map(|host| {
            let moving = members.all().filter(|(_, holders)| holders.is_moving());
            format!(
                "; directory led, proposed {:?}, moving {:?}",
                host.group.term(),
                moving.collect::<Vec<_>>()
            )
        });
        let led = self.replicas.iter().filter(|(_, replica)| replica.group.is_leader());
        let moving = led.filter_map(|(shard, replica)| {
            let holders = members.holders(*shard).filter(|holders| holders.is_moving())?;
            let group = &replica.group;
            let caught_up = group.is_caught_up_as_leader();
            Some(format!(
                "; shard {shard}: {holders:?}, group {:?}, caught up: {caught_up}",
                group.membership()
            ))
        });
        let snapshots = self.groups().into_iter().filter_map(|shard| {
            let words = self.snapshots.in_words(shard);
            (!words.is_empty()).then(|| format!("; shard {shard}{words}"))
        });
        host.into_iter().chain(moving).chain(snapshots).collect()
    }

    fn change(&mut self, shard: ShardId, change: MembershipChange) {
        if let Some(group) = self.group_mut(shard) {
            group.propose_membership(&change);
        }
    }

    /// Whether the disks of a majority of the voters say who votes now; asks for it. How far a log is committed is on a disk
    /// only by chance: after a power loss of all, replicas that know an earlier change alone would wait for those that
    /// have left, and have forgotten the shard.
    fn is_vouched(&mut self, shard: ShardId, membership: &Membership) -> bool {
        if is_planted(Bug::ChangeNotVouched) {
            return true;
        }
        let now_ns = self.now.monotonic_ns;
        let vouchers = self.changes.vouchers.entry(shard).or_default();
        if vouchers.0 != membership.index {
            *vouchers = (membership.index, BTreeSet::new(), 0);
        }
        let count = membership.voters.iter().filter(|node| vouchers.1.contains(node)).count();
        if count > membership.voters.len() / 2 {
            return true;
        }
        if now_ns < vouchers.2 {
            return false;
        }
        vouchers.2 = now_ns + LOOK_NS;
        let index = membership.index;
        for to in membership.voters.iter().filter_map(|node| self.map.host(*node, shard)).collect::<Vec<_>>()
        {
            if to == self.me {
                self.vouch_asked(to, shard, index);
            } else if self.links.is_up(to) {
                self.out.push(Output::Mesh { to, message: MeshMessage::VouchAsk { shard, index } });
            }
        }
        false
    }

    /// The leader wants to know whether this core's disk knows a change of a shard's voters: it is made to.
    pub(crate) fn vouch_asked(&mut self, from: Address, shard: ShardId, index: u64) {
        if self.is_closed(shard) || self.changes.vouching.contains_key(&(shard, from)) {
            return;
        }
        let Some(group) = self.group_mut(shard).filter(|group| group.membership().index >= index) else {
            return;
        };
        let (hard_state, commit) = (group.hard_state(), group.last_applied());
        let HardState { term, vote, .. } = hard_state;
        let Some((journal, _)) = self.storage.journal() else { return };
        // The entries up to there are in the journal before it.
        let batch = journal.append(Record::HardState { shard, term, vote, commit });
        self.changes.vouching.insert((shard, from), (index, batch));
    }

    /// Says what has become durable.
    fn vouch(&mut self) {
        let durable = self.storage.journal().map_or(0, |(journal, _)| journal.durable());
        let ready = self.changes.vouching.iter().filter(|(_, (_, batch))| *batch <= durable);
        for (shard, to) in ready.map(|(key, _)| *key).collect::<Vec<_>>() {
            let Some((index, _)) = self.changes.vouching.remove(&(shard, to)) else { continue };
            if to == self.me {
                self.vouched(to.node, shard, index);
            } else if self.links.is_up(to) {
                self.out.push(Output::Mesh { to, message: MeshMessage::Vouched { shard, index } });
            }
        }
    }

    /// A disk knows a change.
    pub(crate) fn vouched(&mut self, node: NodeId, shard: ShardId, index: u64) {
        if let Some(vouchers) = self.changes.vouchers.get_mut(&shard)
            && vouchers.0 == index
        {
            vouchers.1.insert(node);
        }
    }

    /// Tells the directory who votes now.
    fn say_who_holds(&mut self, shard: ShardId, membership: Membership) {
        let now_ns = self.now.monotonic_ns;
        let (index, at_ns) = self.changes.said.get(&shard).copied().unwrap_or_default();
        if index == membership.index && now_ns < at_ns + SAY_AGAIN_NS {
            return;
        }
        self.changes.said.insert(shard, (membership.index, now_ns));
        let command = MembersCommand::Holds { shard, index: membership.index, voters: membership.voters };
        let task = Task::Directory(DirectoryCommand::Members(command));
        self.send_errand(Origin::Operation(NO_OPERATION), ShardId::DIRECTORY, task);
    }
}

/// What is to change next in a group that is not in a joint configuration; none where it is as it should be.
fn next_change(holders: &Holders, membership: &Membership) -> Option<MembershipChange> {
    if let Some(adding) = holders.adding.filter(|node| !membership.voters.contains(node)) {
        if !membership.learners.contains(&adding) {
            return Some(MembershipChange(vec![(Role::Learner, adding)]));
        }
        let mut changes = vec![(Role::Voter, adding)];
        changes.extend(
            holders.removing.filter(|node| membership.voters.contains(node)).map(|node| (Role::None, node)),
        );
        return Some(MembershipChange(changes));
    }
    if let Some(stray) = membership.learners.iter().find(|node| holders.adding != Some(**node)) {
        return Some(MembershipChange(vec![(Role::None, *stray)]));
    }
    let removing = holders.removing.filter(|node| membership.voters.contains(node))?;
    Some(MembershipChange(vec![(Role::None, removing)]))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn nodes(ids: &[u64]) -> Vec<NodeId> {
        ids.iter().copied().map(NodeId).collect()
    }

    #[test]
    fn a_group_is_changed_step_by_step() {
        let holders = |adding: u64, removing: u64| {
            let some = |id| Some(NodeId(id)).filter(|node| node.0 > 0);
            Holders { adding: some(adding), removing: some(removing), ..Holders::of(nodes(&[1, 2, 3])) }
        };
        let of = |voters: &[u64], learners: &[u64]| Membership {
            voters: nodes(voters),
            learners: nodes(learners),
            ..Membership::default()
        };
        let next = |holders: &Holders, voters: &[u64], learners: &[u64]| {
            next_change(holders, &of(voters, learners))
                .map(|change| change.0.into_iter().map(|(role, node)| (role, node.0)).collect::<Vec<_>>())
        };
        use Role::{Learner, None as Out, Voter};
        assert_eq!(next(&holders(4, 1), &[1, 2, 3], &[]), Some(vec![(Learner, 4)]));
        assert_eq!(next(&holders(4, 1), &[1, 2, 3], &[4]), Some(vec![(Voter, 4), (Out, 1)]));
        assert_eq!(next(&holders(4, 1), &[2, 3, 4], &[]), None);
        assert_eq!(next(&holders(4, 0), &[1, 2, 3], &[4]), Some(vec![(Voter, 4)]));
        assert_eq!(next(&holders(0, 1), &[1, 2, 3], &[]), Some(vec![(Out, 1)]));
        assert_eq!(next(&holders(0, 0), &[1, 2, 3], &[4]), Some(vec![(Out, 4)]), "a move that was given up");
        assert_eq!(next(&holders(5, 1), &[1, 2, 3], &[4]), Some(vec![(Learner, 5)]));
        assert_eq!(next(&holders(5, 1), &[1, 2, 3], &[4, 5]), Some(vec![(Voter, 5), (Out, 1)]));
        assert_eq!(next(&holders(0, 0), &[1, 2, 3], &[]), None);
    }
}
