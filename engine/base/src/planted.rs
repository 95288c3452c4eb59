//! Faults that are planted on purpose, one at a time, so that the simulator can prove that it would find them. A line
//! like `is_planted(Bug::X)` stands where the fault would be. In a release build the answer is always no, known at compile
//! time: nothing of it is left there.

use core::sync::atomic::{AtomicU64, Ordering};

/// A fault that can be planted.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u64)]
pub enum Bug {
    /// Writes are taken for durable as soon as any disk operation completes.
    AcknowledgeBeforeSync = 1,
    /// A receipt of an earlier delivery ends the current lease.
    OldReceipt,
    /// A checkpoint that is read back has forgotten dedup keys and ids.
    ForgetDedup,
    /// A delay ends half a second early.
    EarlyDelay,
    /// A lease runs out half a second early.
    EarlyExpiry,
    /// A waiting receive is not told what becomes visible.
    LostWakeUp,
    /// The two least urgent levels get no floor, and nobody a reserve.
    NoShares,
    /// What comes back goes to the tail of its lane.
    ReturnToTail,
    /// A checkpoint that is read back has forgotten leases.
    ForgetLeases,
    /// A batch is taken for whole without a look at its payload.
    TornBatch,
    /// A time to live of a message's own ends late.
    LateExpiry,
    /// Log entries are released though living payloads are in them.
    ReleasePayloads,
    /// A message gets one delivery more than its queue allows.
    OneMoreDelivery,
}

impl Bug {
    /// Every bug.
    pub const ALL: [Self; 13] = [
        Self::AcknowledgeBeforeSync,
        Self::OldReceipt,
        Self::ForgetDedup,
        Self::EarlyDelay,
        Self::EarlyExpiry,
        Self::LostWakeUp,
        Self::NoShares,
        Self::ReturnToTail,
        Self::ForgetLeases,
        Self::TornBatch,
        Self::LateExpiry,
        Self::ReleasePayloads,
        Self::OneMoreDelivery,
    ];

    /// The bug of a name, as [`core::fmt::Debug`] writes it.
    #[must_use]
    pub fn of_name(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|bug| format!("{bug:?}") == name)
    }
}

/// The one that is planted in this process; 0 = none.
static PLANTED: AtomicU64 = AtomicU64::new(0);

/// Plants a bug in this process in place of any other, or none. Without effect in a release build.
pub fn plant(bug: Option<Bug>) {
    PLANTED.store(bug.map_or(0, |bug| bug as u64), Ordering::Relaxed);
}

/// Whether this bug is planted.
#[inline(always)]
#[must_use]
pub fn is_planted(bug: Bug) -> bool {
    cfg!(debug_assertions) && PLANTED.load(Ordering::Relaxed) == bug as u64
}
