//! A server process of our own, which may be killed: its memory, what it makes the disk write, and what it holds there.

use std::fs::{self, OpenOptions};
use std::io::{self, Read as _, Write as _};
use std::net::{SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

/// A server is given this long to become ready.
const READY_WITHIN: Duration = Duration::from_secs(300);

/// How it is started.
#[derive(Clone, Debug)]
pub(super) struct Start {
    pub(super) binary: PathBuf,
    pub(super) data: PathBuf,
    pub(super) http: SocketAddr,
    pub(super) quic: SocketAddr,
    pub(super) cores: u32,
    pub(super) shards: u32,
}

/// A running server, killed when it is dropped.
#[derive(Debug)]
pub(super) struct Server {
    start: Start,
    child: Child,
}

impl Start {
    /// Starts it and waits until it is ready.
    pub(super) fn start(self) -> io::Result<Server> {
        // Else whoever listens there would be measured in its place.
        let taken = |error: io::Error, address: SocketAddr| {
            io::Error::new(
                error.kind(),
                format!("{address} cannot be used, give another --http or --quic: {error}"),
            )
        };
        TcpListener::bind(self.http).map_err(|error| taken(error, self.http))?;
        UdpSocket::bind(self.quic).map_err(|error| taken(error, self.quic))?;
        self.launch()
    }

    /// The same where a server of ours was on these addresses a moment ago.
    fn launch(self) -> io::Result<Server> {
        let log = OpenOptions::new().create(true).append(true).open(self.data.with_extension("log"))?;
        let mut command = Command::new(&self.binary);
        command.arg("serve").arg("--data").arg(&self.data);
        command.args(["--http", &self.http.to_string(), "--quic", &self.quic.to_string()]);
        command.args(["--cores", &self.cores.to_string(), "--shards", &self.shards.to_string()]);
        command.stdin(Stdio::null()).stdout(log.try_clone()?).stderr(log);
        let named = |error: io::Error| {
            io::Error::new(error.kind(), format!("{} cannot be started: {error}", self.binary.display()))
        };
        let child = command.spawn().map_err(named)?;
        let mut server = Server { start: self, child };
        let begun = Instant::now();
        while !server.get("/readyz").is_ok_and(|reply| reply.starts_with("HTTP/1.1 200")) {
            if let Some(status) = server.child.try_wait()? {
                let log = server.start.data.with_extension("log");
                return Err(io::Error::other(format!("the server ended, {status}: see {}", log.display())));
            }
            if begun.elapsed() > READY_WITHIN {
                return Err(io::Error::other("the server is not ready after five minutes"));
            }
            std::thread::sleep(Duration::from_millis(2));
        }
        Ok(server)
    }
}

impl Server {
    /// As if the power failed for it alone; starts it again on the same folder.
    pub(super) fn kill_and_start(mut self) -> io::Result<Self> {
        let start = self.start.clone();
        self.child.kill()?;
        self.child.wait()?;
        drop(self);
        start.launch()
    }

    fn get(&self, path: &str) -> io::Result<String> {
        let mut stream = TcpStream::connect_timeout(&self.start.http, Duration::from_millis(500))?;
        stream.set_read_timeout(Some(Duration::from_secs(10)))?;
        write!(stream, "GET {path} HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n")?;
        let mut reply = String::new();
        stream.read_to_string(&mut reply)?;
        Ok(reply)
    }

    /// A value of `/metrics`; 0 where there is none of that name.
    pub(super) fn metric(&self, name: &str) -> io::Result<f64> {
        let reply = self.get("/metrics")?;
        let value = |line: &str| line.strip_prefix(name)?.strip_prefix(' ')?.trim().parse().ok();
        Ok(reply.lines().find_map(value).unwrap_or(0.0))
    }

    /// Memory that it has now, in bytes.
    pub(super) fn memory_bytes(&self) -> io::Result<u64> {
        let status = fs::read_to_string(format!("/proc/{}/status", self.child.id()))?;
        let kib = number_after(&status, "VmRSS:").ok_or_else(|| io::Error::other("no VmRSS"))?;
        Ok(kib * 1024)
    }

    /// Bytes that it made the disk write since it was started.
    pub(super) fn written_bytes(&self) -> io::Result<u64> {
        let io = fs::read_to_string(format!("/proc/{}/io", self.child.id()))?;
        number_after(&io, "write_bytes:").ok_or_else(|| io::Error::other("no write_bytes"))
    }

    /// Bytes that its folder takes on the disk.
    pub(super) fn disk_bytes(&self) -> io::Result<u64> {
        folder_bytes(&self.start.data)
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        // One that has already ended cannot be killed; it is reaped all the same.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// The number behind a word at the start of a line.
fn number_after(text: &str, word: &str) -> Option<u64> {
    text.lines().find_map(|line| line.strip_prefix(word)?.split_ascii_whitespace().next()?.parse().ok())
}

fn folder_bytes(folder: &Path) -> io::Result<u64> {
    use std::os::unix::fs::MetadataExt as _;
    let mut bytes = 0;
    for entry in fs::read_dir(folder)? {
        let entry = entry?;
        // Files come and go while we look.
        let Ok(metadata) = entry.metadata() else { continue };
        bytes += if metadata.is_dir() { folder_bytes(&entry.path())? } else { metadata.blocks() * 512 };
    }
    Ok(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_found_by_the_word_before_them() {
        let text = "Name:\tx\nVmRSS:\t   1234 kB\nwrite_bytes: 99\n";
        assert_eq!(number_after(text, "VmRSS:"), Some(1_234));
        assert_eq!(number_after(text, "write_bytes:"), Some(99));
        assert_eq!(number_after(text, "VmHWM:"), None);
    }
}
