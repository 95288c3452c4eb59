//! Sessions over a network that loses and reorders packets.

#![allow(clippy::unwrap_used, clippy::expect_used)]

mod network;

use network::{Network, payload, with_prefix};
use overtake_transport::{AdmissionLimits, code, limits};
use proptest::prelude::*;
use std::time::Duration;

fn seconds(s: u64) -> Duration {
    Duration::from_secs(s)
}

#[test]
fn frames_come_back_on_their_stream_over_a_lossy_network() {
    for seed in 0..4 {
        let mut net = Network::new(seed, 1);
        net.loss_ppm = 50_000;
        let client = net.connect("10.0.0.9:1000");
        net.run_until(|net| net.clients[client].connected);
        let mut expected = Vec::new();
        for stream in 0..8u64 {
            let frames: Vec<_> =
                (0..20).map(|i| with_prefix(&payload(stream * 100 + i, (i * i * 40) as usize))).collect();
            let id = net.open(client, frames.clone());
            expected.push((id, frames.concat()));
        }
        net.run_until(|net| {
            expected.iter().all(|(id, bytes)| net.clients[client].streams[id].received.len() == bytes.len())
        });
        for (id, bytes) in &expected {
            assert!(net.clients[client].streams[id].received == *bytes, "stream {id}, seed {seed}");
        }
        assert_eq!(net.seen[0].opened, (0..8).collect::<Vec<_>>());
        assert!(net.seen[0].closed.is_empty());
    }
}

#[test]
fn a_largest_request_passes_and_a_larger_frame_resets_only_its_stream() {
    let mut net = Network::new(5, 1);
    let client = net.connect("10.0.0.9:1000");
    net.run_until(|net| net.clients[client].connected);
    let largest = with_prefix(&payload(1, overtake_wire::REQUEST_FRAME_BYTES_MAX));
    let good = net.open(client, vec![largest.clone()]);
    let too_large = net.open(client, vec![vec![255, 255, 255, 255, 0].into()]);
    net.run_until(|net| net.clients[client].streams[&good].received.len() == largest.len());
    assert!(net.clients[client].streams[&good].received == largest);
    let bad = &net.clients[client].streams[&too_large];
    assert_eq!((bad.reset, bad.stopped), (Some(u64::from(code::FRAME)), Some(u64::from(code::FRAME))));
    assert_eq!(net.seen[0].closed, vec![1]);
    assert!(net.clients[client].lost.is_none());
}

#[test]
fn a_finished_stream_closes_its_session_after_its_answers_and_makes_room_for_another() {
    let mut net = Network::new(6, 1);
    let client = net.connect("10.0.0.9:1000");
    net.run_until(|net| net.clients[client].connected);
    for round in 0..3 * u64::from(limits::STREAMS_MAX) {
        let frame = with_prefix(&payload(round, 3_000));
        let id = net.open(client, vec![frame.clone()]);
        net.run_until(|net| net.clients[client].streams[&id].received.len() == frame.len());
        net.clients[client].quic.send_stream(id).finish().unwrap();
        net.run_until(|net| net.clients[client].streams[&id].ended);
        assert_eq!(net.seen[0].closed.last(), Some(&round));
    }
}

#[test]
fn a_client_may_not_hold_more_streams_than_the_limit() {
    let mut net = Network::new(7, 1);
    let client = net.connect("10.0.0.9:1000");
    net.run_until(|net| net.clients[client].connected);
    for _ in 0..limits::STREAMS_MAX {
        net.open(client, vec![with_prefix(b"x")]);
    }
    assert!(net.clients[client].quic.streams().open(quinn_proto::Dir::Bi).is_none());
    assert!(net.clients[client].quic.streams().open(quinn_proto::Dir::Uni).is_none());
}

#[test]
fn a_client_that_does_not_read_is_paused_then_cut_off_and_others_go_on() {
    let mut net = Network::new(8, 1);
    let (deaf, other) = (net.connect("10.0.0.9:1000"), net.connect("10.0.0.9:1001"));
    net.run_until(|net| net.clients.iter().all(|client| client.connected));
    net.clients[deaf].reads = false;
    let frame = with_prefix(&payload(1, 100_000));
    let stream = net.open(deaf, vec![frame.clone(); 80]);
    net.run(seconds(5));
    let taken: usize = net.seen[0].frames.iter().map(|(_, frame)| frame.len()).sum();
    assert!(
        taken > limits::UNREAD_PAUSE_BYTES && taken < 2 * limits::UNREAD_PAUSE_BYTES + 4_000_000,
        "{taken}"
    );
    assert!(!net.clients[deaf].streams[&stream].to_send.is_empty(), "flow control holds the client back");
    // A connection without packets would time out by itself; keep it alive so that the stall is what ends the stream.
    for s in 0..6 {
        net.clients[deaf].quic.ping();
        net.run(seconds(5 + s * 6));
    }
    assert_eq!(net.seen[0].closed, vec![0]);
    assert_eq!(net.clients[deaf].streams[&stream].stopped, Some(u64::from(code::STALLED)));
    assert!(net.clients[deaf].lost.is_none());
    // The other client's idle timeout has come; a new one is served as before.
    assert!(net.clients[other].lost.is_some());
    let other = net.connect("10.0.0.9:1002");
    net.run_until(|net| net.clients[other].connected);
    let id = net.open(other, vec![frame.clone()]);
    net.run_until(|net| net.clients[other].streams[&id].received.len() == frame.len());
}

#[test]
fn a_client_that_reads_late_gets_everything() {
    let mut net = Network::new(9, 1);
    let client = net.connect("10.0.0.9:1000");
    net.run_until(|net| net.clients[client].connected);
    net.clients[client].reads = false;
    let frames: Vec<_> = (0..60).map(|i| with_prefix(&payload(i, 100_000))).collect();
    let id = net.open(client, frames.clone());
    net.run(seconds(10));
    net.clients[client].reads = true;
    let all = frames.concat();
    net.run_until(|net| net.clients[client].streams[&id].received.len() == all.len());
    assert!(net.clients[client].streams[&id].received == all);
    assert!(net.seen[0].closed.is_empty());
}

#[test]
fn a_request_that_is_never_completed_is_cut_off() {
    let mut net = Network::new(10, 1);
    let client = net.connect("10.0.0.9:1000");
    net.run_until(|net| net.clients[client].connected);
    let id = net.open(client, vec![with_prefix(b"whole"), vec![100, 0, 0, 0, 1, 2].into()]);
    for s in 1..10 {
        net.clients[client].quic.ping();
        net.run(seconds(s * 4));
    }
    assert_eq!(net.seen[0].frames.len(), 1);
    assert_eq!(net.seen[0].closed, vec![0]);
    assert_eq!(net.clients[client].streams[&id].reset, Some(u64::from(code::STALLED)));
}

#[test]
fn closing_a_session_still_delivers_what_was_answered() {
    let mut net = Network::new(11, 1);
    net.echo = false;
    let client = net.connect("10.0.0.9:1000");
    net.run_until(|net| net.clients[client].connected);
    let id = net.open(client, vec![with_prefix(b"hello")]);
    net.run_until(|net| !net.seen[0].frames.is_empty());
    let answer = with_prefix(&payload(1, 500_000));
    net.cores[0].send(0, answer.clone());
    net.cores[0].close_session(0, 21);
    net.cores[0].send(0, with_prefix(b"too late"));
    net.run_until(|net| net.clients[client].streams[&id].ended);
    let stream = &net.clients[client].streams[&id];
    assert!(stream.received == answer);
    assert_eq!((stream.stopped, stream.reset), (Some(21), None));
    assert_eq!(net.seen[0].closed, vec![0]);
}

#[test]
fn more_unread_answers_than_are_kept_end_the_session() {
    let mut net = Network::new(12, 1);
    net.echo = false;
    let client = net.connect("10.0.0.9:1000");
    net.run_until(|net| net.clients[client].connected);
    net.clients[client].reads = false;
    net.open(client, vec![with_prefix(b"hello")]);
    net.run_until(|net| !net.seen[0].frames.is_empty());
    let answer = with_prefix(&vec![0; 8 << 20]);
    for _ in 0..limits::UNREAD_MAX_BYTES / answer.len() {
        net.cores[0].send(0, answer.clone());
    }
    net.run(seconds(1));
    assert!(net.seen[0].closed.is_empty());
    net.cores[0].send(0, answer.clone());
    net.cores[0].send(0, answer);
    net.run(seconds(2));
    assert_eq!(net.seen[0].closed, vec![0]);
}

#[test]
fn every_byte_of_an_answer_is_told_as_taken_once_whatever_becomes_of_it() {
    let mut net = Network::new(21, 1);
    net.echo = false;
    let (reads, deaf, leaves) =
        (net.connect("10.0.0.9:1000"), net.connect("10.0.0.9:1001"), net.connect("10.0.0.9:1002"));
    net.run_until(|net| net.clients.iter().all(|client| client.connected));
    net.clients[deaf].reads = false;
    net.clients[leaves].reads = false;
    for client in [reads, deaf, leaves] {
        net.open(client, vec![with_prefix(b"hello")]);
    }
    net.run_until(|net| net.seen[0].frames.len() == 3);
    let answer = with_prefix(&vec![0; 7 << 20]);
    let mut sent = [0usize; 3];
    for _ in 0..12 {
        for session in 0..3u64 {
            sent[session as usize] += answer.len();
            net.cores[0].send(session, answer.clone());
        }
    }
    net.run(seconds(1));
    let now = net.now;
    net.clients[leaves].quic.close(now, 0u32.into(), bytes::Bytes::new());
    net.run(seconds(4));
    // Also of what comes after the end.
    for session in 0..3u64 {
        sent[session as usize] += answer.len();
        net.cores[0].send(session, answer.clone());
    }
    net.cores[0].stop();
    net.cores[0].abort(now);
    net.run(seconds(70));
    for (session, bytes) in sent.into_iter().enumerate() {
        assert_eq!(net.seen[0].taken.get(&(session as u64)), Some(&bytes), "session {session}");
    }
}

#[test]
fn a_client_full_of_requests_gets_its_turns_and_no_more() {
    let mut net = Network::new(22, 1);
    net.echo = false;
    let client = net.connect("10.0.0.9:1000");
    net.run_until(|net| net.clients[client].connected);
    let many = 4 * limits::FRAMES_PER_TURN as usize;
    let mut expected = Vec::new();
    for stream in 0..4u64 {
        let frames: Vec<_> = (0..many as u64).map(|i| with_prefix(&payload(stream << 32 | i, 20))).collect();
        expected.push(frames.iter().map(|frame| frame.slice(4..)).collect::<Vec<_>>());
        let id = net.open(client, vec![frames.concat().into()]);
        net.run_until(|net| net.clients[client].streams[&id].to_send.is_empty());
        net.clients[client].quic.send_stream(id).finish().unwrap();
    }
    net.run(seconds(3));
    assert!(net.seen[0].most_in_turn <= limits::FRAMES_PER_TURN as usize, "{}", net.seen[0].most_in_turn);
    // All of them, in order, before the sessions ended.
    for (session, expected) in expected.iter().enumerate() {
        let came: Vec<_> = net.seen[0].frames.iter().filter(|(of, _)| *of == session as u64).collect();
        assert!(came.iter().map(|(_, frame)| frame).eq(expected), "session {session}: {} came", came.len());
    }
    assert_eq!(net.seen[0].closed.len(), 4);
}

#[test]
fn a_client_that_goes_away_closes_its_sessions_once() {
    let mut net = Network::new(13, 1);
    let client = net.connect("10.0.0.9:1000");
    net.run_until(|net| net.clients[client].connected);
    net.open(client, vec![with_prefix(b"a")]);
    net.open(client, vec![with_prefix(b"b")]);
    net.run(seconds(1));
    let now = net.now;
    net.clients[client].quic.close(now, 0u32.into(), bytes::Bytes::new());
    net.run(seconds(3));
    let mut closed = net.seen[0].closed.clone();
    closed.sort_unstable();
    assert_eq!(closed, vec![0, 1]);
    assert_eq!(net.cores[0].connections(), 0);
    assert_eq!(net.cores[0].next_timeout(), None, "nothing is left behind");
}

#[test]
fn a_silent_client_times_out_and_leaves_nothing_behind() {
    let mut net = Network::new(14, 1);
    let client = net.connect("10.0.0.9:1000");
    net.run_until(|net| net.clients[client].connected);
    net.open(client, vec![with_prefix(b"a")]);
    net.run(seconds(1));
    net.loss_ppm = 1_000_000;
    net.run(seconds(60));
    assert_eq!(net.seen[0].closed, vec![0]);
    assert_eq!(net.cores[0].connections(), 0);
    assert_eq!(net.cores[0].next_timeout(), None);
}

#[test]
fn stopping_delivers_answers_then_closes() {
    let mut net = Network::new(15, 1);
    let client = net.connect("10.0.0.9:1000");
    net.run_until(|net| net.clients[client].connected);
    let frame = with_prefix(&payload(1, 1_000_000));
    let id = net.open(client, vec![frame.clone()]);
    net.run_until(|net| !net.seen[0].frames.is_empty());
    net.cores[0].stop();
    assert!(!net.cores[0].is_stopped());
    net.run_until(|net| net.cores[0].is_stopped());
    net.run_until(|net| net.clients[client].lost.is_some());
    assert!(net.clients[client].streams[&id].received == frame);
    let refused = net.connect("10.0.0.9:1001");
    net.run_until(|net| net.clients[refused].lost.is_some());
}

#[test]
fn packets_for_another_core_are_handed_over_whichever_core_gets_them() {
    let mut net = Network::new(16, 3);
    net.deliver_to = 2;
    let client = net.connect("10.0.0.9:1000");
    net.run_until(|net| net.clients[client].connected);
    assert_eq!(net.handed_over, 0);
    net.deliver_to = 0;
    // The client also changes its address, which is when a kernel picks another socket.
    net.clients[client].address = "10.0.0.9:2000".parse().unwrap();
    let frame = with_prefix(&payload(1, 50_000));
    let id = net.open(client, vec![frame.clone()]);
    net.run_until(|net| net.clients[client].streams[&id].received.len() == frame.len());
    assert!(net.handed_over > 0);
    assert_eq!(net.seen[2].opened, vec![0]);
    assert!(net.seen[0].opened.is_empty() && net.seen[1].opened.is_empty());
}

#[test]
fn a_client_of_the_last_run_is_told_at_once() {
    let mut net = Network::new(17, 1);
    let client = net.connect("10.0.0.9:1000");
    net.run_until(|net| net.clients[client].connected);
    net.open(client, vec![with_prefix(b"a")]);
    net.run(seconds(1));
    let again = net.identity.server(0, 1, 99);
    net.cores[0] = overtake_transport::Transport::new(&again, net.now).unwrap();
    net.open(client, vec![with_prefix(&payload(1, 3_000))]);
    net.run(seconds(2));
    assert_eq!(net.clients[client].lost.as_deref(), Some("reset by peer"));
}

#[test]
fn many_handshakes_ask_for_proof_of_address_and_bounds_hold() {
    let admission =
        AdmissionLimits { connections: 3, connections_per_address: 2, handshakes_before_retry: 0 };
    let mut net = Network::with(18, 1, admission);
    let addresses = ["10.0.0.9:1000", "10.0.0.9:1001", "10.0.0.9:1002", "10.0.1.9:1000", "10.0.2.9:1000"];
    for address in addresses {
        net.connect(address);
    }
    net.run(seconds(3));
    let connected: Vec<_> = net.clients.iter().map(|client| client.connected).collect();
    assert_eq!(connected.iter().filter(|connected| **connected).count(), 3);
    assert_eq!(connected[..3].iter().filter(|connected| **connected).count(), 2, "two of one address");
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn garbage_changes_nothing_for_others(
        junk in proptest::collection::vec((any::<u8>(), proptest::collection::vec(any::<u8>(), 0..1400)), 1..40),
        seed: u64,
    ) {
        let mut net = Network::new(seed, 2);
        let client = net.connect("10.0.0.9:1000");
        for (first, rest) in junk {
            let mut data = vec![first];
            // Half of it looks like a first packet of version 1.
            if first & 1 == 0 { data.extend_from_slice(&[0, 0, 0, 1, 8]); }
            data.extend_from_slice(&rest);
            net.send_raw("10.0.0.8:1", data.clone());
            net.send_raw("10.0.0.9:1000", data);
        }
        net.run_until(|net| net.clients[client].connected);
        let id = net.open(client, vec![with_prefix(b"still there")]);
        net.run_until(|net| net.clients[client].streams[&id].received.len() == 15);
    }

    #[test]
    fn garbage_on_a_stream_is_frames_or_a_reset(chunks in proptest::collection::vec(
        proptest::collection::vec(any::<u8>(), 0..3000), 0..20), seed: u64) {
        let mut net = Network::new(seed, 1);
        let client = net.connect("10.0.0.9:1000");
        net.run_until(|net| net.clients[client].connected);
        net.open(client, chunks.into_iter().map(Into::into).collect());
        let good = net.open(client, vec![with_prefix(b"good")]);
        net.run_until(|net| net.clients[client].streams[&good].received.len() == 8);
    }
}
