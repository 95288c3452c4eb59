//! Everything a group can refuse.

use core::fmt;
use overtake_base::Malformed;

/// Why a group refused.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum GroupError {
    /// What was recovered contradicts itself: this replica must not take part. Says what.
    Corrupt(&'static str),
    /// The configuration cannot be one. Says what.
    Config(&'static str),
    /// Only the leader takes proposals; nothing was stored.
    NotLeader,
    /// Too many bytes are proposed and not committed yet; nothing was stored.
    Busy,
    /// The proposal is longer than [`crate::ENTRY_BYTES_MAX`]; nothing was stored.
    TooLarge,
    /// A peer's message is no message.
    Malformed(Malformed),
    /// A peer's message is well-formed, and cannot come from a peer that keeps the rules. Says why. It was dropped.
    Refused(&'static str),
}

impl From<Malformed> for GroupError {
    fn from(malformed: Malformed) -> Self {
        Self::Malformed(malformed)
    }
}

impl fmt::Display for GroupError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Corrupt(what) => write!(f, "the recovered log contradicts itself: {what}"),
            Self::Config(what) => write!(f, "no group can be configured so: {what}"),
            Self::NotLeader => f.write_str("not the leader"),
            Self::Busy => f.write_str("too many bytes are waiting to be committed"),
            Self::TooLarge => f.write_str("the proposal is too large for one entry"),
            Self::Malformed(malformed) => write!(f, "a peer's message: {malformed}"),
            Self::Refused(why) => write!(f, "a peer's message was refused: {why}"),
        }
    }
}

impl core::error::Error for GroupError {}
