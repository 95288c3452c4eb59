//! A bad network in front of a server's UDP socket: passes datagrams on, loses some or all of them, and can give every
//! client a new address, as a router does that restarts.

use overtake_base::random::Random;
use std::collections::HashMap;
use std::net::{Ipv4Addr, SocketAddr, UdpSocket};
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::Duration;

/// How often the threads look whether they shall end.
const LOOK: Duration = Duration::from_millis(50);
const DATAGRAM_BYTES_MAX: usize = 65_535;

/// A running proxy; it ends when it is dropped.
#[derive(Debug)]
pub struct UdpProxy {
    address: SocketAddr,
    shared: Arc<Shared>,
    thread: Option<JoinHandle<()>>,
}

#[derive(Debug)]
struct Shared {
    server: SocketAddr,
    /// Towards clients.
    front: UdpSocket,
    /// Of a million datagrams so many are lost, each way.
    lost_ppm: AtomicU32,
    random: Mutex<Random>,
    stop: AtomicBool,
    /// The socket from which each client's datagrams go to the server.
    backs: Mutex<HashMap<SocketAddr, Arc<Back>>>,
}

#[derive(Debug)]
struct Back {
    socket: UdpSocket,
    gone: AtomicBool,
}

impl UdpProxy {
    /// A proxy on a free port of loopback that passes everything on to `server`.
    pub fn start(server: SocketAddr, seed: u64) -> Self {
        let front = UdpSocket::bind((Ipv4Addr::LOCALHOST, 0)).expect("a free port");
        front.set_read_timeout(Some(LOOK)).expect("a time-out");
        let address = front.local_addr().expect("a bound socket");
        let shared = Arc::new(Shared {
            server,
            front,
            lost_ppm: AtomicU32::new(0),
            random: Mutex::new(Random::new(seed, "network")),
            stop: AtomicBool::new(false),
            backs: Mutex::default(),
        });
        let thread = Some(std::thread::spawn({
            let shared = shared.clone();
            move || shared.pass_requests()
        }));
        Self { address, shared, thread }
    }

    /// Where clients connect to.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Loses so many of a million datagrams from now on: 1,000,000 cuts the connection, 0 heals it.
    pub fn lose(&self, ppm: u32) {
        self.shared.lost_ppm.store(ppm, Ordering::Relaxed);
    }

    /// From now on clients come to the server from other ports.
    pub fn move_clients(&self) {
        let mut backs = self.shared.backs.lock().expect("nobody fails while it is held");
        for (_, back) in backs.drain() {
            back.gone.store(true, Ordering::Relaxed);
        }
    }
}

impl Drop for UdpProxy {
    fn drop(&mut self) {
        self.shared.stop.store(true, Ordering::Relaxed);
        self.move_clients();
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

impl Shared {
    fn pass_requests(self: Arc<Self>) {
        let mut datagram = vec![0; DATAGRAM_BYTES_MAX];
        while !self.stop.load(Ordering::Relaxed) {
            let Ok((length, client)) = self.front.recv_from(&mut datagram) else { continue };
            let back = self.back_of(client);
            if self.passes() {
                // A server that is down refuses: that is lost, too.
                let _ = back.socket.send(&datagram[..length]);
            }
        }
    }

    fn back_of(self: &Arc<Self>, client: SocketAddr) -> Arc<Back> {
        let mut backs = self.backs.lock().expect("nobody fails while it is held");
        let new = || {
            let socket = UdpSocket::bind((Ipv4Addr::LOCALHOST, 0)).expect("a free port");
            socket.connect(self.server).expect("a loopback address");
            socket.set_read_timeout(Some(LOOK)).expect("a time-out");
            let back = Arc::new(Back { socket, gone: AtomicBool::new(false) });
            let (shared, answering) = (self.clone(), back.clone());
            std::thread::spawn(move || shared.pass_answers(&answering, client));
            back
        };
        backs.entry(client).or_insert_with(new).clone()
    }

    fn pass_answers(&self, back: &Back, client: SocketAddr) {
        let mut datagram = vec![0; DATAGRAM_BYTES_MAX];
        while !back.gone.load(Ordering::Relaxed) {
            let Ok(length) = back.socket.recv(&mut datagram) else { continue };
            if self.passes() {
                let _ = self.front.send_to(&datagram[..length], client);
            }
        }
    }

    fn passes(&self) -> bool {
        let ppm = self.lost_ppm.load(Ordering::Relaxed);
        ppm == 0 || !self.random.lock().expect("nobody fails while it is held").chance_ppm(ppm)
    }
}
