//! The queue between a core and its disk: operations go in, completions come out in any order.
//!
//! What keeps the backlog bounded (blocks of cold messages on their way to the disk and back, cleaning) runs in a task
//! queue of its own with few shares, and at most two of it at a time: whoever waits for an urgent message does not wait
//! for that.

use crate::blocking;
use crate::direct::check_direct_io;
use crate::error::FolderError;
use crate::folder::make_folder;
use crate::segments::SegmentFiles;
use core::cell::{Cell, RefCell};
use core::fmt;
use core::future::poll_fn;
use core::task::{Poll, Waker};
use glommio::{Latency, Shares, TaskQueueHandle};
use overtake_log::disk::{DiskCompletion, DiskDone, DiskError, DiskOperation, DiskOperationKind, FileName};
use std::collections::VecDeque;
use std::io;
use std::path::{Path, PathBuf};
use std::rc::Rc;

/// Reads, writes of lane files and other operations under way at the same time; the rest waits. Writes of journal
/// segments never wait here: the journal bounds them, and answers depend on them.
const OTHERS_IN_FLIGHT_MAX: usize = 16;
/// The same for what runs in the background.
const BACKGROUND_IN_FLIGHT_MAX: usize = 2;
/// Reads of lane files of so many bytes are of whole blocks: they bring messages back before they are asked for, or copy
/// them. Shorter ones are of a payload that somebody waits for.
const BACKGROUND_READ_BYTES: u32 = 64 * 1024;
/// Of the executor's time, where others have 1,000 each.
const BACKGROUND_SHARES: usize = 100;

/// The disk of one core. Lives on the core's executor.
pub struct Device {
    shared: Rc<Shared>,
}

struct Shared {
    folder: PathBuf,
    kept_free_bytes: u64,
    segments: SegmentFiles,
    completions: RefCell<VecDeque<DiskCompletion>>,
    others: Lot,
    background: Lot,
    in_flight: Cell<usize>,
    waker: RefCell<Option<Waker>>,
    on_completion: RefCell<Option<Rc<dyn Fn()>>>,
}

/// Operations of which only some are under way at a time.
struct Lot {
    queue: TaskQueueHandle,
    in_flight_max: usize,
    waiting: RefCell<VecDeque<DiskOperation>>,
    in_flight: Cell<usize>,
}

impl Lot {
    fn new(queue: TaskQueueHandle, in_flight_max: usize) -> Self {
        Self { queue, in_flight_max, waiting: RefCell::default(), in_flight: Cell::new(0) }
    }
}

impl fmt::Debug for Device {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Device").field("folder", &self.shared.folder).finish_non_exhaustive()
    }
}

impl Device {
    /// The disk in a core's folder, which is made if it is not there. Fails if its file system cannot do direct I/O.
    /// Of its file system `kept_free_bytes` are only used for what is urgent. To be called on a glommio executor.
    pub async fn open(folder: impl AsRef<Path>, kept_free_bytes: u64) -> Result<Self, FolderError> {
        let folder = folder.as_ref().to_path_buf();
        let checked = folder.clone();
        let check = move || make_folder(&checked).and_then(|()| check_direct_io(&checked));
        let executor = glommio::executor();
        executor.spawn_blocking(check).await?;
        let shares = Shares::Static(BACKGROUND_SHARES);
        let background = executor.create_task_queue(shares, Latency::NotImportant, "background storage");
        Ok(Self {
            shared: Rc::new(Shared {
                segments: SegmentFiles::new(&folder),
                folder,
                kept_free_bytes,
                completions: RefCell::default(),
                others: Lot::new(executor.current_task_queue(), OTHERS_IN_FLIGHT_MAX),
                background: Lot::new(background, BACKGROUND_IN_FLIGHT_MAX),
                in_flight: Cell::new(0),
                waker: RefCell::new(None),
                on_completion: RefCell::new(None),
            }),
        })
    }

    /// Starts an operation, or queues it where many reads are under way.
    pub fn submit(&self, operation: DiskOperation) {
        self.shared.in_flight.set(self.shared.in_flight.get() + 1);
        let write = matches!(operation.kind, DiskOperationKind::Write { file: FileName::Segment(_), .. });
        if write {
            let shared = Rc::clone(&self.shared);
            glommio::spawn_local(async move { shared.run(operation).await }).detach();
        } else {
            let lot = if is_background(&operation.kind) { Shared::background } else { Shared::others };
            lot(&self.shared).waiting.borrow_mut().push_back(operation);
            Shared::start_waiting(&self.shared, lot);
        }
    }

    /// Moves the completions that have come into `into`.
    pub fn drain(&mut self, into: &mut Vec<DiskCompletion>) {
        into.extend(self.shared.completions.borrow_mut().drain(..));
    }

    /// Waits until there is something to drain. One task at a time.
    pub async fn wait(&self) {
        poll_fn(|context| {
            if !self.shared.completions.borrow().is_empty() {
                return Poll::Ready(());
            }
            let mut waker = self.shared.waker.borrow_mut();
            // Wakers are counted in 16 bits: not a new one for each poll.
            if !waker.as_ref().is_some_and(|waker| waker.will_wake(context.waker())) {
                *waker = Some(context.waker().clone());
            }
            Poll::Pending
        })
        .await;
    }

    /// Calls `wake` at each completion, after it can be drained.
    pub fn on_completion(&self, wake: Rc<dyn Fn()>) {
        *self.shared.on_completion.borrow_mut() = Some(wake);
    }

    /// Operations submitted whose completion has not been put into the queue yet.
    #[must_use]
    pub fn in_flight(&self) -> usize {
        self.shared.in_flight.get()
    }

    /// Closes the files. Operations still under way keep theirs open until they end.
    pub async fn close(self) -> io::Result<()> {
        self.shared.segments.close_all().await
    }
}

impl Shared {
    fn others(&self) -> &Lot {
        &self.others
    }

    fn background(&self) -> &Lot {
        &self.background
    }

    fn start_waiting(shared: &Rc<Self>, lot: fn(&Self) -> &Lot) {
        while lot(shared).in_flight.get() < lot(shared).in_flight_max {
            let Some(operation) = lot(shared).waiting.borrow_mut().pop_front() else { return };
            lot(shared).in_flight.set(lot(shared).in_flight.get() + 1);
            let task = {
                let shared = Rc::clone(shared);
                async move {
                    shared.run(operation).await;
                    lot(&shared).in_flight.set(lot(&shared).in_flight.get() - 1);
                    Self::start_waiting(&shared, lot);
                }
            };
            match glommio::spawn_local_into(task, lot(shared).queue) {
                Ok(task) => task.detach(),
                // Queues are never removed.
                Err(error) => unreachable!("{error}"),
            };
        }
    }

    async fn run(&self, DiskOperation { id, kind }: DiskOperation) {
        let what = describe(&kind);
        let result = self.carry_out(kind).await.map_err(|error| DiskError {
            full: is_full(&error),
            detail: format!("{} in {}: {error}", what, self.folder.display()),
        });
        self.in_flight.set(self.in_flight.get() - 1);
        self.completions.borrow_mut().push_back(DiskCompletion { id, result });
        if let Some(waker) = self.waker.borrow_mut().take() {
            waker.wake();
        }
        let wake = self.on_completion.borrow().clone();
        if let Some(wake) = wake {
            wake();
        }
    }

    async fn carry_out(&self, kind: DiskOperationKind) -> io::Result<DiskDone> {
        match kind {
            DiskOperationKind::Write {
                file: file @ (FileName::Segment(_) | FileName::Lane(_)),
                offset,
                data,
            } => self.segments.write(file, offset, data).await,
            DiskOperationKind::Read {
                file: file @ (FileName::Segment(_) | FileName::Lane(_)),
                offset,
                length,
            } => self.segments.read(file, offset, length).await,
            kind => {
                if let DiskOperationKind::Allocate { file, .. } | DiskOperationKind::Remove { file } = kind {
                    self.segments.close(file).await?;
                }
                let (folder, kept_free_bytes) = (self.folder.clone(), self.kept_free_bytes);
                let carry_out = move || blocking::carry_out(&folder, kept_free_bytes, kind);
                glommio::executor().spawn_blocking(carry_out).await
            }
        }
    }
}

/// Nobody waits for it alone.
fn is_background(kind: &DiskOperationKind) -> bool {
    match kind {
        DiskOperationKind::Write { file: FileName::Lane(_), .. } => true,
        DiskOperationKind::Read { file: FileName::Lane(_), length, .. } => *length >= BACKGROUND_READ_BYTES,
        _ => false,
    }
}

fn is_full(error: &io::Error) -> bool {
    matches!(
        error.kind(),
        io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded | io::ErrorKind::WriteZero
    )
}

/// For the operator.
fn describe(kind: &DiskOperationKind) -> String {
    match kind {
        DiskOperationKind::List => "listing the files".into(),
        DiskOperationKind::Allocate { file, bytes, .. } => format!("allocating {bytes} bytes for {file}"),
        DiskOperationKind::Write { file, offset, data } => {
            format!("writing {} bytes to {file} at {offset}", data.len())
        }
        DiskOperationKind::Read { file, offset, length } => {
            format!("reading {length} bytes of {file} at {offset}")
        }
        DiskOperationKind::Replace { file, .. } => format!("replacing {file}"),
        DiskOperationKind::Remove { file } => format!("removing {file}"),
    }
}
