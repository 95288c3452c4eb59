//! Every bound of a request that can be judged from the request alone. What needs the queue (its levels, retention,
//! depth) or the time (a client-made id's age, how far `deliver_at` lies ahead) is judged where those are known.

use crate::message::{
    ClusterChange, Delay, EnqueueMessage, Headers, NewNode, Receive, Redrive, RedriveSelection, Refusal,
    Request, Settle,
};
use core::fmt::Display;
use core::ops::RangeInclusive;
use overtake_base::QueueName;
use overtake_base::hash::Set;
use overtake_base::limits::{
    BATCH_MESSAGES_MAX, BODY_BYTES_MAX, CORES_MAX, DEDUP_KEY_BYTES_MAX, DELAY_S_MAX, HEADERS_BYTES_MAX,
    LEASE_S_MAX, LEVELS_MAX, LIST_LIMIT_MAX, NODE_ADDRESS_BYTES_MAX, NODE_ID_MAX, PERIOD_S_MAX, RATE_MAX,
    RECEIVE_MESSAGES_MAX, REDRIVE_IDS_MAX, SETTLE_RECEIPTS_MAX, TOKEN_BYTES_MAX, WAIT_S_MAX,
    WORKER_BYTES_MAX, ZONE_BYTES_MAX,
};

/// Longest cursor (`after`) that is taken, in bytes. Cursors are the server's own; a longer one never was.
pub const CURSOR_BYTES_MAX: usize = 512;

/// Up to so many headers duplicates are looked for by comparing all pairs; a set costs more for a few.
const HEADERS_PAIRWISE_MAX: usize = 8;

impl Request {
    /// Checks every bound that needs no state. For an enqueue only what all its messages share: each message has an
    /// outcome of its own, see [`EnqueueMessage::validate`]. A patch of a configuration is checked when it is applied.
    pub fn validate(&self) -> Result<(), Refusal> {
        if let Some(queue) = self.queue() {
            queue.parse::<QueueName>().map_err(|not_valid| Refusal::invalid("queue", not_valid.0))?;
        }
        match self {
            Self::Hello { token } => at_most("token", token.len(), TOKEN_BYTES_MAX),
            Self::Enqueue { messages, .. } => within("messages", messages.len(), 1..=BATCH_MESSAGES_MAX),
            Self::Receive(receive) => validate_receive(receive),
            Self::Settle(settle) => validate_settle(settle),
            Self::ListQueues { limit, after } | Self::DlqList { limit, after, .. } => {
                validate_page(*limit, after.as_deref())
            }
            Self::Peek { states, priority, limit, after, .. } => {
                if !(states.visible || states.delayed || states.leased) {
                    return Err(Refusal::invalid(
                        "state",
                        "state must name at least one of visible, delayed, leased",
                    ));
                }
                level("priority", *priority)?;
                validate_page(*limit, after.as_deref())
            }
            Self::DlqRedrive(redrive) => validate_redrive(redrive),
            Self::Undelivered { receipts, .. } => within("receipts", receipts.len(), 1..=SETTLE_RECEIPTS_MAX),
            Self::PutQueue { .. }
            | Self::GetQueue { .. }
            | Self::DeleteQueue { .. }
            | Self::CancelReceive { .. }
            | Self::Stats { .. }
            | Self::Inspect { .. }
            | Self::Cancel { .. }
            | Self::Purge { .. }
            | Self::DlqPurge { .. }
            | Self::Cluster
            | Self::Ready
            | Self::Metrics => Ok(()),
            Self::ChangeCluster(change) => validate_cluster_change(change),
        }
    }

    /// The queue that the request names, if its kind names one.
    #[must_use]
    pub fn queue(&self) -> Option<&str> {
        match self {
            Self::PutQueue { queue, .. }
            | Self::GetQueue { queue }
            | Self::DeleteQueue { queue }
            | Self::Enqueue { queue, .. }
            | Self::Receive(Receive { queue, .. })
            | Self::Settle(Settle { queue, .. })
            | Self::Undelivered { queue, .. }
            | Self::Stats { queue }
            | Self::Peek { queue, .. }
            | Self::Inspect { queue, .. }
            | Self::Cancel { queue, .. }
            | Self::Purge { queue }
            | Self::DlqList { queue, .. }
            | Self::DlqRedrive(Redrive { queue, .. })
            | Self::DlqPurge { queue } => Some(queue),
            Self::Hello { .. }
            | Self::ListQueues { .. }
            | Self::CancelReceive { .. }
            | Self::Cluster
            | Self::Ready
            | Self::Metrics
            | Self::ChangeCluster(_) => None,
        }
    }
}

fn validate_cluster_change(change: &ClusterChange) -> Result<(), Refusal> {
    let node = |field, id: u64| within(field, id, 1..=NODE_ID_MAX);
    match change {
        ClusterChange::Add(NewNode { id, zone, address, http, cores }) => {
            node("node", *id)?;
            within("zone", zone.len(), 1..=ZONE_BYTES_MAX)?;
            within("address", address.len(), 0..=NODE_ADDRESS_BYTES_MAX)?;
            within("http", http.len(), 0..=NODE_ADDRESS_BYTES_MAX)?;
            within("cores", *cores, 1..=CORES_MAX)
        }
        ClusterChange::Drain { node: id, .. } | ClusterChange::Remove { node: id, .. } => node("node", *id),
        ClusterChange::Replace { dead, new } => {
            node("dead", *dead)?;
            node("new", *new)
        }
        ClusterChange::Rebalance => Ok(()),
    }
}

impl EnqueueMessage {
    /// Checks every bound of one message that needs no state.
    pub fn validate(&self) -> Result<(), Refusal> {
        level("priority", Some(self.priority))?;
        if let Delay::AfterS(seconds) = self.delay {
            within("delay_s", seconds, 0..=DELAY_S_MAX)?;
        }
        if let Some(key) = &self.dedup_key
            && !(1..=DEDUP_KEY_BYTES_MAX).contains(&key.len())
        {
            let detail = format!("dedup_key must be 1..={DEDUP_KEY_BYTES_MAX} bytes, is {}", key.len());
            return Err(Refusal::invalid("dedup_key", detail));
        }
        if let Some(seconds) = self.expires_in_s {
            within("expires_in_s", seconds, 1..=PERIOD_S_MAX)?;
        }
        validate_headers(&self.headers)?;
        if self.body.len() > BODY_BYTES_MAX {
            let detail = format!("body must be 0..={BODY_BYTES_MAX} bytes, is {}", self.body.len());
            return Err(Refusal::too_large("body", detail));
        }
        Ok(())
    }
}

fn validate_headers(headers: &Headers) -> Result<(), Refusal> {
    let bytes: usize = headers.iter().map(|(name, value)| name.len() + value.len()).sum();
    if bytes > HEADERS_BYTES_MAX {
        let detail =
            format!("headers must be 0..={HEADERS_BYTES_MAX} bytes of names and values, are {bytes}");
        return Err(Refusal::invalid("headers", detail));
    }
    let twice = if headers.len() <= HEADERS_PAIRWISE_MAX {
        headers
            .iter()
            .enumerate()
            .find(|(index, (name, _))| headers[..*index].iter().any(|(before, _)| before == name))
            .map(|(_, (name, _))| name)
    } else {
        let mut seen = Set::default();
        headers.iter().map(|(name, _)| name).find(|name| !seen.insert(name.as_str()))
    };
    match twice {
        Some(name) => Err(Refusal::invalid(
            "headers",
            format!("headers must name each header once, {name:?} is there twice"),
        )),
        None => Ok(()),
    }
}

fn validate_receive(receive: &Receive) -> Result<(), Refusal> {
    within("max", receive.max, 1..=RECEIVE_MESSAGES_MAX)?;
    within("wait_s", receive.wait_s, 0..=WAIT_S_MAX)?;
    if let Some(seconds) = receive.lease_s {
        within("lease_s", seconds, 1..=LEASE_S_MAX)?;
    }
    level("max_priority", receive.max_priority)?;
    at_most("worker", receive.worker.as_ref().map_or(0, String::len), WORKER_BYTES_MAX)
}

fn validate_settle(settle: &Settle) -> Result<(), Refusal> {
    let count = settle.ack.len() + settle.extend.len() + settle.release.len();
    if count > SETTLE_RECEIPTS_MAX {
        let lengths = [settle.ack.len(), settle.extend.len(), settle.release.len()];
        let field = match lengths.iter().max() {
            Some(max) if *max == settle.ack.len() => "ack",
            Some(max) if *max == settle.extend.len() => "extend",
            _ => "release",
        };
        let detail = format!(
            "ack, extend and release together must be 0..={SETTLE_RECEIPTS_MAX} receipts, are {count}"
        );
        return Err(Refusal::invalid(field, detail));
    }
    for extend in &settle.extend {
        within("lease_s", extend.lease_s, 1..=LEASE_S_MAX)?;
    }
    for seconds in settle.release.iter().filter_map(|release| release.delay_s) {
        within("delay_s", seconds, 0..=DELAY_S_MAX)?;
    }
    let mut seen = Set::with_capacity_and_hasher(count, Default::default());
    let ack = settle.ack.iter().map(|receipt| ("ack", receipt));
    let extend = settle.extend.iter().map(|extend| ("extend", &extend.receipt));
    let release = settle.release.iter().map(|release| ("release", &release.receipt));
    for (field, receipt) in ack.chain(extend).chain(release) {
        if !seen.insert(receipt.as_str()) {
            let detail =
                format!("{field} names {receipt:?} a second time; a call may name each receipt once");
            return Err(Refusal::invalid(field, detail));
        }
    }
    Ok(())
}

fn validate_page(limit: u32, after: Option<&str>) -> Result<(), Refusal> {
    within("limit", limit, 1..=LIST_LIMIT_MAX)?;
    at_most("after", after.map_or(0, str::len), CURSOR_BYTES_MAX)
}

fn validate_redrive(redrive: &Redrive) -> Result<(), Refusal> {
    match &redrive.selection {
        RedriveSelection::All => {}
        RedriveSelection::Ids(ids) => within("ids", ids.len(), 1..=REDRIVE_IDS_MAX)?,
        RedriveSelection::FromPriority(priority) => level("from_priority", Some(*priority))?,
    }
    level("priority", redrive.priority)?;
    if let Some(rate) = redrive.max_per_s {
        within("max_per_s", rate, 0..=RATE_MAX)?;
    }
    Ok(())
}

/// Levels as far as they can be judged without the queue: none has more than 100.
fn level(field: &'static str, value: Option<u32>) -> Result<(), Refusal> {
    within(field, value.unwrap_or(0) as usize, 0..=LEVELS_MAX - 1)
}

fn within<T: PartialOrd + Display>(
    field: &'static str,
    value: T,
    allowed: RangeInclusive<T>,
) -> Result<(), Refusal> {
    if allowed.contains(&value) {
        return Ok(());
    }
    let detail = format!("{field} must be {}..={}, is {value}", allowed.start(), allowed.end());
    Err(Refusal::invalid(field, detail))
}

fn at_most(field: &'static str, bytes: usize, max: usize) -> Result<(), Refusal> {
    if bytes <= max {
        return Ok(());
    }
    Err(Refusal::invalid(field, format!("{field} must be at most {max} bytes, is {bytes}")))
}
