//! HTTP on a bare socket, for what a well-behaved client cannot do: to hang up, to send too much, to speak HTTP/2
//! without asking first.

use std::io::{ErrorKind, Read as _, Write as _};
use std::net::{SocketAddr, TcpStream};
use std::time::Duration;

const ANSWER_LIMIT: Duration = Duration::from_secs(20);

/// A connection with a request on its way.
#[derive(Debug)]
pub struct RawRequest(TcpStream);

impl RawRequest {
    /// Sends a JSON request. Does not wait for the answer. A server may answer and close before it has read all; that
    /// is not an error here.
    pub fn send(address: SocketAddr, method: &str, path: &str, body: &[u8]) -> Self {
        let mut socket = connect(address);
        let head = format!(
            "{method} {path} HTTP/1.1\r\nhost: {address}\r\ncontent-type: application/json\r\n\
             content-length: {}\r\nconnection: close\r\n\r\n",
            body.len()
        );
        socket.write_all(head.as_bytes()).expect("the head is taken");
        if let Err(error) = socket.write_all(body) {
            assert!(matches!(error.kind(), ErrorKind::BrokenPipe | ErrorKind::ConnectionReset), "{error}");
        }
        Self(socket)
    }

    /// Status of the answer; None where the connection was reset before it could be read, as happens when a server
    /// closes while there is still something to read for it.
    #[track_caller]
    fn status(mut self) -> Option<u16> {
        let mut head = [0u8; 12];
        match self.0.read_exact(&mut head) {
            Err(error) if error.kind() == ErrorKind::ConnectionReset => return None,
            read => read.expect("an answer"),
        }
        let text = String::from_utf8_lossy(&head).into_owned();
        let status = text.strip_prefix("HTTP/1.1 ").and_then(|status| status.parse().ok());
        Some(status.unwrap_or_else(|| panic!("not a status line: {text:?}")))
    }

    /// Closes the connection without reading the answer.
    pub fn hang_up(self) {
        drop(self.0);
    }
}

/// Status that a JSON request is answered, however large it is.
#[track_caller]
pub fn status_of(address: SocketAddr, method: &str, path: &str, body: &[u8]) -> u16 {
    const TRIES: usize = 20;
    let mut tries = (0..TRIES).filter_map(|_| RawRequest::send(address, method, path, body).status());
    tries.next().expect("an answer that can be read before the connection is reset")
}

/// `GET path` over HTTP/2 with prior knowledge; true if the server spoke HTTP/2 and answered 200.
pub fn http2_get_is_ok(address: SocketAddr, path: &str) -> bool {
    let mut socket = connect(address);
    let mut hello = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n".to_vec();
    hello.extend(frame(FRAME_SETTINGS, 0, 0, &[]));
    hello.extend(frame(
        FRAME_HEADERS,
        FLAG_END_STREAM | FLAG_END_HEADERS,
        1,
        &request_headers(address, path),
    ));
    socket.write_all(&hello).expect("the preface is taken");
    let mut first = true;
    loop {
        let mut head = [0u8; 9];
        if socket.read_exact(&mut head).is_err() {
            return false;
        }
        let length = u32::from_be_bytes([0, head[0], head[1], head[2]]) as usize;
        if length > 16_384 || (first && head[3] != FRAME_SETTINGS) {
            return false;
        }
        first = false;
        let mut payload = vec![0; length];
        if socket.read_exact(&mut payload).is_err() {
            return false;
        }
        match head[3] {
            FRAME_HEADERS => return payload.first() == Some(&HPACK_STATUS_200),
            FRAME_GOAWAY => return false,
            _ => {}
        }
    }
}

const FRAME_HEADERS: u8 = 1;
const FRAME_SETTINGS: u8 = 4;
const FRAME_GOAWAY: u8 = 7;
const FLAG_END_STREAM: u8 = 1;
const FLAG_END_HEADERS: u8 = 4;
/// `:status: 200` of HPACK's static table, indexed.
const HPACK_STATUS_200: u8 = 0x88;

fn connect(address: SocketAddr) -> TcpStream {
    let socket = TcpStream::connect(address).expect("the server listens");
    socket.set_read_timeout(Some(ANSWER_LIMIT)).expect("a time-out can be set");
    socket.set_nodelay(true).expect("no delay can be set");
    socket
}

fn frame(kind: u8, flags: u8, stream: u32, payload: &[u8]) -> Vec<u8> {
    let length = u32::try_from(payload.len()).expect("a short frame").to_be_bytes();
    let mut bytes = vec![length[1], length[2], length[3], kind, flags];
    bytes.extend(stream.to_be_bytes());
    bytes.extend(payload);
    bytes
}

/// HPACK: `:method: GET` and `:scheme: http` indexed; `:authority` and `:path` as literals without indexing.
fn request_headers(address: SocketAddr, path: &str) -> Vec<u8> {
    let mut block = vec![0x82, 0x86];
    for (index, text) in [(0x01, address.to_string()), (0x04, path.to_owned())] {
        block.push(index);
        block.push(u8::try_from(text.len()).ok().filter(|length| *length < 127).expect("a short text"));
        block.extend(text.as_bytes());
    }
    block
}
