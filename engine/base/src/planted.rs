//! Faults that are planted on purpose, one at a time, so that the simulator can prove that it would find them. A line
//! like `is_planted(Bug::X)` stands where the fault would be. In a build without debug assertions the answer is always
//! no, known at compile time: nothing of it is left there, and [`plant`] refuses.

use core::sync::atomic::{AtomicU64, Ordering};

macro_rules! bugs {
    ($($(#[doc = $what:literal])+ $bug:ident $name:literal,)+) => {
        /// A fault that can be planted.
        #[derive(Clone, Copy, PartialEq, Eq, Debug)]
        #[repr(u64)]
        #[allow(clippy::manual_non_exhaustive, reason = "the number 0 means that nothing is planted")]
        pub enum Bug {
            $($(#[doc = $what])+ $bug,)+
        }

        impl Bug {
            /// Every bug.
            pub const ALL: &'static [Self] = &[$(Self::$bug),+];

            /// Its name on the command line.
            #[must_use]
            pub const fn name(self) -> &'static str {
                match self {
                    $(Self::$bug => $name,)+
                }
            }

            /// What is wrong with it.
            #[must_use]
            pub const fn what(self) -> &'static str {
                match self {
                    $(Self::$bug => concat!($($what),+).trim_ascii_start(),)+
                }
            }
        }
    };
}

bugs! {
    // Journal and disk.
    /// Writes are taken for durable as soon as any disk operation completes.
    AcknowledgeBeforeSync "acknowledge-before-sync",
    /// A batch is taken for durable though one before it is still under way.
    DurableOutOfOrder "durable-out-of-order",
    /// What recovery has read is not written and synced again before it is built upon.
    SkipSync "skip-a-sync",
    /// Work goes on after a write that failed.
    GoOnAfterFailedWrite "go-on-after-a-failed-write",
    /// Damage in the middle of the journal is cut off as if it were a torn tail.
    CutDamage "cut-damage-in-the-middle",
    /// A batch is taken for whole without a look at its payload.
    TornBatch "torn-batch-taken-for-whole",
    /// An entry is read back without a look at its checksum.
    EntryUnchecked "entry-read-unchecked",
    /// A segment is freed though term and vote of a shard are nowhere else.
    HardStateRecycled "hard-state-recycled",
    /// Log entries are released though living payloads are in them.
    ReleasePayloads "living-payloads-released",
    /// Recent entries are looked up without their shard.
    CacheWithoutShard "cache-without-shard",
    // What a restart brings back.
    /// A checkpoint that is read back has forgotten dedup keys and ids.
    ForgetDedup "forget-dedup-at-restart",
    /// A checkpoint that is read back has forgotten leases.
    ForgetLeases "snapshot-missing-the-leases",
    /// A checkpoint that is read back has forgotten which delayed messages are due when.
    ForgetDelays "snapshot-missing-the-delays",
    /// A checkpoint that is read back gives sequences that were given before.
    SequenceTwice "sequence-given-twice",
    // Leases and order.
    /// A receipt of an earlier delivery ends the current lease.
    OldReceipt "accept-an-old-receipt",
    /// A lease runs out half a second early.
    EarlyExpiry "lease-expires-early",
    /// The clock that leases run by follows jumps of the wall clock.
    WallClock "lease-expired-by-the-wrong-clock",
    /// An extension is added to the old expiry instead of counting from now.
    ExtendFromExpiry "extend-from-the-old-expiry",
    /// What comes back goes to the tail of its lane.
    ReturnToTail "return-to-the-back-of-the-lane",
    /// What is given back for later comes back at once.
    ReleaseAtOnce "release-delay-ignored",
    /// A message that is leased can be cancelled.
    CancelLeased "cancel-a-leased-message",
    /// A receive that was cancelled keeps what it got.
    LeaseOfTheGone "lease-of-a-gone-client-kept",
    // Times.
    /// A delay ends half a second early.
    EarlyDelay "early-delay",
    /// A time to live of a message's own ends late.
    LateExpiry "delivered-after-its-time",
    // Failures and dead letters.
    /// A message gets one delivery more than its queue allows.
    OneMoreDelivery "one-delivery-too-many",
    /// A lease that runs out is not counted as a failed delivery.
    ExpiryIsNoFailure "expiry-is-no-failure",
    /// A redriven message's deliveries count from 0 again.
    RedriveResetsDeliveries "redrive-resets-deliveries",
    // Accounting.
    /// Messages whose time is over are not counted.
    ExpiryNotCounted "expiry-not-counted",
    /// Leased messages count for nothing in a queue's depth.
    DepthWithoutLeased "depth-without-leased",
    /// A repeat of a dedup key makes its window longer.
    RepeatExtendsWindow "repeat-extends-the-window",
    /// A message with an id and a dedup key lives on its key's shard.
    KeyDecidesShard "key-decides-the-shard",
    /// A claim of a dedup key keeps nobody out.
    UnheldClaims "claims-hold-nothing",
    // Choosing what to deliver.
    /// The two least urgent levels get no floor.
    NoFloor "floor-ignored",
    /// Levels 1.. get no reserve.
    NoReserve "reserve-ignored",
    /// A waiting receive is not told what becomes visible.
    LostWakeUp "lost-wake-up",
    /// Of receives that wait the one that came last is served first.
    LastWaiterFirst "last-waiter-served-first",
    /// Buckets of rates fill twice as fast.
    RateDoubled "twice-the-rate",
    /// What a receive claimed and did not get stays claimed.
    ClaimKept "claim-never-given-back",
    /// A summary of a shard replaces a newer one.
    StaleSummary "stale-summary-wins",
    /// Acks and extensions are refused while the disk is full, as enqueues are.
    FullRefusesAcks "full-disk-refuses-acks",
    // Cold messages.
    /// Leases take what is in memory though what is on disk comes before it.
    RunsPassedOver "runs-passed-over",
    /// Ids that clients made are not looked for on disk.
    ColdIdsForgotten "cold-ids-forgotten",
    /// A checkpoint is written though a block that it knows is not durable.
    BlockTrustedEarly "block-trusted-before-durable",
    /// Log entries are released though their payloads are still on their way into a block.
    DraftReleased "payloads-released-before-their-block",
    /// A block is freed as soon as the newest state needs it no more.
    BlockFreedEarly "block-freed-too-early",
    /// Messages on disk whose time is over go without being counted.
    ColdExpiryNotCounted "cold-expiry-not-counted",
    // Groups of replicas.
    /// An entry counts as committed with one acknowledgement less than a majority.
    QuorumTooSmall "off-by-one-quorum",
    /// A replica votes for whoever asks, also a second time in a term.
    VoteTwice "vote-twice-in-a-term",
    /// A replica that restarts does not know whom it voted for.
    ForgetVote "forget-the-vote-at-restart",
    /// A follower acknowledges entries before they are durable.
    FollowerAcknowledgesEarly "follower-acknowledges-before-sync",
    // Several nodes.
    /// The entries of a snapshot are not taken for the log, though its state is.
    SnapshotNotNoted "snapshot-without-its-log",
    /// A snapshot goes without the entries that its state refers to.
    SnapshotWithoutEntries "snapshot-without-the-bodies",
    /// A replica that was rebuilt after damage votes before it holds what it had acknowledged.
    RepairedVotesAtOnce "repaired-replica-votes-at-once",
    /// A node of several follows its own wall clock, whatever the others show.
    OwnWallClock "own-wall-clock-followed",
    /// A command of unknown fate is given to the next leader too.
    UnknownIsRetried "unknown-fate-retried",
    /// An entry that stands in the journal is not overwritten by another leader's.
    ConflictKept "conflicting-entries-kept",
    // Changes of membership.
    /// A shard's new voters are said to be so before the disks of a majority of them know it.
    ChangeNotVouched "change-of-voters-not-durable",
    /// A replica that comes to a shard takes itself for a voter before it is told.
    NewcomerVotes "newcomer-takes-itself-for-a-voter",
}

impl Bug {
    /// The bug of a name.
    #[must_use]
    pub fn of_name(name: &str) -> Option<Self> {
        Self::ALL.iter().copied().find(|bug| bug.name() == name)
    }

    /// It is about several nodes.
    #[must_use]
    pub const fn is_of_clusters(self) -> bool {
        matches!(
            self,
            Self::UnknownIsRetried
                | Self::ConflictKept
                | Self::NewcomerVotes
                | Self::ChangeNotVouched
                | Self::SnapshotNotNoted
                | Self::SnapshotWithoutEntries
                | Self::OwnWallClock
                | Self::RepairedVotesAtOnce
        )
    }

    /// It is about several replicas of one shard.
    #[must_use]
    pub const fn is_of_groups(self) -> bool {
        matches!(
            self,
            Self::QuorumTooSmall | Self::VoteTwice | Self::ForgetVote | Self::FollowerAcknowledgesEarly
        )
    }
}

const fn number(bug: Bug) -> u64 {
    bug as u64 + 1
}

/// The one that is planted in this process; 0 = none.
static PLANTED: AtomicU64 = AtomicU64::new(0);

/// This build has no planted bugs in it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct CannotPlant;

/// Whether bugs can be planted in this build.
pub const CAN_PLANT: bool = cfg!(debug_assertions);

/// Plants a bug in this process in place of any other, or none.
///
/// # Errors
/// In a build without debug assertions, where a bug is asked for.
pub fn plant(bug: Option<Bug>) -> Result<(), CannotPlant> {
    if bug.is_some() && !CAN_PLANT {
        return Err(CannotPlant);
    }
    PLANTED.store(bug.map_or(0, number), Ordering::Relaxed);
    Ok(())
}

/// Whether this bug is planted.
#[inline(always)]
#[must_use]
pub fn is_planted(bug: Bug) -> bool {
    CAN_PLANT && PLANTED.load(Ordering::Relaxed) == number(bug)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_unique_and_in_one_style() {
        let mut names: Vec<&str> = Bug::ALL.iter().map(|bug| bug.name()).collect();
        names.sort_unstable();
        names.dedup();
        assert_eq!(names.len(), Bug::ALL.len());
        for bug in Bug::ALL {
            assert_eq!(Bug::of_name(bug.name()), Some(*bug));
            assert!(bug.name().bytes().all(|byte| byte.is_ascii_lowercase() || byte == b'-'));
            assert!(bug.what().ends_with('.'));
        }
        assert_eq!((Bug::of_name(""), Bug::of_name("no-such-bug")), (None, None));
    }

    /// In this build as in one without debug assertions: there the value of `CAN_PLANT`, a constant, takes every planted
    /// line out of the program.
    #[test]
    fn only_a_build_with_debug_assertions_can_plant() {
        const { assert!(CAN_PLANT == cfg!(debug_assertions)) };
        let planted = plant(Some(Bug::EarlyDelay));
        assert_eq!(planted.is_ok(), cfg!(debug_assertions));
        assert_eq!(is_planted(Bug::EarlyDelay), cfg!(debug_assertions));
        assert_eq!(plant(None), Ok(()));
        assert!(!is_planted(Bug::EarlyDelay));
    }
}
