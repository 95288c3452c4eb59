//! Faults that can be planted in the model. A comparison that does not notice them would not notice them in the machine
//! either.

/// One fault, or none.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Mutation {
    /// The model as it should be.
    None,
    /// A returned message goes to the end of its lane.
    ReturnToTheTail,
    /// A returned message starts its time to live again.
    ReturnRenewsLife,
    /// The time to live runs from the enqueue, not from the first visibility.
    LifeRunsFromEnqueue,
    /// Delayed messages become visible a millisecond early.
    DueEarly,
    /// Leases last a millisecond longer.
    LeaseLate,
    /// A receipt is believed without looking at its deliveries.
    AnyDeliveryAcks,
    /// A dead letter's receipt is stale, not unknown.
    DeadIsStale,
    /// A repeat extends the window of its key.
    RepeatExtendsWindow,
    /// An ack frees the message's key.
    AckFreesKey,
    /// A claimed key keeps nobody out.
    ClaimsHoldNothing,
    /// One attempt that came to nothing ends the claims of all.
    OneAttemptEndsAll,
    /// A fence against an earlier claim ends a newer one.
    OldFenceVoidsNewClaim,
    /// A fence forbids nothing.
    FenceIsALook,
    /// A message is stored under a claim of any age.
    ClaimsNeverLapse,
    /// Repeats are refused when the queue is full.
    LimitsBeforeDedup,
    /// Leased messages take no room.
    LeasedTakeNoRoom,
    /// A message survives one failure too many.
    OneFailureMore,
    /// A release that names a delay of nothing is held back all the same.
    ZeroDelayBacksOff,
    /// More than ten entries of history.
    LongHistory,
    /// An undone lease counts as a failure.
    UnleaseIsFailure,
    /// An undone lease stays counted.
    UnleaseStaysCounted,
    /// Rate caps hold nothing back.
    CapsIgnored,
    /// `UpTo` goes one level too far.
    CeilingTooHigh,
    /// Share deliveries are not counted.
    SharesUncounted,
    /// A cancel takes leased messages too.
    CancelTakesLeased,
    /// A purge takes leased messages too.
    PurgeTakesLeased,
    /// A redriven message has its old failures.
    RedriveKeepsFailures,
    /// A redriven message has no deliveries yet.
    RedriveForgetsDeliveries,
    /// A redriven message gets its old place.
    RedriveKeepsPlace,
    /// A redrive makes the queue fuller than it may be.
    RedriveNeedsNoRoom,
    /// A redrive with a rate moves all at once.
    RedriveHasNoPace,
    /// A level can be starved again without having been fed.
    StarvedAgain,
    /// A level of the floor makes up for the time in which it had no work.
    IdleFloorLevelBanks,
    /// A back-off grows with each failure but the last.
    BackoffLagsBehind,
    /// A planner's pick goes to a level that has a cap of its own.
    PickTakesCapped,
    /// A planner's word on what is held back is not heard.
    PlannersBarsIgnored,
    /// A redrive needs no grant where the limits are kept elsewhere.
    GrantsIgnored,
}

impl Mutation {
    /// All faults.
    pub const ALL: [Self; 37] = [
        Self::ReturnToTheTail,
        Self::ReturnRenewsLife,
        Self::LifeRunsFromEnqueue,
        Self::DueEarly,
        Self::LeaseLate,
        Self::AnyDeliveryAcks,
        Self::DeadIsStale,
        Self::RepeatExtendsWindow,
        Self::AckFreesKey,
        Self::ClaimsHoldNothing,
        Self::OneAttemptEndsAll,
        Self::OldFenceVoidsNewClaim,
        Self::FenceIsALook,
        Self::ClaimsNeverLapse,
        Self::LimitsBeforeDedup,
        Self::LeasedTakeNoRoom,
        Self::OneFailureMore,
        Self::ZeroDelayBacksOff,
        Self::LongHistory,
        Self::UnleaseIsFailure,
        Self::UnleaseStaysCounted,
        Self::CapsIgnored,
        Self::CeilingTooHigh,
        Self::SharesUncounted,
        Self::CancelTakesLeased,
        Self::PurgeTakesLeased,
        Self::RedriveKeepsFailures,
        Self::RedriveForgetsDeliveries,
        Self::RedriveKeepsPlace,
        Self::RedriveNeedsNoRoom,
        Self::RedriveHasNoPace,
        Self::StarvedAgain,
        Self::IdleFloorLevelBanks,
        Self::BackoffLagsBehind,
        Self::PickTakesCapped,
        Self::PlannersBarsIgnored,
        Self::GrantsIgnored,
    ];
}
