//! What carries messages between the cores of the node: one bounded ring for each ordered pair, one producer and one
//! consumer each. A ring that is full never blocks and never drops: what does not fit waits, in order, at its sender.

use super::wake::Bell;
use bytes::BytesMut;
use overtake_base::CoreId;
use overtake_core::mesh::MeshMessage;
use overtake_transport::EcnCodepoint;
use rtrb::{Consumer, Producer, PushError, RingBuffer};
use std::collections::VecDeque;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;

/// Messages of one ring.
const RING_MESSAGES: usize = 1_024;
/// Datagrams are given up, as the network may, where so many messages wait.
const WAITING_BEFORE_DATAGRAMS_DROP: usize = 4_096;

/// What one core hands another.
pub(super) enum Parcel {
    Message(MeshMessage),
    /// A datagram whose connection lives on the receiving core.
    Datagram(Datagram),
}

pub(super) struct Datagram {
    pub(super) from: SocketAddr,
    pub(super) to: Option<IpAddr>,
    pub(super) ecn: Option<EcnCodepoint>,
    pub(super) data: BytesMut,
}

struct Peer {
    core: CoreId,
    out: Producer<Parcel>,
    waiting: VecDeque<Parcel>,
    into: Consumer<Parcel>,
    bell: Arc<Bell>,
    /// Something was put out since its bell was rung last.
    rouse: bool,
}

/// One core's ends of all its rings.
pub(super) struct Mesh {
    peers: Vec<Peer>,
}

impl Mesh {
    /// The rings between the cores that `bells` belong to.
    pub(super) fn between(bells: &[Arc<Bell>]) -> Vec<Self> {
        let mut cores: Vec<Self> = bells.iter().map(|_| Self { peers: Vec::new() }).collect();
        for a in 0..bells.len() {
            for b in a + 1..bells.len() {
                let (to_b, from_a) = RingBuffer::new(RING_MESSAGES);
                let (to_a, from_b) = RingBuffer::new(RING_MESSAGES);
                cores[a].peers.push(Peer::new(b, to_b, from_b, bells));
                cores[b].peers.push(Peer::new(a, to_a, from_a, bells));
            }
        }
        cores
    }

    pub(super) fn send(&mut self, to: CoreId, message: MeshMessage) {
        if let Some(peer) = self.peers.iter_mut().find(|peer| peer.core == to) {
            peer.send(Parcel::Message(message));
        }
    }

    pub(super) fn hand_over(&mut self, to: CoreId, datagram: Datagram) {
        if let Some(peer) = self.peers.iter_mut().find(|peer| peer.core == to)
            && peer.waiting.len() < WAITING_BEFORE_DATAGRAMS_DROP
        {
            peer.send(Parcel::Datagram(datagram));
        }
    }

    /// Everybody has something to look at: the board changed.
    pub(super) fn rouse_all(&mut self) {
        for peer in &mut self.peers {
            peer.rouse = true;
        }
    }

    /// Puts what waits into the rings and rings the bells of those that have something to take.
    pub(super) fn flush(&mut self) {
        for peer in &mut self.peers {
            while let Some(parcel) = peer.waiting.pop_front() {
                if let Err(PushError::Full(parcel)) = peer.out.push(parcel) {
                    peer.waiting.push_front(parcel);
                    break;
                }
            }
            if core::mem::take(&mut peer.rouse) {
                peer.bell.ring();
            }
        }
    }

    /// True while something waits for room in a ring.
    pub(super) fn is_backed_up(&self) -> bool {
        self.peers.iter().any(|peer| !peer.waiting.is_empty())
    }

    /// Takes what has come, each peer's in its order; what comes meanwhile is for the next turn.
    pub(super) fn receive(&mut self, mut each: impl FnMut(CoreId, Parcel)) {
        for peer in &mut self.peers {
            for _ in 0..peer.into.slots() {
                if let Ok(parcel) = peer.into.pop() {
                    each(peer.core, parcel);
                }
            }
        }
    }
}

impl Peer {
    fn new(core: usize, out: Producer<Parcel>, into: Consumer<Parcel>, bells: &[Arc<Bell>]) -> Self {
        // A node has at most `CORES_MAX` cores.
        let id = CoreId(core as u16);
        Self { core: id, out, waiting: VecDeque::new(), into, bell: bells[core].clone(), rouse: false }
    }

    fn send(&mut self, parcel: Parcel) {
        self.rouse = true;
        if !self.waiting.is_empty() {
            self.waiting.push_back(parcel);
        } else if let Err(PushError::Full(parcel)) = self.out.push(parcel) {
            self.waiting.push_back(parcel);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn call(call: u64) -> MeshMessage {
        MeshMessage::ForwardCancel { call }
    }

    #[test]
    fn messages_arrive_in_order_also_past_a_full_ring() {
        let bells: Vec<Arc<Bell>> = (0..3).map(|_| Arc::default()).collect();
        let mut cores = Mesh::between(&bells);
        let count = RING_MESSAGES as u64 * 3;
        for number in 0..count {
            cores[2].send(CoreId(0), call(number));
        }
        assert!(cores[2].is_backed_up());
        let mut seen = Vec::new();
        while seen.len() < count as usize {
            cores[2].flush();
            cores[0].receive(|from, parcel| {
                assert_eq!(from, CoreId(2));
                if let Parcel::Message(MeshMessage::ForwardCancel { call }) = parcel {
                    seen.push(call);
                }
            });
        }
        assert_eq!(seen, (0..count).collect::<Vec<_>>());
        assert!(!cores[2].is_backed_up());
        cores[1].receive(|_, _| panic!("not for core 1"));
    }
}
