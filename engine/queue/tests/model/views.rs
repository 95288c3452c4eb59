//! What reads of the model show.

use super::message::{Message, State};
use super::queue::Queue;
use overtake_base::{Level, MessageId, QueueId, UnixMillis};
use overtake_queue::answer::{DeadLetterView, LevelSummary, MessageView, QueueStats, Summary, ViewState};
use overtake_queue::machine::PeekFilter;
use std::collections::BTreeMap;

impl Queue {
    fn count(&self, which: impl Fn(&Message) -> bool) -> Vec<u64> {
        let mut counts = vec![0; usize::from(self.config.levels)];
        for message in self.messages.iter().filter(|message| which(message)) {
            counts[usize::from(message.level.0)] += 1;
        }
        counts
    }

    /// Without waits.
    pub fn stats(&self) -> QueueStats {
        let mut workers: BTreeMap<Box<str>, u64> = BTreeMap::new();
        let mut oldest_since = vec![None; usize::from(self.config.levels)];
        for message in &self.messages {
            if let State::Leased { worker: Some(worker), .. } = &message.state {
                *workers.entry(worker.clone()).or_default() += 1;
            }
            if message.is_visible() {
                let oldest: &mut Option<UnixMillis> = &mut oldest_since[usize::from(message.level.0)];
                *oldest = Some(oldest.map_or(message.since, |since| since.min(message.since)));
            }
        }
        QueueStats {
            visible: self.count(Message::is_visible),
            delayed: self.count(Message::is_delayed),
            leased: self.count(Message::is_leased),
            dead: self.count(Message::is_dead).iter().sum(),
            body_bytes: self.body_bytes(),
            oldest_since,
            waits: Vec::new(),
            totals: self.totals,
            workers: workers.into_iter().collect(),
        }
    }

    pub fn summary(&self, queue: QueueId) -> Summary {
        let visible = self.count(Message::is_visible);
        let levels = (0u8..).zip(visible).filter(|(_, visible)| *visible > 0).map(|(level, visible)| {
            LevelSummary { level: Level(level), visible, head_since: self.head_since(Level(level)) }
        });
        Summary { queue, depth: self.depth(), body_bytes: self.body_bytes(), levels: levels.collect() }
    }

    pub fn peek(&self, filter: PeekFilter, after: Option<MessageId>, limit: usize) -> Vec<MessageView> {
        let fits = |message: &&Message| {
            let state = message.is_visible() && filter.visible
                || message.is_delayed() && filter.delayed
                || message.is_leased() && filter.leased;
            state && filter.priority.is_none_or(|level| message.level == level)
        };
        self.by_id(after, fits).into_iter().take(limit).map(|message| view(message, None)).collect()
    }

    pub fn inspect(&self, id: MessageId) -> Option<MessageView> {
        let message = &self.messages[self.find(id)?];
        let goes_before = |other: &&Message| {
            other.is_visible() && (other.level, other.sequence) < (message.level, message.sequence)
        };
        let ahead = self.messages.iter().filter(goes_before).count() as u64;
        Some(MessageView { last_error: last_error(message), ..view(message, Some(ahead)) })
    }

    pub fn dead_letters(&self, after: Option<MessageId>, limit: usize) -> Vec<DeadLetterView> {
        let dead = self.by_id(after, |message| message.is_dead());
        dead.into_iter().take(limit).map(dead_letter).collect()
    }

    fn by_id(&self, after: Option<MessageId>, which: impl Fn(&&Message) -> bool) -> Vec<&Message> {
        let later = |message: &&Message| after.is_none_or(|after| message.id > after);
        let mut messages: Vec<&Message> = self.messages.iter().filter(which).filter(later).collect();
        messages.sort_by_key(|message| message.id);
        messages
    }

    /// When rate caps allow a delivery of each level.
    pub fn ready_at(&self, now: UnixMillis) -> Vec<UnixMillis> {
        (0..self.config.levels).map(|level| self.limiter.ready_at(Level(level), now)).collect()
    }
}

fn view(message: &Message, ahead: Option<u64>) -> MessageView {
    MessageView {
        id: message.id,
        priority: message.level,
        state: match &message.state {
            State::Visible => ViewState::Visible { ahead },
            State::Delayed { until } => ViewState::Delayed { until: *until },
            State::Leased { until, worker, .. } => {
                ViewState::Leased { expires_at: *until, worker: worker.clone() }
            }
            State::Dead { .. } => ViewState::Dead,
        },
        deliveries: message.deliveries,
        enqueued_at: message.enqueued_at,
        sequence: message.sequence,
        last_error: None,
        payload: message.payload,
    }
}

fn last_error(message: &Message) -> Option<Box<str>> {
    message.last_text.clone().or_else(|| message.history.last().map(|(_, what)| what.clone()))
}

fn dead_letter(message: &Message) -> DeadLetterView {
    let State::Dead { at } = message.state else { unreachable!("only dead letters are listed") };
    DeadLetterView {
        id: message.id,
        priority: message.level,
        deliveries: message.deliveries,
        enqueued_at: message.enqueued_at,
        dead_at: at,
        last_error: last_error(message).expect("nothing dies without a cause"),
        history: message.history.clone(),
        payload: message.payload,
    }
}
