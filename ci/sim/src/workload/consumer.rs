//! What consumers do: receive, and end, extend, give back or forget what they got.

use super::{Asked, Held, Workload, take_any, trim};
use overtake_wire::message::{Extend, Receive, Release, Request, Settle};

/// Receipts of one settle request.
const SETTLE_MAX: u64 = 20;

impl Workload {
    pub(super) fn consume(&mut self, number: usize) -> Asked {
        let work = self.plan.work;
        let waiting = self.clients[number].open.keys().copied().next();
        if let Some(request) = waiting
            && self.chance(work.cancel_receive_ppm)
        {
            return Asked { queue: 0, request: Request::CancelReceive { request }, numbers: Vec::new() };
        }
        let full = self.clients[number].held.len() >= work.held_max;
        let settles = !self.clients[number].held.is_empty() && (full || self.random.below(2) == 0);
        if settles { self.settle(number) } else { self.receive() }
    }

    fn receive(&mut self) -> Asked {
        let work = self.plan.work;
        let queue = self.a_queue();
        let levels = u64::from(self.plan.queues[queue].levels);
        let wait_s =
            if self.chance(work.waits_ppm) { 1 + self.random.below(u64::from(work.wait_s_max)) } else { 0 };
        let lease_s = 1 + self.random.below(u64::from(work.lease_s_max));
        let receive = Receive {
            queue: self.name(queue),
            max: 1 + self.random.below(u64::from(work.receive_max)) as u32,
            wait_s: wait_s as u32,
            lease_s: self.chance(work.lease_given_ppm).then_some(lease_s as u32),
            max_priority: self.chance(work.ceilings_ppm).then(|| self.random.below(levels) as u32),
            worker: (self.random.below(3) == 0).then(|| format!("worker-{}", self.random.below(3))),
        };
        Asked { queue, request: Request::Receive(receive), numbers: Vec::new() }
    }

    fn settle(&mut self, number: usize) -> Asked {
        let work = self.plan.work;
        let queue = self.clients[number].held[0].queue;
        let mut settle = Settle { queue: self.name(queue), ..Settle::default() };
        let held = self.clients[number].held.iter().filter(|held| held.queue == queue).count() as u64;
        for _ in 0..1 + self.random.below(SETTLE_MAX.min(held)) {
            let at = self.clients[number].held.iter().position(|held| held.queue == queue);
            let Some(at) = at else { break };
            let Held { receipt, .. } = self.clients[number].held.remove(at);
            if self.chance(work.ack_ppm) {
                settle.ack.push(receipt.clone());
            } else if self.chance(work.extend_ppm) {
                let lease_s = 1 + self.random.below(u64::from(work.lease_s_max)) as u32;
                settle.extend.push(Extend { receipt: receipt.clone(), lease_s });
                self.clients[number].held.push(Held { queue, receipt });
                continue;
            } else if self.chance(work.release_ppm) {
                settle.release.push(self.release(receipt.clone()));
            }
            // What is neither is abandoned: its lease runs out.
            self.old_receipts.push(Held { queue, receipt });
        }
        trim(&mut self.old_receipts);
        if self.chance(work.stale_ppm) {
            self.add_stale(queue, &mut settle);
        }
        Asked { queue, request: Request::Settle(settle), numbers: Vec::new() }
    }

    fn release(&mut self, receipt: String) -> Release {
        let work = self.plan.work;
        let delay = self.chance(work.release_delay_ppm);
        let delay_s = delay.then(|| self.random.below(work.release_delay_s_max + 1));
        let error = (self.random.below(2) == 0).then(|| format!("error of {receipt}"));
        Release { receipt, delay_s, error }
    }

    /// Receipts that were used before, are not this queue's, or are none.
    fn add_stale(&mut self, queue: usize, settle: &mut Settle) {
        let old = take_any(&mut self.old_receipts, &mut self.random).map(|held| held.receipt);
        let receipt = match self.random.below(4) {
            0 => "r_0_1_".into(),
            // Deliveries count from 1, so that guessing never hits.
            1 => format!("r_{}_{}_0", self.random.below(16), self.random.below(100)),
            _ => match old {
                Some(receipt) => receipt,
                None => return,
            },
        };
        let named = |receipt: &String| {
            settle.ack.contains(receipt)
                || settle.extend.iter().any(|extend| extend.receipt == *receipt)
                || settle.release.iter().any(|release| release.receipt == *receipt)
        };
        if named(&receipt) {
            return;
        }
        self.old_receipts.push(Held { queue, receipt: receipt.clone() });
        match self.random.below(3) {
            0 => settle.ack.push(receipt),
            1 => settle.extend.push(Extend { receipt, lease_s: 1 }),
            _ => settle.release.push(Release { receipt, delay_s: None, error: None }),
        }
    }
}
