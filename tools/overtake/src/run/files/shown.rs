//! What stands in the files, printed: headers, records, checkpoints.

use super::folder::{CoreFolder, DataFolder};
use crate::exit::{Exit, Outcome};
use crate::render::table::{Cell, Table};
use crate::render::units;
use crate::screen::Screen;
use core::fmt::Write as _;
use overtake_base::ShardId;
use overtake_core::state::{MEMBERSHIP, MembershipChange, ReplicaHead, Role, split};
use overtake_log::Record;
use overtake_log::checkpoint::{self, CheckpointHeader, NotACheckpoint};
use overtake_log::disk::{BLOCK_BYTES, FileName};
use overtake_log::examine::{Examination, Seen};
use overtake_log::header::NotAHeader;
use overtake_log::lanes::file::LaneFileHeader;
use overtake_log::segment::SegmentHeader;
use overtake_queue::command::{Batch, Command};
use overtake_queue::directory::{Directory, DirectoryCommand, decode_commands};
use overtake_queue::entry::decode_batch;
use overtake_queue::machine::Machine;
use std::collections::BTreeMap;

/// One line for each file.
pub fn headers(folder: &DataFolder, screen: Screen) -> Outcome {
    let identity = match &folder.identity {
        Ok(identity) => format!(
            "store {:032x}, format {}, {} cores, {} shards\n",
            identity.store, identity.format, identity.cores, identity.shards
        ),
        Err(detail) => format!("identity: {detail}\n"),
    };
    let mut table = Table::new(["FILE", ">BYTES", "~HEADER"]);
    for core in &folder.cores {
        for (file, bytes) in &core.files {
            let said = match file {
                FileName::Segment(_) => segment_header(core, *file),
                FileName::Checkpoint(..) => checkpoint_header(core, *file),
                FileName::Lane(_) => lane_header(core, *file),
            };
            table.row([core.name(*file).into(), bytes.to_string().into(), said]);
        }
        for file in &core.unusable {
            table.row([core.name(*file).into(), Cell::none(), Cell::bad("no regular file")]);
        }
        for other in &core.others {
            table.row([
                format!("core-{:02}/{other}", core.core).into(),
                Cell::none(),
                "not a file of the log".into(),
            ]);
        }
    }
    screen.print(&(identity + &table.render(screen.view())))?;
    Ok(Exit::Ok)
}

fn lane_header(core: &CoreFolder, file: FileName) -> Cell {
    let block = match core.read_at(file, 0, BLOCK_BYTES) {
        Ok(block) => block,
        Err(error) => return Cell::bad(format!("cannot be read: {error}")),
    };
    match LaneFileHeader::decode(&block) {
        Ok(header) => format!("lane file {}", header.sequence).into(),
        Err(NotAHeader::Blank) => "prepared, never used".into(),
        Err(NotAHeader::Version(version)) => Cell::warn(format!("format version {version}")),
        Err(NotAHeader::Damaged(detail)) => Cell::bad(detail),
    }
}

fn segment_header(core: &CoreFolder, file: FileName) -> Cell {
    let block = match core.read_at(file, 0, BLOCK_BYTES) {
        Ok(block) => block,
        Err(error) => return Cell::bad(format!("cannot be read: {error}")),
    };
    match SegmentHeader::decode(&block) {
        Ok(header) => format!("segment {}, needed from {} on", header.sequence, header.oldest).into(),
        Err(NotAHeader::Blank) => "prepared, never used".into(),
        Err(NotAHeader::Version(version)) => Cell::warn(format!("format version {version}")),
        Err(NotAHeader::Damaged(detail)) => Cell::bad(detail),
    }
}

fn checkpoint_header(core: &CoreFolder, file: FileName) -> Cell {
    let bytes = match core.read_at(file, 0, checkpoint::HEADER_BYTES) {
        Ok(bytes) => bytes,
        Err(error) => return Cell::bad(format!("cannot be read: {error}")),
    };
    match CheckpointHeader::decode(&bytes) {
        Ok(header) => describe(&header).into(),
        Err(NotACheckpoint::Version(version)) => Cell::warn(format!("format version {version}")),
        Err(NotACheckpoint::Damaged(detail)) => Cell::bad(detail),
    }
}

fn describe(header: &CheckpointHeader) -> String {
    format!(
        "shard {}, checkpoint {}, up to entry {} of term {}, state of {} bytes",
        shard_name(header.shard),
        header.serial,
        header.index,
        header.term,
        header.state_bytes
    )
}

fn shard_name(shard: ShardId) -> String {
    if shard == ShardId::DIRECTORY { "directory".into() } else { shard.to_string() }
}

/// Every batch and record of the journals.
pub fn records(folder: &DataFolder, only: Option<u16>, screen: Screen) -> Outcome {
    for core in &folder.cores {
        let mut examination = Examination::new(folder.store, core.core);
        for (file, _) in core.files.iter().filter(|(file, _)| matches!(file, FileName::Segment(_))) {
            let mut text = format!("{}\n", core.name(*file));
            match core.read(*file) {
                Ok(bytes) => examination.file(*file, &bytes, &mut |offset, seen| {
                    if let Some(line) = line_of(&seen, only) {
                        let _ = writeln!(text, "{offset:>12}  {line}");
                    }
                }),
                Err(error) => text += &format!("  cannot be read: {error}\n"),
            }
            screen.print(&text)?;
        }
    }
    Ok(Exit::Ok)
}

fn line_of(seen: &Seen<'_>, only: Option<u16>) -> Option<String> {
    let shown = |shard: &ShardId| only.is_none_or(|only| only == shard.0);
    match seen {
        Seen::Segment(header) => {
            Some(format!("segment {}, needed from {} on", header.sequence, header.oldest))
        }
        Seen::Blank => Some("prepared, never used".into()),
        Seen::Batch { .. } if only.is_some() => None,
        Seen::Batch { header, whole } => Some(format!(
            "batch {}, opening {}, {} was durable, {} records in {} bytes{}",
            header.number,
            header.epoch,
            header.durable,
            header.records,
            header.batch_bytes(),
            if *whole { "" } else { ", damaged or torn" }
        )),
        Seen::Record(Record::Entry { shard, term, index, kind, data }) if shown(shard) => Some(format!(
            "  shard {} entry {index} of term {term}, {} bytes: {}",
            shard_name(*shard),
            data.len(),
            content(*shard, *kind, data)
        )),
        Seen::Record(Record::Staged { shard, term, index, kind, data }) if shown(shard) => Some(format!(
            "  shard {} entry {index} of term {term} of a snapshot, {} bytes: {}",
            shard_name(*shard),
            data.len(),
            content(*shard, *kind, data)
        )),
        Seen::Record(Record::Installed { shard, term, index }) if shown(shard) => Some(format!(
            "  shard {} snapshot up to entry {index} of term {term} installed",
            shard_name(*shard)
        )),
        Seen::Record(Record::HardState { shard, term, vote, commit }) if shown(shard) => Some(format!(
            "  shard {} hard state: term {term}, vote {vote}, committed up to {commit}",
            shard_name(*shard)
        )),
        Seen::Block(header) if shown(&header.shard) => Some(format!(
            "block {} of shard {}, {} bytes of records, {} of payloads",
            header.block, header.shard, header.records_bytes, header.payloads_bytes
        )),
        Seen::Record(_) | Seen::Block(_) | Seen::Checkpoint { .. } => None,
    }
}

/// What an entry asks for: how many commands of each kind.
fn content(shard: ShardId, kind: u8, data: &[u8]) -> String {
    if kind == MEMBERSHIP {
        return match MembershipChange::decode(data) {
            Ok(change) => replicas(&change),
            Err(malformed) => malformed.to_string(),
        };
    }
    if data.is_empty() {
        return "a leader began".into();
    }
    let mut counts: BTreeMap<&str, usize> = BTreeMap::new();
    let mut at = String::new();
    let read = if shard == ShardId::DIRECTORY {
        decode_commands(data).map(|commands| {
            for command in commands {
                let name = match command {
                    DirectoryCommand::Put { .. } => "put queue",
                    DirectoryCommand::Delete { .. } => "delete queue",
                    DirectoryCommand::Members(_) => "change the cluster",
                };
                *counts.entry(name).or_default() += 1;
            }
        })
    } else {
        decode_batch(&bytes::Bytes::copy_from_slice(data)).map(|Batch { time, commands }| {
            at = format!("{} ", units::time(time));
            for command in commands {
                let (name, count) = name_of(&command);
                *counts.entry(name).or_default() += count;
            }
        })
    };
    if let Err(malformed) = read {
        return malformed.to_string();
    }
    let named: Vec<String> = counts.iter().map(|(name, count)| format!("{name} {count}")).collect();
    at + &if named.is_empty() { "time passes".into() } else { named.join(", ") }
}

fn name_of(command: &Command) -> (&'static str, usize) {
    match command {
        Command::Configure { .. } => ("configure", 1),
        Command::Delete { .. } => ("delete queue", 1),
        Command::Enqueue { messages, .. } => ("enqueue", messages.len()),
        Command::Lease { lease, .. } => ("lease up to", lease.max as usize),
        Command::Unlease { leases, .. } => ("take back", leases.len()),
        Command::Settle { ack, extend, release, .. } => ("settle", ack.len() + extend.len() + release.len()),
        Command::Cancel { .. } => ("cancel", 1),
        Command::Purge { .. } => ("purge", 1),
        Command::PurgeDeadLetters { .. } => ("purge dead letters", 1),
        Command::Redrive { .. } => ("redrive", 1),
        Command::RedriveTurns { .. } => ("redrive turn", 1),
        Command::Claim { .. } => ("claim", 1),
        Command::StoreClaimed { .. } => ("enqueue claimed", 1),
        Command::EndClaim { .. } => ("end claim", 1),
        Command::FenceClaim { .. } => ("fence claim", 1),
        Command::Spill { .. } => ("spill", 1),
        Command::Thaw { .. } => ("thaw", 1),
        Command::NoteRefused { count, .. } => ("note refused", usize::try_from(*count).unwrap_or(usize::MAX)),
    }
}

/// Every checkpoint, and what is in its state.
pub fn checkpoints(folder: &DataFolder, screen: Screen) -> Outcome {
    for core in &folder.cores {
        let mut examination = Examination::new(folder.store, core.core);
        for (file, _) in core.files.iter().filter(|(file, _)| matches!(file, FileName::Checkpoint(..))) {
            let mut text = format!("{}\n", core.name(*file));
            let mut nothing = true;
            match core.read(*file) {
                Ok(bytes) => examination.file(*file, &bytes, &mut |_, seen| {
                    if let Seen::Checkpoint { header, state } = seen {
                        nothing = false;
                        let _ = writeln!(text, "  {}", describe(&header));
                        text += &state.map_or_else(
                            || "  the state is damaged\n".into(),
                            |state| inside(folder, header.shard, state),
                        );
                    }
                }),
                Err(error) => text += &format!("  cannot be read: {error}\n"),
            }
            if nothing {
                text += "  no checkpoint of this folder; `overtake inspect verify` says what is wrong\n";
            }
            screen.print(&text)?;
        }
    }
    Ok(Exit::Ok)
}

/// A change of who holds a shard.
fn replicas(change: &MembershipChange) -> String {
    if change.0.is_empty() {
        return "the replicas that left are gone".into();
    }
    let one = |(role, node): &(Role, overtake_base::NodeId)| match role {
        Role::Voter => format!("node {node} votes"),
        Role::Learner => format!("node {node} learns"),
        Role::None => format!("node {node} leaves"),
    };
    change.0.iter().map(one).collect::<Vec<_>>().join(", ")
}

fn inside(folder: &DataFolder, shard: ShardId, state: &[u8]) -> String {
    let mut text = String::new();
    let state = match split(state) {
        Ok((ReplicaHead::Gone, _)) => return "    there is no replica here any more\n".into(),
        Ok((ReplicaHead::Of(membership), state)) => {
            let list = |nodes: &[overtake_base::NodeId]| {
                nodes.iter().map(ToString::to_string).collect::<Vec<_>>().join(", ")
            };
            let _ = writeln!(text, "    voters: nodes {}", list(&membership.voters));
            if membership.is_joint() {
                let _ = writeln!(text, "    and before them: nodes {}", list(&membership.outgoing));
            }
            if !membership.learners.is_empty() {
                let _ = writeln!(text, "    learners: nodes {}", list(&membership.learners));
            }
            state
        }
        Ok((ReplicaHead::Plain, state)) => state,
        Err(malformed) => return format!("  {malformed}\n"),
    };
    if shard == ShardId::DIRECTORY {
        match Directory::restore(folder.shards(), state) {
            Ok(directory) => {
                for queue in directory.all() {
                    let _ = writeln!(
                        text,
                        "    queue {} of {}: number {}, {} levels, {} shards from {} on",
                        queue.name,
                        queue.tenant,
                        queue.id.0,
                        queue.config.levels,
                        queue.config.shards,
                        queue.first_shard
                    );
                }
            }
            Err(malformed) => text = format!("  {malformed}\n"),
        }
        return text;
    }
    match Machine::restore(shard, state) {
        Ok(machine) => {
            let _ = writeln!(text, "    at {}", units::time(machine.time()));
            for queue in machine.queues() {
                let Some(stats) = machine.stats(queue, machine.time()) else { continue };
                let sum = |counts: &[u64]| counts.iter().sum::<u64>();
                let _ = writeln!(
                    text,
                    "    queue number {}: {} visible, {} delayed, {} leased, {} dead",
                    queue.0,
                    sum(&stats.visible),
                    sum(&stats.delayed),
                    sum(&stats.leased),
                    stats.dead
                );
            }
        }
        Err(malformed) => text = format!("  {malformed}\n"),
    }
    text
}
