//! What a server that is to be measured answers here to requests that the fake one does not know.

use crate::common::Act;
use overtake_base::QueueConfig;
use overtake_client::{Refusal, Request, Response, Stats};

/// Answers what every run asks.
pub fn common_answers(request: &Request, levels: u8) -> Act {
    match request {
        Request::GetQueue { .. } => {
            Act::Answer(Response::Queue { config: QueueConfig::with_defaults(levels, 1) })
        }
        Request::Stats { .. } => Act::Answer(Response::Stats(Stats::default())),
        Request::Peek { .. } => Act::Answer(Response::Peeked { messages: Vec::new(), next: None }),
        Request::Inspect { .. } => Act::Answer(Response::Refused(Refusal::not_found("no such message"))),
        _ => Act::Serve,
    }
}
