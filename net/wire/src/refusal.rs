//! Reasons for a refusal: how they are made, named, and whether asking again is safe.

use crate::message::{ErrorCode, Refusal};
use core::fmt;
use overtake_base::Malformed;
use overtake_base::queue_config::ConfigRefused;

impl ErrorCode {
    /// Every code, by number.
    pub const ALL: [Self; 13] = [
        Self::Invalid,
        Self::Unauthorized,
        Self::Forbidden,
        Self::NotFound,
        Self::Conflict,
        Self::TooLarge,
        Self::Depth,
        Self::Bytes,
        Self::Rate,
        Self::NoQuorum,
        Self::Disk,
        Self::Internal,
        Self::Stopping,
    ];

    /// True where the same request may be sent again later and may then be accepted: nothing was wrong with it. Where
    /// the refusal says [`Refusal::stored_unknown`] this takes an `id` or a `dedup_key`, see [`Refusal::retry_is_safe`].
    #[must_use]
    pub const fn retry_is_safe(self) -> bool {
        match self {
            Self::Depth | Self::Bytes | Self::Rate | Self::NoQuorum | Self::Disk | Self::Stopping => true,
            Self::Invalid
            | Self::Unauthorized
            | Self::Forbidden
            | Self::NotFound
            | Self::Conflict
            | Self::TooLarge
            | Self::Internal => false,
        }
    }

    /// The code's name, for logs and error texts.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Invalid => "invalid",
            Self::Unauthorized => "unauthorized",
            Self::Forbidden => "forbidden",
            Self::NotFound => "not found",
            Self::Conflict => "conflict",
            Self::TooLarge => "too large",
            Self::Depth => "depth limit",
            Self::Bytes => "bytes limit",
            Self::Rate => "rate limit",
            Self::NoQuorum => "no quorum",
            Self::Disk => "disk head-room",
            Self::Internal => "internal",
            Self::Stopping => "stopping",
        }
    }
}

impl TryFrom<u16> for ErrorCode {
    type Error = Malformed;
    fn try_from(number: u16) -> Result<Self, Malformed> {
        Self::ALL.into_iter().find(|code| *code as u16 == number).ok_or(Malformed("error code"))
    }
}

impl fmt::Display for ErrorCode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

macro_rules! plain_refusals {
    ($($(#[$doc:meta])* $name:ident $code:ident),* $(,)?) => {$(
        $(#[$doc])*
        #[must_use]
        pub fn $name(detail: impl Into<String>) -> Self {
            Self::new(ErrorCode::$code, detail)
        }
    )*};
}

impl Refusal {
    /// A refusal that names no field and no time to retry.
    #[must_use]
    pub fn new(code: ErrorCode, detail: impl Into<String>) -> Self {
        Self { code, field: None, detail: detail.into(), retry_after_ms: None, stored_unknown: false }
    }

    /// A value that is malformed, missing or out of range: which field, and what is allowed.
    #[must_use]
    pub fn invalid(field: impl Into<String>, detail: impl Into<String>) -> Self {
        Self { field: Some(field.into()), ..Self::new(ErrorCode::Invalid, detail) }
    }

    /// A value over a size limit.
    #[must_use]
    pub fn too_large(field: impl Into<String>, detail: impl Into<String>) -> Self {
        Self { field: Some(field.into()), ..Self::new(ErrorCode::TooLarge, detail) }
    }

    plain_refusals! {
        /// No or unknown token.
        unauthorized Unauthorized,
        /// The token lacks the right.
        forbidden Forbidden,
        /// No such queue or message.
        not_found NotFound,
        /// Contradicts the state.
        conflict Conflict,
        /// A fault of ours.
        internal Internal,
        /// The server is stopping; another one, or this one after its restart, takes the request.
        stopping Stopping,
    }

    /// `max_depth` reached.
    #[must_use]
    pub fn depth(detail: impl Into<String>, retry_after_ms: u32) -> Self {
        Self::new(ErrorCode::Depth, detail).after(retry_after_ms)
    }

    /// `max_bytes` reached.
    #[must_use]
    pub fn bytes(detail: impl Into<String>, retry_after_ms: u32) -> Self {
        Self::new(ErrorCode::Bytes, detail).after(retry_after_ms)
    }

    /// Rate limit.
    #[must_use]
    pub fn rate(detail: impl Into<String>, retry_after_ms: u32) -> Self {
        Self::new(ErrorCode::Rate, detail).after(retry_after_ms)
    }

    /// Disk head-room.
    #[must_use]
    pub fn disk(detail: impl Into<String>, retry_after_ms: u32) -> Self {
        Self::new(ErrorCode::Disk, detail).after(retry_after_ms)
    }

    /// No leader or no quorum, and nothing was proposed.
    #[must_use]
    pub fn no_quorum(detail: impl Into<String>, retry_after_ms: u32) -> Self {
        Self::new(ErrorCode::NoQuorum, detail).after(retry_after_ms)
    }

    /// Proposed, and the leader was lost before its fate was known: it may be stored.
    #[must_use]
    pub fn fate_unknown(detail: impl Into<String>, retry_after_ms: u32) -> Self {
        Self { stored_unknown: true, ..Self::no_quorum(detail, retry_after_ms) }
    }

    /// The same refusal with a time to retry after, in milliseconds.
    #[must_use]
    pub fn after(self, retry_after_ms: u32) -> Self {
        Self { retry_after_ms: Some(retry_after_ms), ..self }
    }

    /// True where sending the same request again later cannot do it twice, whatever the request.
    #[must_use]
    pub const fn retry_is_safe(&self) -> bool {
        self.code.retry_is_safe() && !self.stored_unknown
    }
}

impl From<ConfigRefused> for Refusal {
    fn from(refused: ConfigRefused) -> Self {
        let code = if refused.conflict { ErrorCode::Conflict } else { ErrorCode::Invalid };
        Self { field: Some(refused.field.to_owned()), ..Self::new(code, refused.detail) }
    }
}

/// A frame that could not be read: what was being read stands in the detail.
impl From<Malformed> for Refusal {
    fn from(malformed: Malformed) -> Self {
        Self::new(ErrorCode::Invalid, malformed.to_string())
    }
}

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.code, self.detail)
    }
}

impl core::error::Error for Refusal {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn codes_are_numbered_without_gaps() {
        for (index, code) in ErrorCode::ALL.into_iter().enumerate() {
            assert_eq!(code as usize, index + 1);
            assert_eq!(ErrorCode::try_from(code as u16), Ok(code));
        }
        assert!(ErrorCode::try_from(0).is_err());
        assert!(ErrorCode::try_from(14).is_err());
    }

    #[test]
    fn only_what_is_known_not_to_be_stored_is_safe_to_repeat() {
        assert!(Refusal::no_quorum("no leader", 100).retry_is_safe());
        assert!(!Refusal::fate_unknown("leader lost", 100).retry_is_safe());
        assert!(!Refusal::invalid("max", "max must be 1..=1000").retry_is_safe());
        assert!(Refusal::depth("full", 1_000).retry_is_safe());
    }
}
