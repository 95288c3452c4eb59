//! The Prometheus text format (version 0.0.4).

use core::fmt::Write as _;
use overtake_wire::message::Metric;
use std::collections::BTreeMap;

/// Media type of the text.
pub(crate) const CONTENT_TYPE: &str = "text/plain; version=0.0.4; charset=utf-8";

/// The values as text: all samples of a name together, after its `HELP` and `TYPE`.
pub(crate) fn text(values: &[Metric]) -> String {
    let mut families: BTreeMap<String, Vec<&Metric>> = BTreeMap::new();
    for value in values {
        families.entry(allowed(&value.name, true)).or_default().push(value);
    }
    let mut text = String::new();
    for (name, samples) in &families {
        let kind = if samples.iter().all(|sample| sample.counter) { "counter" } else { "gauge" };
        // Writing to a string cannot fail.
        if let Some(help) = help(name) {
            let _ = writeln!(text, "# HELP {name} {help}");
        }
        let _ = writeln!(text, "# TYPE {name} {kind}");
        for sample in samples {
            let _ = writeln!(text, "{name}{} {}", labels(&sample.labels), number(sample.value));
        }
    }
    text
}

/// What a metric of the server says.
fn help(name: &str) -> Option<&'static str> {
    Some(match name {
        "overtake_requests_total" => "Requests of the binary protocol, the gateway's among them",
        "overtake_requests_parked_total" => {
            "Requests that waited until their client had read earlier answers"
        }
        "overtake_receives_turned_back_total" => {
            "Receives answered empty because their client does not read: the messages went back"
        }
        "overtake_enqueued_total" => "Messages stored",
        "overtake_deliveries_total" => "Messages handed out under a lease",
        "overtake_acked_total" => "Messages acked",
        "overtake_refused_disk_total" => "Enqueues refused because the disk is nearly full",
        "overtake_payload_reads_total" => "Bodies read from disk because they were not in memory any more",
        "overtake_checkpoints_total" => "Checkpoints of shards written",
        "overtake_peer_messages_refused_total" => {
            "Messages of other nodes that were refused because they cannot be right"
        }
        "overtake_journal_written_bytes_total" => "Bytes written to the journals",
        "overtake_journal_batches_total" => "Durable writes to the journals",
        "overtake_checkpoints_written_bytes_total" => "Bytes of shards' states written as checkpoints",
        "overtake_sessions" => "Open sessions of clients",
        "overtake_waiting_receives" => "Receives that wait for a message",
        "overtake_peer_links" => "Links from cores of this node to cores of other nodes that are up",
        "overtake_shards_led" => "Shards that this node leads",
        "overtake_operations" => "Requests under way",
        "overtake_queues" => "Queues of all tenants",
        "overtake_journal_segments" => "Journal segments that hold living messages",
        "overtake_journal_file_bytes" => "Bytes of the journal files on disk",
        "overtake_journal_backlog_bytes" => "Accepted bytes that wait for the disk",
        "overtake_disk_hangs_total" => "Times that no write of a journal ended for half a second",
        "overtake_enqueues_held_total" => "Enqueues that waited for messages to leave memory",
        "overtake_spills_total" => {
            "Times that messages were taken out of memory, or bodies out of the journal"
        }
        "overtake_thaws_total" => "Times that messages on disk were brought back into memory",
        "overtake_blocks_written_total" => "Blocks of messages written to lane files",
        "overtake_blocks_freed_total" => "Blocks of messages that are not needed any more",
        "overtake_requests_blocked_total" => "Requests that waited for messages to be read from lane files",
        "overtake_lanes_written_bytes_total" => "Bytes written to the lane files",
        "overtake_lanes_copied_bytes_total" => "Of them bytes copied to make room",
        "overtake_scrubbed_bytes_total" => "Bytes on disk looked through for damage",
        "overtake_scrub_passes_total" => "Times that everything on disk was looked through for damage",
        "overtake_scrub_damage_total" => "Places on disk found damaged before they were needed",
        "overtake_lane_file_bytes" => "Bytes of the lane files on disk",
        "overtake_lane_live_bytes" => "Of them bytes of blocks that are needed",
        "overtake_messages_in_memory" => "Messages and dead letters whose records are in memory",
        "overtake_messages_on_disk_only" => "Messages whose records are only on disk",
        "overtake_blocked_requests" => "Requests that wait for messages to be read from lane files",
        "overtake_entry_cache_bytes" => "Bytes of recent messages kept in memory",
        "overtake_disk_full" => "Cores that refuse enqueues because their disk is nearly full",
        "overtake_queue_messages" => "Messages of a queue by level and state",
        "overtake_queue_oldest_age_seconds" => {
            "Age of the oldest visible message of a level; absent without any"
        }
        "overtake_queue_dead_letters" => "Messages in the dead-letter queue",
        "overtake_queue_body_bytes" => "Body bytes of visible, delayed and leased messages",
        "overtake_queue_enqueued_total" => "Messages stored since the queue was created",
        "overtake_queue_deliveries_total" => "Messages handed out under a lease since the queue was created",
        "overtake_queue_acked_total" => "Messages acked since the queue was created",
        "overtake_queue_expired_total" => "Messages that outlived their time since the queue was created",
        "overtake_queue_dead_lettered_total" => {
            "Messages that became dead letters since the queue was created"
        }
        "overtake_queue_redriven_total" => "Dead letters brought back since the queue was created",
        "overtake_queue_lease_expirations_total" => {
            "Leases that ended without an ack since the queue was created"
        }
        "overtake_queue_releases_total" => "Messages given back by workers since the queue was created",
        "overtake_queue_starvation_events_total" => {
            "Times that a level with visible work had no delivery for longer than its starvation_s"
        }
        "overtake_queue_refused_total" => "Messages refused by reason since the queue was created",
        _ => return None,
    })
}

/// The name with every character that is not allowed made `_`. Colons are for names only, not for labels.
fn allowed(name: &str, colon: bool) -> String {
    let allowed = |at: usize, c: char| {
        c.is_ascii_alphabetic() || c == '_' || (colon && c == ':') || (at > 0 && c.is_ascii_digit())
    };
    let name: String = name.chars().enumerate().map(|(at, c)| if allowed(at, c) { c } else { '_' }).collect();
    if name.is_empty() { "_".to_owned() } else { name }
}

fn labels(labels: &[(String, String)]) -> String {
    if labels.is_empty() {
        return String::new();
    }
    let pairs: Vec<String> = labels
        .iter()
        .map(|(name, value)| {
            let value = value.replace('\\', "\\\\").replace('"', "\\\"").replace('\n', "\\n");
            format!("{}=\"{value}\"", allowed(name, false))
        })
        .collect();
    format!("{{{}}}", pairs.join(","))
}

fn number(value: f64) -> String {
    if value.is_nan() {
        "NaN".to_owned()
    } else if value.is_infinite() {
        if value > 0.0 { "+Inf" } else { "-Inf" }.to_owned()
    } else {
        value.to_string()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn metric(name: &str, labels: &[(&str, &str)], value: f64, counter: bool) -> Metric {
        let labels = labels.iter().map(|(n, v)| ((*n).to_owned(), (*v).to_owned())).collect();
        Metric { name: name.to_owned(), labels, value, counter }
    }

    #[test]
    fn families_stand_together_with_help_and_type() {
        let values = [
            metric("overtake_acked_total", &[("queue", "a\"b\\c\nd"), ("level", "0")], 3.0, true),
            metric("overtake_depth", &[], 1.5, false),
            metric("overtake_acked_total", &[("queue", "z")], 1e15, true),
            metric("1bad-name", &[("la:bel", "ok")], f64::INFINITY, false),
        ];
        let want = "# TYPE _bad_name gauge\n_bad_name{la_bel=\"ok\"} +Inf\n\
            # HELP overtake_acked_total Messages acked\n# TYPE overtake_acked_total counter\n\
            overtake_acked_total{queue=\"a\\\"b\\\\c\\nd\",level=\"0\"} 3\n\
            overtake_acked_total{queue=\"z\"} 1000000000000000\n\
            # TYPE overtake_depth gauge\novertake_depth 1.5\n";
        assert_eq!(text(&values), want);
        assert_eq!(text(&[]), "");
        assert_eq!((number(f64::NAN), number(f64::NEG_INFINITY)), ("NaN".to_owned(), "-Inf".to_owned()));
    }
}
