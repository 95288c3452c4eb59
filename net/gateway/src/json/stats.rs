//! Counts, ages and totals of a queue.

use super::scalar::{Levels, Pairs};
use overtake_wire::message;
use serde::Serialize;
use utoipa::openapi::schema::{AdditionalProperties, ObjectBuilder, OneOfBuilder, Type};
use utoipa::openapi::{RefOr, Schema};
use utoipa::{PartialSchema, ToSchema};

/// Counts, ages and totals; every level is present.
#[derive(Clone, PartialEq, Debug, Serialize, ToSchema)]
pub struct Stats {
    /// Visible messages per level.
    #[schema(value_type = std::collections::BTreeMap<String, u64>)]
    pub visible: Levels<u64>,
    /// Delayed messages per level.
    #[schema(value_type = std::collections::BTreeMap<String, u64>)]
    pub delayed: Levels<u64>,
    /// Leased messages per level.
    #[schema(value_type = std::collections::BTreeMap<String, u64>)]
    pub leased_by_level: Levels<u64>,
    /// Leased messages.
    pub leased: u64,
    /// Dead letters.
    pub dlq: u64,
    /// Age of the oldest visible message per level, in seconds; null without one.
    #[schema(schema_with = nullable_levels::<f64>)]
    pub oldest_age_s: Levels<Option<f64>>,
    /// Wait from first visibility to first delivery over the last minutes, per level; null without any.
    #[schema(schema_with = nullable_levels::<WaitMs>)]
    pub wait_ms: Levels<Option<WaitMs>>,
    /// Since the queue was created.
    pub totals: Totals,
    /// Leased messages by worker label.
    #[schema(value_type = std::collections::BTreeMap<String, u64>)]
    pub workers: Pairs<u64>,
}

/// One value or null for each level.
fn nullable_levels<T: PartialSchema>() -> Schema {
    let null = ObjectBuilder::new().schema_type(Type::Null);
    let value = OneOfBuilder::new().item(null).item(T::schema());
    let values = AdditionalProperties::RefOr(RefOr::T(value.into()));
    ObjectBuilder::new().schema_type(Type::Object).additional_properties(Some(values)).into()
}

/// Quantiles of a wait, in milliseconds.
#[derive(Clone, Copy, PartialEq, Debug, Serialize, ToSchema)]
pub struct WaitMs {
    pub p50: f64,
    pub p99: f64,
    pub p999: f64,
}

/// Totals since the queue was created; they survive restarts.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, ToSchema)]
#[schema(as = StatsTotals)]
pub struct Totals {
    pub enqueued: u64,
    pub acked: u64,
    pub cancelled: u64,
    pub purged: u64,
    pub expired: u64,
    pub dead_lettered: u64,
    pub redriven: u64,
    pub deliveries: u64,
    pub share_deliveries: u64,
    pub inversions: u64,
    pub lease_expirations: u64,
    pub releases: u64,
    pub stale_receipts: u64,
    pub starvation_events: u64,
    /// Messages refused, by reason.
    pub refused: RefusedTotals,
}

/// Messages refused, by reason.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, ToSchema)]
pub struct RefusedTotals {
    pub depth: u64,
    pub bytes: u64,
    pub rate: u64,
    pub disk: u64,
    pub no_quorum: u64,
}

impl From<message::Stats> for Stats {
    fn from(stats: message::Stats) -> Self {
        let age_s = |ms: u64| ms as f64 / 1_000.0;
        Self {
            leased: stats.leased.iter().sum(),
            visible: Levels(stats.visible),
            delayed: Levels(stats.delayed),
            leased_by_level: Levels(stats.leased),
            dlq: stats.dlq,
            oldest_age_s: Levels(stats.oldest_age_ms.into_iter().map(|age| age.map(age_s)).collect()),
            wait_ms: Levels(stats.wait_ms.into_iter().map(|wait| wait.map(WaitMs::from)).collect()),
            totals: stats.totals.into(),
            workers: Pairs(stats.workers),
        }
    }
}

impl From<message::WaitMs> for WaitMs {
    fn from(wait: message::WaitMs) -> Self {
        Self { p50: wait.p50, p99: wait.p99, p999: wait.p999 }
    }
}

impl From<message::Totals> for Totals {
    fn from(totals: message::Totals) -> Self {
        Self {
            enqueued: totals.enqueued,
            acked: totals.acked,
            cancelled: totals.cancelled,
            purged: totals.purged,
            expired: totals.expired,
            dead_lettered: totals.dead_lettered,
            redriven: totals.redriven,
            deliveries: totals.deliveries,
            share_deliveries: totals.share_deliveries,
            inversions: totals.inversions,
            lease_expirations: totals.lease_expirations,
            releases: totals.releases,
            stale_receipts: totals.stale_receipts,
            starvation_events: totals.starvation_events,
            refused: RefusedTotals {
                depth: totals.refused_depth,
                bytes: totals.refused_bytes,
                rate: totals.refused_rate,
                disk: totals.refused_disk,
                no_quorum: totals.refused_no_quorum,
            },
        }
    }
}

/// How many messages a purge deleted.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, ToSchema)]
pub struct Purged {
    pub purged: u64,
}

/// How many dead letters a redrive will move.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, ToSchema)]
pub struct Redriven {
    pub moved: u64,
}
