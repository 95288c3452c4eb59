//! The batches on their way to the disk: the open one that records are appended to, the closed ones that wait for
//! room in the window (or for a segment), those being written, and how far everything is durable.

use crate::batch::{self, BatchHeader, whole_blocks};
use crate::config::{BatchNumber, JournalConfig};
use crate::disk::BLOCK_BYTES;
use crate::index::Position;
use crate::record::Record;
use crate::segments::Segments;
use bytes::Bytes;
use overtake_base::ShardId;
use overtake_base::planted::{Bug, is_planted};
use std::collections::VecDeque;

/// A batch that is not written yet. The room of its header is at the front of `bytes`.
#[derive(Debug)]
struct Unsealed {
    number: BatchNumber,
    at: Position,
    bytes: Vec<u8>,
    /// The batch is closed before it grows past this.
    bytes_max: usize,
    records: u32,
    hard_states: Vec<ShardId>,
}

/// A batch being written.
#[derive(Debug)]
struct InFlight {
    number: BatchNumber,
    end: Position,
    bytes: usize,
    done: bool,
    hard_states: Vec<ShardId>,
}

/// A batch to be written.
#[derive(Debug)]
pub(crate) struct Sealed {
    pub(crate) number: BatchNumber,
    pub(crate) file: u32,
    pub(crate) offset: u64,
    pub(crate) data: Bytes,
}

/// A batch that has become durable.
#[derive(Debug)]
pub(crate) struct Durable {
    pub(crate) sequence: u64,
    /// Shards whose hard state it holds.
    pub(crate) hard_states: Vec<ShardId>,
}

/// Where the chain of batches ends.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct ChainEnd {
    /// Number of the last batch; 0 = none.
    pub(crate) number: BatchNumber,
    /// Its header's checksum.
    pub(crate) checksum: u64,
    /// Its epoch.
    pub(crate) epoch: u64,
    /// Where the next one goes.
    pub(crate) at: Position,
}

/// See the module.
#[derive(Debug)]
pub(crate) struct Writer {
    config: JournalConfig,
    epoch: u64,
    /// Number of the open batch, or of the one opened next.
    next_number: BatchNumber,
    /// Where the next batch that is opened goes.
    tail: Position,
    open: Option<Unsealed>,
    closed: VecDeque<Unsealed>,
    in_flight: VecDeque<InFlight>,
    /// Checksum of the last batch sealed.
    previous: u64,
    durable: BatchNumber,
    durable_end: Position,
    backlog_bytes: usize,
    /// The last batch sealed holds nothing and says that everything before it is durable.
    vouched: bool,
    last_batch_bytes: usize,
}

impl Writer {
    /// A writer that goes on at the end of the chain; everything before it must be durable.
    pub(crate) fn new(config: JournalConfig, end: ChainEnd) -> Self {
        Self {
            config,
            epoch: end.epoch + 1,
            next_number: end.number + 1,
            tail: end.at,
            open: None,
            closed: VecDeque::new(),
            in_flight: VecDeque::new(),
            previous: end.checksum,
            durable: end.number,
            durable_end: end.at,
            backlog_bytes: 0,
            vouched: false,
            last_batch_bytes: 0,
        }
    }

    /// Appends the record to the open batch, opening one where needed. Answers the batch and where the record stands.
    pub(crate) fn append(&mut self, record: &Record<'_>, segments: &mut Segments) -> (BatchNumber, Position) {
        let length = record.encoded_bytes();
        if self.open.as_ref().is_some_and(|open| open.bytes.len() + length > open.bytes_max) {
            self.close();
        }
        let open = match &mut self.open {
            Some(open) => open,
            None => self.open.insert(Self::begin(
                &self.config,
                self.next_number,
                &mut self.tail,
                length,
                self.last_batch_bytes,
                segments,
            )),
        };
        let at = Position { offset: open.at.offset + open.bytes.len() as u64, ..open.at };
        record.encode(&mut open.bytes);
        open.records += 1;
        if let Record::HardState { shard, .. } = record {
            open.hard_states.push(*shard);
        }
        (open.number, at)
    }

    /// A new batch with room for a header, where `record_bytes` more fit.
    fn begin(
        config: &JournalConfig,
        number: BatchNumber,
        tail: &mut Position,
        record_bytes: usize,
        bytes_expected: usize,
        segments: &mut Segments,
    ) -> Unsealed {
        let needed = whole_blocks(batch::HEADER_BYTES + record_bytes);
        if tail.offset + needed as u64 > config.segment_bytes {
            *tail = Position { sequence: tail.sequence + 1, offset: BLOCK_BYTES as u64 };
            segments.begin(tail.sequence);
        }
        let room = usize::try_from(config.segment_bytes - tail.offset).unwrap_or(usize::MAX);
        if let Some(live) = segments.get_mut(tail.sequence) {
            live.first_batch = if live.first_batch == 0 { number } else { live.first_batch };
            live.last_batch = number;
        }
        let mut bytes = Vec::with_capacity(needed.max(bytes_expected.min(config.batch_bytes_max)));
        bytes.resize(batch::HEADER_BYTES, 0);
        Unsealed {
            number,
            at: *tail,
            bytes,
            bytes_max: room.min(needed.max(config.batch_bytes_max)),
            records: 0,
            hard_states: Vec::new(),
        }
    }

    /// Closes the open batch: its end is known, and with it where the next one begins.
    fn close(&mut self) {
        if let Some(open) = self.open.take() {
            let length = whole_blocks(open.bytes.len());
            self.tail.offset += length as u64;
            self.next_number += 1;
            self.backlog_bytes += length;
            self.last_batch_bytes = length;
            self.closed.push_back(open);
        }
    }

    /// Opens a batch without records.
    pub(crate) fn open_empty(&mut self, segments: &mut Segments) {
        if self.open.is_none() {
            let batch = Self::begin(&self.config, self.next_number, &mut self.tail, 0, 0, segments);
            self.open = Some(batch);
        }
    }

    /// The next batch to write, if there is one, the window has room and a segment is ready.
    pub(crate) fn seal_next(&mut self, segments: &mut Segments) -> Option<Sealed> {
        if self.in_flight.len() >= self.config.writes_in_flight_max {
            return None;
        }
        if self.closed.is_empty() {
            self.close();
        }
        let file = segments.file_for_writing(self.closed.front()?.at.sequence)?;
        let mut batch = self.closed.pop_front()?;
        let header = BatchHeader {
            core: self.config.core,
            store: self.config.store,
            sequence: batch.at.sequence,
            offset: batch.at.offset,
            number: batch.number,
            durable: self.durable,
            previous: self.previous,
            epoch: self.epoch,
            records: batch.records,
            // Bounded by the segment's length, which is below 4 GiB.
            payload_bytes: (batch.bytes.len() - batch::HEADER_BYTES) as u32,
        };
        self.previous = header.seal(&mut batch.bytes);
        self.vouched = batch.records == 0 && self.durable + 1 == batch.number;
        self.in_flight.push_back(InFlight {
            number: batch.number,
            end: Position { offset: batch.at.offset + batch.bytes.len() as u64, ..batch.at },
            bytes: batch.bytes.len(),
            done: false,
            hard_states: batch.hard_states,
        });
        Some(Sealed { number: batch.number, file, offset: batch.at.offset, data: Bytes::from(batch.bytes) })
    }

    /// The write of a batch is complete.
    pub(crate) fn written(&mut self, number: BatchNumber) {
        if let Some(batch) = self.in_flight.iter_mut().find(|batch| batch.number == number) {
            batch.done = true;
        }
    }

    /// The next batch that is durable together with all before it.
    pub(crate) fn next_durable(&mut self) -> Option<Durable> {
        let out_of_order =
            is_planted(Bug::DurableOutOfOrder) && self.in_flight.iter().any(|batch| batch.done);
        let batch = self.in_flight.pop_front_if(|batch| batch.done || out_of_order)?;
        self.durable = batch.number;
        self.durable_end = batch.end;
        self.backlog_bytes -= batch.bytes;
        Some(Durable { sequence: batch.end.sequence, hard_states: batch.hard_states })
    }

    /// All batches up to this one are durable.
    pub(crate) fn durable(&self) -> BatchNumber {
        self.durable
    }

    /// What stands before this place is durable.
    pub(crate) fn durable_end(&self) -> Position {
        self.durable_end
    }

    /// Number of the open batch, or of the one opened next.
    pub(crate) fn next_number(&self) -> BatchNumber {
        self.next_number
    }

    /// Bytes that are not durable yet.
    pub(crate) fn backlog_bytes(&self) -> usize {
        self.backlog_bytes + self.open.as_ref().map_or(0, |open| open.bytes.len())
    }

    /// Batches being written.
    pub(crate) fn writes_in_flight(&self) -> usize {
        self.in_flight.len()
    }

    /// Nothing is open, waiting or being written.
    pub(crate) fn is_idle(&self) -> bool {
        self.open.is_none() && self.closed.is_empty() && self.in_flight.is_empty()
    }

    /// Idle, and the last batch says that everything before it is durable.
    pub(crate) fn is_vouched(&self) -> bool {
        self.is_idle() && self.vouched
    }
}
