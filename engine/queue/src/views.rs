//! Reads: statistics, listings, look-ups. Nothing here changes anything.

use crate::answer::{DeadLetterView, MessageView, QueueStats, ViewState};
use crate::life_cycle::State;
use crate::machine::PeekFilter;
use crate::message::NO_SEQUENCE;
use crate::queue::Queue;
use crate::shared::Shared;
use overtake_base::{Level, MessageId, UnixMillis};

impl Queue {
    pub(crate) fn stats(&self, shared: &Shared, now: UnixMillis) -> QueueStats {
        let levels = || (0..self.config.levels).map(Level);
        QueueStats {
            visible: self.lanes.iter().map(|lane| lane.ready.len() as u64).collect(),
            delayed: self.lanes.iter().map(|lane| lane.delayed).collect(),
            leased: self.lanes.iter().map(|lane| lane.leased).collect(),
            dead: self.dead.len() as u64,
            body_bytes: self.body_bytes,
            oldest_since: levels()
                .map(|level| self.visible.contains(level).then(|| self.head_since(shared, level)))
                .collect(),
            waits: self.lanes.iter().map(|lane| lane.waits.counts(now)).collect(),
            totals: self.totals,
            workers: self.workers.iter().map(|(label, leased)| ((**label).into(), *leased)).collect(),
        }
    }

    pub(crate) fn peek(
        &self,
        shared: &Shared,
        filter: PeekFilter,
        after: Option<MessageId>,
        limit: usize,
    ) -> Vec<MessageView> {
        let fits = |slot: &u32| {
            let message = &shared.messages[*slot];
            let state = match message.state {
                State::Visible => filter.visible,
                State::Delayed => filter.delayed,
                State::Leased => filter.leased,
                State::Dead | State::Gone => false,
            };
            state && filter.priority.is_none_or(|level| level == message.level)
        };
        let key_of = |slot: u32| shared.messages[slot].id().0;
        let slots = self.ids.iter_after(after.map(|id| id.0), key_of).filter(fits).take(limit);
        slots.map(|slot| self.view(shared, slot, None)).collect()
    }

    pub(crate) fn inspect(&self, shared: &Shared, id: MessageId) -> Option<MessageView> {
        let slot = self.find(shared, id)?;
        let visible = shared.messages[slot].state == State::Visible;
        let view = self.view(shared, slot, visible.then(|| self.ahead(shared, slot)));
        Some(MessageView { last_error: last_error(shared, slot).map(Into::into), ..view })
    }

    /// Visible messages of more urgent levels, and of its own level before it.
    fn ahead(&self, shared: &Shared, slot: u32) -> u64 {
        let message = &shared.messages[slot];
        let level = usize::from(message.level.0);
        let more_urgent: usize = self.lanes[..level].iter().map(|lane| lane.ready.len()).sum();
        let key_of = |slot: u32| shared.messages[slot].sequence.0;
        (more_urgent + self.lanes[level].ready.rank(message.sequence.0, key_of)) as u64
    }

    fn view(&self, shared: &Shared, slot: u32, ahead: Option<u64>) -> MessageView {
        let message = &shared.messages[slot];
        let worker = || shared.messages.extra(slot).and_then(|extra| extra.worker.as_deref()).map(Into::into);
        MessageView {
            id: message.id(),
            priority: message.level,
            state: match message.state {
                State::Visible => ViewState::Visible { ahead },
                State::Delayed => ViewState::Delayed { until: message.due },
                State::Leased => ViewState::Leased { expires_at: message.due, worker: worker() },
                State::Dead | State::Gone => ViewState::Dead,
            },
            deliveries: message.deliveries,
            enqueued_at: message.enqueued_at,
            sequence: (message.sequence != NO_SEQUENCE).then_some(message.sequence),
            last_error: None,
            payload: message.payload,
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

/// The last text that a release gave, else the last cause; none where no delivery failed yet.
fn last_error(shared: &Shared, slot: u32) -> Option<&str> {
    let extra = shared.messages.extra(slot)?;
    extra.last_text.as_deref().or_else(|| extra.history.back().map(|(_, cause)| cause.text()))
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
        last_error: last_error(shared, slot).unwrap_or_default().into(),
        history: extra
            .map(|extra| extra.history.iter().map(|(at, cause)| (*at, cause.text().into())).collect())
            .unwrap_or_default(),
        payload: message.payload,
    }
}
