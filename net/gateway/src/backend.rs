//! Where requests go: to the servers, over connections of the binary protocol.

use crate::problem::{Kind, Problem};
use overtake_wire::message::{ErrorCode, Refusal, Request, Response};

/// Why a request has no answer, or a refusing one.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) enum CallError {
    /// The server refused it.
    Refused(Refusal),
    /// It did not get to a server: nothing was done.
    Unreachable(String),
    /// It may have got to a server, whose answer did not come.
    FateUnknown(String),
}

impl CallError {
    /// True where the token is not, or no longer, one that the servers know.
    pub(crate) fn is_unauthorized(&self) -> bool {
        matches!(self, Self::Refused(refusal) if refusal.code == ErrorCode::Unauthorized)
    }

    /// The answer to a request that changes something (`changes`) or only reads.
    pub(crate) fn into_problem(self, changes: bool) -> Problem {
        match self {
            Self::Refused(refusal) => refusal.into(),
            Self::Unreachable(why) => Problem::new(
                Kind::Unavailable,
                format!("no server can be reached, nothing was stored: {why}"),
            ),
            Self::FateUnknown(why) if changes => fate_unknown(&why),
            Self::FateUnknown(why) => {
                Problem::new(Kind::Unavailable, format!("no answer came: {why}; try again"))
            }
        }
    }
}

/// The answer to a request that may have been carried out.
pub(crate) fn fate_unknown(why: &str) -> Problem {
    let detail = format!(
        "{why}; the request may have been carried out: retrying an enqueue with the same id or dedup_key is safe"
    );
    Problem::new(Kind::Unavailable, detail).stored_unknown()
}

/// True for requests that change something: their fate matters when no answer comes.
pub(crate) fn changes(request: &Request) -> bool {
    match request {
        Request::PutQueue { .. }
        | Request::DeleteQueue { .. }
        | Request::Enqueue { .. }
        | Request::Settle(_)
        | Request::Cancel { .. }
        | Request::Purge { .. }
        | Request::DlqPurge { .. } => true,
        Request::DlqRedrive(redrive) => !redrive.dry_run,
        // A receive whose answer is lost holds leases that end by themselves; nothing is stored by it.
        Request::Receive(_)
        | Request::CancelReceive { .. }
        | Request::Undelivered { .. }
        | Request::Hello { .. }
        | Request::GetQueue { .. }
        | Request::ListQueues { .. }
        | Request::Stats { .. }
        | Request::Peek { .. }
        | Request::Inspect { .. }
        | Request::DlqList { .. }
        | Request::Cluster
        | Request::Ready
        | Request::Metrics
        | Request::ChangeCluster(_) => false,
    }
}

/// The answer where a server sent a response of another kind than the request has.
pub(crate) fn unexpected(response: Response) -> Problem {
    match response {
        Response::Refused(refusal) => refusal.into(),
        _ => Problem::new(Kind::Internal, "the server sent a response of another kind than the request has"),
    }
}
