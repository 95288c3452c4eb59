//! Reads that need nothing but memory: statistics, dead letters. Nothing here changes anything.

use crate::answer::{DeadLetterView, QueueStats};
use crate::lane::Lane;
use crate::message::last_error;
use crate::queue::Queue;
use crate::shared::Shared;
use overtake_base::{Level, MessageId, UnixMillis};

impl Queue {
    pub(crate) fn stats(&self, shared: &Shared, now: UnixMillis) -> QueueStats {
        let levels = || (0..self.config.levels).map(Level);
        QueueStats {
            visible: self.lanes.iter().map(Lane::visible).collect(),
            delayed: self.lanes.iter().map(Lane::all_delayed).collect(),
            leased: self.lanes.iter().map(|lane| lane.leased).collect(),
            dead: self.dead.len() as u64,
            body_bytes: self.depth_bytes(),
            oldest_since: levels()
                .map(|level| self.visible.contains(level).then(|| self.head_since(shared, level)))
                .collect(),
            waits: self.lanes.iter().map(|lane| lane.waits.counts(now)).collect(),
            totals: self.totals,
            workers: self.workers.iter().map(|(label, leased)| ((**label).into(), *leased)).collect(),
        }
    }

    pub(crate) fn dead_letters(
        &self,
        shared: &Shared,
        after: Option<MessageId>,
        limit: usize,
    ) -> Vec<DeadLetterView> {
        let key_of = |slot: u32| shared.messages[slot].id().0;
        let slots = self.dead.iter_after(after.map(|id| id.0), key_of).take(limit);
        slots.map(|slot| dead_letter(shared, slot)).collect()
    }
}

fn dead_letter(shared: &Shared, slot: u32) -> DeadLetterView {
    let message = &shared.messages[slot];
    let extra = shared.messages.extra(slot);
    DeadLetterView {
        id: message.id(),
        priority: message.level,
        deliveries: message.deliveries,
        enqueued_at: message.enqueued_at,
        dead_at: message.due,
        last_error: extra.and_then(last_error).unwrap_or_default().into(),
        history: extra
            .map(|extra| extra.history.iter().map(|(at, cause)| (*at, cause.text().into())).collect())
            .unwrap_or_default(),
        payload: message.payload,
    }
}
