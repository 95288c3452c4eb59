//! Queues: a list, and one configuration.

use super::table::{Cell, Table, pairs};
use super::units::{bytes, count, millionths, seconds};
use super::{View, more, text};
use overtake_base::queue_config::{QueueConfig, Scheduling, Starvation};
use overtake_wire::message::QueueListed;

/// A page of queues, each with its number of dead letters as far as it is known.
pub fn list(queues: &[(QueueListed, Option<u64>)], next: Option<&str>, view: View) -> String {
    if queues.is_empty() {
        return "no queues\n".to_owned();
    }
    let mut table = Table::new(["QUEUE", ">DEPTH", ">DEAD LETTERS", ">LEVELS", ">SHARDS", "?SCHEDULING"]);
    for (queue, dead) in queues {
        table.row([
            text::one_line(&queue.name).into(),
            count(queue.depth).into(),
            match dead {
                None => Cell::none(),
                Some(0) => "0".into(),
                Some(dead) => Cell::bad(count(*dead)),
            },
            queue.config.levels.to_string().into(),
            queue.config.shards.to_string().into(),
            scheduling(queue.config.scheduling).into(),
        ]);
    }
    table.render(view) + &more(next, view)
}

/// One configuration, every field, named as in the HTTP contract.
pub fn config(name: &str, config: &QueueConfig, view: View) -> String {
    let unlimited = |limit: Option<u64>, show: fn(u64) -> String| limit.map_or("no limit".to_owned(), show);
    let fields = [
        ("levels", format!("{} (p0 to p{})", config.levels, config.levels.saturating_sub(1))),
        ("shards", config.shards.to_string()),
        ("scheduling", scheduling(config.scheduling).to_owned()),
        ("weights", join(config.weights_micro.iter().map(|weight| millionths(*weight)))),
        ("reserve", millionths(u64::from(config.reserve_ppm))),
        ("floor", millionths(u64::from(config.floor_ppm))),
        ("aging_s", seconds(config.aging_s)),
        ("max_deliveries", count(u64::from(config.max_deliveries))),
        ("lease_s", seconds(u64::from(config.lease_s))),
        (
            "dedup_window_s",
            if config.dedup_window_s == 0 { "off".into() } else { seconds(config.dedup_window_s) },
        ),
        ("retention_s", seconds(config.retention_s)),
        ("max_depth", unlimited(config.max_depth, count)),
        ("max_bytes", unlimited(config.max_bytes, bytes)),
        ("rate_caps", rate_caps(config)),
        ("dead_letter_expired", config.dead_letter_expired.to_string()),
        ("backoff", backoff(config)),
        ("starvation_s", starvation(config)),
    ];
    view.style.bold(&text::one_line(name)) + "\n" + &pairs(&fields)
}

fn scheduling(mode: Scheduling) -> &'static str {
    match mode {
        Scheduling::Weighted => "weighted",
        Scheduling::Strict => "strict",
        Scheduling::Aging => "aging",
    }
}

fn rate_caps(config: &QueueConfig) -> String {
    let queue = config.rate_caps.queue.map(|rate| format!("queue={rate}/s"));
    let levels = config.rate_caps.levels.iter().map(|(level, rate)| format!("p{level}={rate}/s"));
    if config.rate_caps.is_empty() { "none".to_owned() } else { join(queue.into_iter().chain(levels)) }
}

fn backoff(config: &QueueConfig) -> String {
    config.backoff.map_or("none".to_owned(), |backoff| {
        format!(
            "{}, then × {}, at most {}",
            seconds(backoff.first_s),
            millionths(backoff.factor_micro),
            seconds(backoff.max_s)
        )
    })
}

fn starvation(config: &QueueConfig) -> String {
    match &config.starvation {
        Starvation::All(s) => seconds(*s),
        Starvation::PerLevel(list) => join(list.iter().map(|s| seconds(*s))),
    }
}

fn join(texts: impl Iterator<Item = String>) -> String {
    texts.collect::<Vec<_>>().join(", ")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::render::plain;
    use overtake_base::queue_config::{Backoff, RateCaps};

    #[test]
    fn a_list_of_queues() {
        let queue = |name: &str, depth| QueueListed {
            name: name.into(),
            config: QueueConfig::with_defaults(5, 8),
            depth,
        };
        let queues = [(queue("jobs", 1_234_567), Some(71)), (queue("mail", 0), None)];
        let page = list(&queues, Some("mail"), plain());
        assert_eq!(
            page,
            "QUEUE      DEPTH  DEAD LETTERS  LEVELS  SHARDS  SCHEDULING\n\
             jobs   1,234,567            71       5       8  weighted\n\
             mail           0             -       5       8  weighted\n\
             more: add --after mail\n"
        );
        assert_eq!(list(&[], None, plain()), "no queues\n");
    }

    #[test]
    fn every_field_of_a_configuration() {
        let shown = config(
            "jobs",
            &QueueConfig {
                rate_caps: RateCaps { queue: Some(100), levels: [(0, 5)].into() },
                backoff: Some(Backoff { first_s: 2, factor_micro: 1_500_000, max_s: 600 }),
                starvation: Starvation::PerLevel(vec![5, 60]),
                max_bytes: Some(1 << 30),
                ..QueueConfig::with_defaults(2, 1)
            },
            plain(),
        );
        assert_eq!(
            shown,
            "\
jobs
levels               2 (p0 to p1)
shards               1
scheduling           weighted
weights              50, 25
reserve              0.1
floor                0.05
aging_s              30 min
max_deliveries       5
lease_s              30 s
dedup_window_s       10 min
retention_s          4 d
max_depth            no limit
max_bytes            1 GiB
rate_caps            queue=100/s, p0=5/s
dead_letter_expired  false
backoff              2 s, then × 1.5, at most 10 min
starvation_s         5 s, 1 min
"
        );
    }
}
