//! What can go wrong, told apart by what is known about the request: refused, never sent, or of unknown fate.

use core::fmt;
use overtake_wire::message::Refusal;
use std::time::Duration;

/// Why a request has no answer, or not the one asked for. The list is closed: a new kind is a new version of this crate
/// that does not compile where it is not handled.
///
/// ```
/// use overtake_client::{ClientError, EnqueueMessage};
///
/// /// What to do with a message that could not be stored.
/// fn next_step(error: &ClientError, message: &EnqueueMessage) -> &'static str {
///     let named = message.id.is_some() || message.dedup_key.is_some();
///     match error {
///         _ if error.retry_is_safe() => "nothing was stored: send it again after `retry_after`",
///         _ if error.fate_unknown() && named => "it may be stored: a repeat is answered as a duplicate",
///         _ if error.fate_unknown() => "it may be stored: a repeat may store it twice",
///         _ => "a repeat would fail in the same way",
///     }
/// }
/// let message = EnqueueMessage { dedup_key: Some("order-7".into()), ..EnqueueMessage::default() };
/// assert!(next_step(&ClientError::TimedOut, &message).ends_with("answered as a duplicate"));
/// ```
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum ClientError {
    /// The server refused the request.
    Refused(Refusal),
    /// The options cannot work; says which and why. Nothing was sent.
    Options(String),
    /// No connection could be made in time, or none could take the request. Nothing was sent.
    Connect {
        /// The server tried last.
        server: String,
        /// What went wrong there.
        reason: String,
    },
    /// The server's certificate is not one that the client's [`crate::Trust`] covers, or not for the name. Nothing was sent.
    ServerCertificate {
        /// The server.
        server: String,
        /// What is wrong with it.
        reason: String,
    },
    /// The server wants a certificate of the client's own ([`crate::Credentials`]), or does not take the one it was shown.
    /// Nothing was sent.
    ClientCertificate {
        /// The server.
        server: String,
        /// What it said.
        reason: String,
    },
    /// The connection was lost after the request was handed to it: its fate is unknown.
    ConnectionLost,
    /// No answer in time: the request's fate is unknown.
    TimedOut,
    /// The server sent something that is not an answer to the request: its fate is unknown.
    Protocol(String),
    /// The client was closed. Nothing was sent.
    Closed,
}

impl ClientError {
    /// True where the same request may be sent again, whatever it is, and may then succeed: nothing was stored.
    #[must_use]
    pub const fn retry_is_safe(&self) -> bool {
        match self {
            Self::Refused(refusal) => refusal.retry_is_safe(),
            // A certificate may be replaced, as a server may come back.
            Self::Connect { .. } | Self::ServerCertificate { .. } | Self::ClientCertificate { .. } => true,
            Self::Options(_) | Self::ConnectionLost | Self::TimedOut | Self::Protocol(_) | Self::Closed => {
                false
            }
        }
    }

    /// True where the cause may pass by itself and the request may then succeed, whether or not this one was carried
    /// out: worth another try for a request that may be done twice.
    #[must_use]
    pub const fn passes(&self) -> bool {
        (self.retry_is_safe() || self.fate_unknown()) && !matches!(self, Self::Protocol(_))
    }

    /// How long the server asks to wait before the next try; zero where it does not say.
    #[must_use]
    pub fn retry_after(&self) -> Duration {
        match self {
            Self::Refused(refusal) => Duration::from_millis(u64::from(refusal.retry_after_ms.unwrap_or(0))),
            _ => Duration::ZERO,
        }
    }

    /// True where the request may have been carried out. Sending it again is then safe only where doing it twice does
    /// no harm: an enqueue whose messages have a client-made `id` or a `dedup_key`, or a settle.
    #[must_use]
    pub const fn fate_unknown(&self) -> bool {
        match self {
            Self::Refused(refusal) => refusal.stored_unknown,
            Self::ConnectionLost | Self::TimedOut | Self::Protocol(_) => true,
            Self::Connect { .. }
            | Self::ServerCertificate { .. }
            | Self::ClientCertificate { .. }
            | Self::Options(_)
            | Self::Closed => false,
        }
    }
}

impl From<Refusal> for ClientError {
    fn from(refusal: Refusal) -> Self {
        Self::Refused(refusal)
    }
}

impl fmt::Display for ClientError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Refused(refusal) => write!(f, "refused: {refusal}"),
            Self::Options(what) => write!(f, "bad options: {what}"),
            Self::Connect { server, reason } => write!(f, "cannot reach {server}: {reason}"),
            Self::ServerCertificate { server, reason } => {
                write!(f, "the certificate of {server} is not trusted: {reason}")
            }
            Self::ClientCertificate { server, reason } => {
                write!(f, "{server} does not take this client's certificate, or wants one: {reason}")
            }
            Self::ConnectionLost => f.write_str(
                "the connection was lost while the request was under way; it may have been carried out",
            ),
            Self::TimedOut => f.write_str("no answer in time; the request may have been carried out"),
            Self::Protocol(what) => write!(f, "unexpected answer: {what}"),
            Self::Closed => f.write_str("the client is closed"),
        }
    }
}

impl core::error::Error for ClientError {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_may_be_stored_is_never_safe_to_repeat() {
        let refused = |refusal| ClientError::Refused(refusal);
        let unknown = [
            ClientError::ConnectionLost,
            ClientError::TimedOut,
            ClientError::Protocol("x".into()),
            refused(Refusal::fate_unknown("leader lost", 10)),
        ];
        assert!(unknown.iter().all(|error| error.fate_unknown() && !error.retry_is_safe()));
        let safe = [
            ClientError::Connect { server: "a".into(), reason: "b".into() },
            refused(Refusal::rate("slow down", 10)),
            refused(Refusal::no_quorum("no leader", 10)),
        ];
        assert!(safe.iter().all(|error| !error.fate_unknown() && error.retry_is_safe()));
        let final_ones = [ClientError::Closed, refused(Refusal::not_found("no queue"))];
        assert!(final_ones.iter().all(|error| !error.fate_unknown() && !error.retry_is_safe()));
    }
}
