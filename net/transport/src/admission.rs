//! Who may connect: bounds on connections in total and by address, and proof of address when many handshakes are
//! under way.

use crate::limits;
use overtake_base::hash::Map;
use std::net::IpAddr;

/// What connections from one place are counted under: an IPv4 address or an IPv6 /64, since the host part of an
/// IPv6 address is for a client to choose.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(crate) struct Place(u64);

impl Place {
    /// `None` for loopback, which is not counted.
    pub(crate) fn of(address: IpAddr) -> Option<Self> {
        let address = address.to_canonical();
        if address.is_loopback() {
            return None;
        }
        Some(Self(match address {
            // The documentation prefix keeps IPv4 numbers apart from real IPv6 prefixes.
            IpAddr::V4(v4) => 0x2001_0db8_0000_0000 | u64::from(v4.to_bits()),
            IpAddr::V6(v6) => (v6.to_bits() >> 64) as u64,
        }))
    }
}

/// What to do with a client that knocks.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Verdict {
    Accept,
    /// Prove the address first.
    Retry,
    Refuse,
}

/// Bounds, adjustable for tests and small machines.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct AdmissionLimits {
    /// Connections of this core.
    pub connections: usize,
    /// Connections of this core from one IPv4 address or IPv6 /64; loopback is exempt.
    pub connections_per_address: usize,
    /// Handshakes under way above which a client must prove its address.
    pub handshakes_before_retry: usize,
}

impl Default for AdmissionLimits {
    fn default() -> Self {
        Self {
            connections: limits::CONNECTIONS_MAX,
            connections_per_address: limits::CONNECTIONS_PER_ADDRESS_MAX,
            handshakes_before_retry: limits::HANDSHAKES_BEFORE_RETRY,
        }
    }
}

/// The counts behind the verdicts.
pub(crate) struct Admission {
    limits: AdmissionLimits,
    connections: usize,
    handshakes: usize,
    by_place: Map<Place, usize>,
    stopping: bool,
}

impl Admission {
    pub(crate) fn new(limits: AdmissionLimits) -> Self {
        Self { limits, connections: 0, handshakes: 0, by_place: Map::default(), stopping: false }
    }

    pub(crate) fn stop(&mut self) {
        self.stopping = true;
    }

    pub(crate) fn judge(&self, place: Option<Place>, address_proved: bool) -> Verdict {
        let of_place = place.and_then(|place| self.by_place.get(&place)).copied().unwrap_or(0);
        if self.stopping || self.connections >= self.limits.connections {
            Verdict::Refuse
        } else if !address_proved && self.handshakes >= self.limits.handshakes_before_retry {
            Verdict::Retry
        } else if of_place >= self.limits.connections_per_address {
            Verdict::Refuse
        } else {
            Verdict::Accept
        }
    }

    pub(crate) fn accepted(&mut self, place: Option<Place>) {
        self.connections += 1;
        self.handshakes += 1;
        if let Some(place) = place {
            *self.by_place.entry(place).or_default() += 1;
        }
    }

    pub(crate) fn established(&mut self) {
        self.handshakes -= 1;
    }

    /// A connection is gone; `established` says whether [`Self::established`] was told of it.
    pub(crate) fn gone(&mut self, place: Option<Place>, established: bool) {
        self.connections -= 1;
        if !established {
            self.handshakes -= 1;
        }
        if let Some(place) = place
            && let Some(count) = self.by_place.get_mut(&place)
        {
            *count -= 1;
            if *count == 0 {
                self.by_place.remove(&place);
            }
        }
    }

    pub(crate) fn connections(&self) -> usize {
        self.connections
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn place(text: &str) -> Option<Place> {
        Place::of(text.parse().unwrap())
    }

    #[test]
    fn places_are_addresses_or_prefixes() {
        assert_eq!(place("127.0.0.1"), None);
        assert_eq!(place("::1"), None);
        assert_eq!(place("10.0.0.1"), place("::ffff:10.0.0.1"));
        assert_ne!(place("10.0.0.1"), place("10.0.0.2"));
        assert_eq!(place("2001:4860:0:1::1"), place("2001:4860:0:1::2"));
        assert_ne!(place("2001:4860:0:1::1"), place("2001:4860:0:2::1"));
    }

    #[test]
    fn bounds_hold_and_are_given_back() {
        let limits =
            AdmissionLimits { connections: 3, connections_per_address: 2, handshakes_before_retry: 1 };
        let mut admission = Admission::new(limits);
        let (a, b) = (place("10.0.0.1"), place("10.0.0.2"));
        assert_eq!(admission.judge(a, false), Verdict::Accept);
        admission.accepted(a);
        assert_eq!(admission.judge(a, false), Verdict::Retry);
        assert_eq!(admission.judge(a, true), Verdict::Accept);
        admission.accepted(a);
        assert_eq!(admission.judge(a, true), Verdict::Refuse);
        assert_eq!(admission.judge(b, true), Verdict::Accept);
        admission.accepted(b);
        assert_eq!(admission.judge(None, true), Verdict::Refuse);
        admission.established();
        admission.gone(a, true);
        assert_eq!(admission.judge(a, true), Verdict::Accept);
        admission.gone(a, false);
        admission.gone(b, false);
        assert_eq!(admission.judge(a, false), Verdict::Accept);
        admission.stop();
        assert_eq!(admission.judge(a, true), Verdict::Refuse);
    }
}
