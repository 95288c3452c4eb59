//! Dead letters.

use super::scalar::{Base64, Pairs, Text, Time};
use overtake_base::MessageId;
use overtake_wire::message;
use serde::Serialize;
use utoipa::ToSchema;

/// One page of dead letters.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, ToSchema)]
pub struct DeadLetters {
    /// The letters.
    pub messages: Vec<DeadLetter>,
    /// Where the next page goes on; null at the end.
    pub next: Option<String>,
}

/// A message that failed too often, or expired.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, ToSchema)]
pub struct DeadLetter {
    /// Its id.
    #[schema(value_type = String)]
    pub id: Text<MessageId>,
    /// The level it had.
    pub priority: u8,
    /// How often it was delivered.
    pub deliveries: u32,
    /// The last error text given, else `lease expired`, `released` or `expired`.
    pub last_error: String,
    /// When it died.
    pub dead_at: Time,
    /// Its last ten failures, oldest first.
    pub history: Vec<HistoryEntry>,
    /// When it was accepted.
    pub enqueued_at: Time,
    /// The producer's.
    #[schema(value_type = std::collections::BTreeMap<String, String>)]
    pub headers: Pairs<String>,
    /// The producer's.
    pub body: Base64,
}

/// One entry of a dead letter's history.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, ToSchema)]
pub struct HistoryEntry {
    pub when: Time,
    pub what: String,
}

impl From<message::DeadLetter> for DeadLetter {
    fn from(letter: message::DeadLetter) -> Self {
        let history = letter.history.into_iter();
        Self {
            id: Text(letter.id),
            priority: letter.priority,
            deliveries: letter.deliveries,
            last_error: letter.last_error,
            dead_at: Time(letter.dead_at),
            history: history.map(|(when, what)| HistoryEntry { when: Time(when), what }).collect(),
            enqueued_at: Time(letter.enqueued_at),
            headers: Pairs(letter.headers),
            body: Base64(letter.body),
        }
    }
}
