//! The job that every system does: messages are stored and confirmed, delivered most urgent first, and acked. What a
//! system has to be able to do to be compared.

use bytes::{Bytes, BytesMut};
use core::future::Future;
use core::pin::Pin;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

/// Why something could not be done, for people.
pub type Failure = Box<dyn std::error::Error>;
/// What a session gives.
pub type Answer<'a, T> = Pin<Box<dyn Future<Output = Result<T, Failure>> + 'a>>;

/// Levels of the job.
pub const LEVELS: u8 = 5;
/// How long a receive may wait before it comes back empty.
pub const WAIT: Duration = Duration::from_millis(200);
/// Pause between two looks at a system that has no waiting receive of its own.
pub const POLL: Duration = Duration::from_millis(1);
/// A lease, where it has to be said.
pub const LEASE_S: u32 = 60;

/// A message to store. Its body starts with when it was due, and its level, so that any system can be asked about both.
#[derive(Clone, Debug)]
pub struct Message {
    /// 0 is the most urgent.
    pub level: u8,
    /// At least 16 bytes.
    pub body: Bytes,
}

impl Message {
    /// A message of this level and size that was due so long after the start of the measurement.
    pub fn new(level: u8, due: Duration, size: usize) -> Self {
        let mut body = BytesMut::zeroed(size.max(16));
        body[..8].copy_from_slice(&(due.as_nanos() as u64).to_le_bytes());
        body[8] = level;
        Self { level, body: body.freeze() }
    }
}

/// What identifies a delivery to its system.
#[derive(Debug)]
pub enum Token {
    /// Of Overtake.
    Receipt(String),
    /// Of most.
    Number(u64),
    /// Of NATS.
    Nats(Box<async_nats::jetstream::Message>),
}

/// A delivered message.
#[derive(Debug)]
pub struct Delivered {
    /// As it was stored.
    pub body: Bytes,
    /// To ack it.
    pub token: Token,
}

impl Delivered {
    /// When it was due.
    pub fn due(&self) -> Duration {
        Duration::from_nanos(self.body.first_chunk::<8>().map_or(0, |bytes| u64::from_le_bytes(*bytes)))
    }

    /// Its level.
    pub fn level(&self) -> u8 {
        self.body.get(8).copied().unwrap_or(u8::MAX)
    }
}

/// One client of a system, used by one task.
pub trait Session {
    /// Stores messages; answers when all of them are confirmed.
    fn enqueue<'a>(&'a mut self, messages: &'a [Message]) -> Answer<'a, ()>;
    /// Takes up to `max` messages, most urgent first; waits up to [`WAIT`] for the first.
    fn receive(&mut self, max: usize) -> Answer<'_, Vec<Delivered>>;
    /// Acks; answers when the system has answered, where it does.
    fn ack(&mut self, tokens: Vec<Token>) -> Answer<'_, ()>;

    /// Acks and takes the next ones, at the same time where the system can.
    fn next(&mut self, tokens: Vec<Token>, max: usize) -> Answer<'_, Vec<Delivered>> {
        Box::pin(async move {
            if !tokens.is_empty() {
                self.ack(tokens).await?;
            }
            self.receive(max).await
        })
    }
}

/// How a system does best.
#[derive(Clone, Copy, Debug)]
pub struct Tuning {
    /// Messages of one call.
    pub batch: usize,
    /// Sessions that produce, and that consume, when batched.
    pub sessions: usize,
}

/// A system.
pub trait System {
    /// Its name, with its mode.
    fn name(&self) -> String;
    /// Nothing confirmed is lost at power cut.
    fn is_strict(&self) -> bool;
    /// What was set, so that a reader can judge it.
    fn settings(&self) -> String;
    /// How it does best.
    fn tuning(&self) -> Tuning;
    /// How to install it.
    fn install(&self) -> &'static str;
    /// Its executable, or how to install it.
    fn find(&self) -> Result<PathBuf, String>;
    /// What asks it for its version.
    fn version(&self, program: &Path) -> Command {
        let mut command = Command::new(program);
        command.arg("--version");
        command
    }
    /// Makes its folder ready; called once before the first start.
    fn prepare(&self, _folder: &Path) -> Result<(), Failure> {
        Ok(())
    }
    /// The processes to start, in order, for this folder and port. The last one is the server.
    fn commands(&self, folder: &Path, port: u16) -> Result<Vec<Command>, Failure>;
    /// Makes a queue; fails while the server is not up yet.
    fn create<'a>(&'a self, port: u16, queue: &'a str) -> Answer<'a, ()>;
    /// A new client for that queue.
    fn connect<'a>(&'a self, port: u16, queue: &'a str) -> Answer<'a, Box<dyn Session>>;
}

/// An executable of this name in these folders or in the path.
pub fn executable(names: &[&str], install: &str) -> Result<PathBuf, String> {
    let path = std::env::var("PATH").unwrap_or_default();
    let folders = || path.split(':').chain(["/usr/sbin", "/usr/local/sbin"]);
    let mut found = names.iter().flat_map(|name| match name.starts_with('/') {
        true => vec![PathBuf::from(name)],
        false => folders().map(|folder| Path::new(folder).join(name)).collect(),
    });
    found.find(|path| path.is_file()).ok_or_else(|| install.to_owned())
}
