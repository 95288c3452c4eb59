//! Two sockets on loopback.

#![allow(clippy::unwrap_used, clippy::expect_used)]

use glommio::{LocalExecutorBuilder, Placement};
use overtake_udp::{Transmit, UdpSocket, claim};
use std::net::SocketAddr;

fn on_a_core<F: Future<Output = ()> + 'static>(test: impl FnOnce() -> F + Send + 'static) {
    LocalExecutorBuilder::new(Placement::Unbound).spawn(test).unwrap().join().unwrap();
}

fn send(socket: &UdpSocket, destination: SocketAddr, contents: &[u8], segment_size: Option<usize>) {
    let transmit = Transmit { destination, ecn: None, contents, segment_size, src_ip: None };
    assert!(socket.try_send(&transmit));
}

async fn receive(socket: &mut UdpSocket, count: usize) -> Vec<(SocketAddr, Vec<u8>)> {
    let mut received = Vec::new();
    while received.len() < count {
        socket.watch().readable().await.unwrap();
        socket.try_receive(64, |datagram| received.push((datagram.from, datagram.data.to_vec()))).unwrap();
    }
    received
}

async fn ping_pong(any: &str) {
    let mut server = UdpSocket::bind(any.parse().unwrap()).unwrap();
    let mut client = UdpSocket::bind(any.parse().unwrap()).unwrap();
    let (there, here) = (server.local_address().unwrap(), client.local_address().unwrap());
    let answering = glommio::spawn_local(async move {
        for round in 0..100u32 {
            let received = receive(&mut server, 1).await;
            assert_eq!(received, vec![(here, round.to_le_bytes().to_vec())]);
            send(&server, here, &received[0].1, None);
        }
    });
    for round in 0..100u32 {
        send(&client, there, &round.to_le_bytes(), None);
        assert_eq!(receive(&mut client, 1).await, vec![(there, round.to_le_bytes().to_vec())]);
    }
    answering.await;
}

#[test]
fn datagrams_go_there_and_back_over_ipv4() {
    on_a_core(|| async { ping_pong("127.0.0.1:0").await });
}

#[test]
fn datagrams_go_there_and_back_over_ipv6() {
    on_a_core(|| async { ping_pong("[::1]:0").await });
}

#[test]
fn a_batch_arrives_as_its_datagrams() {
    on_a_core(|| async {
        let mut server = UdpSocket::bind("127.0.0.1:0".parse().unwrap()).unwrap();
        let client = UdpSocket::bind("127.0.0.1:0".parse().unwrap()).unwrap();
        let segments = client.segments_max().min(10);
        let sent: Vec<u8> = (0..segments * 1_000 - 1).map(|i| (i / 1_000) as u8).collect();
        send(&client, server.local_address().unwrap(), &sent, Some(1_000));
        let received: Vec<_> =
            receive(&mut server, segments).await.into_iter().map(|(_, data)| data).collect();
        let expected: Vec<_> = sent.chunks(1_000).map(<[u8]>::to_vec).collect();
        assert_eq!(received, expected);
        assert!(!server.try_receive(1, |_| panic!("nothing more was sent")).unwrap());
    });
}

#[test]
fn cores_share_an_address_and_processes_do_not() {
    on_a_core(|| async {
        let address = claim("127.0.0.1:0".parse().unwrap()).unwrap();
        let first = UdpSocket::bind(address).unwrap();
        let second = UdpSocket::bind(address).unwrap();
        assert_eq!(first.local_address().unwrap(), second.local_address().unwrap());
        assert!(claim(address).is_err());
    });
}
