//! A bad network in front of a server's HTTP port: passes bytes on, holds them back, ends connections, or lets none
//! through.

use std::io::{ErrorKind, Read as _, Write as _};
use std::net::{Ipv4Addr, Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::Duration;

/// How often the threads look whether something changed.
const LOOK: Duration = Duration::from_millis(20);
const CHUNK_BYTES: usize = 64 * 1024;

/// A running proxy; it ends when it is dropped.
#[derive(Debug)]
pub struct TcpProxy {
    address: SocketAddr,
    shared: Arc<Shared>,
    thread: Option<JoinHandle<()>>,
}

#[derive(Debug)]
struct Shared {
    server: SocketAddr,
    held_back: AtomicBool,
    refuses: AtomicBool,
    stop: AtomicBool,
    /// Both ends of every connection.
    open: Mutex<Vec<TcpStream>>,
}

impl TcpProxy {
    /// A proxy on a free port of loopback that passes everything on to `server`.
    pub fn start(server: SocketAddr) -> Self {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).expect("a free port");
        listener.set_nonblocking(true).expect("a socket that does not block");
        let address = listener.local_addr().expect("a bound socket");
        let shared = Arc::new(Shared {
            server,
            held_back: AtomicBool::new(false),
            refuses: AtomicBool::new(false),
            stop: AtomicBool::new(false),
            open: Mutex::default(),
        });
        let thread = Some(std::thread::spawn({
            let shared = shared.clone();
            move || shared.accept(&listener)
        }));
        Self { address, shared, thread }
    }

    /// Where clients connect to.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Holds back every byte, both ways, or passes on what was held back and all that follows.
    pub fn hold_back(&self, held_back: bool) {
        self.shared.held_back.store(held_back, Ordering::Relaxed);
    }

    /// Ends new connections at once, or lets them through again.
    pub fn refuse(&self, refuses: bool) {
        self.shared.refuses.store(refuses, Ordering::Relaxed);
    }

    /// Ends every connection, in the middle of whatever it carries.
    pub fn cut(&self) {
        for stream in self.shared.open.lock().expect("nobody fails while it is held").drain(..) {
            // It may have ended already.
            let _ = stream.shutdown(Shutdown::Both);
        }
    }
}

impl Drop for TcpProxy {
    fn drop(&mut self) {
        self.shared.stop.store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
        self.cut();
    }
}

impl Shared {
    fn accept(self: Arc<Self>, listener: &TcpListener) {
        while !self.stop.load(Ordering::Relaxed) {
            match listener.accept() {
                Ok((client, _)) if !self.refuses.load(Ordering::Relaxed) => self.connect(client),
                Ok(_) => {}
                Err(_) => std::thread::sleep(LOOK),
            }
        }
    }

    /// A server that is down: the client's connection ends.
    fn connect(self: &Arc<Self>, client: TcpStream) {
        let Ok(server) = TcpStream::connect(self.server) else { return };
        for (from, to) in [(&client, &server), (&server, &client)] {
            let _ = from.set_nonblocking(false);
            from.set_read_timeout(Some(LOOK)).expect("a time-out");
            let _ = from.set_nodelay(true);
            let copy = |stream: &TcpStream| stream.try_clone().expect("a handle");
            let (from, to, shared) = (copy(from), copy(to), self.clone());
            std::thread::spawn(move || shared.pass(from, to));
        }
        self.open.lock().expect("nobody fails while it is held").extend([client, server]);
    }

    fn pass(&self, mut from: TcpStream, mut to: TcpStream) {
        let mut chunk = vec![0; CHUNK_BYTES];
        loop {
            let read = from.read(&mut chunk);
            while self.held_back.load(Ordering::Relaxed) && !self.stop.load(Ordering::Relaxed) {
                std::thread::sleep(LOOK);
            }
            let passed = match read {
                Ok(0) => false,
                Ok(length) => to.write_all(&chunk[..length]).is_ok(),
                Err(error) => matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut),
            };
            if !passed || self.stop.load(Ordering::Relaxed) {
                let _ = (from.shutdown(Shutdown::Both), to.shutdown(Shutdown::Both));
                return;
            }
        }
    }
}
