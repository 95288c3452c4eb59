//! Every value survives its bytes, and no bytes at all can make a decoder panic.

mod common;

use bytes::Bytes;
use overtake_wire::message::{
    DeadLetter, Delivered, EnqueueMessage, PeekedMessage, Release, Request, Response, Settle,
};
use overtake_wire::{
    FrameSplitter, cut_error, decode_request, decode_response, encode_request, encode_response,
};
use proptest::prelude::*;

fn frame_of(bytes: Vec<u8>) -> Bytes {
    let mut splitter = FrameSplitter::for_responses();
    splitter.push(bytes.into());
    let frame = splitter.next_frame();
    assert!(splitter.is_empty(), "the length prefix covers the frame");
    frame.ok().flatten().unwrap_or_default()
}

fn request_frame(id: u64, request: &Request) -> Bytes {
    let mut out = Vec::new();
    encode_request(id, request, &mut out);
    frame_of(out)
}

fn response_frame(id: u64, response: &Response) -> Bytes {
    let mut out = Vec::new();
    encode_response(id, response, &mut out);
    frame_of(out)
}

proptest! {
    /// Answers to producers and consumers are written without growing their frame, as long as nothing is refused.
    #[test]
    fn frames_of_messages_are_not_grown(id: u64, response in common::response()) {
        let exact = match &response {
            Response::Received { .. } | Response::Settled { .. } => true,
            Response::Enqueued { results } => results.iter().all(Result::is_ok),
            _ => false,
        };
        let mut out = Vec::new();
        encode_response(id, &response, &mut out);
        prop_assert!(!exact || out.capacity() == out.len(), "{} of {}", out.len(), out.capacity());
    }

    #[test]
    fn requests_survive_their_bytes(id: u64, request in common::request()) {
        prop_assert_eq!(decode_request(&request_frame(id, &request)), Ok((id, request)));
    }

    #[test]
    fn responses_survive_their_bytes(id: u64, response in common::response()) {
        prop_assert_eq!(decode_response(&response_frame(id, &response)), Ok((id, response)));
    }

    #[test]
    fn a_cut_or_lengthened_request_is_malformed_and_addressed(id: u64, request in common::request(), cut: prop::sample::Index) {
        let frame = request_frame(id, &request);
        let length = cut.index(frame.len());
        let (seen, _) = decode_request(&frame.slice(..length)).unwrap_err();
        prop_assert_eq!(seen, (length >= 8).then_some(id));
        let longer = Bytes::from([&frame[..], &[0]].concat());
        prop_assert!(decode_request(&longer).is_err());
    }

    #[test]
    fn a_cut_or_lengthened_response_is_malformed(response in common::response(), cut: prop::sample::Index) {
        let frame = response_frame(1, &response);
        prop_assert!(decode_response(&frame.slice(..cut.index(frame.len()))).is_err());
        prop_assert!(decode_response(&Bytes::from([&frame[..], &[0]].concat())).is_err());
    }

    #[test]
    fn damaged_requests_are_read_or_refused(
        request in common::request(),
        damage in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..6),
    ) {
        let mut bytes = request_frame(1, &request).to_vec();
        for (at, byte) in damage {
            let at = at.index(bytes.len());
            bytes[at] = byte;
        }
        // What is read is written again as the same value: no two readings of one request.
        if let Ok((id, read)) = decode_request(&bytes.into()) {
            prop_assert_eq!(decode_request(&request_frame(id, &read)), Ok((id, read)));
        }
    }

    #[test]
    fn damaged_responses_are_read_or_refused(
        response in common::response(),
        damage in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..6),
    ) {
        let mut bytes = response_frame(1, &response).to_vec();
        for (at, byte) in damage {
            let at = at.index(bytes.len());
            bytes[at] = byte;
        }
        let _ = decode_response(&bytes.into());
    }

    #[test]
    fn any_bytes_are_decoded_without_panic(kind: u8, bytes: Vec<u8>) {
        let frame = Bytes::from([&[0; 8][..], &[kind], &bytes].concat());
        let _ = decode_request(&frame);
        let _ = decode_response(&frame);
        let _ = decode_request(&Bytes::from(bytes));
    }
}

#[test]
fn bodies_share_the_memory_of_the_frame() {
    let message = EnqueueMessage { body: Bytes::from_static(b"12345"), ..EnqueueMessage::default() };
    let frame = request_frame(1, &Request::Enqueue { queue: "q".into(), messages: vec![message] });
    let Ok((_, Request::Enqueue { messages, .. })) = decode_request(&frame) else { panic!("an enqueue") };
    assert_eq!(messages[0].body.as_ptr(), frame[frame.len() - 5..].as_ptr());
}

#[test]
fn a_count_that_the_frame_cannot_hold_is_refused_before_memory_is_set_aside() {
    let mut frame = request_frame(1, &Request::Enqueue { queue: "q".into(), messages: vec![] }).to_vec();
    let count_at = frame.len() - 4;
    frame[count_at..].copy_from_slice(&1_000u32.to_le_bytes());
    assert!(decode_request(&frame.into()).is_err());
}

#[test]
fn more_messages_than_a_batch_holds_are_malformed() {
    let batch =
        |count| Request::Enqueue { queue: "q".into(), messages: vec![EnqueueMessage::default(); count] };
    assert!(decode_request(&request_frame(1, &batch(1_000))).is_ok());
    let (id, malformed) = decode_request(&request_frame(1, &batch(1_001))).unwrap_err();
    assert_eq!(id, Some(1));
    assert!(malformed.0.contains("1..=1000"), "{malformed}");
}

#[test]
fn long_error_texts_are_cut_and_not_refused() {
    let error = "é".repeat(3_000);
    let release = Release { receipt: "r_1_2_3".into(), delay_s: None, error: Some(error.clone()) };
    let request = Request::Settle(Settle { release: vec![release], ..Settle::default() });
    let Ok((_, Request::Settle(read))) = decode_request(&request_frame(1, &request)) else {
        panic!("a settle")
    };
    assert_eq!(read.release[0].error.as_deref(), Some(cut_error(&error)));
    assert_eq!(cut_error(&error).len(), 4_096);
}

#[test]
fn the_smallest_items_of_lists_are_not_refused_as_too_many() {
    let id = overtake_base::MessageId(0);
    let zero = overtake_base::UnixMillis(0);
    let delivered = Delivered {
        id,
        priority: 0,
        receipt: "r_0_0_0".parse().unwrap(),
        deliveries: 0,
        enqueued_at: zero,
        lease_expires_at: zero,
        headers: vec![],
        share: false,
        body: Bytes::new(),
    };
    let peeked = PeekedMessage {
        id,
        priority: 0,
        state: overtake_wire::message::MessageState::Visible,
        deliveries: 0,
        enqueued_at: zero,
        deliver_at: None,
        lease_expires_at: None,
        headers: vec![],
        body: Bytes::new(),
    };
    let dead = DeadLetter {
        id,
        priority: 0,
        deliveries: 0,
        last_error: String::new(),
        dead_at: zero,
        history: vec![],
        enqueued_at: zero,
        headers: vec![],
        body: Bytes::new(),
    };
    for response in [
        Response::Received { messages: vec![delivered; 1_000] },
        Response::Peeked { messages: vec![peeked; 1_000], next: None },
        Response::DeadLetters { messages: vec![dead; 1_000], next: None },
    ] {
        assert_eq!(decode_response(&response_frame(1, &response)), Ok((1, response)));
    }
}
