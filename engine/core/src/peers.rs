//! What replicas of this core and their peers say to each other, ticks, and the comings and goings of links.

use crate::cluster::Address;
use crate::mesh::{MeshMessage, ShardRequest};
use crate::replica::Seen;
use crate::{Core, Output};
use bytes::Bytes;
use overtake_base::{NodeId, ShardId};
use overtake_queue::cold::Loaded;
use overtake_replication::Group;
use overtake_replication::types::GroupOutput;
use std::collections::BTreeMap;

/// Time between two ticks of groups with several voters, in nanoseconds.
const TICK_NS: u64 = 30_000_000;
/// Time between two words of a leader on what all voters hold, in nanoseconds.
const HELD_NS: u64 = 1_000_000_000;
/// Bytes of raft messages to one core that are sent together, but for the last one of them.
const TOGETHER_BYTES: usize = 512 * 1024;
/// How long a replica leads before it hands over to the one that prefers to, in nanoseconds: not while others come and go.
const PREFER_AFTER_NS: u64 = 3_000_000_000;
/// Time between two such transfers on one core, in nanoseconds.
const PREFER_EVERY_NS: u64 = 500_000_000;

impl Core {
    pub(crate) fn group_mut(&mut self, shard: ShardId) -> Option<&mut Group> {
        if shard == ShardId::DIRECTORY {
            self.host.as_mut().map(|host| &mut host.group)
        } else {
            self.replicas.get_mut(&shard).map(|replica| &mut replica.group)
        }
    }

    /// The shards that this core holds replicas of, the directory among them.
    pub(crate) fn groups(&self) -> Vec<ShardId> {
        let directory = self.host.as_ref().map(|_| ShardId::DIRECTORY);
        self.replicas.keys().copied().chain(directory).collect()
    }

    /// Lets time pass for groups with several voters. A turn that comes late is one tick, not many: a process that was
    /// held up must first hear what happened meanwhile.
    pub(crate) fn tick_groups(&mut self) {
        if self.map.is_single() || self.retired || !self.directory.start.recovered {
            return;
        }
        let now_ns = self.now.monotonic_ns;
        let due_ns = *self.next_tick_ns.get_or_insert(now_ns + TICK_NS);
        if due_ns > now_ns {
            return;
        }
        self.next_tick_ns = Some((due_ns + TICK_NS).max(now_ns + TICK_NS / 2));
        self.tick_clocks();
        if !self.clocks.is_settled() {
            // Whoever leads says what time it is.
            return;
        }
        for shard in self.groups() {
            if self.is_closed(shard) {
                continue;
            }
            if let Some(group) = self.group_mut(shard) {
                group.tick();
            }
        }
        self.tick_snapshots();
        self.tick_members();
        self.tell_held();
        let unfit = self.is_stuck() || self.clock_is_off(self.me.node);
        if self.stopping || unfit || self.map.is_leaving(self.me.node) {
            self.hand_over();
        } else {
            self.prefer_leaders();
        }
    }

    /// Tells the other replicas up to where every voter holds the log: they keep what one lacks, since any of them may
    /// have to bring it up as the next leader.
    fn tell_held(&mut self) {
        let now_ns = self.now.monotonic_ns;
        if now_ns < self.next_held_ns {
            return;
        }
        self.next_held_ns = now_ns + HELD_NS;
        self.tell_strangers();
        let mut told: BTreeMap<Address, Vec<(ShardId, u64)>> = BTreeMap::new();
        for shard in self.groups() {
            let replicated = self.group_mut(shard).map_or(0, |group| group.replicated());
            if replicated == 0 {
                continue;
            }
            self.learn_held(shard, replicated);
            for node in self.map.replicas(shard) {
                if let Some(to) = self.map.host(*node, shard).filter(|to| self.links.is_up(*to)) {
                    told.entry(to).or_default().push((shard, replicated));
                }
            }
        }
        for (to, shards) in told {
            self.out.push(Output::Mesh { to, message: MeshMessage::Held { shards } });
        }
    }

    /// Tells nodes without a replica of a shard again that this one leads it. Who had one until now heard nobody any more when
    /// its group went on without it, and nothing would tell it otherwise before another leader comes.
    fn tell_strangers(&mut self) {
        let leads: Vec<_> = self.leads().collect();
        for peer in self.links.all_up().collect::<Vec<_>>() {
            for (shard, term) in leads.iter().copied() {
                if !self.map.replicas(shard).contains(&peer.node) {
                    let message = MeshMessage::Leader { shard, term, leader: Some(self.me.node) };
                    self.out.push(Output::Mesh { to: peer, message });
                }
            }
        }
    }

    /// Every voter of a shard holds its log up to `index`.
    pub(crate) fn learn_held(&mut self, shard: ShardId, index: u64) {
        let held = self.held.entry(shard).or_default();
        *held = (*held).max(index);
    }

    /// The first entry that some voter may lack and this replica therefore keeps: up to a bound, past which such a voter
    /// is rebuilt; and whatever one that is being rebuilt still needs. Where there are other voters the entry that the
    /// checkpoint ends with always stays: what they find of the two must fit together.
    pub(crate) fn first_unheld(&mut self, shard: ShardId, checkpoint: u64) -> u64 {
        if self.map.is_single() {
            return u64::MAX;
        }
        let unheld = self.held.get(&shard).map_or(0, |held| held + 1);
        let keep_bytes = self.config.log_keep_bytes;
        let within =
            self.storage.journal().map_or(0, |(journal, _)| journal.first_of_newest(shard, keep_bytes));
        unheld.max(within).min(self.snapshots.first_kept(shard)).min(checkpoint)
    }

    /// Lets the replica that prefers to lead a shard do so, one shard after the other.
    fn prefer_leaders(&mut self) {
        let now_ns = self.now.monotonic_ns;
        if now_ns < self.next_transfer_ns {
            return;
        }
        let leads_for_long = |shard: &ShardId| {
            self.lead_since_ns.get(shard).is_some_and(|since_ns| now_ns - since_ns >= PREFER_AFTER_NS)
        };
        for shard in self.groups().into_iter().filter(leads_for_long).collect::<Vec<_>>() {
            let prefers = |node: &&NodeId| !self.map.is_leaving(**node);
            let Some(preferred) = self.map.replicas(shard).iter().find(prefers).copied() else { continue };
            if self.clock_is_off(preferred) {
                continue;
            }
            if preferred != self.me.node && self.transfer(shard, &[preferred]) {
                self.next_transfer_ns = now_ns + PREFER_EVERY_NS;
                return;
            }
        }
    }

    /// Lets others lead what this core leads: before it stops, or since it does not know what time it is or has a disk that
    /// hangs.
    pub(crate) fn hand_over(&mut self) {
        for shard in self.groups() {
            let others = self.map.replicas(shard).to_vec();
            self.transfer(shard, &others);
        }
    }

    /// Lets the first of these nodes that could lead a shard. True where there is one.
    pub(crate) fn transfer(&mut self, shard: ShardId, to: &[NodeId]) -> bool {
        let me = self.me.node;
        let reachable = |node: &&NodeId| {
            **node != me
                && self
                    .map
                    .host(**node, shard)
                    .is_some_and(|host| self.links.is_up(host) && !self.is_peer_stuck(host))
                && !self.clock_is_off(**node)
                && !self.map.is_leaving(**node)
        };
        let to: Vec<NodeId> = to.iter().filter(reachable).copied().collect();
        let Some(group) = self.group_mut(shard).filter(|group| group.is_leader()) else { return false };
        let Some(to) = to.into_iter().find(|node| group.could_lead(*node)) else { return false };
        group.transfer(to);
        true
    }

    /// True where this core leads nothing that another node could.
    pub(crate) fn has_handed_over(&mut self) -> bool {
        self.groups().into_iter().all(|shard| {
            let alone = self.map.replicas(shard).len() == 1;
            alone || self.group_mut(shard).is_none_or(|group| !group.is_leader())
        })
    }

    /// Replicas on another core say something.
    pub(crate) fn peers_said(&mut self, from: Address, messages: Vec<(ShardId, Bytes)>) {
        if self.retired {
            return;
        }
        for (shard, message) in messages {
            if self.is_closed(shard) {
                continue;
            }
            let refused = self.group_mut(shard).is_some_and(|group| group.step(from.node, &message).is_err());
            self.counters.peer_messages_refused += u64::from(refused);
        }
    }

    /// A group's output is for its peers too.
    pub(crate) fn peers_told(&mut self, shard: ShardId, output: &mut GroupOutput) {
        self.tell_peers(shard, output.messages.drain(..));
        for low in output.wanted.drain(..) {
            self.read_stretch(shard, low);
        }
    }

    pub(crate) fn tell_peers(&mut self, shard: ShardId, messages: impl IntoIterator<Item = (NodeId, Bytes)>) {
        for (node, message) in messages {
            let Some(to) = self.map.host(node, shard).filter(|to| self.links.is_up(*to)) else { continue };
            let waiting = self.to_peers.entry(to).or_default();
            waiting.bytes += message.len();
            waiting.messages.push((shard, message));
            if waiting.bytes >= TOGETHER_BYTES {
                self.flush_peer(to);
            }
        }
    }

    fn flush_peer(&mut self, to: Address) {
        if let Some(waiting) = self.to_peers.remove(&to) {
            self.out.push(Output::Mesh { to, message: MeshMessage::Raft { messages: waiting.messages } });
        }
    }

    /// Sends what this turn's outputs are for peers.
    pub(crate) fn flush_peers(&mut self) {
        while let Some(to) = self.to_peers.keys().next().copied() {
            self.flush_peer(to);
        }
    }

    /// What a group knows of its leader may have changed.
    pub(crate) fn leader_seen(&mut self, shard: ShardId, before: Seen, now: Seen) {
        if (before.term, before.leader) != (now.term, now.leader) {
            self.tell_leader(shard, now.term, now.leader);
        }
        if now.serves != before.serves {
            self.note_reach(shard);
            self.lead_changed(shard);
        }
        if now.serves && (!before.serves || before.term != now.term) {
            self.lead_since_ns.insert(shard, self.now.monotonic_ns);
            self.lead_began(shard);
        }
    }

    /// Answers reads that have leave; gives back those of a shard that this core leads no more. True where there were any.
    pub(crate) fn answer_reads(&mut self, shard: ShardId) -> bool {
        let Some(replica) = self.replicas.get_mut(&shard).filter(|replica| replica.has_reads()) else {
            return false;
        };
        let ready = replica.take_reads();
        let dropped = if replica.serves() { Vec::new() } else { replica.drop_reads() };
        let any = !ready.is_empty() || !dropped.is_empty();
        for (caller, read) in ready {
            self.read(caller, shard, read, Loaded::default());
        }
        for (caller, read) in dropped {
            self.not_leader(caller, shard, ShardRequest::Read(read));
        }
        any
    }

    /// A link to a core of another node is there.
    pub(crate) fn peer_up(&mut self, peer: Address) {
        if peer.node == self.me.node || !self.map.contains(peer) {
            return;
        }
        if self.links.is_up(peer) {
            self.peer_down(peer);
        }
        self.links.up(peer);
        self.tell_members(peer);
        self.ask_clock(peer);
        self.tell_stuck(peer);
        self.send_directory(peer);
        for shard in self.groups() {
            let Some(group) = self.group_mut(shard).filter(|group| group.is_leader()) else { continue };
            let (term, leader) = (group.term(), group.leader());
            self.out.push(Output::Mesh { to: peer, message: MeshMessage::Leader { shard, term, leader } });
        }
        for shard in self.replicas.keys().copied().collect::<Vec<_>>() {
            self.tell_all_heads(shard, peer);
        }
        let announced: Vec<_> = self.waiting.announced().collect();
        for queue in announced {
            self.out.push(Output::Mesh { to: peer, message: MeshMessage::Waiters { queue, some: true } });
        }
        self.snapshot_link(peer, true);
        self.note_all_reach();
    }

    /// The link is gone, and what was under way on it.
    pub(crate) fn peer_down(&mut self, peer: Address) {
        if !self.links.is_up(peer) {
            return;
        }
        let asked = self.links.down(peer);
        self.to_peers.remove(&peer);
        self.note_all_reach();
        for operation in self.waiting.forget_peer(peer) {
            self.cancel_here(operation);
        }
        self.directory_link_lost(peer);
        self.snapshot_link(peer, false);
        for number in asked {
            if !self.call_lost(number) {
                self.errand_lost(number);
            }
        }
        for shard in self.groups() {
            if self.map.host(peer.node, shard) == Some(peer)
                && let Some(group) = self.group_mut(shard)
            {
                group.unreachable(peer.node);
            }
        }
    }
}
