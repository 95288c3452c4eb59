//! What admins do: look, change configurations, cancel, purge, redrive, delete.

use super::{Asked, Workload};
use crate::arena::Arena;
use overtake_base::QueueConfigPatch;
use overtake_base::queue_config::{RateCaps, Starvation};
use overtake_wire::message::{PeekStates, Redrive, RedriveSelection, Request};

impl Workload {
    /// The next request; none where the plan has nothing for admins to do.
    pub(super) fn look_after(&mut self, world: &dyn Arena) -> Option<Asked> {
        let queue = self.a_queue();
        let weights = self.plan.care.weights;
        let mut choice = self.random.below(weights.iter().sum());
        let operation = weights.iter().position(|weight| {
            let chosen = choice < *weight;
            choice = choice.saturating_sub(*weight);
            chosen
        })?;
        let name = self.name(queue);
        let request = match operation {
            0 | 1 => Request::Stats { queue: name },
            2 => self.peek(name),
            3 => self.cancel(queue, name),
            4 => self.inspect(queue, name),
            5 => Request::DlqList { queue: name, limit: 1 + self.random.below(50) as u32, after: None },
            6 => self.redrive(queue, name),
            7 => self.update(queue, name, world),
            8 if self.random.below(3) == 0 => Request::Purge { queue: name },
            9 if self.random.below(3) == 0 => Request::DlqPurge { queue: name },
            10 if self.plan.queues[queue].deletable && self.random.below(3) == 0 => {
                Request::DeleteQueue { queue: name }
            }
            _ => Request::GetQueue { queue: name },
        };
        Some(Asked { queue, request, numbers: Vec::new() })
    }

    fn peek(&mut self, queue: String) -> Request {
        let bits = 1 + self.random.below(7);
        let states = PeekStates { visible: bits & 1 != 0, delayed: bits & 2 != 0, leased: bits & 4 != 0 };
        Request::Peek { queue, states, priority: None, limit: 1 + self.random.below(50) as u32, after: None }
    }

    fn an_id(&mut self, queue: usize) -> Option<overtake_base::MessageId> {
        let of_queue: Vec<_> = self.ids.iter().filter(|(of, _)| *of == queue).map(|(_, id)| *id).collect();
        (!of_queue.is_empty()).then(|| of_queue[self.random.below(of_queue.len() as u64) as usize])
    }

    fn cancel(&mut self, queue: usize, name: String) -> Request {
        match self.an_id(queue) {
            Some(id) => Request::Cancel { queue: name, id },
            None => Request::Stats { queue: name },
        }
    }

    fn inspect(&mut self, queue: usize, name: String) -> Request {
        match self.an_id(queue) {
            Some(id) => Request::Inspect { queue: name, id },
            None => Request::Stats { queue: name },
        }
    }

    fn redrive(&mut self, queue: usize, name: String) -> Request {
        let levels = u64::from(self.plan.queues[queue].levels);
        let selection = match (self.random.below(3), self.an_id(queue)) {
            (0, Some(id)) => RedriveSelection::Ids(vec![id]),
            (1, _) => RedriveSelection::FromPriority(self.random.below(levels) as u32),
            _ => RedriveSelection::All,
        };
        Request::DlqRedrive(Redrive {
            queue: name,
            selection,
            priority: (self.random.below(3) == 0).then(|| self.random.below(levels) as u32),
            max_per_s: (self.random.below(3) == 0).then(|| 1 + self.random.below(20)),
            dry_run: self.random.below(5) == 0,
        })
    }

    /// Changes what no checker takes for fixed.
    fn update(&mut self, queue: usize, name: String, _world: &dyn Arena) -> Request {
        let plan = &self.plan.queues[queue];
        let mut patch = QueueConfigPatch::default();
        match self.random.below(4) {
            0 => patch.starvation = Some(Some(Starvation::All(1 + self.random.below(60)))),
            1 if plan.capped => {
                patch.rate_caps =
                    Some(Some(RateCaps { queue: Some(1 + self.random.below(50)), levels: [].into() }));
            }
            1 => patch.reserve_ppm = Some(Some(plan.reserve_ppm)),
            2 if plan.max_depth.is_some() => {
                patch.max_depth = Some(Some(1 + self.random.below(50)));
            }
            2 => patch.floor_ppm = Some(Some(plan.floor_ppm)),
            _ => {
                let weights = (0..plan.levels).map(|_| 1_000_000 * (1 + self.random.below(20))).collect();
                patch.weights_micro = Some(Some(weights));
            }
        }
        Request::PutQueue { queue: name, patch }
    }
}
