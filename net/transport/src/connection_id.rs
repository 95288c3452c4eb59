//! Connection ids that carry the core: every packet says which core its connection lives on, whatever socket the
//! kernel delivered it to (a client that changed its address, or a change in the number of sockets).
//!
//! Layout, [`LENGTH`] bytes: a 6-byte nonce; then the core (u16, little-endian) and 4 zero bytes, XORed with a keyed
//! hash of the nonce. The zeros make an id that is not ours fail with probability 1 − 2⁻³². The key is the node's, so
//! that all its cores read each other's ids. It keeps ids from being told apart by looking at them; it is no
//! authentication, and needs none: a forged core only gets a packet dropped somewhere else.

use overtake_base::CoreId;
use overtake_base::hash;
use overtake_base::random::Random;
use quinn_proto::{ConnectionId, ConnectionIdGenerator, InvalidCid};
use std::time::Duration;

/// Bytes of a connection id.
pub(crate) const LENGTH: usize = NONCE + MASKED;
const NONCE: usize = 6;
const MASKED: usize = 6;

/// Reads connection ids.
#[derive(Clone, Copy)]
pub(crate) struct Router {
    pub(crate) key: [u8; 16],
    pub(crate) cores: u16,
}

impl Router {
    fn mask(&self, nonce: &[u8]) -> [u8; MASKED] {
        let mut keyed = [0; 16 + NONCE];
        keyed[..16].copy_from_slice(&self.key);
        keyed[16..].copy_from_slice(nonce);
        let hash = hash::stable(&keyed).to_le_bytes();
        [hash[0], hash[1], hash[2], hash[3], hash[4], hash[5]]
    }

    fn core_of(&self, id: &[u8]) -> Option<CoreId> {
        let (nonce, masked) = id.split_at_checked(NONCE)?;
        let masked: [u8; MASKED] = masked.try_into().ok()?;
        let mask = self.mask(nonce);
        let plain: [u8; MASKED] = core::array::from_fn(|i| masked[i] ^ mask[i]);
        let core = u16::from_le_bytes([plain[0], plain[1]]);
        (plain[2..] == [0; 4] && core < self.cores).then_some(CoreId(core))
    }

    /// The core that a datagram's first packet belongs to; `None` where its id is not one of ours (a client's first
    /// packets carry an id that the client made up).
    pub(crate) fn route(&self, datagram: &[u8]) -> Option<CoreId> {
        const LONG_HEADER: u8 = 0x80;
        const LONG_ID_LENGTH_AT: usize = 5;
        let first = *datagram.first()?;
        let id_at = if first & LONG_HEADER == 0 {
            1
        } else if usize::from(*datagram.get(LONG_ID_LENGTH_AT)?) == LENGTH {
            LONG_ID_LENGTH_AT + 1
        } else {
            return None;
        };
        self.core_of(datagram.get(id_at..id_at + LENGTH)?)
    }
}

/// Makes the connection ids of one core.
pub(crate) struct Generator {
    pub(crate) router: Router,
    pub(crate) core: CoreId,
    pub(crate) random: Random,
}

impl ConnectionIdGenerator for Generator {
    fn generate_cid(&mut self) -> ConnectionId {
        let mut id = [0; LENGTH];
        id[..NONCE].copy_from_slice(&self.random.next_u64().to_le_bytes()[..NONCE]);
        let mask = self.router.mask(&id[..NONCE]);
        let core = self.core.0.to_le_bytes();
        id[NONCE..].copy_from_slice(&mask);
        id[NONCE] ^= core[0];
        id[NONCE + 1] ^= core[1];
        ConnectionId::new(&id)
    }

    fn validate(&self, id: &ConnectionId) -> Result<(), InvalidCid> {
        self.router.core_of(id).map(|_| ()).ok_or(InvalidCid)
    }

    fn cid_len(&self) -> usize {
        LENGTH
    }

    fn cid_lifetime(&self) -> Option<Duration> {
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn generator(core: u16) -> Generator {
        Generator {
            router: Router { key: [7; 16], cores: 64 },
            core: CoreId(core),
            random: Random::new(u64::from(core), "id"),
        }
    }

    proptest! {
        #[test]
        fn every_core_reads_every_cores_ids(core in 0u16..64, rest: [u8; 8]) {
            let id = generator(core).generate_cid();
            let router = generator(0).router;
            let mut short = vec![0x40];
            short.extend_from_slice(&id);
            short.extend_from_slice(&rest);
            prop_assert_eq!(router.route(&short), Some(CoreId(core)));
            let mut long = vec![0xc0, 0, 0, 0, 1, LENGTH as u8];
            long.extend_from_slice(&id);
            long.extend_from_slice(&rest);
            prop_assert_eq!(router.route(&long), Some(CoreId(core)));
        }

        #[test]
        fn other_bytes_belong_to_nobody(bytes: Vec<u8>) {
            prop_assert_eq!(generator(3).router.route(&bytes), None);
        }
    }

    #[test]
    fn a_core_that_is_no_more_owns_nothing() {
        let id = generator(5).generate_cid();
        let fewer = Router { cores: 5, ..generator(0).router };
        assert_eq!(fewer.core_of(&id), None);
    }
}
