//! The socket.

use glommio::net::UdpSocket as Waiting;
use quinn_udp::{BATCH_SIZE, EcnCodepoint, RecvMeta, Transmit, UdpSockRef, UdpSocketState};
use std::io::{self, ErrorKind, IoSliceMut};
use std::net::{IpAddr, SocketAddr};
use std::os::fd::{AsRawFd as _, BorrowedFd};
use std::rc::Rc;
use std::time::Duration;

/// Bytes of one receive buffer: the largest batch that GRO makes of datagrams.
const BUFFER_BYTES: usize = 65_536;
/// What is asked of the kernel for each direction; it may give less (`net.core.rmem_max`, `net.core.wmem_max`).
const SOCKET_BUFFER_BYTES: usize = 8 * 1024 * 1024;

/// One received datagram.
#[derive(Debug)]
pub struct Received<'a> {
    /// Who sent it.
    pub from: SocketAddr,
    /// The address it was sent to.
    pub to: Option<IpAddr>,
    /// Congestion bits.
    pub ecn: Option<EcnCodepoint>,
    /// Its bytes.
    pub data: &'a [u8],
}

/// A bound UDP socket of one core. Several cores may bind the same address; the kernel then spreads clients over them.
pub struct UdpSocket {
    waiting: Rc<Waiting>,
    /// The same socket by another handle.
    moving: std::net::UdpSocket,
    state: UdpSocketState,
    buffers: Vec<Box<[u8]>>,
}

impl UdpSocket {
    /// Binds `address` (port 0: a free port). Must be called on a glommio executor.
    pub fn bind(address: SocketAddr) -> io::Result<Self> {
        let waiting = Waiting::bind(address).map_err(io::Error::from)?;
        let moving = duplicate(&waiting)?;
        let state = UdpSocketState::new(UdpSockRef::from(&moving))?;
        // Less than asked for costs speed under bursts, not correctness.
        let _ = state.set_recv_buffer_size(UdpSockRef::from(&moving), SOCKET_BUFFER_BYTES);
        let _ = state.set_send_buffer_size(UdpSockRef::from(&moving), SOCKET_BUFFER_BYTES);
        let buffers = (0..BATCH_SIZE).map(|_| vec![0; BUFFER_BYTES].into_boxed_slice()).collect();
        Ok(Self { waiting: Rc::new(waiting), moving, state, buffers })
    }

    /// The address it is bound to.
    pub fn local_address(&self) -> io::Result<SocketAddr> {
        self.moving.local_addr()
    }

    /// Takes what has arrived, at most about `datagrams_max`, without waiting. Returns true where more may be there.
    pub fn try_receive(
        &mut self,
        datagrams_max: usize,
        mut each: impl FnMut(Received<'_>),
    ) -> io::Result<bool> {
        let mut taken = 0;
        while taken < datagrams_max {
            let mut metas = [RecvMeta::default(); BATCH_SIZE];
            let count = {
                let mut buffers = self.buffers.iter_mut();
                let mut slices: [IoSliceMut<'_>; BATCH_SIZE] = core::array::from_fn(|_| {
                    IoSliceMut::new(buffers.next().map_or(&mut [][..], |buffer| &mut buffer[..]))
                });
                match self.state.recv(UdpSockRef::from(&self.moving), &mut slices, &mut metas) {
                    Ok(count) => count,
                    Err(error) if error.kind() == ErrorKind::WouldBlock => return Ok(false),
                    // A datagram sent earlier was refused by the other side; says nothing about what is received.
                    Err(error) if error.kind() == ErrorKind::ConnectionRefused => continue,
                    Err(error) => return Err(error),
                }
            };
            for (meta, buffer) in metas.iter().zip(&self.buffers).take(count) {
                for data in buffer[..meta.len].chunks(meta.stride.max(1)) {
                    taken += 1;
                    each(Received { from: meta.addr, to: meta.dst_ip, ecn: meta.ecn, data });
                }
            }
        }
        Ok(true)
    }

    /// Sends a batch. Returns false where the kernel takes no more for now: try the same again later. A batch that
    /// cannot be sent at all is dropped like a lost packet.
    pub fn try_send(&self, transmit: &Transmit<'_>) -> bool {
        // Every other failure is swallowed there: QUIC repeats what was lost.
        self.state.send(UdpSockRef::from(&self.moving), transmit).is_ok()
    }

    /// The most segments of one batch; 1 without segmentation offload.
    #[must_use]
    pub fn segments_max(&self) -> usize {
        self.state.max_gso_segments()
    }

    /// Something to wait with, for a task that does not hold the socket.
    #[must_use]
    pub fn watch(&self) -> Watch {
        Watch(self.waiting.clone())
    }
}

/// Waits for datagrams to receive.
pub struct Watch(Rc<Waiting>);

impl Watch {
    /// Waits until something may be there to receive.
    pub async fn readable(&self) -> io::Result<()> {
        match self.0.peek_from(&mut [0; 1]).await.map_err(io::Error::from) {
            Ok(_) => Ok(()),
            Err(error) if error.kind() == ErrorKind::ConnectionRefused => Ok(()),
            Err(error) => Err(error),
        }
    }
}

/// Makes sure that no other process holds `address`, and chooses the port where it says 0. Sockets that share an
/// address share its clients too, silently: a second server on one port must fail instead. The kernel lets go of a killed
/// server's socket a moment after the process is gone, so a port in use is tried again for up to two seconds.
pub fn claim(address: SocketAddr) -> io::Result<SocketAddr> {
    const PAUSE: Duration = Duration::from_millis(50);
    let mut tries_left = 40;
    loop {
        match std::net::UdpSocket::bind(address) {
            Err(error) if error.kind() == ErrorKind::AddrInUse && tries_left > 0 => {
                tries_left -= 1;
                std::thread::sleep(PAUSE);
            }
            bound => return bound?.local_addr(),
        }
    }
}

/// A second handle of a socket, with blocking calls turned off by [`UdpSocketState::new`].
fn duplicate(socket: &Waiting) -> io::Result<std::net::UdpSocket> {
    // SAFETY: the descriptor is open for as long as `socket` is borrowed, which outlasts `borrowed`.
    #[allow(unsafe_code)]
    let borrowed = unsafe { BorrowedFd::borrow_raw(socket.as_raw_fd()) };
    Ok(borrowed.try_clone_to_owned()?.into())
}
