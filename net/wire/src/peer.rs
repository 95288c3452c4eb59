//! Frames between cores of different nodes. A link is one QUIC connection with one bidirectional stream, which the node
//! with the lower id opens. Each direction of it is a row of frames, nothing else:
//!
//! ```text
//! u32 length | so many bytes
//! ```
//!
//! The first frame of each direction is a [`PeerHello`], of the side that dialled first. Where that side takes the answer, it
//! says so with an empty frame ([`CONFIRMATION`]); the link is there for it when it sends that, for the other when it
//! comes. Every later frame is a message of the mesh, whose bytes are the business of `engine/core`. QUIC encrypts and checks all of it, so there is no checksum here. A frame may be as long as
//! [`PEER_FRAME_BYTES_MAX`] says, a greeting as [`HELLO_BYTES`]; what is longer or is no greeting ends the connection.
//!
//! ```text
//! greeting: @0 u16 version · @2 u16 core · @4 u16 cores · @6 u16 zero · @8 u64 node
//!           @16 u128 cluster · @32 u128 store · @48 u64 map
//! ```
//! All integers are little-endian.

use overtake_base::limits::{CORES_MAX, PEER_MESSAGE_BYTES_MAX};
use overtake_base::{CoreId, Malformed, NodeId, Reader, Writer};

/// What peers offer in the TLS handshake. Its number is [`PEER_VERSION`].
pub const ALPN_PEER: &[u8] = b"overtake-peer/1";

/// The version of the frames and of the messages in them.
pub const PEER_VERSION: u16 = 1;

/// Longest frame, length prefix not counted.
pub const PEER_FRAME_BYTES_MAX: usize = PEER_MESSAGE_BYTES_MAX;

/// Bytes of a greeting.
pub const HELLO_BYTES: usize = 56;

/// The dialling side takes the answer to its greeting.
pub const CONFIRMATION: [u8; crate::LENGTH_BYTES] = [0; crate::LENGTH_BYTES];

/// The first thing that each side of a link says: which core of which node of which cluster it is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct PeerHello {
    /// The sending node.
    pub node: NodeId,
    /// Its core.
    pub core: CoreId,
    /// Cores of that node.
    pub cores: u16,
    /// Identity of the cluster.
    pub cluster: u128,
    /// Identity of the node's data folder: a node that lost it is not the one that it was.
    pub store: u128,
    /// What the node was told of all nodes and shards, as a hash: nodes that were told different things would place
    /// replicas differently.
    pub map: u64,
}

impl PeerHello {
    /// Appends the greeting as a frame.
    pub fn encode(&self, out: &mut Vec<u8>) {
        let mut out = Writer(out);
        out.u32(HELLO_BYTES as u32);
        out.u16(PEER_VERSION);
        out.u16(self.core.0);
        out.u16(self.cores);
        out.u16(0);
        out.u64(self.node.0);
        out.u128(self.cluster);
        out.u128(self.store);
        out.u64(self.map);
    }

    /// Reads a greeting, without its length prefix.
    ///
    /// # Errors
    /// Where the bytes are no greeting of this version.
    pub fn decode(frame: &[u8]) -> Result<Self, Malformed> {
        let mut input = Reader::new(frame);
        if input.u16("a peer's greeting")? != PEER_VERSION {
            return Err(Malformed("a peer of another version"));
        }
        let (core, cores) = (CoreId(input.u16("core")?), input.u16("cores")?);
        if input.u16("zero")? != 0 || !(1..=CORES_MAX).contains(&cores) || core.0 >= cores {
            return Err(Malformed("a peer's core"));
        }
        let hello = Self {
            node: NodeId(input.u64("node")?),
            core,
            cores,
            cluster: input.u128("cluster")?,
            store: input.u128("store")?,
            map: input.u64("map")?,
        };
        input.finish("end of a peer's greeting")?;
        Ok(hello)
    }
}

/// Application error codes with which a peer closes a connection; a text goes with each.
pub mod peer_code {
    /// The node is stopping.
    pub const STOPPING: u32 = 1;
    /// The other side is not who it should be, or not told what it should be.
    pub const REFUSED: u32 = 2;
    /// What it sent is not of this protocol.
    pub const MALFORMED: u32 = 3;
    /// It takes too little of what is sent to it.
    pub const SLOW: u32 = 4;
    /// It has made another connection.
    pub const REPLACED: u32 = 5;
    /// It did not greet in time.
    pub const SILENT: u32 = 6;
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const HELLO: PeerHello = PeerHello {
        node: NodeId(0x0102),
        core: CoreId(1),
        cores: 2,
        cluster: 0x0a0b,
        store: 0x0c0d,
        map: 0x0e0f,
    };

    fn encoded() -> Vec<u8> {
        let mut bytes = Vec::new();
        HELLO.encode(&mut bytes);
        bytes
    }

    #[test]
    fn the_greeting_has_its_golden_bytes() {
        let hex: String = encoded().iter().map(|byte| format!("{byte:02x}")).collect();
        let golden = concat!(
            "38000000",
            "0100",
            "0100",
            "0200",
            "0000",
            "0201000000000000",
            "0b0a0000000000000000000000000000",
            "0d0c0000000000000000000000000000",
            "0f0e000000000000",
        );
        assert_eq!(hex, golden);
        assert_eq!(encoded().len(), crate::LENGTH_BYTES + HELLO_BYTES);
        assert_eq!(PeerHello::decode(&encoded()[crate::LENGTH_BYTES..]), Ok(HELLO));
    }

    #[test]
    fn what_is_no_greeting_is_refused() {
        let good = &encoded()[crate::LENGTH_BYTES..];
        for length in 0..good.len() {
            assert!(PeerHello::decode(&good[..length]).is_err(), "{length} bytes");
        }
        // Version, core, cores, zero.
        for (at, value) in [(0, 2), (2, 2), (4, 0), (4, 1), (5, 1), (6, 1)] {
            let mut bad = good.to_vec();
            bad[at] = value;
            assert!(PeerHello::decode(&bad).is_err(), "byte {at} = {value}");
        }
        assert!(PeerHello::decode(&[good, &[0]].concat()).is_err(), "too long");
    }

    proptest! {
        #[test]
        fn any_bytes_are_a_greeting_or_not(bytes: Vec<u8>) {
            if let Ok(hello) = PeerHello::decode(&bytes) {
                let mut again = Vec::new();
                hello.encode(&mut again);
                prop_assert_eq!(&again[crate::LENGTH_BYTES..], bytes);
            }
        }
    }
}
