//! `overtake inspect export`: rebuilds each shard from its newest checkpoint and the log after it, and writes every
//! queue, message and dead letter as a line of JSON. What could not be put in order is written as it was enqueued.
//!
//! In memory are the states of the shards and the place of every log entry, never the bodies: those are read when they
//! are written out.

use super::folder::{CoreFolder, DataFolder};
use crate::exit::{Exit, Failure, Outcome};
use crate::screen::Screen;
use bytes::Bytes;
use core::cell::RefCell;
use overtake_base::limits::BLOCK_PAYLOAD_PREFIX_BYTES;
use overtake_base::{BlockId, MessageId, QueueId, ShardId};
use overtake_core::state::{MEMBERSHIP, split};
use overtake_core::{dead_letter, peeked};
use overtake_gateway::json;
use overtake_log::Record;
use overtake_log::disk::FileName;
use overtake_log::examine::{Examination, Finding, Seen, Severity};
use overtake_log::lanes::block::BlockHeader;
use overtake_log::record::HEADER_BYTES;
use overtake_queue::answer::{self, PayloadRef};
use overtake_queue::cold::{Loaded, NeedsBlocks};
use overtake_queue::command::{Command, NewMessage};
use overtake_queue::directory::Directory;
use overtake_queue::entry::{Payload, decode_batch, read_payload};
use overtake_queue::machine::{Machine, PeekFilter};
use serde::Serialize;
use serde_json::{Value, json as value};
use std::collections::{BTreeMap, BTreeSet};

/// Messages looked up at a time.
const PAGE: usize = 1_000;

/// Where an entry's record stands.
#[derive(Clone, Copy)]
struct Place {
    term: u64,
    file: FileName,
    offset: u64,
    bytes: usize,
}

/// Records of a block, and where the payload of each place stands.
type Draft = (Bytes, BTreeMap<u32, PayloadRef>);

/// What is left of one shard's log.
#[derive(Default)]
struct Log {
    /// By index. Where an index was written twice, the newer term; in one term, what was seen later.
    entries: BTreeMap<u64, Place>,
    /// States whose checksum fits, newest last, with the index and term of their last entry.
    checkpoints: Vec<(u64, u64, Vec<u8>)>,
    /// Blocks of cold messages, the newest copy of each.
    blocks: BTreeMap<BlockId, (FileName, BlockHeader)>,
    /// Blocks that the log makes and that are not in any file: their records, and where each payload stands instead.
    drafts: RefCell<BTreeMap<BlockId, Draft>>,
    /// The payloads that were read last.
    last: RefCell<Option<(BlockId, Bytes)>>,
}

/// Writes lines, and counts what could not be read.
struct Out {
    screen: Screen,
    lines: RefCell<String>,
    problems: u64,
}

impl Out {
    fn line(&mut self, line: &impl Serialize) -> Result<(), Failure> {
        let text =
            serde_json::to_string(line).map_err(|error| Failure::new(Exit::Failed, error.to_string()))?;
        let lines = self.lines.get_mut();
        lines.push_str(&text);
        lines.push('\n');
        if lines.len() > 1 << 20 { self.flush() } else { Ok(()) }
    }

    fn flush(&mut self) -> Result<(), Failure> {
        self.screen.print(&core::mem::take(self.lines.get_mut()))
    }

    fn problem(&mut self, text: &str) {
        self.problems += 1;
        self.screen.note(&format!("overtake: {text}"));
    }
}

/// Exports the folder.
pub fn run(folder: &DataFolder, screen: Screen) -> Outcome {
    let mut out = Out { screen, lines: RefCell::default(), problems: 0 };
    if let Err(detail) = &folder.identity {
        out.problem(detail);
    }
    let mut directory = Directory::new(folder.shards());
    let mut unnamed = BTreeSet::new();
    for core in &folder.cores {
        let mut logs = gather(folder, core, &mut out);
        // Core 0 has the directory, and is the first.
        if let Some(log) = logs.remove(&ShardId::DIRECTORY) {
            directory = restore_directory(folder, core, &log, &mut out);
            for queue in directory.all() {
                let config = json::QueueConfig::from(&queue.config);
                let line = value!({
                    "record": "queue", "tenant": queue.tenant, "name": queue.name.as_str(), "config": config,
                });
                out.line(&line)?;
            }
        }
        for (shard, log) in &logs {
            let shard = Shard { core, shard: *shard, log, directory: &directory };
            shard.export(&mut out, &mut unnamed)?;
        }
    }
    out.flush()?;
    for queue in unnamed {
        out.problem(&format!("queue number {queue} has no name any more: its messages have \"queue\": null"));
    }
    Ok(if out.problems == 0 { Exit::Ok } else { Exit::Failed })
}

/// Reads all files of a core once.
fn gather(folder: &DataFolder, core: &CoreFolder, out: &mut Out) -> BTreeMap<ShardId, Log> {
    let mut logs: BTreeMap<ShardId, Log> = BTreeMap::new();
    let mut examination = Examination::new(folder.store, core.core);
    for (file, _) in &core.files {
        let bytes = match core.read(*file) {
            Ok(bytes) => bytes,
            Err(error) => {
                out.problem(&format!("{}: {error}", core.name(*file)));
                continue;
            }
        };
        examination.file(*file, &bytes, &mut |offset, seen| match seen {
            // An entry of a snapshot is the same entry, though it came otherwise.
            Seen::Record(
                Record::Entry { shard, term, index, kind, data }
                | Record::Staged { shard, term, index, kind, data },
            ) => {
                // A change of the shard's replicas changes nothing of its state.
                let bytes = if kind == MEMBERSHIP { 0 } else { data.len() };
                let place = Place { term, file: *file, offset, bytes };
                let entries = &mut logs.entry(shard).or_default().entries;
                let older = entries.get(&index).is_some_and(|there| there.term > term);
                if !older {
                    entries.insert(index, place);
                }
            }
            Seen::Checkpoint { header, state: Some(state) } => {
                let checkpoints = &mut logs.entry(header.shard).or_default().checkpoints;
                checkpoints.push((header.index, header.term, state.to_vec()));
                checkpoints.sort_unstable_by_key(|(index, term, _)| (*term, *index));
            }
            Seen::Block(header) => {
                let blocks = &mut logs.entry(header.shard).or_default().blocks;
                let newer =
                    blocks.get(&header.block).is_none_or(|(_, known)| known.sequence < header.sequence);
                if newer {
                    blocks.insert(header.block, (*file, header));
                }
            }
            _ => {}
        });
    }
    for Finding { file, offset, severity, detail } in examination.finish() {
        if severity == Severity::Damage {
            out.problem(&format!("{} at byte {offset}: {detail}", core.name(file)));
        }
    }
    logs
}

impl Log {
    /// The entry's bytes.
    fn read(&self, core: &CoreFolder, index: u64) -> Result<Bytes, String> {
        let place = self.entries.get(&index).ok_or_else(|| format!("log entry {index} cannot be read"))?;
        let at = place.offset + HEADER_BYTES as u64;
        let bytes = core.read_at(place.file, at, place.bytes).map_err(|error| error.to_string())?;
        if bytes.len() == place.bytes {
            Ok(bytes.into())
        } else {
            Err(format!("log entry {index} is cut off"))
        }
    }

    /// Records and payloads of a block.
    fn read_block(&self, core: &CoreFolder, block: BlockId) -> Result<(Bytes, Bytes), String> {
        let (file, header) =
            self.blocks.get(&block).ok_or_else(|| format!("block {block} is not in any lane file"))?;
        let bytes = core.read_at(*file, header.offset, header.padded() as usize);
        let bytes = Bytes::from(bytes.map_err(|error| error.to_string())?);
        header.content(&bytes).map_err(|malformed| format!("block {block}: {malformed}"))
    }

    /// A run's records.
    fn records(&self, core: &CoreFolder, block: BlockId) -> Result<Bytes, String> {
        let drafted = self.drafts.borrow().get(&block).map(|(records, _)| records.clone());
        drafted.map_or_else(|| Ok(self.read_block(core, block)?.0), Ok)
    }

    fn payload(&self, core: &CoreFolder, at: PayloadRef) -> Result<Payload, String> {
        let whole = match at.place {
            answer::Place::Entry(index) => self.read(core, index)?,
            answer::Place::Block(block) => {
                let drafts = self.drafts.borrow();
                if let Some((_, sources)) = drafts.get(&block) {
                    let source = sources.get(&at.offset).copied().ok_or("the payload is nowhere")?;
                    drop(drafts);
                    return self.payload(core, source);
                }
                let last = self.last.borrow().clone().filter(|(known, _)| *known == block);
                let payloads = match last {
                    Some((_, payloads)) => payloads,
                    None => self.read_block(core, block)?.1,
                };
                *self.last.borrow_mut() = Some((block, payloads.clone()));
                payloads
            }
        };
        read_payload(&whole, at).map_err(|malformed| malformed.to_string())
    }

    /// Remembers what applying an entry would have written, where it is not in a file.
    fn note_drafts(&self, machine: &mut Machine) {
        machine.drain_drafts(|draft| {
            if self.blocks.contains_key(&draft.block) {
                return;
            }
            let mut offset = BLOCK_PAYLOAD_PREFIX_BYTES;
            let mut sources = BTreeMap::new();
            for payload in draft.payloads {
                sources.insert(offset, payload);
                offset += payload.length + BLOCK_PAYLOAD_PREFIX_BYTES;
            }
            self.drafts.borrow_mut().insert(draft.block, (draft.records, sources));
        });
        machine.drain_gone_blocks(|_| {});
    }

    /// Indexes after `index` that follow without a gap, of terms that do not go down.
    fn after(&self, index: u64, term: u64) -> impl Iterator<Item = u64> + '_ {
        let mut term = term;
        (index + 1..).zip(self.entries.range(index + 1..)).map_while(move |(expected, (index, place))| {
            let follows = *index == expected && place.term >= term;
            term = place.term;
            follows.then_some(expected)
        })
    }
}

fn restore_directory(folder: &DataFolder, core: &CoreFolder, log: &Log, out: &mut Out) -> Directory {
    let restored = log.checkpoints.iter().rev().find_map(|(index, term, state)| {
        let (_, state) = split(state).ok()?;
        Some((*index, *term, Directory::restore(folder.shards(), state).ok()?))
    });
    let (index, term, mut directory) = restored.unwrap_or_else(|| (0, 0, Directory::new(folder.shards())));
    let mut upto = index;
    for index in log.after(index, term) {
        match log.read(core, index) {
            Ok(entry) if entry.is_empty() => {}
            Ok(entry) => {
                if let Err(malformed) = directory.apply(index, &entry) {
                    out.problem(&format!("directory of queues: log entry {index}: {malformed}"));
                    break;
                }
            }
            Err(detail) => {
                out.problem(&format!("directory of queues: {detail}"));
                break;
            }
        }
        upto = index;
    }
    if log.entries.keys().next_back().is_some_and(|last| *last > upto) {
        out.problem(&format!("directory of queues: only what happened up to log entry {upto} could be read"));
    }
    directory
}

/// One shard, and how its queues are called.
struct Shard<'a> {
    core: &'a CoreFolder,
    shard: ShardId,
    log: &'a Log,
    directory: &'a Directory,
}

impl Shard<'_> {
    fn export(&self, out: &mut Out, unnamed: &mut BTreeSet<u32>) -> Result<(), Failure> {
        let (machine, upto) = self.rebuild(out);
        for queue in machine.queues() {
            if self.directory.by_id(queue).is_none() {
                unnamed.insert(queue.0);
            }
            self.messages(&machine, queue, out)?;
            self.dead_letters(&machine, queue, out)?;
        }
        let rest: Vec<u64> = self.log.entries.range(upto + 1..).map(|(index, _)| *index).collect();
        if let (Some(first), Some(last)) = (rest.first(), rest.last()) {
            out.problem(&format!(
                "shard {}: what happened after log entry {upto} could not be put in order; messages of entries \
                 {first} to {last} follow as remnants",
                self.shard
            ));
            self.remnants(&machine, &rest, out)?;
        }
        Ok(())
    }

    /// The state as far as it can be followed, and the last entry in it.
    fn rebuild(&self, out: &mut Out) -> (Machine, u64) {
        let restored = self.log.checkpoints.iter().rev().find_map(|(index, term, state)| {
            let (_, state) = split(state).ok()?;
            Some((*index, *term, Machine::restore(self.shard, state).ok()?))
        });
        let (mut upto, term, mut machine) = restored.unwrap_or_else(|| (0, 0, Machine::new(self.shard)));
        let mut answers = Vec::new();
        for index in self.log.after(upto, term) {
            let applied = self.log.read(self.core, index).and_then(|entry| {
                answers.clear();
                // A new leader's first entry is empty.
                if entry.is_empty() {
                    Ok(())
                } else {
                    machine.apply(index, &entry, &mut answers).map_err(|e| e.to_string())
                }
            });
            if let Err(detail) = applied {
                out.problem(&format!("shard {}: {detail}", self.shard));
                break;
            }
            self.log.note_drafts(&mut machine);
            upto = index;
        }
        (machine, upto)
    }

    /// Asks something that may have to look into runs on disk. What cannot be read of them is told and left out.
    fn look<T>(
        &self,
        out: &mut Out,
        machine: &Machine,
        ask: impl Fn(&Loaded) -> Result<T, NeedsBlocks>,
    ) -> T {
        let mut loaded = Loaded::default();
        loop {
            let blocks = match ask(&loaded) {
                Ok(answer) => return answer,
                Err(NeedsBlocks(blocks)) => blocks,
            };
            for block in blocks {
                let records = self.log.records(self.core, block);
                let taken = records.and_then(|records| {
                    machine
                        .load(block, &records, |_| true, &mut loaded)
                        .map_err(|malformed| malformed.to_string())
                });
                if let Err(detail) = taken {
                    out.problem(&format!(
                        "shard {}: messages of block {block} are left out: {detail}",
                        self.shard
                    ));
                    loaded.leave_out(block);
                }
            }
        }
    }

    fn line(&self, record: &str, queue: QueueId, fields: impl Serialize) -> Value {
        let known = self.directory.by_id(queue);
        let mut line = value!({
            "record": record,
            "tenant": known.map(|queue| &*queue.tenant),
            "queue": known.map(|queue| queue.name.as_str()),
            "shard": self.shard.0,
        });
        if let (Value::Object(line), Ok(Value::Object(fields))) = (&mut line, serde_json::to_value(fields)) {
            line.extend(fields);
        }
        line
    }

    fn payload(&self, at: PayloadRef) -> Result<Payload, String> {
        self.log.payload(self.core, at)
    }

    /// A line whose body may be unreadable.
    fn with_payload(
        &self,
        line: impl FnOnce(Payload) -> Value,
        at: PayloadRef,
        id: MessageId,
        out: &mut Out,
    ) -> Result<(), Failure> {
        match self.payload(at) {
            Ok(payload) => out.line(&line(payload)),
            Err(detail) => {
                let mut line = line(Payload { headers: Bytes::new(), body: Bytes::new() });
                line["headers"] = Value::Null;
                line["body"] = Value::Null;
                line["problem"] = detail.as_str().into();
                out.problem(&format!("{id}: its body cannot be read: {detail}"));
                out.line(&line)
            }
        }
    }

    fn messages(&self, machine: &Machine, queue: QueueId, out: &mut Out) -> Result<(), Failure> {
        let all = PeekFilter { visible: true, delayed: true, leased: true, priority: None };
        let mut after = None;
        loop {
            let page = self.look(out, machine, |loaded| machine.peek(queue, all, after, PAGE, loaded));
            after = page.last().map(|view| view.id);
            if after.is_none() {
                return Ok(());
            }
            for view in page {
                let (at, id) = (view.payload, view.id);
                let line =
                    |payload| self.line("message", queue, json::PeekedMessage::from(peeked(view, payload)));
                self.with_payload(line, at, id, out)?;
            }
        }
    }

    fn dead_letters(&self, machine: &Machine, queue: QueueId, out: &mut Out) -> Result<(), Failure> {
        let mut after = None;
        loop {
            let page = machine.dead_letters(queue, after, PAGE);
            after = page.last().map(|view| view.id);
            if after.is_none() {
                return Ok(());
            }
            for view in page {
                let (at, id) = (view.payload, view.id);
                let line = |payload| {
                    self.line("dead_letter", queue, json::DeadLetter::from(dead_letter(view, payload)))
                };
                self.with_payload(line, at, id, out)?;
            }
        }
    }

    /// Messages of entries that could not be applied.
    fn remnants(&self, machine: &Machine, entries: &[u64], out: &mut Out) -> Result<(), Failure> {
        for index in entries {
            let read = self.log.read(self.core, *index);
            let batch = match read.and_then(|entry| {
                if entry.is_empty() {
                    Ok(None)
                } else {
                    decode_batch(&entry).map(Some).map_err(|e| e.to_string())
                }
            }) {
                Ok(Some(batch)) => batch,
                Ok(None) => continue,
                Err(detail) => {
                    out.problem(&format!("shard {}: log entry {index}: {detail}", self.shard));
                    continue;
                }
            };
            for command in batch.commands {
                let (queue, messages) = match command {
                    Command::Enqueue { queue, messages } => (queue, messages),
                    Command::StoreClaimed { queue, message, .. } => (queue, vec![message]),
                    _ => continue,
                };
                for message in messages {
                    let known = self.look(out, machine, |loaded| machine.inspect(queue, message.id, loaded));
                    if known.is_some() {
                        continue;
                    }
                    let enqueued_at = json::Time(batch.time);
                    out.line(&self.line("remnant", queue, remnant(&message, enqueued_at)))?;
                }
            }
        }
        Ok(())
    }
}

fn remnant(message: &NewMessage, enqueued_at: json::Time) -> Value {
    let headers = overtake_wire::decode_headers(&message.headers).unwrap_or_default();
    value!({
        "id": message.id.to_string(),
        "priority": message.priority.0,
        "enqueued_at": enqueued_at,
        "headers": json::Pairs(headers),
        "body": json::Base64(message.body.clone()),
    })
}
