//! Holds PROTOCOL.md against the code: kinds, codes, offsets, and the bytes of its session. Who writes a client has
//! only the document.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use bytes::Bytes;
use overtake_base::{MessageId, UnixMillis};
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
        Ok((7, Request::GetQueue { queue: "job".into() })),
        Err((7, Response::Refused(Refusal::not_found("no queue \"job\"")))),
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
