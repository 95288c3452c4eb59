//! One UDP socket of a core: the task that waits on it, and the batch that it did not take yet.

use super::wake::Bell;
use core::cell::Cell;
use overtake_transport::{EcnCodepoint, Transmit};
use overtake_udp::{Received, UdpSocket, Watch};
use std::io;
use std::net::SocketAddr;
use std::rc::Rc;
use std::sync::Arc;

/// Datagrams taken in one turn, so that a flood leaves room for the disk and the other cores.
const RECEIVE_DATAGRAMS_MAX: usize = 512;
/// Batches sent in one turn.
const SEND_BATCHES_MAX: usize = 512;

/// See the module's text.
pub(super) struct Port {
    socket: UdpSocket,
    seen: Rc<Seen>,
    /// A batch that the socket did not take yet; its bytes are in `buffer`.
    unsent: Option<Transmit>,
    buffer: Vec<u8>,
}

/// Between the loop and the task that waits for datagrams.
#[derive(Default)]
struct Seen {
    /// The task saw something and waits for `emptied`.
    readable: Cell<bool>,
    emptied: Bell,
}

impl Port {
    /// Binds an address; `bell` is rung when datagrams come. `broken` is called where that cannot be known any more.
    pub(super) fn bind(
        address: SocketAddr,
        bell: Arc<Bell>,
        broken: impl FnOnce(io::Error) + 'static,
    ) -> io::Result<Self> {
        let socket = UdpSocket::bind(address)?;
        let seen = Rc::new(Seen::default());
        glommio::spawn_local(watch(socket.watch(), seen.clone(), bell, broken)).detach();
        Ok(Self { socket, seen, unsent: None, buffer: Vec::new() })
    }

    /// Takes what has come. Returns true where more may be there already.
    pub(super) fn receive(&mut self, each: impl FnMut(Received<'_>)) -> io::Result<bool> {
        let more = self.socket.try_receive(RECEIVE_DATAGRAMS_MAX, each)?;
        if !more && self.seen.readable.replace(false) {
            self.seen.emptied.ring();
        }
        Ok(more)
    }

    /// Sends what `poll` gives, given how many segments a batch may have, until it gives no more or the socket is full.
    pub(super) fn transmit(&mut self, mut poll: impl FnMut(usize, &mut Vec<u8>) -> Option<Transmit>) {
        for _ in 0..SEND_BATCHES_MAX {
            if self.unsent.is_none() {
                self.unsent = poll(self.socket.segments_max(), &mut self.buffer);
            }
            let Some(transmit) = &self.unsent else { return };
            let batch = overtake_udp::Transmit {
                destination: transmit.destination,
                ecn: transmit.ecn.and_then(|ecn| overtake_udp::EcnCodepoint::from_bits(ecn as u8)),
                contents: &self.buffer[..transmit.size],
                segment_size: transmit.segment_size,
                src_ip: transmit.src_ip,
            };
            if !self.socket.try_send(&batch) {
                return;
            }
            self.unsent = None;
        }
    }

    /// True while the socket is full: nothing rings when it no longer is.
    pub(super) fn is_full(&self) -> bool {
        self.unsent.is_some()
    }
}

/// The congestion bits of a datagram, as the transport takes them.
pub(super) fn ecn_of(datagram: &Received<'_>) -> Option<EcnCodepoint> {
    datagram.ecn.and_then(|ecn| EcnCodepoint::from_bits(ecn as u8))
}

/// Rings the bell when datagrams come, then waits until the loop has taken them all.
async fn watch(watch: Watch, seen: Rc<Seen>, bell: Arc<Bell>, broken: impl FnOnce(io::Error)) {
    loop {
        if let Err(error) = watch.readable().await {
            return broken(error);
        }
        seen.readable.set(true);
        bell.ring();
        seen.emptied.wait().await;
    }
}
