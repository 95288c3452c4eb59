//! Refusals made exit codes and sentences: the one place that says which refusal ends a command how.

use crate::exit::{Exit, Failure};
use overtake_wire::message::{ErrorCode, Refusal};

/// The exit code that goes with a refusal.
pub fn exit_of(refusal: &Refusal) -> Exit {
    if refusal.stored_unknown {
        return Exit::Unknown;
    }
    match refusal.code {
        // Some values only the server can judge: a level that the queue has not, a name.
        ErrorCode::Invalid => Exit::Usage,
        ErrorCode::Conflict | ErrorCode::TooLarge | ErrorCode::Internal => Exit::Failed,
        ErrorCode::Unauthorized | ErrorCode::Forbidden => Exit::NotAllowed,
        ErrorCode::NotFound => Exit::Nothing,
        ErrorCode::Depth
        | ErrorCode::Bytes
        | ErrorCode::Rate
        | ErrorCode::NoQuorum
        | ErrorCode::Disk
        | ErrorCode::Stopping => Exit::Later,
    }
}

/// A refusal as a failure: what the server says, and what to do next.
pub fn failure(refusal: &Refusal) -> Failure {
    let exit = exit_of(refusal);
    let field = match &refusal.field {
        Some(field) if !refusal.detail.contains(field.as_str()) => format!("{field}: "),
        _ => String::new(),
    };
    let next = match exit {
        Exit::Unknown => "; it may have been stored: repeat it with the same id or dedup key".to_owned(),
        Exit::NotAllowed if refusal.code == ErrorCode::Unauthorized => {
            "; give a token with --token or OVERTAKE_TOKEN".to_owned()
        }
        Exit::Later => match refusal.retry_after_ms {
            Some(ms) => {
                format!("; nothing was stored, try again in {}", crate::render::units::span(u64::from(ms)))
            }
            None => "; nothing was stored, try again later".to_owned(),
        },
        _ => String::new(),
    };
    Failure::new(exit, format!("{field}{}{next}", refusal.detail))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn refusal(code: ErrorCode) -> Refusal {
        Refusal { code, field: None, detail: "why".into(), retry_after_ms: None, stored_unknown: false }
    }

    #[test]
    fn scripts_can_tell_refusals_apart() {
        for (code, exit) in [
            (ErrorCode::Invalid, Exit::Usage),
            (ErrorCode::Unauthorized, Exit::NotAllowed),
            (ErrorCode::Forbidden, Exit::NotAllowed),
            (ErrorCode::NotFound, Exit::Nothing),
            (ErrorCode::Conflict, Exit::Failed),
            (ErrorCode::TooLarge, Exit::Failed),
            (ErrorCode::Depth, Exit::Later),
            (ErrorCode::Bytes, Exit::Later),
            (ErrorCode::Rate, Exit::Later),
            (ErrorCode::NoQuorum, Exit::Later),
            (ErrorCode::Disk, Exit::Later),
            (ErrorCode::Internal, Exit::Failed),
            (ErrorCode::Stopping, Exit::Later),
        ] {
            assert_eq!(exit_of(&refusal(code)), exit, "{code:?}");
        }
        let unknown = Refusal { stored_unknown: true, ..refusal(ErrorCode::NoQuorum) };
        assert_eq!(exit_of(&unknown), Exit::Unknown);
    }

    #[test]
    fn failures_say_what_to_do_next() {
        let rate = Refusal { retry_after_ms: Some(1_500), ..refusal(ErrorCode::Rate) };
        assert_eq!(failure(&rate).message, "why; nothing was stored, try again in 1.5 s");
        let invalid = Refusal { field: Some("lease_s".into()), ..refusal(ErrorCode::Invalid) };
        assert_eq!(failure(&invalid).message, "lease_s: why");
        let named = Refusal { detail: "lease_s must be 1..=43200".into(), ..invalid };
        assert_eq!(failure(&named).message, "lease_s must be 1..=43200");
        assert!(failure(&refusal(ErrorCode::Unauthorized)).message.contains("--token"));
        let unknown = Refusal { stored_unknown: true, ..refusal(ErrorCode::NoQuorum) };
        assert!(failure(&unknown).message.contains("same id"));
    }
}
