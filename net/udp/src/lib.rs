//! UDP sockets with segmentation offload, on glommio.
//!
//! glommio's own socket sends and receives one datagram a call. This one keeps a glommio socket for waiting only, and
//! moves bytes through a second handle of the same socket with `recvmmsg`, GRO and GSO: batches of up to 64 datagrams
//! for one system call.

mod socket;

pub use quinn_udp::{EcnCodepoint, Transmit};
pub use socket::{Received, UdpSocket, Watch, claim};
