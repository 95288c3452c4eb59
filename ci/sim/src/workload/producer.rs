//! What producers send.

use super::{Asked, Workload, trim};
use crate::history::{History, Made, Number, client_id, content};
use crate::world::World;
use overtake_base::UnixMillis;
use overtake_base::limits::BODY_BYTES_MAX;
use overtake_wire::message::{Delay, EnqueueMessage, Request};

impl Workload {
    pub(super) fn produce(&mut self, world: &World, history: &mut History) -> Asked {
        let plan = self.plan.messages;
        if self.chance(plan.repeats_ppm) && !self.repeatable.is_empty() {
            let at = self.random.below(self.repeatable.len() as u64) as usize;
            let number = self.repeatable[at];
            let made = history.made[number as usize].clone();
            let mut numbers = vec![number];
            let mut messages = vec![self.with_other_key(made.message)];
            // Some in a batch: what is left of their meanings is their order.
            while plan.other_keys_ppm > 0 && self.other_keys.chance_ppm(200_000) && numbers.len() < 5 {
                let at = self.other_keys.below(self.repeatable.len() as u64) as usize;
                let more = &history.made[self.repeatable[at] as usize];
                let bytes: usize = messages.iter().map(|message| message.body.len()).sum();
                if more.queue == made.queue && bytes + more.message.body.len() <= plan.batch_bytes_max {
                    numbers.push(self.repeatable[at]);
                    messages.push(self.with_other_key(more.message.clone()));
                }
            }
            let request = Request::Enqueue { queue: self.name(made.queue), messages };
            return Asked { queue: made.queue, request, numbers };
        }
        let queue = self.a_queue();
        let count = if self.chance(plan.batches_ppm) { 1 + self.random.below(plan.batch_max) } else { 1 };
        let mut numbers = Vec::new();
        let mut messages = Vec::new();
        let mut bytes = 0;
        for _ in 0..count {
            let number = history.made.len() as Number;
            let message = self.make(queue, number, world);
            bytes += message.body.len();
            history.made.push(Made { queue, message: message.clone() });
            // A message without id and key that is sent twice would rightly be stored twice.
            if message.id.is_some() {
                self.repeatable.push(number);
            }
            numbers.push(number);
            messages.push(message);
            let largest = if plan.huge_bodies_ppm > 0 { BODY_BYTES_MAX } else { plan.body_bytes_max };
            if bytes + largest > plan.batch_bytes_max {
                break;
            }
        }
        trim(&mut self.repeatable);
        // The same message twice in one batch.
        if self.chance(plan.repeats_ppm / 4) && messages[0].id.is_some() {
            numbers.push(numbers[0]);
            messages.push(self.with_other_key(messages[0].clone()));
        }
        Asked { queue, request: Request::Enqueue { queue: self.name(queue), messages }, numbers }
    }

    /// The message, in some runs now and then with another key than it was made with, or none.
    fn with_other_key(&mut self, message: EnqueueMessage) -> EnqueueMessage {
        let plan = self.plan.messages;
        if plan.other_keys_ppm == 0 || !self.other_keys.chance_ppm(plan.other_keys_ppm) {
            return message;
        }
        let key = self.other_keys.below(plan.dedup_keys.min(1_000) + 1);
        let dedup_key = (key > 0).then(|| format!("key-{}", key - 1).into_bytes().into());
        EnqueueMessage { dedup_key, ..message }
    }

    fn make(&mut self, queue: usize, number: Number, world: &World) -> EnqueueMessage {
        let plan = self.plan.messages;
        let levels = u64::from(self.plan.queues[queue].levels);
        let wall = world.now().wall;
        let id = self.chance(plan.client_ids_ppm).then(|| client_id(number, wall));
        let body_bytes = if self.chance(plan.huge_bodies_ppm) {
            BODY_BYTES_MAX
        } else {
            self.random.below(plan.body_bytes_max as u64 + 1) as usize
        };
        let by_header = self.chance(plan.headers_ppm);
        let (headers, body) = content(number, body_bytes, by_header, id.is_some());
        let dedup_key = self.chance(plan.dedup_keys_ppm).then(|| {
            let key = self.random.below(plan.dedup_keys);
            format!("key-{key}").into_bytes().into()
        });
        let priority = if self.chance(plan.one_level_ppm) { 0 } else { self.random.below(levels) };
        let retention_s = self.plan.queues[queue].retention_ms / 1_000;
        let expiry_s_max = plan.expiry_s_max.min(retention_s);
        EnqueueMessage {
            priority: priority as u32,
            id,
            delay: self.delay(wall),
            dedup_key,
            expires_in_s: self.chance(plan.expiry_ppm).then(|| 1 + self.random.below(expiry_s_max)),
            headers,
            body,
        }
    }

    fn delay(&mut self, wall: UnixMillis) -> Delay {
        let plan = self.plan.messages;
        if !self.chance(plan.delays_ppm) {
            return Delay::None;
        }
        let delay_ms = self.random.below(plan.delay_s_max * 1_000);
        match self.random.below(4) {
            0 => Delay::At(UnixMillis(wall.0 - delay_ms)),
            1 | 2 => Delay::At(wall.plus_ms(delay_ms)),
            _ => Delay::AfterS(delay_ms / 1_000),
        }
    }
}
