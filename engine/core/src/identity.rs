//! Who calls, and what the caller may do.

use crate::config::{CoreConfig, Rights};
use overtake_wire::message::{ErrorCode, Refusal, Request};
use std::sync::Arc;

/// A tenant's name; cheap to clone.
pub type Tenant = Arc<str>;

/// The tenant of a node without tokens.
pub const DEFAULT_TENANT: &str = "default";

/// A caller whose token was accepted.
#[derive(Clone, Debug)]
pub struct Identity {
    /// Whose queues it sees.
    pub tenant: Tenant,
    /// What it may do.
    pub rights: Rights,
}

impl Identity {
    /// The caller of a connection that said nothing yet; none where a token is needed.
    #[must_use]
    pub fn anonymous(config: &CoreConfig) -> Option<Self> {
        config.tokens.is_empty().then(|| Self { tenant: DEFAULT_TENANT.into(), rights: Rights::ALL })
    }

    /// The caller that shows `token`.
    pub fn of_token(config: &CoreConfig, token: &str) -> Result<Self, Refusal> {
        if let Some(anonymous) = Self::anonymous(config) {
            return Ok(anonymous);
        }
        config
            .tokens
            .iter()
            .find(|known| same_secret(known.token.as_bytes(), token.as_bytes()))
            .map(|known| Self { tenant: known.tenant.as_str().into(), rights: known.rights })
            .ok_or_else(|| Refusal::new(ErrorCode::Unauthorized, "the token is not known to this server"))
    }

    /// Refuses a request that the caller has no right to.
    pub fn may(&self, request: &Request) -> Result<(), Refusal> {
        let (right, name) = match request {
            Request::Hello { .. } | Request::Ready | Request::CancelReceive { .. } => (true, ""),
            Request::Enqueue { .. } => (self.rights.enqueue, "enqueue"),
            Request::Receive(_) | Request::Settle(_) | Request::Undelivered { .. } => {
                (self.rights.receive, "receive")
            }
            Request::GetQueue { .. }
            | Request::ListQueues { .. }
            | Request::Stats { .. }
            | Request::Peek { .. }
            | Request::Inspect { .. }
            | Request::DlqList { .. }
            | Request::Cluster
            | Request::Metrics => (self.rights.read, "read"),
            Request::PutQueue { .. }
            | Request::DeleteQueue { .. }
            | Request::Cancel { .. }
            | Request::Purge { .. }
            | Request::DlqRedrive(_)
            | Request::DlqPurge { .. }
            | Request::ChangeCluster(_) => (self.rights.admin, "admin"),
        };
        if right {
            Ok(())
        } else {
            Err(Refusal::new(ErrorCode::Forbidden, format!("the token lacks the right '{name}'")))
        }
    }
}

/// Compares without stopping at the first difference, so that timing tells nothing about how much was right.
fn same_secret(a: &[u8], b: &[u8]) -> bool {
    a.len() == b.len() && a.iter().zip(b).fold(0, |difference, (a, b)| difference | (a ^ b)) == 0
}
