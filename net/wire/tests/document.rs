//! Holds PROTOCOL.md against the code: kinds, codes, offsets, and the bytes of its session. Who writes a client has
//! only the document.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use bytes::Bytes;
use overtake_base::queue_config::{Backoff, RateCaps, Scheduling, Starvation};
use overtake_base::{MessageId, QueueConfig, QueueConfigPatch, UnixMillis};
use overtake_wire::message::*;
use overtake_wire::{
    RequestKind, ResponseKind, decode_request, decode_response, encode_request, encode_response,
};

const DOCUMENT: &str = include_str!("../PROTOCOL.md");

/// Cells of all table rows whose first cell is a number.
fn rows() -> impl Iterator<Item = (u16, Vec<&'static str>)> {
    DOCUMENT.lines().filter_map(|line| {
        let cells: Vec<&str> =
            line.strip_prefix("| ")?.strip_suffix(" |")?.split(" | ").map(str::trim).collect();
        Some((cells[0].parse().ok()?, cells))
    })
}

/// The rows of the table whose head starts with these cells.
fn table(head: &str) -> Vec<(u16, Vec<&'static str>)> {
    let start = DOCUMENT.find(head).unwrap();
    let end = DOCUMENT[start..].find("\n\n").map_or(DOCUMENT.len(), |end| start + end);
    let part = &DOCUMENT[start..end];
    rows().filter(|(_, cells)| part.contains(&format!("| {} |", cells.join(" | ")))).collect()
}

#[test]
fn every_kind_and_code_is_in_its_table() {
    let requests: Vec<_> = table("| kind | name | payload | answered by |")
        .into_iter()
        .map(|(number, cells)| (number, cells[1].trim_end_matches(" |").to_owned()))
        .collect();
    let expected: Vec<_> = RequestKind::ALL.iter().map(|kind| (*kind as u16, format!("{kind:?}"))).collect();
    assert_eq!(requests, expected);
    let responses: Vec<_> = table("| kind | name | payload |\n")
        .into_iter()
        .map(|(number, cells)| (number, cells[1].trim_end_matches(" |").to_owned()))
        .collect();
    let expected: Vec<_> = ResponseKind::ALL.iter().map(|kind| (*kind as u16, format!("{kind:?}"))).collect();
    assert_eq!(responses, expected);
    for (code, (number, cells)) in ErrorCode::ALL.into_iter().zip(table("| code | name | HTTP |")) {
        let name = cells[1].split(':').next().unwrap();
        assert_eq!((number, name.to_owned()), (code as u16, format!("{code:?}")));
        assert_eq!(cells[3].starts_with("yes"), code.retry_is_safe(), "{code:?}: {}", cells[3]);
    }
}

/// Bytes of a type whose length is fixed.
fn fixed(field: &str) -> Option<usize> {
    let name = field.trim_start_matches(['`', '*']).split(['`', '*']).next().unwrap();
    Some(match name {
        "u8" | "bool" | "state" => 1,
        "u16" => 2,
        "u32" => 4,
        "u64" | "f64" | "time" => 8,
        "id" | "u128" => 16,
        "receipt" => 14,
        _ => return None,
    })
}

/// Checks the offsets of one record, and of those in parentheses; gives how many fields they were.
fn check_offsets(record: &str) -> usize {
    let (mut depth, mut fields, mut start) = (0, Vec::new(), 0);
    for (at, character) in record.char_indices() {
        match character {
            '(' => depth += 1,
            ')' => depth -= 1,
            '·' if depth == 0 => {
                fields.push(record[start..at].trim());
                start = at + '·'.len_utf8();
            }
            _ => {}
        }
    }
    fields.push(record[start..].trim());
    let (mut mark, mut offset, mut count) = ('@', 0, 0);
    for field in fields {
        let (stated, rest) = field.split_once(' ').unwrap_or((field, ""));
        assert_eq!(stated, format!("{mark}{offset}"), "of {field} in {record}");
        count += 1;
        if let Some((_, inner)) = rest.split_once("(@") {
            count += check_offsets(&format!("@{}", &inner[..inner.rfind(')').unwrap()]));
        }
        match fixed(rest) {
            Some(bytes) => offset += bytes,
            None => (mark, offset) = ('+', 0),
        }
    }
    count
}

#[test]
fn offsets_add_up() {
    let payload = |(_, cells): (u16, Vec<&'static str>)| cells.into_iter().find(|cell| cell.starts_with('@'));
    let described = DOCUMENT
        .lines()
        .filter_map(|line| {
            line.split_once(": ").filter(|(name, _)| name.starts_with('*')).map(|(_, record)| record)
        })
        .filter(|record| record.starts_with('@'));
    let checked: usize = rows().filter_map(payload).chain(described).map(check_offsets).sum();
    assert!(checked > 140, "{checked} fields were found");
}

fn patch() -> QueueConfigPatch {
    QueueConfigPatch {
        levels: Some(Some(3)),
        scheduling: Some(Some(Scheduling::Strict)),
        max_deliveries: Some(Some(10)),
        lease_s: Some(None),
        rate_caps: Some(Some(RateCaps { queue: None, levels: [(2, 50)].into() })),
        backoff: Some(Some(Backoff { first_s: 5, factor_micro: 2_000_000, max_s: 600 })),
        ..QueueConfigPatch::default()
    }
}

/// Sets one number of a configuration.
type Set = fn(&mut QueueConfig, u64);

/// The bounds that the document gives for each field are those that the server checks.
#[test]
fn the_ranges_of_a_configuration_are_those_of_the_document() {
    let set: [(&str, Set); 17] = [
        ("levels", |c, v| *c = QueueConfig::with_defaults(u8::try_from(v).unwrap_or(u8::MAX), 1)),
        ("shards", |c, v| c.shards = u16::try_from(v).unwrap_or(u16::MAX)),
        ("weights", |c, v| c.weights_micro = vec![v; 5]),
        ("reserve", |c, v| c.reserve_ppm = u32::try_from(v).unwrap()),
        ("floor", |c, v| c.floor_ppm = u32::try_from(v).unwrap()),
        ("aging_s", |c, v| c.aging_s = v),
        ("max_deliveries", |c, v| c.max_deliveries = u32::try_from(v).unwrap()),
        ("lease_s", |c, v| c.lease_s = u32::try_from(v).unwrap()),
        ("dedup_window_s", |c, v| c.dedup_window_s = v),
        ("retention_s", |c, v| c.retention_s = v),
        ("max_depth", |c, v| c.max_depth = Some(v)),
        ("max_bytes", |c, v| c.max_bytes = Some(v)),
        ("rate_caps", |c, v| c.rate_caps = RateCaps { queue: Some(v), levels: [(4, v)].into() }),
        ("backoff.first_s", |c, v| c.backoff = Some(Backoff { first_s: v, ..BACKOFF })),
        ("backoff.factor", |c, v| c.backoff = Some(Backoff { factor_micro: v, ..BACKOFF })),
        ("backoff.max_s", |c, v| c.backoff = Some(Backoff { max_s: v, ..BACKOFF })),
        ("starvation_s", |c, v| c.starvation = Starvation::All(v)),
    ];
    let start = DOCUMENT.find("| field | allowed | default |").unwrap();
    let rows: Vec<&str> =
        DOCUMENT[start..].lines().skip(2).take_while(|line| line.starts_with("| ")).collect();
    assert_eq!(rows.len(), set.len());
    for (row, (field, set)) in rows.into_iter().zip(set) {
        let cells: Vec<&str> = row.split('|').map(str::trim).collect();
        assert_eq!(cells[1], field);
        let range =
            cells[2].split_whitespace().find_map(|word| word.trim_end_matches([',', ';']).split_once("..="));
        let (low, high) = range.unwrap_or_else(|| panic!("no range in {row}"));
        let (low, high): (u64, u64) = (low.parse().unwrap(), high.parse().unwrap());
        let valid = |value: u64| {
            let mut config = QueueConfig::with_defaults(5, 1);
            set(&mut config, value);
            config.validate()
        };
        for good in [low, high] {
            assert_eq!(valid(good), Ok(()), "{field} {good}");
        }
        for bad in [low.checked_sub(1), Some(high + 1)].into_iter().flatten() {
            assert!(valid(bad).is_err_and(|refused| refused.field == field), "{field} {bad}");
        }
    }
}

const BACKOFF: Backoff = Backoff { first_s: 0, factor_micro: 1_000_000, max_s: 31_622_400 };

fn session() -> Vec<Result<(u64, Request), (u64, Response)>> {
    let id = MessageId::new(1_700_000_000_123, 0x0001_0203_0405_0607_0809);
    let headers = || vec![("a".to_owned(), "b".to_owned())];
    let queue = || "jobs".to_owned();
    let message = EnqueueMessage {
        priority: 1,
        id: Some(id),
        delay: Delay::None,
        dedup_key: Some("k1".into()),
        expires_in_s: None,
        headers: headers(),
        body: "hello".into(),
    };
    let receive = Receive { max: 1, wait_s: 20, ..Receive::new(queue()) };
    let first = Receive { lease_s: Some(30), worker: Some("w".into()), ..receive.clone() };
    let release = Release { receipt: "r_3_18_1".into(), delay_s: None, error: Some("boom".into()) };
    let delivered = Delivered {
        id,
        priority: 1,
        receipt: "r_3_17_1".parse().unwrap(),
        deliveries: 1,
        enqueued_at: UnixMillis(1_700_000_000_123),
        lease_expires_at: UnixMillis(1_700_000_030_123),
        headers: headers(),
        share: false,
        body: "hello".into(),
    };
    let settle =
        Settle { queue: queue(), ack: vec!["r_3_17_1".into()], extend: vec![], release: vec![release] };
    vec![
        Ok((1, Request::Hello { token: String::new() })),
        Err((1, Response::Welcome { node: 1, core: 0, cores: 2, version: "0.1.0".into() })),
        Ok((2, Request::Enqueue { queue: queue(), messages: vec![message] })),
        Err((2, Response::Enqueued { results: vec![Ok(Enqueued { id, shard: 3, duplicate: false })] })),
        Ok((3, Request::Receive(first))),
        Err((3, Response::Received { messages: vec![delivered] })),
        Ok((4, Request::Settle(settle))),
        Err((
            4,
            Response::Settled { ack: vec![Settled::Ok], extend: vec![], release: vec![Settled::Unknown] },
        )),
        Ok((5, Request::Receive(receive))),
        Ok((6, Request::CancelReceive { request: 5 })),
        Err((5, Response::Received { messages: vec![] })),
        Ok((7, Request::PutQueue { queue: queue(), patch: patch() })),
        Err((7, Response::QueuePut { created: true, config: QueueConfig::create(&patch(), 8).unwrap() })),
        Ok((8, Request::GetQueue { queue: "job".into() })),
        Err((8, Response::Refused(Refusal::not_found("no queue \"job\"")))),
    ]
}

#[test]
fn the_session_has_these_bytes() {
    let frames: Vec<&str> =
        DOCUMENT.lines().filter(|line| line.starts_with("> ") || line.starts_with("< ")).collect();
    let session = session();
    assert_eq!(frames.len(), session.len());
    for (line, expected) in frames.into_iter().zip(session) {
        let digits: String = line[1..].chars().filter(|character| *character != ' ').collect();
        let hex = |at| u8::from_str_radix(&digits[at..at + 2], 16).unwrap();
        let bytes: Vec<u8> = (0..digits.len()).step_by(2).map(hex).collect();
        let frame = Bytes::copy_from_slice(&bytes[4..]);
        let mut encoded = Vec::new();
        match expected {
            Ok((number, request)) => {
                assert!(line.starts_with('>'), "{line}");
                encode_request(number, &request, &mut encoded);
                assert_eq!(decode_request(&frame), Ok((number, request)));
            }
            Err((number, response)) => {
                assert!(line.starts_with('<'), "{line}");
                encode_response(number, &response, &mut encoded);
                assert_eq!(decode_response(&frame), Ok((number, response)));
            }
        }
        assert_eq!(encoded, bytes, "{line}");
    }
}
