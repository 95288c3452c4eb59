//! Typed ids and their textual forms. A malformed text is an `Err`, never a panic.

use crate::limits::{QUEUE_NAME_BYTES_MAX, RECEIPT_BYTES_MAX};
use core::fmt;
use core::str::FromStr;
use std::sync::Arc;

macro_rules! number_id {
    ($(#[$doc:meta] $name:ident $type:ty),* $(,)?) => {$(
        #[$doc]
        #[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default, Debug)]
        pub struct $name(pub $type);

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                self.0.fmt(f)
            }
        }
    )*};
}

number_id! {
    /// One replicated log. Data shards count from 0; [`ShardId::DIRECTORY`] is the directory's own group.
    ShardId u16,
    /// One process of a cluster.
    NodeId u64,
    /// One pinned thread of one node.
    CoreId u16,
    /// A priority; 0 is the most urgent.
    Level u8,
    /// A queue's number, given by the directory and never used twice (a name can be).
    QueueId u32,
    /// A message's place in its shard, given when it first becomes visible, never used twice.
    Sequence u64,
    /// A block of cold messages of a shard: the index of the log entry that made it.
    BlockId u64,
}

impl ShardId {
    /// The group that holds the directory of queues. It hosts no lanes.
    pub const DIRECTORY: Self = Self(u16::MAX);
}

/// A text that is not what it should be; `0` says what was expected.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct NotValid(pub &'static str);

impl fmt::Display for NotValid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.0)
    }
}

impl core::error::Error for NotValid {}

/// A queue's name: 1..=128 of `A-Z a-z 0-9 _ . -`, not starting with a dot. Cheap to clone.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct QueueName(Arc<str>);

impl QueueName {
    /// The name as text.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl FromStr for QueueName {
    type Err = NotValid;
    fn from_str(text: &str) -> Result<Self, NotValid> {
        let ok = (1..=QUEUE_NAME_BYTES_MAX).contains(&text.len())
            && !text.starts_with('.')
            && text.bytes().all(|b| b.is_ascii_alphanumeric() || matches!(b, b'_' | b'.' | b'-'));
        if ok {
            Ok(Self(text.into()))
        } else {
            Err(NotValid("a queue name is 1..=128 of A-Z a-z 0-9 _ . - and does not start with a dot"))
        }
    }
}

impl fmt::Display for QueueName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// A message's id: a ULID (48 bits of Unix milliseconds, 80 random bits), written `m_` and 26 characters of
/// Crockford's base 32. Sorts by time, as a number and as text.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct MessageId(pub u128);

const CROCKFORD: &[u8; 32] = b"0123456789ABCDEFGHJKMNPQRSTVWXYZ";
const ID_CHARACTERS: usize = 26;

impl MessageId {
    /// The id made of a time and 80 random bits (higher bits of `random` are ignored).
    #[must_use]
    pub const fn new(time_ms: u64, random: u128) -> Self {
        Self(((time_ms as u128 & 0xffff_ffff_ffff) << 80) | (random & ((1 << 80) - 1)))
    }

    /// The time in it, in Unix milliseconds.
    #[must_use]
    pub const fn time_ms(self) -> u64 {
        (self.0 >> 80) as u64
    }
}

impl fmt::Display for MessageId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut text = [0u8; ID_CHARACTERS + 2];
        text[0] = b'm';
        text[1] = b'_';
        for (i, byte) in text[2..].iter_mut().enumerate() {
            let shift = 5 * (ID_CHARACTERS - 1 - i);
            *byte = CROCKFORD[(self.0 >> shift) as usize & 31];
        }
        f.pad(core::str::from_utf8(&text).unwrap_or_default())
    }
}

impl fmt::Debug for MessageId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl FromStr for MessageId {
    type Err = NotValid;
    /// Upper-case letters only: an id has one spelling, so that texts can be compared.
    fn from_str(text: &str) -> Result<Self, NotValid> {
        const EXPECTED: NotValid =
            NotValid("a message id is m_ and a ULID of 26 upper-case Crockford base32 characters");
        let digits = text.strip_prefix("m_").ok_or(EXPECTED)?.as_bytes();
        if digits.len() != ID_CHARACTERS || digits[0] > b'7' {
            return Err(EXPECTED);
        }
        digits
            .iter()
            .try_fold(0u128, |value, digit| {
                let digit = CROCKFORD.iter().position(|c| c == digit).ok_or(EXPECTED)?;
                Ok(value << 5 | digit as u128)
            })
            .map(Self)
    }
}

/// The proof of one lease, and a fencing token: `r_{shard}_{sequence}_{deliveries}`.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct Receipt {
    /// The message's shard.
    pub shard: ShardId,
    /// The message's place in it.
    pub sequence: Sequence,
    /// How often the message had been delivered, this delivery counted; never goes down.
    pub deliveries: u32,
}

impl fmt::Display for Receipt {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "r_{}_{}_{}", self.shard, self.sequence, self.deliveries)
    }
}

impl FromStr for Receipt {
    type Err = NotValid;
    fn from_str(text: &str) -> Result<Self, NotValid> {
        const EXPECTED: NotValid = NotValid("a receipt is r_{shard}_{sequence}_{deliveries}");
        if text.len() > RECEIPT_BYTES_MAX {
            return Err(EXPECTED);
        }
        let mut parts = text.strip_prefix("r_").ok_or(EXPECTED)?.split('_');
        let mut number = || -> Result<u64, NotValid> {
            let part = parts.next().ok_or(EXPECTED)?;
            let canonical =
                part.bytes().all(|b| b.is_ascii_digit()) && (part == "0" || !part.starts_with('0'));
            if canonical { part.parse().map_err(|_| EXPECTED) } else { Err(EXPECTED) }
        };
        let shard = ShardId(u16::try_from(number()?).map_err(|_| EXPECTED)?);
        let sequence = Sequence(number()?);
        let deliveries = u32::try_from(number()?).map_err(|_| EXPECTED)?;
        if parts.next().is_some() {
            return Err(EXPECTED);
        }
        Ok(Self { shard, sequence, deliveries })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn ids_survive_their_text(value: u128) {
            let id = MessageId(value);
            prop_assert_eq!(id.to_string().parse(), Ok(id));
        }

        #[test]
        fn ids_sort_as_text(a: u128, b: u128) {
            prop_assert_eq!(a.cmp(&b), MessageId(a).to_string().cmp(&MessageId(b).to_string()));
        }

        #[test]
        fn receipts_survive_their_text(shard: u16, sequence: u64, deliveries: u32) {
            let receipt = Receipt { shard: ShardId(shard), sequence: Sequence(sequence), deliveries };
            prop_assert_eq!(receipt.to_string().parse(), Ok(receipt));
        }

        #[test]
        fn any_text_parses_or_fails(text: String) {
            let _ = text.parse::<MessageId>();
            if let Ok(receipt) = text.parse::<Receipt>() {
                prop_assert_eq!(receipt.to_string(), text);
            }
        }
    }

    #[test]
    fn queue_names_keep_to_the_alphabet() {
        for good in ["a", "A-Z_0.9", &"x".repeat(128)] {
            assert!(good.parse::<QueueName>().is_ok(), "{good}");
        }
        for bad in ["", ".a", "a b", "ä", "a/b", &"x".repeat(129)] {
            assert!(bad.parse::<QueueName>().is_err(), "{bad}");
        }
    }

    #[test]
    fn receipts_have_one_spelling() {
        for bad in
            ["r_1_2", "r_1_2_3_4", "r_01_2_3", "r_1_+2_3", "r_1__3", "r_65536_1_1", "R_1_2_3", "r_1_2_-3"]
        {
            assert!(bad.parse::<Receipt>().is_err(), "{bad}");
        }
        assert!("r_0_0_0".parse::<Receipt>().is_ok());
    }
}
