//! The directory: which queues there are. One more deterministic state machine with a log of its own
//! ([`ShardId::DIRECTORY`]); it maps a tenant's queue name to the queue's id, configuration and shards.
//!
//! A log entry is a list of commands, applied in order, each with an answer of its own. Ids count up and are never
//! given twice, so that whatever a shard still holds of a deleted queue is never taken for a new one's.
//!
//! In a cluster its state also says who is in the cluster ([`crate::members`]).

use crate::members::{Members, MembersCommand, MembersRefused};
use bytes::Bytes;
use overtake_base::hash::stable;
use overtake_base::limits::{QUEUE_NAME_BYTES_MAX, QUEUES_MAX, SHARDS_MAX, TENANT_NAME_BYTES_MAX};
use overtake_base::queue_config::ConfigRefused;
use overtake_base::{Malformed, QueueConfig, QueueConfigPatch, QueueId, QueueName, Reader, ShardId, Writer};
use std::collections::BTreeMap;

/// First byte of an entry.
const ENTRY_VERSION: u8 = 1;
/// First byte of a snapshot, and of one with the members of a cluster at its end.
const SNAPSHOT_VERSION: u8 = 1;
const SNAPSHOT_VERSION_CLUSTER: u8 = 2;
/// Most commands of one entry.
const COMMANDS_MAX: usize = 100_000;

const PUT: u8 = 1;
const DELETE: u8 = 2;
const MEMBERS: u8 = 3;

/// One queue.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct QueueRecord {
    /// Its number, never given twice.
    pub id: QueueId,
    /// Its owner.
    pub tenant: Box<str>,
    /// Its name, unique within the tenant.
    pub name: QueueName,
    /// 1 at creation, one more with each change of the configuration.
    pub version: u64,
    /// Its configuration.
    pub config: QueueConfig,
    /// Where its shards begin.
    pub first_shard: u16,
}

impl QueueRecord {
    /// The shards it is spread over, on a node of `shard_set` shards: `config.shards` of them from `first_shard` on,
    /// going round.
    pub fn shards(&self, shard_set: u16) -> impl Iterator<Item = ShardId> + use<> {
        let first_shard = self.first_shard;
        (0..self.config.shards).map(move |i| nth_shard(first_shard, i, shard_set))
    }

    /// Appends the bytes, which [`QueueRecord::decode`] reads.
    pub fn encode(&self, out: &mut Writer<'_>) {
        out.u32(self.id.0);
        out.str(&self.tenant);
        out.str(self.name.as_str());
        out.u64(self.version);
        out.u16(self.first_shard);
        self.config.encode(out);
    }

    /// Reads what [`QueueRecord::encode`] wrote.
    pub fn decode(input: &mut Reader<'_>) -> Result<Self, Malformed> {
        Ok(Self {
            id: QueueId(input.u32("queue id")?),
            tenant: decode_tenant(input)?,
            name: decode_name(input)?,
            version: input.u64("queue version")?,
            first_shard: input.u16("first shard")?,
            config: QueueConfig::decode(input)?,
        })
    }
}

fn nth_shard(first_shard: u16, nth: u16, shard_set: u16) -> ShardId {
    ShardId(((u32::from(first_shard) + u32::from(nth)) % u32::from(shard_set)) as u16)
}

/// A change of the directory.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum DirectoryCommand {
    /// Create a queue, or change its configuration.
    Put {
        /// Its owner.
        tenant: Box<str>,
        /// Its name.
        name: QueueName,
        /// The fields that are named.
        patch: QueueConfigPatch,
        /// Leave a queue that exists as it is (creation at the first enqueue).
        create_only: bool,
    },
    /// Forget a queue.
    Delete {
        /// Its owner.
        tenant: Box<str>,
        /// Its name.
        name: QueueName,
    },
    /// A change of the cluster.
    Members(MembersCommand),
}

impl DirectoryCommand {
    fn encode(&self, out: &mut Writer<'_>) {
        match self {
            Self::Put { tenant, name, patch, create_only } => {
                out.u8(PUT);
                out.str(tenant);
                out.str(name.as_str());
                out.bool(*create_only);
                patch.encode(out);
            }
            Self::Delete { tenant, name } => {
                out.u8(DELETE);
                out.str(tenant);
                out.str(name.as_str());
            }
            Self::Members(command) => {
                out.u8(MEMBERS);
                command.encode(out);
            }
        }
    }

    fn decode(input: &mut Reader<'_>) -> Result<Self, Malformed> {
        let kind = input.u8("directory command")?;
        if kind == MEMBERS {
            return MembersCommand::decode(input).map(Self::Members);
        }
        let (tenant, name) = (decode_tenant(input)?, decode_name(input)?);
        match kind {
            PUT => {
                let create_only = input.bool("create only")?;
                Ok(Self::Put { tenant, name, patch: QueueConfigPatch::decode(input)?, create_only })
            }
            DELETE => Ok(Self::Delete { tenant, name }),
            _ => Err(Malformed("directory command")),
        }
    }
}

fn decode_tenant(input: &mut Reader<'_>) -> Result<Box<str>, Malformed> {
    match input.str(TENANT_NAME_BYTES_MAX, "tenant")? {
        "" => Err(Malformed("tenant")),
        tenant => Ok(tenant.into()),
    }
}

fn decode_name(input: &mut Reader<'_>) -> Result<QueueName, Malformed> {
    input.str(QUEUE_NAME_BYTES_MAX, "queue name")?.parse().map_err(|_| Malformed("queue name"))
}

/// The bytes of a log entry that holds `commands`: a version, a count, the commands. What goes in must have come from
/// decoded requests; commands that are longer than those can be make an entry that [`decode_commands`] refuses.
#[must_use]
pub fn encode_commands(commands: &[DirectoryCommand]) -> Bytes {
    let mut bytes = Vec::new();
    let mut out = Writer(&mut bytes);
    out.u8(ENTRY_VERSION);
    out.u32(u32::try_from(commands.len()).unwrap_or(u32::MAX));
    commands.iter().for_each(|command| command.encode(&mut out));
    bytes.into()
}

/// Reads a log entry. One without any bytes (a new leader's first) holds no commands.
pub fn decode_commands(entry: &[u8]) -> Result<Vec<DirectoryCommand>, Malformed> {
    if entry.is_empty() {
        return Ok(Vec::new());
    }
    let mut input = Reader::new(entry);
    if input.u8("entry version")? != ENTRY_VERSION {
        return Err(Malformed("entry version"));
    }
    let count = input.count(COMMANDS_MAX, 3, "commands")?;
    let commands = (0..count).map(|_| DirectoryCommand::decode(&mut input)).collect::<Result<_, _>>()?;
    input.finish("end of entry")?;
    Ok(commands)
}

/// What became of a command.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum DirectoryAnswer {
    /// The queue as it is now.
    Put {
        /// Whether the command made it.
        created: bool,
        /// The queue.
        record: QueueRecord,
    },
    /// The configuration cannot be so; nothing was changed.
    Refused(ConfigRefused),
    /// There is no room for another queue; nothing was changed.
    TooManyQueues,
    /// The queue as it was.
    Deleted(QueueRecord),
    /// No such queue.
    NotFound,
    /// What came of a change of the cluster: whether anything changed.
    Members(Result<bool, MembersRefused>),
}

/// All queues.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Directory {
    shard_set: u16,
    /// Index of the newest entry that was applied.
    applied: u64,
    next_id: u32,
    records: BTreeMap<QueueId, QueueRecord>,
    /// Tenant, name → id. A tenant without queues is not in it.
    names: BTreeMap<Box<str>, BTreeMap<Box<str>, QueueId>>,
    /// None for a node by itself, and before the cluster's first leader has told.
    members: Option<Members>,
}

impl Directory {
    /// The empty directory of a node with `shard_set` shards, 1..=`SHARDS_MAX`.
    #[must_use]
    pub fn new(shard_set: u16) -> Self {
        assert!((1..=SHARDS_MAX).contains(&shard_set), "queues without a shard would lose their messages");
        Self {
            shard_set,
            applied: 0,
            next_id: 1,
            records: BTreeMap::new(),
            names: BTreeMap::new(),
            members: None,
        }
    }

    /// Index of the newest entry that was applied; 0 = none.
    #[must_use]
    pub fn applied(&self) -> u64 {
        self.applied
    }

    /// Applies the entry at `index` of the directory's log; one answer for each command, in order.
    ///
    /// # Errors
    /// Where the bytes are no entry, or one of an index that was applied before; nothing was changed then.
    pub fn apply(&mut self, index: u64, entry: &[u8]) -> Result<Vec<DirectoryAnswer>, Malformed> {
        if index <= self.applied {
            return Err(Malformed("an entry that was applied before"));
        }
        let commands = decode_commands(entry)?;
        self.applied = index;
        Ok(commands.into_iter().map(|command| self.run(command)).collect())
    }

    fn run(&mut self, command: DirectoryCommand) -> DirectoryAnswer {
        match command {
            DirectoryCommand::Put { tenant, name, patch, create_only } => {
                match self.find(&tenant, name.as_str()) {
                    Some(id) => self.update(id, &patch, create_only),
                    None => self.create(tenant, name, &patch),
                }
            }
            DirectoryCommand::Delete { tenant, name } => match self.remove(&tenant, name.as_str()) {
                Some(record) => DirectoryAnswer::Deleted(record),
                None => DirectoryAnswer::NotFound,
            },
            DirectoryCommand::Members(command) => DirectoryAnswer::Members(self.change_members(command)),
        }
    }

    fn change_members(&mut self, command: MembersCommand) -> Result<bool, MembersRefused> {
        match (&mut self.members, command) {
            (Some(members), command) => members.run(command),
            (None, MembersCommand::Found(members)) if members.shards.len() == usize::from(self.shard_set) => {
                self.members = Some(*members);
                Ok(true)
            }
            (None, _) => Err(MembersRefused::Conflict("this node is not one of a cluster".into())),
        }
    }

    /// Who is in the cluster.
    #[must_use]
    pub fn members(&self) -> Option<&Members> {
        self.members.as_ref()
    }

    fn update(&mut self, id: QueueId, patch: &QueueConfigPatch, create_only: bool) -> DirectoryAnswer {
        let Some(record) = self.records.get_mut(&id) else { return DirectoryAnswer::NotFound };
        if !create_only {
            match record.config.update(patch, self.shard_set) {
                Err(refused) => return DirectoryAnswer::Refused(refused),
                Ok(config) if config == record.config => {}
                Ok(config) => {
                    record.config = config;
                    record.version += 1;
                }
            }
        }
        DirectoryAnswer::Put { created: false, record: record.clone() }
    }

    fn create(&mut self, tenant: Box<str>, name: QueueName, patch: &QueueConfigPatch) -> DirectoryAnswer {
        let config = match QueueConfig::create(patch, self.shard_set) {
            Ok(config) => config,
            Err(refused) => return DirectoryAnswer::Refused(refused),
        };
        if self.records.len() >= QUEUES_MAX || self.next_id == u32::MAX {
            return DirectoryAnswer::TooManyQueues;
        }
        let id = QueueId(self.next_id);
        self.next_id += 1;
        let first_shard = (stable(&id.0.to_le_bytes()) % u64::from(self.shard_set)) as u16;
        let record = QueueRecord { id, tenant, name, version: 1, config, first_shard };
        self.insert(record.clone());
        DirectoryAnswer::Put { created: true, record }
    }

    fn insert(&mut self, record: QueueRecord) {
        let names = self.names.entry(record.tenant.clone()).or_default();
        names.insert(record.name.as_str().into(), record.id);
        self.records.insert(record.id, record);
    }

    fn remove(&mut self, tenant: &str, name: &str) -> Option<QueueRecord> {
        let names = self.names.get_mut(tenant)?;
        let id = names.remove(name)?;
        if names.is_empty() {
            self.names.remove(tenant);
        }
        self.records.remove(&id)
    }

    fn find(&self, tenant: &str, name: &str) -> Option<QueueId> {
        self.names.get(tenant)?.get(name).copied()
    }

    /// The queue of this name.
    #[must_use]
    pub fn get(&self, tenant: &str, name: &str) -> Option<&QueueRecord> {
        self.by_id(self.find(tenant, name)?)
    }

    /// The queue of this number.
    #[must_use]
    pub fn by_id(&self, id: QueueId) -> Option<&QueueRecord> {
        self.records.get(&id)
    }

    /// All queues, in the order of their creation.
    pub fn all(&self) -> impl Iterator<Item = &QueueRecord> {
        self.records.values()
    }

    /// The whole state as bytes; the same state is always the same bytes. Whoever stores them adds a checksum.
    #[must_use]
    pub fn snapshot(&self) -> Vec<u8> {
        let mut bytes = Vec::new();
        let mut out = Writer(&mut bytes);
        out.u8(if self.members.is_some() { SNAPSHOT_VERSION_CLUSTER } else { SNAPSHOT_VERSION });
        out.u16(self.shard_set);
        out.u64(self.applied);
        out.u32(self.next_id);
        out.u32(u32::try_from(self.records.len()).unwrap_or(u32::MAX));
        self.all().for_each(|record| record.encode(&mut out));
        if let Some(members) = &self.members {
            members.encode(&mut out);
        }
        bytes
    }

    /// The directory that a snapshot holds.
    ///
    /// # Errors
    /// Where the bytes are none, contradict themselves, or are of a node with another number of shards.
    pub fn restore(shard_set: u16, snapshot: &[u8]) -> Result<Self, Malformed> {
        let mut input = Reader::new(snapshot);
        let version = input.u8("directory version")?;
        if !matches!(version, SNAPSHOT_VERSION | SNAPSHOT_VERSION_CLUSTER) {
            return Err(Malformed("directory version"));
        }
        if input.u16("shard set")? != shard_set || !(1..=SHARDS_MAX).contains(&shard_set) {
            return Err(Malformed("shard set: it was chosen when the data folder was made"));
        }
        let mut directory = Self::new(shard_set);
        directory.applied = input.u64("applied")?;
        directory.next_id = input.u32("next queue id")?;
        for _ in 0..input.count(QUEUES_MAX, 32, "queues")? {
            let record = QueueRecord::decode(&mut input)?;
            directory.check(&record)?;
            directory.insert(record);
        }
        if version == SNAPSHOT_VERSION_CLUSTER {
            let members = Members::decode(&mut input)?;
            if members.shards.len() != usize::from(shard_set) {
                return Err(Malformed("shards of the cluster"));
            }
            directory.members = Some(members);
        }
        input.finish("end of directory")?;
        Ok(directory)
    }

    /// Checks a record that comes after all those that are here.
    fn check(&self, record: &QueueRecord) -> Result<(), Malformed> {
        let newest = self.records.last_key_value().map_or(0, |(id, _)| id.0);
        if record.id.0 <= newest || record.id.0 >= self.next_id {
            return Err(Malformed("queue id"));
        }
        if self.find(&record.tenant, record.name.as_str()).is_some() {
            return Err(Malformed("queue name given twice"));
        }
        if record.first_shard >= self.shard_set || record.config.shards > self.shard_set {
            return Err(Malformed("shards of a queue"));
        }
        Ok(())
    }

    /// A number that is the same on two replicas exactly when their states are (as far as 64 bits can say).
    #[must_use]
    pub fn digest(&self) -> u64 {
        stable(&self.snapshot())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::BTreeSet;

    const SHARD_SET: u16 = 8;

    fn name(text: &str) -> QueueName {
        text.parse().unwrap()
    }

    fn put(tenant: &str, queue: &str, patch: QueueConfigPatch) -> DirectoryCommand {
        DirectoryCommand::Put { tenant: tenant.into(), name: name(queue), patch, create_only: false }
    }

    fn delete(tenant: &str, queue: &str) -> DirectoryCommand {
        DirectoryCommand::Delete { tenant: tenant.into(), name: name(queue) }
    }

    fn lease(lease_s: u32) -> QueueConfigPatch {
        QueueConfigPatch { lease_s: Some(Some(lease_s)), ..Default::default() }
    }

    /// Applies commands as one entry.
    fn run(directory: &mut Directory, commands: &[DirectoryCommand]) -> Vec<DirectoryAnswer> {
        directory.apply(directory.applied() + 1, &encode_commands(commands)).unwrap()
    }

    fn record(answer: &DirectoryAnswer) -> &QueueRecord {
        match answer {
            DirectoryAnswer::Put { record, .. } | DirectoryAnswer::Deleted(record) => record,
            other => panic!("no record in {other:?}"),
        }
    }

    /// The directory as one would write it without thinking: a list.
    #[derive(Default)]
    struct Model {
        queues: Vec<QueueRecord>,
        created: u32,
    }

    impl Model {
        fn position(&self, tenant: &str, name: &QueueName) -> Option<usize> {
            self.queues.iter().position(|q| &*q.tenant == tenant && q.name == *name)
        }

        fn run(&mut self, command: &DirectoryCommand) -> DirectoryAnswer {
            match command {
                DirectoryCommand::Members(_) => panic!("not of queues"),
                DirectoryCommand::Delete { tenant, name } => match self.position(tenant, name) {
                    Some(at) => DirectoryAnswer::Deleted(self.queues.remove(at)),
                    None => DirectoryAnswer::NotFound,
                },
                DirectoryCommand::Put { tenant, name, patch, create_only } => {
                    let at = self.position(tenant, name);
                    let wanted = match at {
                        Some(at) if *create_only => Ok(self.queues[at].config.clone()),
                        Some(at) => self.queues[at].config.update(patch, SHARD_SET),
                        None => QueueConfig::create(patch, SHARD_SET),
                    };
                    let config = match wanted {
                        Ok(config) => config,
                        Err(refused) => return DirectoryAnswer::Refused(refused),
                    };
                    let Some(at) = at else {
                        self.created += 1;
                        let first_shard = stable(&self.created.to_le_bytes()) % u64::from(SHARD_SET);
                        let record = QueueRecord {
                            id: QueueId(self.created),
                            tenant: tenant.clone(),
                            name: name.clone(),
                            version: 1,
                            config,
                            first_shard: first_shard as u16,
                        };
                        self.queues.push(record.clone());
                        return DirectoryAnswer::Put { created: true, record };
                    };
                    let queue = &mut self.queues[at];
                    queue.version += u64::from(queue.config != config);
                    queue.config = config;
                    DirectoryAnswer::Put { created: false, record: queue.clone() }
                }
            }
        }
    }

    fn patch() -> impl Strategy<Value = QueueConfigPatch> {
        prop_oneof![
            Just(QueueConfigPatch::default()),
            (0..4_u32).prop_map(lease),
            Just(QueueConfigPatch { lease_s: Some(None), ..Default::default() }),
            (1..10_u16).prop_map(|n| QueueConfigPatch { shards: Some(Some(n)), ..Default::default() }),
            (4..6_u8).prop_map(|n| QueueConfigPatch { levels: Some(Some(n)), ..Default::default() }),
            Just(QueueConfigPatch { weights_micro: Some(Some(vec![1; 4])), ..Default::default() }),
        ]
    }

    fn command() -> impl Strategy<Value = DirectoryCommand> {
        let which = ("[ab]", "[x-z]{1,2}");
        prop_oneof![
            4 => (which, patch(), any::<bool>()).prop_map(|((tenant, queue), patch, create_only)| {
                DirectoryCommand::Put { tenant: tenant.into(), name: name(&queue), patch, create_only }
            }),
            1 => which.prop_map(|(tenant, queue)| delete(&tenant, &queue)),
        ]
    }

    fn assert_same(directory: &Directory, model: &Model) {
        assert!(directory.all().eq(model.queues.iter()));
        for queue in &model.queues {
            assert_eq!(directory.get(&queue.tenant, queue.name.as_str()), Some(queue));
            assert_eq!(directory.by_id(queue.id), Some(queue));
        }
    }

    proptest! {
        #[test]
        fn it_does_what_a_list_would_do(
            entries in prop::collection::vec((prop::collection::vec(command(), 0..5), any::<bool>()), 0..40)
        ) {
            let (mut directory, mut model) = (Directory::new(SHARD_SET), Model::default());
            for (commands, restart) in entries {
                prop_assert_eq!(decode_commands(&encode_commands(&commands)), Ok(commands.clone()));
                let expected: Vec<_> = commands.iter().map(|command| model.run(command)).collect();
                prop_assert_eq!(run(&mut directory, &commands), expected);
                assert_same(&directory, &model);
                if restart {
                    let restored = Directory::restore(SHARD_SET, &directory.snapshot()).unwrap();
                    prop_assert_eq!(&restored, &directory);
                    prop_assert_eq!(restored.digest(), directory.digest());
                    directory = restored;
                }
            }
        }

        #[test]
        fn any_bytes_are_read_without_panic(bytes: Vec<u8>) {
            let _ = decode_commands(&[&[ENTRY_VERSION, 1, 0, 0, 0], &bytes[..]].concat());
            let _ = Directory::restore(SHARD_SET, &bytes);
        }

        #[test]
        fn a_damaged_snapshot_is_refused_or_sound(at: prop::sample::Index, bit in 0..8_u8) {
            let mut directory = Directory::new(SHARD_SET);
            run(&mut directory, &[put("a", "x", lease(3)), put("a", "y", lease(4)), put("b", "x", lease(5))]);
            let mut bytes = directory.snapshot();
            let at = at.index(bytes.len());
            bytes[at] ^= 1 << bit;
            if let Ok(restored) = Directory::restore(SHARD_SET, &bytes) {
                prop_assert_eq!(restored.snapshot(), bytes);
            }
        }

        #[test]
        fn a_queue_has_as_many_shards_as_it_says(first_shard in 0..8_u16, shards in 1..9_u16) {
            let mut directory = Directory::new(SHARD_SET);
            let mut queue = record(&run(&mut directory, &[put("a", "x", lease(3))])[0]).clone();
            (queue.first_shard, queue.config.shards) = (first_shard, shards);
            let all: BTreeSet<_> = queue.shards(SHARD_SET).collect();
            prop_assert_eq!(all.len(), usize::from(shards));
            prop_assert!(all.iter().all(|shard| shard.0 < SHARD_SET));
        }
    }

    #[test]
    fn an_id_is_never_given_twice() {
        let mut directory = Directory::new(SHARD_SET);
        let answers =
            run(&mut directory, &[put("a", "x", lease(3)), delete("a", "x"), put("a", "x", lease(3))]);
        assert_eq!((record(&answers[0]).id, record(&answers[2]).id), (QueueId(1), QueueId(2)));
        run(&mut directory, &[delete("a", "x")]);
        let mut restored = Directory::restore(SHARD_SET, &directory.snapshot()).unwrap();
        assert_eq!(record(&run(&mut restored, &[put("a", "x", lease(3))])[0]).id, QueueId(3));
    }

    #[test]
    fn a_version_counts_changes_only() {
        let mut directory = Directory::new(SHARD_SET);
        let mut version = |patch| record(&run(&mut directory, &[put("a", "x", patch)])[0]).version;
        assert_eq!([lease(3), lease(3), lease(4), lease(4), lease(3)].map(&mut version), [1, 1, 2, 2, 3]);
    }

    #[test]
    fn queues_are_spread() {
        let mut directory = Directory::new(SHARD_SET);
        let one = QueueConfigPatch { shards: Some(Some(1)), ..Default::default() };
        let queues: Vec<_> = (0..64).map(|n| put("a", &format!("q{n}"), one.clone())).collect();
        run(&mut directory, &queues);
        let used: BTreeSet<_> = directory.all().flat_map(|queue| queue.shards(SHARD_SET)).collect();
        assert_eq!(used.len(), usize::from(SHARD_SET));
    }

    #[test]
    fn there_is_room_for_so_many_queues() {
        let mut directory = Directory::new(SHARD_SET);
        let all: Vec<_> = (0..QUEUES_MAX).map(|n| put("a", &format!("q{n}"), lease(3))).collect();
        assert_eq!(run(&mut directory, &all).len(), QUEUES_MAX);
        assert_eq!(run(&mut directory, &[put("b", "x", lease(3))]), [DirectoryAnswer::TooManyQueues]);
        let answers = run(&mut directory, &[delete("a", "q7"), put("b", "x", lease(3))]);
        assert!(matches!(answers[1], DirectoryAnswer::Put { created: true, .. }));
        assert_eq!(Directory::restore(SHARD_SET, &directory.snapshot()), Ok(directory));
    }

    #[test]
    fn an_entry_is_applied_whole_or_not_and_once() {
        let mut directory = Directory::new(SHARD_SET);
        let entry = encode_commands(&[put("a", "x", lease(3)), put("a", "y", lease(3))]);
        let fresh = directory.clone();
        for cut in 1..entry.len() {
            assert!(directory.apply(1, &entry[..cut]).is_err());
            assert_eq!(directory, fresh);
        }
        assert_eq!(directory.apply(1, &[]), Ok(vec![]), "a leader's first entry");
        assert_eq!(directory.apply(2, &entry).map(|answers| answers.len()), Ok(2));
        assert!(directory.apply(2, &entry).is_err());
        assert_eq!(directory.applied(), 2);
    }

    #[test]
    fn golden_bytes() {
        let entry = encode_commands(&[put("t", "q", lease(7)), delete("t", "q")]);
        let expected: Vec<u8> = [
            &[1, 2, 0, 0, 0][..],
            &[1, 1, 0, 0, 0, b't', 1, 0, 0, 0, b'q', 0],
            &[0, 0, 0, 0, 0, 0, 0, 0, 2, 7, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0],
            &[2, 1, 0, 0, 0, b't', 1, 0, 0, 0, b'q'],
        ]
        .concat();
        assert_eq!(entry, expected);
        let mut directory = Directory::new(SHARD_SET);
        run(&mut directory, &[put("t", "q", lease(7))]);
        let snapshot = directory.snapshot();
        let expected: Vec<u8> = [
            &[1, 8, 0, 1, 0, 0, 0, 0, 0, 0, 0, 2, 0, 0, 0, 1, 0, 0, 0][..],
            &[1, 0, 0, 0, 1, 0, 0, 0, b't', 1, 0, 0, 0, b'q', 1, 0, 0, 0, 0, 0, 0, 0],
        ]
        .concat();
        assert_eq!(snapshot[..expected.len()], expected);
        assert_eq!(directory.digest(), 0xfdfc_3954_e2f1_32cd, "the layout changed: raise the version");
    }
}
