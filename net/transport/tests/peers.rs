//! Links between cores of different nodes, on a network that loses and a clock that is a number.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test fails by panicking")]

#[path = "peers/world.rs"]
mod world;

use bytes::BytesMut;
use overtake_transport::limits;
use overtake_transport::peer::{PeerConfig, PeerEvent, PeerTransport};
use overtake_wire::peer::{ALPN_PEER, CONFIRMATION, PEER_FRAME_BYTES_MAX};
use proptest::prelude::*;
use quinn_proto::crypto::rustls::QuicClientConfig;
use quinn_proto::{ClientConfig, DatagramEvent, Dir, Endpoint, EndpointConfig, Event};
use std::sync::Arc;
use std::time::Duration;
use world::{Authority, World, address, config, peer};

const SECOND: Duration = Duration::from_secs(1);

#[test]
fn every_core_reaches_every_core_of_the_others_in_order() {
    for loss_ppm in [0, 100_000] {
        let (mut world, _) = World::cluster(1, 3);
        world.loss_ppm = loss_ppm;
        world.run_until_linked();
        let all: Vec<_> = world.sides.iter().map(|side| side.own).collect();
        for number in 0..200_u32 {
            for from in &all {
                for to in all.iter().filter(|to| to.node != from.node) {
                    world.send(*from, *to, &number.to_le_bytes());
                }
            }
            world.run(Duration::from_micros(100));
        }
        let large = vec![7; PEER_FRAME_BYTES_MAX];
        world.send(peer(1, 0), peer(3, 1), &large);
        world.send(peer(1, 0), peer(3, 1), b"x");
        world.run_until("all messages", |world| {
            let from = |side: &world::Side, of| side.messages_of(of).len();
            let got = |side: &world::Side| all.iter().map(|of| from(side, *of)).sum::<usize>();
            world.sides.iter().map(got).sum::<usize>() == 200 * 6 * 4 + 2
        });
        for side in &world.sides {
            for of in all.iter().filter(|of| of.node != side.own.node) {
                let mut numbers = side.messages_of(*of);
                if (side.own, *of) == (peer(3, 1), peer(1, 0)) {
                    assert_eq!(numbers.split_off(200), [&large[..], b"x"]);
                }
                let expected: Vec<_> = (0..200_u32).map(|number| number.to_le_bytes().to_vec()).collect();
                assert_eq!(numbers, expected);
                assert_eq!(side.ups_and_downs(*of), (1, 0), "{}: {}", side.own, side.reasons());
            }
        }
    }
}

#[test]
fn messages_of_a_turn_leave_together() {
    let (mut world, _) = World::cluster(2, 2);
    world.run_until_linked();
    world.run(SECOND / 10);
    let before = world.sent.iter().filter(|from| **from == address(peer(1, 0))).count();
    for _ in 0..100 {
        world.send(peer(1, 0), peer(2, 0), &[1; 8]);
    }
    world.run(Duration::from_millis(5));
    let after = world.sent.iter().filter(|from| **from == address(peer(1, 0))).count();
    assert_eq!(world.side(peer(2, 0)).messages_of(peer(1, 0)).len(), 100);
    assert!(after - before <= 4, "{} packets", after - before);
}

#[test]
fn a_peer_that_falls_silent_is_noticed_and_found_again() {
    let (mut world, _) = World::cluster(3, 2);
    world.run_until_linked();
    // An idle link stays.
    world.run(30 * SECOND);
    assert_eq!(world.side(peer(1, 0)).ups_and_downs(peer(2, 1)), (1, 0));
    world.side(peer(2, 1)).asleep = true;
    // Counted from the keep-alive that was not answered.
    world.run(limits::PEER_IDLE + limits::PEER_KEEP_ALIVE + SECOND / 10);
    assert_eq!(world.side(peer(1, 0)).ups_and_downs(peer(2, 1)), (1, 1));
    assert!(world.side(peer(1, 0)).is_up(peer(2, 0)), "its other core talks");
    world.side(peer(2, 1)).asleep = false;
    world.run_until_linked();
    world.send(peer(2, 1), peer(1, 0), b"again");
    world.run(SECOND);
    assert_eq!(world.side(peer(1, 0)).messages_of(peer(2, 1)), [&b"again"[..]]);
}

#[test]
fn a_link_that_works_one_way_only_is_cut() {
    let (mut world, _) = World::cluster(4, 2);
    world.run_until_linked();
    let (one, two) = (peer(1, 0), peer(2, 0));
    world.cut.insert((address(two), address(one)));
    world.run(limits::PEER_IDLE * 3);
    assert!(!world.side(one).is_up(two) && !world.side(two).is_up(one), "{}", world.side(two).reasons());
    world.cut.clear();
    world.run_until_linked();
}

#[test]
fn a_peer_that_takes_too_little_costs_its_link_and_no_memory() {
    let (mut world, _) = World::cluster(5, 2);
    world.run_until_linked();
    let (one, two) = (peer(1, 0), peer(2, 0));
    world.side(two).asleep = true;
    let piece = vec![3; 1024 * 1024];
    let mut most = 0;
    for _ in 0..200 {
        world.send(one, two, &piece);
        most = most.max(world.side(one).transport.waiting_bytes());
        world.run(Duration::from_millis(1));
    }
    assert!(most <= limits::PEER_BACKLOG_BYTES_MAX + piece.len() + 16, "{most}");
    let (ups, downs) = world.side(one).ups_and_downs(two);
    assert_eq!((ups, downs), (1, 1), "{}", world.side(one).reasons());
    assert!(world.side(one).reasons().contains("takes too little"), "{}", world.side(one).reasons());
    assert_eq!(world.side(one).transport.waiting_bytes(), 0);
    world.side(two).asleep = false;
    world.run_until_linked();
    world.send(one, two, b"fresh");
    world.run(SECOND);
    assert_eq!(world.side(two).messages_of(one).last().unwrap(), &b"fresh"[..]);
}

#[test]
fn a_message_that_no_frame_holds_breaks_the_link_rather_than_the_order() {
    let (mut world, _) = World::cluster(6, 2);
    world.run_until_linked();
    world.send(peer(1, 0), peer(2, 0), &vec![0; PEER_FRAME_BYTES_MAX + 1]);
    world.run(SECOND / 100);
    assert_eq!(world.side(peer(1, 0)).ups_and_downs(peer(2, 0)).1, 1);
    world.run_until_linked();
    assert!(world.side(peer(2, 0)).messages_of(peer(1, 0)).is_empty());
}

#[test]
fn what_comes_behind_a_message_that_makes_no_sense_is_not_given() {
    let (mut world, _) = World::cluster(13, 2);
    world.run_until_linked();
    let (one, two) = (peer(1, 0), peer(2, 0));
    world.side(two).asleep = true;
    for message in [&b"a"[..], b"nonsense", b"c"] {
        world.send(one, two, message);
    }
    world.work();
    // By hand what a shell does, whose decoder refuses the second one.
    world.now += Duration::from_millis(1);
    let now = world.now;
    world.side(two).asleep = false;
    let mut given = Vec::new();
    world.deliver();
    let side = world.side(two);
    while let Some(event) = side.transport.poll_event(now) {
        if let PeerEvent::Message { peer, message } = &event {
            given.push(message.clone());
            if message == &b"nonsense"[..] {
                side.transport.cut_malformed(now, *peer, "nonsense");
            }
        }
        side.events.push(event);
    }
    assert_eq!(given, [&b"a"[..], b"nonsense"]);
    assert_eq!(side.ups_and_downs(one), (1, 1));
    world.run_until_linked();
}

#[test]
fn a_node_that_was_started_anew_is_linked_again_at_once() {
    for who in [1, 2] {
        let (mut world, authority) = World::cluster(7, 2);
        world.run_until_linked();
        world.run(SECOND);
        let other = peer(3 - who, 0);
        let index = world.index(peer(who, 0));
        let mut fresh = config(&authority, peer(who, 0), 2);
        fresh.seed = [99; 32];
        world.sides[index].transport = PeerTransport::new(&fresh, world.now).unwrap();
        let begin = world.now;
        world.run_until("the link again", |world| {
            let side = &world.sides[world.index(other)];
            side.ups_and_downs(peer(who, 0)) == (2, 1)
        });
        // The side that dials must first say something to learn of it.
        assert!(world.now - begin < limits::PEER_KEEP_ALIVE * 2, "node {who}: {:?}", world.now - begin);
    }
}

#[test]
fn a_stop_is_told() {
    let (mut world, _) = World::cluster(8, 2);
    world.run_until_linked();
    let now = world.now;
    world.side(peer(1, 0)).transport.stop(now);
    world.run(SECOND / 100);
    let other = world.side(peer(2, 0));
    assert!(other.reasons().contains("stopping"), "{}", other.reasons());
    assert_eq!(other.ups_and_downs(peer(1, 0)), (1, 1));
    world.run(5 * SECOND);
    assert_eq!(world.side(peer(1, 0)).transport.connections(), 0);
    assert!(world.side(peer(1, 0)).transport.next_timeout().is_none());
}

#[test]
fn pauses_between_attempts_grow_and_differ() {
    let (mut world, authority) = (World::new(9), Authority::new());
    for core in 0..2 {
        world.add(&config(&authority, peer(1, core), 2));
    }
    world.run(60 * SECOND);
    // An attempt lasts as long as an idle time-out, then comes a pause of half a second to a second.
    let complaints = world.sides[0].events.len();
    assert!((1..=8).contains(&complaints), "{}", world.sides[0].reasons());
    let quiet = |event: &PeerEvent| matches!(event, PeerEvent::Complaint { away: true, .. });
    assert!(world.sides[0].events.iter().all(quiet));
    let packets = world.sent.len();
    assert!(packets < 2 * 2 * 60 * 8, "{packets} packets in a minute");
    // Whoever comes late is found soon.
    for core in 0..2 {
        world.add(&config(&authority, peer(2, core), 2));
    }
    let begin = world.now;
    world.run_until_linked();
    assert!(world.now - begin < 3 * SECOND);
}

/// Node 2 as `change` makes it must not be linked with node 1; what both say.
fn refused(change: impl FnOnce(&mut PeerConfig)) -> [String; 2] {
    let (mut world, authority) = (World::new(10), Authority::new());
    let mut second = config(&authority, peer(2, 0), 2);
    change(&mut second);
    world.add(&config(&authority, peer(1, 0), 2));
    world.add(&second);
    world.run(5 * SECOND);
    let [one, two] = [0, 1].map(|index| &world.sides[index]);
    let loud = |event: &PeerEvent| matches!(event, PeerEvent::Complaint { away: false, .. });
    assert!(one.events.iter().any(loud), "{:?}", one.events);
    assert!(two.events.iter().any(loud), "{:?}", two.events);
    assert!(one.transport.up().next().is_none() && two.transport.up().next().is_none());
    assert!(!one.events.iter().any(|event| matches!(event, PeerEvent::Up { .. })), "{:?}", one.events);
    [one.reasons(), two.reasons()]
}

#[test]
fn who_does_not_belong_is_refused_and_both_sides_say_why() {
    let other = Authority::new();
    let foreign = |second: &mut PeerConfig, node| {
        let changed = config(&other, peer(node, 0), 2);
        second.certificates = changed.certificates;
        second.private_key = changed.private_key;
        second.authorities = changed.authorities;
    };
    let [one, two] = refused(|second| foreign(second, 2));
    assert!(one.contains("certificate is not taken"), "{one}");
    assert!(two.contains("does not take this node's certificate"), "{two}");

    let [one, two] = refused(|second| second.hello.map = 6);
    assert!(one.contains("it says: nodes 2 and 1 were told different things"), "{one}");
    assert!(two.contains("nodes 2 and 1 were told different things"), "{two}");

    let [one, two] = refused(|second| second.hello.cores = 1);
    assert!(one.contains("told different things") && two.contains("told different things"), "{one}{two}");

    // Node 2 was not told of node 1.
    let [one, two] = refused(|second| second.nodes.clear());
    assert!(one.contains("node 1 is not in the cluster as node 2 knows it"), "{one}");
    assert!(two.contains("node 1 is not in the cluster"), "{two}");

    // Node 1 came with another data folder than node 2 has seen before.
    let [one, two] = refused(|second| second.nodes[0].store = Some(77));
    assert!(one.contains("must come back as a node with a new id"), "{one}");
    assert!(two.contains("another data folder"), "{two}");
}

#[test]
fn a_node_cannot_pass_for_another() {
    let (mut world, authority) = (World::new(11), Authority::new());
    // Dialled as node 2, with a certificate of node 3.
    let mut second = config(&authority, peer(2, 0), 3);
    let third = config(&authority, peer(3, 0), 3);
    world.add(&config(&authority, peer(1, 0), 3));
    second.hello.node = third.hello.node;
    second.certificates = third.certificates.clone();
    second.private_key = third.private_key.clone();
    let index = world.add(&second);
    world.sides[index].own = peer(2, 0);
    world.run(3 * SECOND);
    assert!(world.sides[0].transport.up().next().is_none());
    assert!(world.sides[0].reasons().contains("certificate is not taken"), "{}", world.sides[0].reasons());
}

#[test]
fn a_certificate_that_no_peer_would_take_is_refused_at_the_start() {
    let authority = Authority::new();
    let error = |change: &dyn Fn(&mut PeerConfig)| {
        let mut config = config(&authority, peer(1, 0), 2);
        change(&mut config);
        PeerTransport::new(&config, std::time::Instant::now()).err().unwrap().to_string()
    };
    for (text, change) in [
        (
            "not good for node-9",
            &(|config: &mut PeerConfig| config.hello.node.0 = 9) as &dyn Fn(&mut PeerConfig),
        ),
        ("not good for node-1", &|config| config.hello.cluster = 1),
        ("invalid peer certificate", &|config| config.authorities = vec![Authority::new().certificate]),
        ("there is none", &|config| config.certificates.clear()),
        ("key", &|config| config.private_key = Authority::new().issue(&["x".into()]).1),
        ("", &|config| config.private_key = b"nonsense".to_vec()),
        ("", &|config| config.authorities = vec![b"nonsense".to_vec()]),
        ("xpired", &|config| config.wall = overtake_base::UnixMillis(100_000_000_000_000)),
    ] {
        let error = error(change);
        assert!(error.contains(text), "{text}: {error}");
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(24))]
    /// Somebody with a good certificate sends anything.
    #[test]
    fn rubbish_ends_its_own_connection_only(mut rubbish: Vec<u8>, with_greeting: bool, finish: bool) {
        let (mut world, authority) = (World::new(12), Authority::new());
        let (own, honest) = (world.add(&config(&authority, peer(2, 0), 3)), peer(3, 0));
        world.add(&config(&authority, honest, 3));
        world.run_until("the honest one", |world| world.sides[0].is_up(honest));
        let liar = config(&authority, peer(1, 0), 3);
        if with_greeting {
            let mut bytes = Vec::new();
            liar.hello.encode(&mut bytes);
            bytes.extend_from_slice(&CONFIRMATION);
            bytes.append(&mut rubbish);
            rubbish = bytes;
        }
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let mut roots = rustls::RootCertStore::empty();
        roots.add(authority.certificate.clone().into()).unwrap();
        let mut tls = rustls::ClientConfig::builder_with_provider(provider)
            .with_protocol_versions(&[&rustls::version::TLS13])
            .unwrap()
            .with_root_certificates(roots)
            .with_client_auth_cert(
                vec![liar.certificates[0].clone().into()],
                liar.private_key.clone().try_into().unwrap(),
            )
            .unwrap();
        tls.alpn_protocols = vec![ALPN_PEER.to_vec()];
        let quic = ClientConfig::new(Arc::new(QuicClientConfig::try_from(tls).unwrap()));
        let mut endpoint = Endpoint::new(Arc::new(EndpointConfig::default()), None, true, Some([3; 32]));
        let name = overtake_transport::peer::NodeName { node: peer(2, 0).node, cluster: world::CLUSTER };
        let to = address(peer(2, 0));
        let (handle, mut liar) = endpoint.connect(world.now, quic, to, &name.to_string()).unwrap();
        let from = "10.0.0.77:1".parse().unwrap();
        let mut sent = 0;
        let mut stream = None;
        for _ in 0..3_000 {
            liar.handle_timeout(world.now);
            while let Some(event) = liar.poll() {
                if matches!(event, Event::Connected) {
                    stream = liar.streams().open(Dir::Bi);
                }
            }
            if let Some(stream) = stream {
                let mut stream = liar.send_stream(stream);
                if let Ok(written) = stream.write(&rubbish[sent..]) {
                    sent += written;
                }
                if finish && sent == rubbish.len() {
                    let _ = stream.finish();
                }
            }
            let mut buf = Vec::new();
            while let Some(transmit) = liar.poll_transmit(world.now, 1, &mut buf) {
                world.post(from, to, buf[..transmit.size].to_vec());
                buf.clear();
            }
            while let Some(event) = liar.poll_endpoint_events() {
                if let Some(reply) = endpoint.handle_event(handle, event) {
                    liar.handle_event(reply);
                }
            }
            world.run(Duration::from_millis(2));
            for data in world.take_for(from) {
                let mut buf = Vec::new();
                if let Some(DatagramEvent::ConnectionEvent(_, event)) =
                    endpoint.handle(world.now, to, None, None, BytesMut::from(&data[..]), &mut buf)
                {
                    liar.handle_event(event);
                }
            }
            if liar.is_closed() {
                break;
            }
        }
        prop_assert!(world.sides[own].is_up(honest));
        let whole = with_greeting && !finish;
        let linked = world.sides[own].is_up(peer(1, 0));
        prop_assert!(whole || !linked, "{}", world.sides[own].reasons());
        world.send(honest, peer(2, 0), b"fine");
        world.run(SECOND);
        prop_assert_eq!(world.sides[own].messages_of(honest).len(), 1);
    }
}
