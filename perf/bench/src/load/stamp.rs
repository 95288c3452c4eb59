//! What a message of the load says about itself, at the start of its body: whose it is, which one, and when it was due.
//! With it any process can time and check a delivery.
//!
//! | offset | bytes | field |
//! |---|---|---|
//! | 0 | 8 | `OTKLOAD1` |
//! | 8 | 8 | run: a random number of the process that made it |
//! | 16 | 8 | number of the message in its run |
//! | 24 | 8 | when it was due, in nanoseconds since 1970 |
//! | 32 | 8 | when it may be seen: the same, or later where it was delayed |
//! | 40 | 8 | XXH3 of everything else |
//!
//! Numbers are little-endian. The rest of the body is filled up.

use bytes::{Bytes, BytesMut};
use overtake_base::checksum::checksum;

const MAGIC: &[u8; 8] = b"OTKLOAD1";
const DOMAIN: u64 = u64::from_le_bytes(*MAGIC);
/// Bytes of a stamp; no body is shorter.
pub const STAMP_BYTES: usize = 48;
const CHECKSUM_AT: usize = 40;

/// The stamp of one message.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Stamp {
    /// Whose.
    pub run: u64,
    /// Which.
    pub number: u64,
    /// When it was due, in nanoseconds since 1970.
    pub due_ns: u64,
    /// When it may be seen.
    pub visible_ns: u64,
}

/// Why a body has no stamp.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum NoStamp {
    /// It is not a message of the load tool.
    Foreign,
    /// It was one.
    Damaged,
}

impl Stamp {
    /// A body of this length, but never shorter than a stamp.
    #[must_use]
    pub fn body(self, length: usize) -> Bytes {
        let mut body = BytesMut::with_capacity(length.max(STAMP_BYTES));
        body.extend_from_slice(MAGIC);
        for field in [self.run, self.number, self.due_ns, self.visible_ns, 0] {
            body.extend_from_slice(&field.to_le_bytes());
        }
        body.resize(length.max(STAMP_BYTES), b'x');
        let sum = sum(&body);
        body[CHECKSUM_AT..STAMP_BYTES].copy_from_slice(&sum.to_le_bytes());
        body.freeze()
    }

    /// Reads the stamp of a body, and checks the body.
    pub fn read(body: &[u8]) -> Result<Self, NoStamp> {
        if !body.starts_with(MAGIC) {
            return Err(NoStamp::Foreign);
        }
        let field =
            |at: usize| body.get(at..at + 8)?.first_chunk::<8>().map(|bytes| u64::from_le_bytes(*bytes));
        let read = || {
            let stamp =
                Self { run: field(8)?, number: field(16)?, due_ns: field(24)?, visible_ns: field(32)? };
            (field(CHECKSUM_AT)? == sum(body)).then_some(stamp)
        };
        read().ok_or(NoStamp::Damaged)
    }
}

fn sum(body: &[u8]) -> u64 {
    let (head, rest) = (&body[..CHECKSUM_AT], &body[STAMP_BYTES..]);
    checksum(checksum(DOMAIN, head), rest)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_stamp_is_read_and_damage_is_seen() {
        let stamp = Stamp { run: 1, number: 2, due_ns: 3, visible_ns: 4 };
        for length in [0, STAMP_BYTES, 1_024] {
            let body = stamp.body(length);
            assert_eq!(body.len(), length.max(STAMP_BYTES));
            assert_eq!(Stamp::read(&body), Ok(stamp));
            for at in 0..body.len() {
                let mut damaged = body.to_vec();
                damaged[at] ^= 1;
                let expected = if at < 8 { NoStamp::Foreign } else { NoStamp::Damaged };
                assert_eq!(Stamp::read(&damaged), Err(expected), "{at}");
            }
        }
        assert_eq!(Stamp::read(&stamp.body(100)[..47]), Err(NoStamp::Damaged));
        assert_eq!(Stamp::read(b""), Err(NoStamp::Foreign));
    }
}
