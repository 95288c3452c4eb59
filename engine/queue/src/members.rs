//! Who is in the cluster, and who holds which shard: part of the directory's state, changed by commands of its log. Every
//! node keeps a copy of it (`engine/core`), and the data folder too, so that a node that starts knows whom to ask.
//!
//! What stands here of a shard's replicas follows its group and never leads it: the group's own log says who votes. A *move*
//! is a wish, which the shard's leader carries out; when its group has changed it says so ([`MembersCommand::Holds`]), and
//! only then is a replica not wanted any more on the node that it left.

use overtake_base::limits::{
    CORES_MAX, NODE_ADDRESS_BYTES_MAX, NODE_ID_MAX, NODES_MAX, SHARDS_MAX, ZONE_BYTES_MAX,
};
use overtake_base::{Malformed, NodeId, Reader, ShardId, Writer};
use std::collections::{BTreeMap, BTreeSet};

/// Replicas of a shard, where there are as many nodes that may hold some.
pub const REPLICAS: usize = 3;
/// Nodes that must be left to hold replicas: one alone cannot go on when it is away.
const NODES_MIN: usize = 2;
/// Ids of nodes that are remembered after they were removed.
const GONE_MAX: usize = 4_096;
const VERSION: u8 = 1;

/// What is to become of a node.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
#[repr(u8)]
pub enum MemberState {
    /// It was added, and has not been heard of yet: it gets no replicas.
    Joining = 1,
    /// It holds replicas.
    Active = 2,
    /// It gives away what it leads and what it holds.
    Draining = 3,
    /// It will not come back: others are to hold what it held, and then it is removed.
    Lost = 4,
}

/// A node of the cluster.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Member {
    /// Its failure domain.
    pub zone: Box<str>,
    /// Where its core 0 listens for other nodes, `HOST:PORT`; empty where nobody has said so.
    pub address: Box<str>,
    /// Where its HTTP front end listens.
    pub http: Box<str>,
    /// Its cores.
    pub cores: u16,
    /// What is to become of it.
    pub state: MemberState,
}

/// Who holds a shard.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Holders {
    /// The voters that its log began with.
    pub founders: Vec<NodeId>,
    /// The voters, in order of preference: the first one prefers to lead.
    pub replicas: Vec<NodeId>,
    /// Index of the change of membership in its log that made them so.
    pub index: u64,
    /// A move that is under way: who is to vote too, and who not any more.
    pub adding: Option<NodeId>,
    /// See above.
    pub removing: Option<NodeId>,
}

impl Holders {
    /// The beginning of a shard.
    #[must_use]
    pub fn of(founders: Vec<NodeId>) -> Self {
        Self { replicas: founders.clone(), founders, ..Self::default() }
    }

    /// Whether something is to change.
    #[must_use]
    pub fn is_moving(&self) -> bool {
        self.adding.is_some() || self.removing.is_some()
    }

    /// Whether a node keeps a replica.
    #[must_use]
    pub fn is_on(&self, node: NodeId) -> bool {
        self.replicas.contains(&node) || self.adding == Some(node)
    }

    /// The group is one of these voters now. New ones take the places of those that left.
    fn become_of(&mut self, voters: &[NodeId]) {
        let mut new: Vec<NodeId> =
            voters.iter().copied().filter(|node| !self.replicas.contains(node)).collect();
        new.reverse();
        let mut replicas = Vec::with_capacity(voters.len());
        for node in &self.replicas {
            if voters.contains(node) {
                replicas.push(*node);
            } else {
                replicas.extend(new.pop());
            }
        }
        replicas.extend(new.into_iter().rev());
        self.replicas = replicas;
        let added = self.adding.is_none_or(|node| voters.contains(&node));
        let removed = self.removing.is_none_or(|node| !voters.contains(&node));
        if added && removed {
            (self.adding, self.removing) = (None, None);
        }
    }

    fn encode(&self, out: &mut Writer<'_>) {
        for list in [&self.founders, &self.replicas] {
            out.u8(u8::try_from(list.len()).unwrap_or(u8::MAX));
            list.iter().for_each(|node| out.u64(node.0));
        }
        out.u64(self.index);
        out.u64(self.adding.map_or(0, |node| node.0));
        out.u64(self.removing.map_or(0, |node| node.0));
    }

    fn decode(input: &mut Reader<'_>) -> Result<Self, Malformed> {
        let (founders, replicas) = (decode_nodes(input)?, decode_nodes(input)?);
        let index = input.u64("index of a change")?;
        let mut some = || Ok(Some(NodeId(input.u64("node of a move")?)).filter(|node| node.0 > 0));
        Ok(Self { founders, replicas, index, adding: some()?, removing: some()? })
    }
}

fn decode_nodes(input: &mut Reader<'_>) -> Result<Vec<NodeId>, Malformed> {
    let count = usize::from(input.u8("nodes")?);
    let nodes = (0..count).map(|_| decode_node(input)).collect::<Result<Vec<NodeId>, Malformed>>()?;
    let distinct: BTreeSet<&NodeId> = nodes.iter().collect();
    if nodes.is_empty() || count > NODES_MAX || distinct.len() < count {
        return Err(Malformed("nodes of a shard"));
    }
    Ok(nodes)
}

fn decode_node(input: &mut Reader<'_>) -> Result<NodeId, Malformed> {
    match input.u64("node")? {
        id @ 1..=NODE_ID_MAX => Ok(NodeId(id)),
        _ => Err(Malformed("node")),
    }
}

/// See the module's text.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Members {
    /// One more with each change.
    pub version: u64,
    /// Hash of the nodes and shards that the cluster began with: who was told of others belongs to another cluster.
    pub founded: u64,
    /// Replicas are to be spread evenly, once.
    pub rebalancing: bool,
    /// All nodes.
    pub nodes: BTreeMap<NodeId, Member>,
    /// Nodes that were removed. Their ids are not used again.
    pub gone: BTreeSet<NodeId>,
    /// Who holds the shards, by number.
    pub shards: Vec<Holders>,
    /// Who holds the directory.
    pub directory: Holders,
}

/// Why a change was not made.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum MembersRefused {
    /// There is no such node.
    Unknown(NodeId),
    /// It contradicts the state: what, and what to do.
    Conflict(String),
}

/// What a new node says of itself.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct NewMember {
    /// Its failure domain.
    pub zone: Box<str>,
    /// Where its core 0 listens for other nodes.
    pub address: Box<str>,
    /// Where its HTTP front end listens.
    pub http: Box<str>,
    /// Its cores.
    pub cores: u16,
}

/// A change.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum MembersCommand {
    /// What the nodes were configured with; taken once.
    Found(Box<Members>),
    /// A node is in the cluster from now on; or one that is says other addresses or another zone.
    Put { node: NodeId, member: NewMember },
    /// A node is to be so. `force`: though shards get fewer replicas by it.
    SetState { node: NodeId, state: MemberState, force: bool },
    /// A node that holds nothing is forgotten.
    Remove { node: NodeId },
    /// The replicas of a shard are to change.
    Move { shard: ShardId, adding: Option<NodeId>, removing: Option<NodeId> },
    /// By the entry at `index` of its log, which is committed, these are the voters of a shard.
    Holds { shard: ShardId, index: u64, voters: Vec<NodeId> },
    /// Replicas are to be spread evenly; or they are.
    Rebalance { on: bool },
}

impl Members {
    /// Who holds a shard; none where there is no such shard.
    #[must_use]
    pub fn holders(&self, shard: ShardId) -> Option<&Holders> {
        if shard == ShardId::DIRECTORY {
            return Some(&self.directory);
        }
        self.shards.get(usize::from(shard.0))
    }

    fn holders_mut(&mut self, shard: ShardId) -> Option<&mut Holders> {
        if shard == ShardId::DIRECTORY {
            return Some(&mut self.directory);
        }
        self.shards.get_mut(usize::from(shard.0))
    }

    /// All shards, the directory first.
    pub fn all(&self) -> impl Iterator<Item = (ShardId, &Holders)> + '_ {
        let shards = (0..).map(ShardId).zip(&self.shards);
        core::iter::once((ShardId::DIRECTORY, &self.directory)).chain(shards)
    }

    /// How many shards have or get a replica on a node.
    #[must_use]
    pub fn held_by(&self, node: NodeId) -> usize {
        self.all().filter(|(_, holders)| holders.is_on(node)).count()
    }

    /// Nodes that may hold replicas.
    pub fn usable(&self) -> impl Iterator<Item = (NodeId, &Member)> + '_ {
        let usable = |member: &Member| matches!(member.state, MemberState::Active | MemberState::Joining);
        self.nodes.iter().filter(move |(_, member)| usable(member)).map(|(node, member)| (*node, member))
    }

    /// Makes a change. True where anything changed.
    ///
    /// # Errors
    /// Where it cannot be made; nothing was changed then.
    pub fn run(&mut self, command: MembersCommand) -> Result<bool, MembersRefused> {
        let before = self.clone();
        match command {
            MembersCommand::Found(_) => {}
            MembersCommand::Put { node, member } => self.put(node, member)?,
            MembersCommand::SetState { node, state, force } => self.set_state(node, state, force)?,
            MembersCommand::Remove { node } => self.remove(node)?,
            MembersCommand::Move { shard, adding, removing } => self.begin_move(shard, adding, removing)?,
            MembersCommand::Holds { shard, index, voters } => self.holds(shard, index, &voters)?,
            MembersCommand::Rebalance { on } => self.rebalancing = on,
        }
        let changed = *self != before;
        self.version += u64::from(changed);
        Ok(changed)
    }

    fn put(&mut self, node: NodeId, new: NewMember) -> Result<(), MembersRefused> {
        let conflict = |text: String| Err(MembersRefused::Conflict(text));
        if self.gone.contains(&node) {
            return conflict(format!(
                "node {node} was removed, and its id is not used again: choose another id"
            ));
        }
        let state = match self.nodes.get(&node) {
            Some(known) if known.cores != new.cores => {
                return conflict(format!(
                    "node {node} is there with {} cores, not {}: a new node needs another id",
                    known.cores, new.cores
                ));
            }
            Some(known) => known.state,
            None if self.nodes.len() >= NODES_MAX => {
                return conflict(format!("a cluster has at most {NODES_MAX} nodes"));
            }
            None => MemberState::Joining,
        };
        let NewMember { zone, address, http, cores } = new;
        self.nodes.insert(node, Member { zone, address, http, cores, state });
        Ok(())
    }

    fn set_state(&mut self, node: NodeId, state: MemberState, force: bool) -> Result<(), MembersRefused> {
        let Some(before) = self.nodes.get(&node).map(|member| member.state) else {
            return Err(MembersRefused::Unknown(node));
        };
        let conflict = |text: String| Err(MembersRefused::Conflict(text));
        if before == state {
            return Ok(());
        }
        if before == MemberState::Lost {
            return conflict(format!("node {node} was given up; it can only be removed"));
        }
        if state == MemberState::Joining {
            return conflict(format!("node {node} has joined already"));
        }
        if matches!(state, MemberState::Draining | MemberState::Lost) {
            let left = self.usable().filter(|(other, _)| *other != node).count();
            let wanted = REPLICAS.min(self.usable().count());
            if left < NODES_MIN {
                return conflict(format!(
                    "without node {node} fewer than {NODES_MIN} nodes would hold replicas: add a node first"
                ));
            }
            if left < wanted && !force {
                return conflict(format!(
                    "without node {node} only {left} nodes would hold replicas, and shards would stand still while one of \
                     them is away: add a node first, or say --force"
                ));
            }
        }
        if let Some(member) = self.nodes.get_mut(&node) {
            member.state = state;
        }
        Ok(())
    }

    fn remove(&mut self, node: NodeId) -> Result<(), MembersRefused> {
        let Some(member) = self.nodes.get(&node) else {
            return if self.gone.contains(&node) { Ok(()) } else { Err(MembersRefused::Unknown(node)) };
        };
        let held = self.held_by(node);
        let conflict = |text: String| Err(MembersRefused::Conflict(text));
        match member.state {
            MemberState::Active => {
                return conflict(format!(
                    "node {node} is active: drain it first (overtake cluster drain {node}), or, where it is dead and will \
                     not come back, say --force"
                ));
            }
            _ if held > 0 => {
                return conflict(format!(
                    "node {node} holds {held} replicas yet: wait until it is drained (overtake cluster status), or, where \
                     it is dead and will not come back, say --force"
                ));
            }
            _ if self.gone.len() >= GONE_MAX => {
                return conflict(format!("{GONE_MAX} nodes were removed before"));
            }
            _ => {}
        }
        self.nodes.remove(&node);
        self.gone.insert(node);
        Ok(())
    }

    fn begin_move(
        &mut self,
        shard: ShardId,
        adding: Option<NodeId>,
        removing: Option<NodeId>,
    ) -> Result<(), MembersRefused> {
        let conflict = |text: &str| Err(MembersRefused::Conflict(format!("shard {shard}: {text}")));
        let active = |node: &NodeId| self.nodes.get(node).is_some_and(|m| m.state == MemberState::Active);
        let Some(holders) = self.holders(shard) else { return conflict("there is no such shard") };
        if holders.is_moving() {
            return conflict("a move is under way");
        }
        if adding.is_some_and(|node| holders.replicas.contains(&node) || !active(&node)) {
            return conflict("that node cannot get a replica");
        }
        if removing.is_some_and(|node| !holders.replicas.contains(&node)) {
            return conflict("that node has no replica");
        }
        let left = holders.replicas.len() + usize::from(adding.is_some());
        if left <= usize::from(removing.is_some()) || adding.is_none() && removing.is_none() {
            return conflict("no replica would be left, or nothing would change");
        }
        if let Some(holders) = self.holders_mut(shard) {
            (holders.adding, holders.removing) = (adding, removing);
        }
        Ok(())
    }

    fn holds(&mut self, shard: ShardId, index: u64, voters: &[NodeId]) -> Result<(), MembersRefused> {
        let known = |node: &NodeId| self.nodes.contains_key(node);
        if voters.is_empty() || !voters.iter().all(known) {
            return Err(MembersRefused::Conflict(format!(
                "shard {shard} is held by nodes that are not known"
            )));
        }
        let lost =
            |node: &NodeId| self.nodes.get(node).is_none_or(|member| member.state == MemberState::Lost);
        let given_up: BTreeSet<NodeId> = self.nodes.keys().copied().filter(lost).collect();
        if let Some(holders) = self.holders_mut(shard)
            && index >= holders.index
        {
            holders.index = index;
            holders.become_of(voters);
            // The shard's leader knows that this one does not come, and has not made it a voter.
            if holders.adding.is_some_and(|node| given_up.contains(&node) && !voters.contains(&node)) {
                (holders.adding, holders.removing) = (None, None);
            }
        }
        Ok(())
    }

    /// Appends the bytes.
    pub fn encode(&self, out: &mut Writer<'_>) {
        out.u8(VERSION);
        out.u64(self.version);
        out.u64(self.founded);
        out.bool(self.rebalancing);
        out.u16(self.nodes.len() as u16);
        for (node, Member { zone, address, http, cores, state }) in &self.nodes {
            out.u64(node.0);
            [zone, address, http].into_iter().for_each(|text| out.str(text));
            out.u16(*cores);
            out.u8(*state as u8);
        }
        out.u16(self.gone.len() as u16);
        self.gone.iter().for_each(|node| out.u64(node.0));
        out.u16(self.shards.len() as u16);
        self.shards.iter().for_each(|holders| holders.encode(out));
        self.directory.encode(out);
    }

    /// The same as bytes of their own.
    #[must_use]
    pub fn to_bytes(&self) -> Vec<u8> {
        let mut bytes = Vec::new();
        self.encode(&mut Writer(&mut bytes));
        bytes
    }

    /// Reads what [`Members::encode`] wrote.
    ///
    /// # Errors
    /// Where the bytes are none, or contradict themselves.
    pub fn decode(input: &mut Reader<'_>) -> Result<Self, Malformed> {
        if input.u8("version of members")? != VERSION {
            return Err(Malformed("version of members"));
        }
        let (version, founded) = (input.u64("members version")?, input.u64("founded")?);
        let rebalancing = input.bool("rebalancing")?;
        let mut nodes = BTreeMap::new();
        for _ in 0..input.u16("nodes")? {
            let node = decode_node(input)?;
            let NewMember { zone, address, http, cores } = decode_new(input)?;
            let state = decode_state(input)?;
            nodes.insert(node, Member { zone, address, http, cores, state });
        }
        let gone = (0..input.u16("gone")?).map(|_| decode_node(input)).collect::<Result<BTreeSet<_>, _>>()?;
        let count = input.u16("shards")?;
        if nodes.is_empty() || nodes.len() > NODES_MAX || !(1..=SHARDS_MAX).contains(&count) {
            return Err(Malformed("nodes or shards of a cluster"));
        }
        let shards = (0..count).map(|_| Holders::decode(input)).collect::<Result<Vec<_>, _>>()?;
        let directory = Holders::decode(input)?;
        let members = Self { version, founded, rebalancing, nodes, gone, shards, directory };
        let known = |holders: &Holders| holders.replicas.iter().all(|node| members.nodes.contains_key(node));
        if !members.all().all(|(_, holders)| known(holders)) {
            return Err(Malformed("a replica on a node that is not known"));
        }
        Ok(members)
    }

    /// The same of bytes that hold nothing else.
    ///
    /// # Errors
    /// See [`Members::decode`].
    pub fn of_bytes(bytes: &[u8]) -> Result<Self, Malformed> {
        let mut input = Reader::new(bytes);
        let members = Self::decode(&mut input)?;
        input.finish("end of members")?;
        Ok(members)
    }
}

fn decode_new(input: &mut Reader<'_>) -> Result<NewMember, Malformed> {
    let zone = input.str(ZONE_BYTES_MAX, "zone")?.into();
    let address = input.str(NODE_ADDRESS_BYTES_MAX, "address")?.into();
    let http = input.str(NODE_ADDRESS_BYTES_MAX, "http address")?.into();
    match input.u16("cores")? {
        cores @ 1..=CORES_MAX => Ok(NewMember { zone, address, http, cores }),
        _ => Err(Malformed("cores")),
    }
}

fn decode_state(input: &mut Reader<'_>) -> Result<MemberState, Malformed> {
    Ok(match input.u8("state of a node")? {
        1 => MemberState::Joining,
        2 => MemberState::Active,
        3 => MemberState::Draining,
        4 => MemberState::Lost,
        _ => return Err(Malformed("state of a node")),
    })
}

const FOUND: u8 = 1;
const PUT: u8 = 2;
const SET_STATE: u8 = 3;
const REMOVE: u8 = 4;
const MOVE: u8 = 5;
const HOLDS: u8 = 6;
const REBALANCE: u8 = 7;

impl MembersCommand {
    /// Appends the bytes.
    pub fn encode(&self, out: &mut Writer<'_>) {
        let option = |node: &Option<NodeId>| node.map_or(0, |node| node.0);
        match self {
            Self::Found(members) => {
                out.u8(FOUND);
                members.encode(out);
            }
            Self::Put { node, member: NewMember { zone, address, http, cores } } => {
                out.u8(PUT);
                out.u64(node.0);
                [zone, address, http].into_iter().for_each(|text| out.str(text));
                out.u16(*cores);
            }
            Self::SetState { node, state, force } => {
                out.u8(SET_STATE);
                out.u64(node.0);
                out.u8(*state as u8);
                out.bool(*force);
            }
            Self::Remove { node } => {
                out.u8(REMOVE);
                out.u64(node.0);
            }
            Self::Move { shard, adding, removing } => {
                out.u8(MOVE);
                out.u16(shard.0);
                out.u64(option(adding));
                out.u64(option(removing));
            }
            Self::Holds { shard, index, voters } => {
                out.u8(HOLDS);
                out.u16(shard.0);
                out.u64(*index);
                out.u8(u8::try_from(voters.len()).unwrap_or(u8::MAX));
                voters.iter().for_each(|node| out.u64(node.0));
            }
            Self::Rebalance { on } => {
                out.u8(REBALANCE);
                out.bool(*on);
            }
        }
    }

    /// Reads what [`MembersCommand::encode`] wrote.
    ///
    /// # Errors
    /// Where the bytes are no command.
    pub fn decode(input: &mut Reader<'_>) -> Result<Self, Malformed> {
        Ok(match input.u8("members command")? {
            FOUND => Self::Found(Box::new(Members::decode(input)?)),
            PUT => Self::Put { node: decode_node(input)?, member: decode_new(input)? },
            SET_STATE => Self::SetState {
                node: decode_node(input)?,
                state: decode_state(input)?,
                force: input.bool("force")?,
            },
            REMOVE => Self::Remove { node: decode_node(input)? },
            MOVE => {
                let shard = ShardId(input.u16("shard")?);
                let mut some = || Ok(Some(NodeId(input.u64("node of a move")?)).filter(|node| node.0 > 0));
                Self::Move { shard, adding: some()?, removing: some()? }
            }
            HOLDS => Self::Holds {
                shard: ShardId(input.u16("shard")?),
                index: input.u64("index of a change")?,
                voters: decode_nodes(input)?,
            },
            REBALANCE => Self::Rebalance { on: input.bool("rebalance")? },
            _ => return Err(Malformed("members command")),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn member(state: MemberState) -> Member {
        Member { zone: "a".into(), address: "h:1".into(), http: "h:2".into(), cores: 2, state }
    }

    fn new_member(cores: u16) -> NewMember {
        NewMember { zone: "b".into(), address: "x:1".into(), http: "".into(), cores }
    }

    fn nodes(ids: &[u64]) -> Vec<NodeId> {
        ids.iter().copied().map(NodeId).collect()
    }

    fn members() -> Members {
        Members {
            version: 3,
            founded: 0x0102,
            rebalancing: false,
            nodes: [1, 2, 3].map(|id| (NodeId(id), member(MemberState::Active))).into(),
            gone: [NodeId(9)].into(),
            shards: vec![Holders::of(nodes(&[1, 2, 3])), Holders::of(nodes(&[2, 3, 1]))],
            directory: Holders::of(nodes(&[3, 1, 2])),
        }
    }

    fn set(node: u64, state: MemberState, force: bool) -> MembersCommand {
        MembersCommand::SetState { node: NodeId(node), state, force }
    }

    fn add(members: &mut Members, node: u64) {
        members.run(MembersCommand::Put { node: NodeId(node), member: new_member(2) }).unwrap();
        members.run(set(node, MemberState::Active, false)).unwrap();
    }

    fn moved(shard: u16, adding: u64, removing: u64) -> MembersCommand {
        let some = |id| Some(NodeId(id)).filter(|node| node.0 > 0);
        MembersCommand::Move { shard: ShardId(shard), adding: some(adding), removing: some(removing) }
    }

    fn holds(shard: u16, index: u64, voters: &[u64]) -> MembersCommand {
        MembersCommand::Holds { shard: ShardId(shard), index, voters: nodes(voters) }
    }

    fn text(refused: Result<bool, MembersRefused>) -> String {
        match refused.unwrap_err() {
            MembersRefused::Conflict(text) => text,
            MembersRefused::Unknown(node) => format!("unknown {node}"),
        }
    }

    #[test]
    fn a_move_is_done_when_the_group_has_changed() {
        let mut members = members();
        add(&mut members, 4);
        assert_eq!(members.run(moved(0, 4, 1)), Ok(true));
        assert!(members.shards[0].is_on(NodeId(4)) && members.shards[0].is_on(NodeId(1)));
        assert!(text(members.run(moved(0, 4, 2))).contains("under way"));
        assert_eq!(members.run(holds(0, 20, &[2, 3, 4])), Ok(true));
        assert_eq!(members.shards[0].replicas, nodes(&[4, 2, 3]), "it takes the place, and prefers to lead");
        assert!(!members.shards[0].is_moving() && !members.shards[0].is_on(NodeId(1)));
        let version = members.version;
        // What comes late changes nothing: node 1 may have forgotten the shard by now.
        assert_eq!(members.run(holds(0, 10, &[1, 2, 3])), Ok(false));
        assert_eq!((members.shards[0].replicas.clone(), members.version), (nodes(&[4, 2, 3]), version));
        assert!(text(members.run(moved(0, 0, 1))).contains("no replica"));
        assert!(text(members.run(moved(0, 2, 3))).contains("cannot get"));
        assert!(text(members.run(moved(0, 0, 0))).contains("nothing"));
        assert!(text(members.run(holds(1, 5, &[1, 7]))).contains("not known"));
        assert!(text(members.run(moved(7, 4, 1))).contains("no such shard"));
    }

    #[test]
    fn a_node_is_removed_only_when_it_holds_nothing() {
        let mut members = members();
        let remove = |node| MembersCommand::Remove { node: NodeId(node) };
        assert!(
            text(members.run(set(1, MemberState::Draining, false)))
                .contains("add a node first, or say --force")
        );
        add(&mut members, 4);
        assert!(text(members.run(remove(1))).contains("drain it first"));
        assert_eq!(members.run(set(1, MemberState::Draining, false)), Ok(true));
        assert!(text(members.run(remove(1))).contains("holds 3 replicas"));
        for (shard, index) in [(0, 9), (1, 9), (ShardId::DIRECTORY.0, 9)] {
            members.run(moved(shard, 4, 1)).unwrap();
            members.run(holds(shard, index, &[2, 3, 4])).unwrap();
        }
        assert_eq!(members.run(remove(1)), Ok(true));
        assert_eq!(members.run(remove(1)), Ok(false), "again");
        assert!(
            text(members.run(MembersCommand::Put { node: NodeId(1), member: new_member(2) }))
                .contains("not used again")
        );
        assert_eq!(members.run(remove(8)), Err(MembersRefused::Unknown(NodeId(8))));
        assert!(
            text(members.run(MembersCommand::Put { node: NodeId(2), member: new_member(1) }))
                .contains("cores")
        );
        members.run(set(2, MemberState::Draining, true)).unwrap();
        assert!(text(members.run(set(3, MemberState::Lost, true))).contains("fewer than 2 nodes"));
    }

    #[test]
    fn who_is_given_up_gets_nothing_more() {
        let mut members = members();
        add(&mut members, 4);
        members.run(moved(0, 4, 1)).unwrap();
        assert_eq!(members.run(set(4, MemberState::Lost, false)), Ok(true));
        // It may have been made a voter: only the shard's leader can say.
        let remove = MembersCommand::Remove { node: NodeId(4) };
        assert!(members.shards[0].is_moving() && text(members.run(remove)).contains("holds 1 replicas"));
        assert_eq!(members.run(holds(0, 0, &[1, 2, 3])), Ok(true));
        assert!(!members.shards[0].is_moving());
        assert!(text(members.run(set(4, MemberState::Active, false))).contains("given up"));
        assert!(text(members.run(moved(0, 4, 1))).contains("cannot get"));
        assert_eq!(members.run(MembersCommand::Remove { node: NodeId(4) }), Ok(true));
    }

    #[test]
    fn the_bytes_are_the_golden_ones() {
        let mut small = members();
        small.nodes.retain(|node, _| node.0 == 1);
        small.shards = vec![Holders { adding: Some(NodeId(5)), ..Holders::of(nodes(&[1])) }];
        small.directory = Holders { index: 6, ..Holders::of(nodes(&[1])) };
        let hex: String = small.to_bytes().iter().map(|byte| format!("{byte:02x}")).collect();
        let golden = concat!(
            "01",
            "0300000000000000",
            "0201000000000000",
            "00",
            "0100",
            "0100000000000000",
            "0100000061",
            "03000000683a31",
            "03000000683a32",
            "0200",
            "02",
            "0100",
            "0900000000000000",
            "0100",
            "010100000000000000",
            "010100000000000000",
            "0000000000000000",
            "0500000000000000",
            "0000000000000000",
            "010100000000000000",
            "010100000000000000",
            "0600000000000000",
            "0000000000000000",
            "0000000000000000",
        );
        assert_eq!(hex, golden);
    }

    #[test]
    fn what_was_written_is_read_and_nothing_else() {
        let whole = members().to_bytes();
        assert_eq!(Members::of_bytes(&whole), Ok(members()));
        for cut in 0..whole.len() {
            assert!(Members::of_bytes(&whole[..cut]).is_err(), "cut at {cut}");
        }
        assert!(Members::of_bytes(&[&whole[..], &[0]].concat()).is_err());
        for command in [
            MembersCommand::Found(Box::new(members())),
            MembersCommand::Put { node: NodeId(4), member: new_member(2) },
            set(4, MemberState::Lost, true),
            MembersCommand::Remove { node: NodeId(4) },
            moved(3, 4, 0),
            holds(3, 9, &[4]),
            MembersCommand::Rebalance { on: true },
        ] {
            let mut bytes = Vec::new();
            command.encode(&mut Writer(&mut bytes));
            let mut input = Reader::new(&bytes);
            assert_eq!(MembersCommand::decode(&mut input), Ok(command));
            assert_eq!(input.left(), 0);
        }
    }

    proptest! {
        #[test]
        fn any_bytes_are_members_or_not(bytes: Vec<u8>, at: usize, xor in 1_u8..) {
            let _ = Members::of_bytes(&bytes);
            let _ = MembersCommand::decode(&mut Reader::new(&bytes));
            let mut whole = members().to_bytes();
            let at = at % whole.len();
            whole[at] ^= xor;
            if let Ok(read) = Members::of_bytes(&whole) {
                prop_assert_eq!(read.to_bytes(), whole);
            }
        }
    }
}
