//! UDP and QUIC, over loopback or over a link to another machine: round trips, and how much goes one way.

use super::quic as quic_link;
use super::{row, row_of_bytes};
use overtake_measure::table::{Latencies, Row};
use std::io;
use std::net::{Ipv4Addr, SocketAddr, UdpSocket};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

/// A datagram that fits every link.
const DATAGRAM_BYTES: usize = 1_200;
/// First byte of a datagram: send it back; count it; tell the count and begin anew.
const ECHO: u8 = 0;
const COUNT: u8 = 1;
const TELL: u8 = 2;
/// How long an answer may take; a datagram may be lost.
const ANSWER: Duration = Duration::from_millis(500);
const TELL_TRIES: u32 = 5;

/// Answers datagrams until `stop`.
fn answer_udp(socket: &UdpSocket, stop: &AtomicBool) -> io::Result<()> {
    let (mut buffer, mut count) = ([0; 2_048], 0u64);
    socket.set_read_timeout(Some(Duration::from_millis(50)))?;
    while !stop.load(Ordering::Relaxed) {
        let (length, from) = match socket.recv_from(&mut buffer) {
            Ok(received) => received,
            Err(error) if matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut) => {
                continue;
            }
            Err(error) => return Err(error),
        };
        // Answers are never longer than what was asked, so that nobody can be flooded through this.
        match buffer[0] {
            ECHO if length > 0 => drop(socket.send_to(&buffer[..length], from)),
            COUNT if length > 0 => count += 1,
            TELL if length >= 8 => {
                let _ = socket.send_to(&count.to_le_bytes(), from);
                count = 0;
            }
            _ => {}
        }
    }
    Ok(())
}

/// Runs `measure` against the other end of a link, or against one made here.
fn against<T>(
    link: Option<SocketAddr>,
    measure: impl FnOnce(SocketAddr, &str) -> io::Result<T>,
    local: impl FnOnce(Arc<AtomicBool>) -> io::Result<(SocketAddr, std::thread::JoinHandle<io::Result<()>>)>,
) -> io::Result<T> {
    if let Some(address) = link {
        return measure(address, "link");
    }
    let stop = Arc::new(AtomicBool::new(false));
    let (address, other_end) = local(stop.clone())?;
    let measured = measure(address, "loopback");
    stop.store(true, Ordering::Relaxed);
    let ended = other_end.join().unwrap_or_else(|_| Err(io::Error::other("the other end panicked")));
    let measured = measured?;
    ended?;
    Ok(measured)
}

/// Datagrams there and back one at a time, and as many as arrive one way.
pub(super) fn udp(link: Option<SocketAddr>, duration: Duration) -> io::Result<Vec<Row>> {
    let local = |stop: Arc<AtomicBool>| {
        let socket = UdpSocket::bind((Ipv4Addr::LOCALHOST, 0))?;
        let address = socket.local_addr()?;
        Ok((address, std::thread::spawn(move || answer_udp(&socket, &stop))))
    };
    against(link, |address, name| measure_udp(address, name, duration), local)
}

fn measure_udp(address: SocketAddr, link: &str, duration: Duration) -> io::Result<Vec<Row>> {
    let any: SocketAddr = if address.is_ipv4() { ([0; 4], 0).into() } else { ([0u16; 8], 0).into() };
    let socket = UdpSocket::bind(any)?;
    socket.connect(address)?;
    socket.set_read_timeout(Some(ANSWER))?;
    let (mut datagram, mut answer) = ([0; DATAGRAM_BYTES], [0; DATAGRAM_BYTES]);
    let (start, mut latencies, mut lost) = (Instant::now(), Latencies::default(), 0);
    datagram[0] = ECHO;
    while start.elapsed() < duration {
        let at = Instant::now();
        socket.send(&datagram)?;
        match socket.recv(&mut answer) {
            Ok(_) => latencies.record(at.elapsed()),
            Err(error) if matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut) => {
                lost += 1
            }
            Err(error) => return Err(error),
        }
    }
    if latencies.count() == 0 {
        let what = format!("no answer from {address}: is `overtake-perf device --listen` running there?");
        return Err(io::Error::new(io::ErrorKind::TimedOut, what));
    }
    let name = format!("UDP over {link}, there and back, 1,200 bytes");
    let mut echo = row(format!("udp.{link}.echo"), name, latencies, start.elapsed().as_secs_f64());
    if lost > 0 {
        echo.note = format!("{lost} lost");
    }
    let (start, mut sent) = (Instant::now(), 0u64);
    datagram[0] = COUNT;
    while start.elapsed() < duration {
        for _ in 0..32 {
            // A full buffer is the receiver's limit, which is what is measured.
            sent += u64::from(socket.send(&datagram).is_ok());
        }
    }
    let seconds = start.elapsed().as_secs_f64();
    let arrived = tell(&socket, &mut datagram)?;
    let per_second = arrived as f64 / seconds;
    let stream = Row {
        key: format!("device.udp.{link}.stream"),
        name: format!("UDP over {link}, one way, 1,200 bytes, arrived"),
        per_second: Some(per_second),
        bytes_per_second: Some(per_second * DATAGRAM_BYTES as f64),
        note: format!(
            "{:.0} MB/s, {:.1} % lost",
            per_second * 1.2e-3,
            (1.0 - arrived as f64 / sent.max(1) as f64) * 100.0
        ),
        ..Row::default()
    };
    Ok(vec![echo, stream])
}

/// Asks how many arrived. Once what is on its way has had time to arrive.
fn tell(socket: &UdpSocket, datagram: &mut [u8; DATAGRAM_BYTES]) -> io::Result<u64> {
    std::thread::sleep(Duration::from_millis(20));
    datagram[0] = TELL;
    for _ in 0..TELL_TRIES {
        socket.send(&datagram[..8])?;
        let mut answer = [0; 8];
        if socket.recv(&mut answer).is_ok_and(|length| length == answer.len()) {
            return Ok(u64::from_le_bytes(answer));
        }
    }
    Err(io::Error::new(io::ErrorKind::TimedOut, "the other end of the link stopped answering"))
}

/// Messages of 1 KiB over a QUIC stream: there and back one at a time, and one way.
pub(super) fn quic(link: Option<SocketAddr>, duration: Duration) -> io::Result<Vec<Row>> {
    let link = link.map(|address| SocketAddr::new(address.ip(), address.port().saturating_add(1)));
    let local = |stop: Arc<AtomicBool>| {
        let socket = UdpSocket::bind((Ipv4Addr::LOCALHOST, 0))?;
        let address = socket.local_addr()?;
        Ok((address, std::thread::spawn(move || quic_link::answer(socket, Some(stop)))))
    };
    let measure = |address, name: &str| {
        let measured = quic_link::measure(address, duration)?;
        let echo = format!("QUIC over {name}, there and back, 1 KiB");
        let echo = row(format!("quic.{name}.echo"), echo, measured.echo, measured.echo_seconds);
        let bytes = quic_link::MESSAGE_BYTES;
        let stream = format!("QUIC over {name}, one stream one way, 1 KiB messages");
        let key = format!("quic.{name}.stream");
        let mut stream = row_of_bytes(key, stream, Latencies::default(), 1.0, bytes);
        stream.per_second = Some(measured.messages_per_second);
        stream.bytes_per_second = Some(measured.messages_per_second * bytes as f64);
        stream.note = format!("{:.0} MB/s", measured.messages_per_second * bytes as f64 / 1e6);
        stream.latencies = None;
        Ok(vec![echo, stream])
    };
    against(link, measure, local)
}

/// Is the other end of links, for ever.
pub(super) fn listen(address: SocketAddr) -> io::Result<()> {
    let udp = UdpSocket::bind(address)?;
    let quic = UdpSocket::bind(SocketAddr::new(address.ip(), address.port().saturating_add(1)))?;
    let thread = std::thread::spawn(move || answer_udp(&udp, &AtomicBool::new(false)));
    quic_link::answer(quic, None)?;
    thread.join().unwrap_or(Ok(()))
}
