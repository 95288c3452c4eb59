//! Follows the chain of batches through the segments and finds its end.
//!
//! The chain ends at the first place where the next batch is not what it must be. That is a torn tail if that batch
//! never became durable, and damage if it did. The writer tells: every batch names the highest batch that was durable
//! when it was written. So everything after the end is searched for batches (several were under way when the power
//! went, in any combination), and one that vouches for the missing batch proves damage. Otherwise the rest is dropped.
//! It cannot come back: what is written next has a newer epoch and so another checksum, which what was dropped does not
//! name as its predecessor.

use crate::batch::{BatchHeader, SealedHeader};
use crate::disk::{BLOCK_BYTES, FileName};
use crate::error::JournalError;
use crate::index::Position;
use crate::replay::Replay;
use crate::writer::ChainEnd;
use bytes::Bytes;
use overtake_base::planted::{Bug, is_planted};
use overtake_base::{CoreId, Malformed};
use std::collections::VecDeque;

/// Where the journal was cut.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct CutTail {
    /// The file.
    pub file: FileName,
    /// Sequence of its segment.
    pub sequence: u64,
    /// First byte that was dropped.
    pub offset: u64,
    /// What was wrong there.
    pub reason: String,
}

/// A batch that recovery read but that nothing vouches for yet.
#[derive(Clone, Debug)]
pub(crate) struct Unproven {
    pub(crate) number: u64,
    pub(crate) file: u32,
    pub(crate) offset: u64,
    pub(crate) data: Bytes,
}

/// The place where the chain does not go on, unless it does in the next segment.
#[derive(Clone, Debug)]
struct Fault {
    file: u32,
    at: Position,
    reason: &'static str,
    /// Batches were found behind it.
    dropped: bool,
    /// Highest batch that those vouch for, and which of them does.
    vouched: u64,
    vouched_by: u64,
}

/// See the module.
#[derive(Debug)]
pub(crate) struct Scanner {
    store: u128,
    core: CoreId,
    /// End of the chain so far; `None` before the first batch of a journal whose beginning was recycled.
    end: Option<ChainEnd>,
    durable: u64,
    fault: Option<Fault>,
    fault_is_final: bool,
    pub(crate) unproven: VecDeque<Unproven>,
    pub(crate) batches: u64,
    pub(crate) bytes: u64,
}

impl Scanner {
    /// A scan that begins with segment `oldest`.
    pub(crate) fn new(store: u128, core: CoreId, oldest: u64) -> Self {
        let start = Position { sequence: oldest, offset: BLOCK_BYTES as u64 };
        Self {
            store,
            core,
            end: (oldest == 1).then_some(ChainEnd { number: 0, checksum: 0, epoch: 0, at: start }),
            durable: 0,
            fault: None,
            fault_is_final: false,
            unproven: VecDeque::new(),
            batches: 0,
            bytes: 0,
        }
    }

    /// The next segment, in order of sequence, whole.
    pub(crate) fn segment(
        &mut self,
        sequence: u64,
        file: u32,
        segment: &Bytes,
        replay: &mut Replay,
    ) -> Result<(), JournalError> {
        let mut offset = BLOCK_BYTES;
        if let Some(mut fault) = self.fault.take() {
            // A batch that did not fit the rest of the segment before begins this one.
            let begins = self.batch_at(sequence, offset, segment);
            if self.fault_is_final || begins.is_err() {
                if let Some(malformed) = begins.err().filter(|_| !self.fault_is_final)
                    && self.is_next(sequence, offset, segment)
                {
                    // It is this batch that is wrong, and not the place where the one before it ends.
                    let at = Position { sequence, offset: offset as u64 };
                    fault = Fault { file, at, reason: malformed.0, ..fault };
                }
                self.fault_is_final = true;
                self.fault = Some(fault);
                self.search(sequence, offset, segment);
                return self.check_fault();
            }
        }
        replay.segment(sequence, file);
        let reason = loop {
            match self.batch_at(sequence, offset, segment) {
                Ok(sealed) => offset = self.take(&sealed, file, offset, segment, replay)?,
                Err(malformed) => break malformed.0,
            }
        };
        let at = Position { sequence, offset: offset as u64 };
        if self.end.is_none() {
            return Err(damaged(file, at, format!("the journal begins here, but {reason}")));
        }
        self.fault = Some(Fault { file, at, reason, dropped: false, vouched: 0, vouched_by: 0 });
        self.search(sequence, offset, segment);
        Ok(())
    }

    /// Takes the batch into the chain and answers where the next one begins.
    fn take(
        &mut self,
        sealed: &SealedHeader,
        file: u32,
        offset: usize,
        segment: &Bytes,
        replay: &mut Replay,
    ) -> Result<usize, JournalError> {
        let header = sealed.header;
        let next = offset + header.batch_bytes();
        let bytes = segment.slice(offset..next);
        (sealed.payload(&bytes).and_then(|payload| replay.batch(&header, payload))).map_err(|malformed| {
            let at = Position { sequence: header.sequence, offset: offset as u64 };
            damaged(file, at, format!("batch {} is whole but cannot be read: {}", header.number, malformed.0))
        })?;
        self.durable = self.durable.max(header.durable);
        self.unproven.push_back(Unproven { number: header.number, file, offset: offset as u64, data: bytes });
        while self.unproven.front().is_some_and(|batch| batch.number <= self.durable) {
            self.unproven.pop_front();
        }
        self.batches += 1;
        self.bytes += (next - offset) as u64;
        self.end = Some(ChainEnd {
            number: header.number,
            checksum: sealed.checksum,
            epoch: header.epoch,
            at: Position { sequence: header.sequence, offset: next as u64 },
        });
        Ok(next)
    }

    /// The batch at this place if it is the chain's next one.
    fn batch_at(&self, sequence: u64, offset: usize, segment: &[u8]) -> Result<SealedHeader, Malformed> {
        let rest = segment.get(offset..).unwrap_or_default();
        if rest.is_empty() {
            return Err(Malformed("the segment is full"));
        }
        let sealed = BatchHeader::decode(rest)?;
        let header = &sealed.header;
        if !self.belongs(header, sequence, offset) {
            return Err(Malformed("the batch here belongs elsewhere"));
        }
        if header.durable >= header.number {
            return Err(Malformed("the batch claims to have been durable before it was written"));
        }
        if !self.follows(header) {
            return Err(Malformed("the batch here does not follow the one before"));
        }
        if !is_planted(Bug::TornBatch) {
            sealed.payload(rest)?;
        }
        Ok(sealed)
    }

    /// It says that it is the chain's next one.
    fn follows(&self, header: &BatchHeader) -> bool {
        self.end.is_none_or(|end| {
            header.number == end.number + 1
                && header.previous == end.checksum
                && header.epoch >= end.epoch.max(1)
        })
    }

    /// The header of the chain's next batch is at this place, whatever became of the batch.
    fn is_next(&self, sequence: u64, offset: usize, segment: &[u8]) -> bool {
        let sealed = BatchHeader::decode(segment.get(offset..).unwrap_or_default());
        sealed.is_ok_and(|SealedHeader { header, .. }| {
            self.belongs(&header, sequence, offset) && self.follows(&header)
        })
    }

    fn belongs(&self, header: &BatchHeader, sequence: u64, offset: usize) -> bool {
        (header.store, header.core, header.sequence, header.offset)
            == (self.store, self.core, sequence, offset as u64)
    }

    /// Looks at every block from `offset` on for batches behind the fault.
    fn search(&mut self, sequence: u64, offset: usize, segment: &[u8]) {
        let last = self.end.map_or(0, |end| end.number);
        let Some(mut fault) = self.fault.take() else { return };
        for at in (offset..segment.len()).step_by(BLOCK_BYTES) {
            let Ok(SealedHeader { header, .. }) = BatchHeader::decode(&segment[at..]) else { continue };
            if self.belongs(&header, sequence, at) && header.number > last {
                fault.dropped = true;
                if header.durable > fault.vouched {
                    fault.vouched = header.durable;
                    fault.vouched_by = header.number;
                }
            }
        }
        self.fault = Some(fault);
    }

    /// Fails if something behind the fault proves that what is missing there had been durable.
    fn check_fault(&self) -> Result<(), JournalError> {
        let missing = self.end.map_or(0, |end| end.number) + 1;
        match &self.fault {
            Some(fault) if fault.vouched >= missing && !is_planted(Bug::CutDamage) => Err(damaged(
                fault.file,
                fault.at,
                format!(
                    "batch {missing} should be here, but {}; batch {}, written later, says that batch {} was durable",
                    fault.reason, fault.vouched_by, fault.vouched
                ),
            )),
            _ => Ok(()),
        }
    }

    /// A file whose header cannot be read, or is not there: fails if it holds batches of a segment after those scanned. A
    /// header is durable before anything is written after it.
    pub(crate) fn unreadable(&self, file: u32, newest: u64, bytes: &[u8]) -> Result<(), JournalError> {
        for at in (BLOCK_BYTES..bytes.len()).step_by(BLOCK_BYTES) {
            let Ok(SealedHeader { header, .. }) = BatchHeader::decode(&bytes[at..]) else { continue };
            if header.is_of(self.store, self.core) && header.sequence > newest {
                let detail = format!(
                    "the header cannot be read, but the file holds batches of segment {}",
                    header.sequence
                );
                return Err(damaged(file, Position::default(), detail));
            }
        }
        Ok(())
    }

    /// The end of the chain, and where something was dropped.
    pub(crate) fn finish(&self) -> Result<(ChainEnd, Option<CutTail>), JournalError> {
        self.check_fault()?;
        let start = Position { sequence: 1, offset: BLOCK_BYTES as u64 };
        let end = self.end.unwrap_or(ChainEnd { number: 0, checksum: 0, epoch: 0, at: start });
        let cut = self.fault.as_ref().filter(|fault| fault.dropped).map(|fault| CutTail {
            file: FileName::Segment(fault.file),
            sequence: fault.at.sequence,
            offset: fault.at.offset,
            reason: fault.reason.into(),
        });
        Ok((end, cut))
    }
}

fn damaged(file: u32, at: Position, detail: String) -> JournalError {
    JournalError::Damaged { file: FileName::Segment(file), offset: at.offset, detail }
}
