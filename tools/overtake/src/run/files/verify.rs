//! `overtake inspect verify`: reads everything, and says what is wrong, file by file.

use super::folder::{CoreFolder, DataFolder};
use crate::exit::{Exit, Outcome};
use crate::screen::Screen;
use overtake_base::{CoreId, Malformed, ShardId};
use overtake_core::config::SEGMENT_BYTES;
use overtake_core::state::{MEMBERSHIP, MembershipChange, ReplicaHead, split};
use overtake_device::STORE_FORMAT;
use overtake_log::disk::{DiskDone, DiskError, DiskOperationKind, FileName};
use overtake_log::examine::{Examination, Finding, Seen, Severity, would_open};
use overtake_log::{JournalConfig, Record, record};
use overtake_queue::directory::{Directory, decode_commands};
use overtake_queue::entry::decode_batch;
use overtake_queue::machine::Machine;

/// Verifies the folder.
pub fn run(folder: &DataFolder, screen: Screen) -> Outcome {
    let (mut damages, mut notes, mut files, mut bytes) = (0u64, 0, 0, 0);
    if let Err(detail) = &folder.identity {
        damages += 1;
        screen.print(&format!("identity  DAMAGED: {detail}\n"))?;
    }
    if let Err(detail) = &folder.member {
        damages += 1;
        screen.print(&format!("member  DAMAGED: {detail}\n"))?;
    }
    if let Ok(identity) = &folder.identity {
        let is_there = |core| folder.cores.iter().any(|there| there.core == core);
        for core in (0..identity.cores).map(CoreId).filter(|core| !is_there(*core)) {
            // A folder of format 1 does not say; there it is made with the first start.
            if identity.has_journal(core) || (identity.format < STORE_FORMAT && !folder.cores.is_empty()) {
                damages += 1;
                screen.print(&format!("core-{core:02}  DAMAGED: the folder is missing\n"))?;
            }
        }
    }
    for core in &folder.cores {
        let (mut found, before) = (Vec::new(), damages);
        for finding in examine(folder, core, screen) {
            let damaged = finding.severity == Severity::Damage;
            let (word, count) = if damaged { ("DAMAGED", &mut damages) } else { ("note", &mut notes) };
            *count += 1;
            let place = format!("{} at byte {}", core.name(finding.file), finding.offset);
            found.push(format!("{place}  {word}: {}\n", finding.detail));
        }
        for file in &core.unusable {
            damages += 1;
            found.push(format!("{}  DAMAGED: it is no regular file\n", core.name(*file)));
        }
        match verdict(folder, core) {
            Ok(good) => found.push(format!("core-{:02}: {good}\n", core.core)),
            Err(error) => {
                // A place that is damaged was named before, or all of it is gone.
                damages += u64::from(damages == before);
                found.push(format!("core-{:02}: a server would NOT start: {error}\n", core.core));
            }
        }
        screen.print(&found.concat())?;
        files += core.files.len();
        bytes += core.files.iter().map(|(_, bytes)| bytes).sum::<u64>();
    }
    let sound = if damages == 0 { "sound" } else { "damaged" };
    screen.print(&format!(
        "{sound}: {files} files with {bytes} bytes in {} cores; {damages} damaged places, {notes} notes\n",
        folder.cores.len()
    ))?;
    Ok(if damages == 0 { Exit::Ok } else { Exit::Failed })
}

/// Everything that is wrong with the files of a core.
fn examine(folder: &DataFolder, core: &CoreFolder, screen: Screen) -> Vec<Finding> {
    let mut examination = Examination::new(folder.store, core.core);
    let mut inside = Vec::new();
    for (number, (file, _)) in core.files.iter().enumerate() {
        screen.progress(&format!("{} ({} of {})", core.name(*file), number + 1, core.files.len()));
        let mut wrong = |offset, detail: String| {
            inside.push(Finding { file: *file, offset, severity: Severity::Damage, detail });
        };
        match core.read(*file) {
            Ok(bytes) => examination.file(*file, &bytes, &mut |offset, seen| {
                if let Err(detail) = understood(folder, &seen) {
                    wrong(offset, detail);
                }
            }),
            Err(error) => wrong(0, format!("cannot be read: {error}")),
        }
    }
    screen.progress_done();
    let mut findings = examination.finish();
    findings.append(&mut inside);
    findings.sort_by_key(|finding| (finding.file, finding.offset));
    findings
}

/// What is whole must also have a meaning.
fn understood(folder: &DataFolder, seen: &Seen<'_>) -> Result<(), String> {
    let said = |malformed: Malformed| format!("its checksum fits, but it cannot be understood: {malformed}");
    match *seen {
        Seen::Checkpoint { header, state: Some(state) } => match split(state).map_err(said)? {
            (ReplicaHead::Gone, _) => Ok(()),
            (_, state) if header.shard == ShardId::DIRECTORY => {
                Directory::restore(folder.shards(), state).map(drop).map_err(said)
            }
            (_, state) => Machine::restore(header.shard, state).map(drop).map_err(said),
        },
        Seen::Record(
            Record::Entry { kind: MEMBERSHIP, data, .. } | Record::Staged { kind: MEMBERSHIP, data, .. },
        ) => MembershipChange::decode(data).map(drop).map_err(said),
        Seen::Record(Record::Entry { data: [], .. } | Record::Staged { data: [], .. }) => Ok(()),
        Seen::Record(
            Record::Entry { shard: ShardId::DIRECTORY, data, .. }
            | Record::Staged { shard: ShardId::DIRECTORY, data, .. },
        ) => decode_commands(data).map(drop).map_err(said),
        Seen::Record(Record::Entry { data, .. } | Record::Staged { data, .. }) => {
            decode_batch(&bytes::Bytes::copy_from_slice(data)).map(drop).map_err(said)
        }
        _ => Ok(()),
    }
}

/// Whether a server would start with this core.
fn verdict(folder: &DataFolder, core: &CoreFolder) -> Result<String, String> {
    let segment_bytes = core.segment_bytes().unwrap_or(SEGMENT_BYTES);
    let config = JournalConfig {
        store: folder.store,
        core: core.core,
        begun: folder.has_journal(core.core),
        segment_bytes,
        writes_in_flight_max: 1,
        record_bytes_max: record::DATA_BYTES_MAX
            .min(usize::try_from(segment_bytes / 4).unwrap_or(usize::MAX)),
        batch_bytes_max: 1 << 20,
        segments_ahead: 0,
        segments_free_max: 0,
    };
    let report = would_open(config, |kind| look(core, kind)).map_err(|error| error.to_string())?;
    if report.batches == 0 {
        return Ok("a server would start, and begin the journal: there is none yet".into());
    }
    let cut = report.cut_tail.map_or_else(String::new, |cut| {
        format!(
            "; it would cut {} off at byte {}, which never became durable",
            core.name(cut.file),
            cut.offset
        )
    });
    let stand_ins = match report.damaged_checkpoints.len() {
        0 => String::new(),
        damaged => format!("; {damaged} damaged checkpoints would be made good from older ones"),
    };
    Ok(format!(
        "a server would start: {} batches in {} segments{cut}{stand_ins}",
        report.batches, report.segments
    ))
}

/// Carries out what only looks.
fn look(core: &CoreFolder, kind: DiskOperationKind) -> Result<DiskDone, DiskError> {
    let error = |file: FileName, detail: String| DiskError {
        full: false,
        detail: format!("{}: {detail}", core.name(file)),
    };
    match kind {
        DiskOperationKind::Read { file, offset, length } => {
            let read = core.read_at(file, offset, length as usize);
            let bytes = read.map_err(|failed| error(file, failed.to_string()))?;
            if bytes.len() == length as usize {
                Ok(DiskDone::Read(bytes.into()))
            } else {
                Err(error(file, "the file is too short".into()))
            }
        }
        DiskOperationKind::List => Ok(DiskDone::Listed(core.files.clone())),
        _ => Ok(DiskDone::Done),
    }
}
