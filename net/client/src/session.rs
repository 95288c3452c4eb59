//! One stream: requests go out as they come, many in one write; answers are matched by request number, in any order.

use crate::error::ClientError;
use bytes::Bytes;
use overtake_base::hash::Map;
use overtake_wire::message::{Receive, Refusal, Request, Response};
use overtake_wire::{FrameSplitter, REQUEST_FRAME_BYTES_MAX, decode_response, encode_request};
use quinn::{Connection, RecvStream, SendStream, VarInt};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use tokio::sync::{Notify, oneshot};

/// Above so many bytes that wait to be written a caller waits before it adds its request.
const OUTGOING_BYTES_MAX: usize = 1024 * 1024;
/// Number of the `Hello` of every stream.
const HELLO_ID: u64 = 0;

/// A stream that is greeted and running. Its tasks end with the stream; then everything pending fails.
pub(crate) struct Session {
    state: Mutex<State>,
    /// There is something to write.
    wake: Notify,
    /// There is room for more requests.
    room: Notify,
}

#[derive(Default)]
struct State {
    outgoing: Vec<u8>,
    pending: Map<u64, Pending>,
    next_id: u64,
    lost: bool,
}

enum Pending {
    /// Someone waits for the answer.
    Call(oneshot::Sender<Response>),
    /// A receive whose caller is gone. Messages that were already on their way go back to this queue.
    AbandonedReceive(String),
}

/// A stream that was opened and on which `Hello` was sent, without waiting for the answer.
pub(crate) struct Greeting {
    send: SendStream,
    receive: RecvStream,
}

/// What a server says of itself when it is greeted.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Welcome {
    pub(crate) node: u64,
    pub(crate) core: u16,
    pub(crate) cores: u16,
    pub(crate) version: String,
}

impl Greeting {
    pub(crate) async fn open(connection: &Connection, token: &str) -> Result<Self, ClientError> {
        let (mut send, receive) = connection.open_bi().await.map_err(|_| ClientError::ConnectionLost)?;
        let mut hello = Vec::new();
        encode_request(HELLO_ID, &Request::Hello { token: token.to_owned() }, &mut hello);
        send.write_all(&hello).await.map_err(|_| ClientError::ConnectionLost)?;
        Ok(Self { send, receive })
    }

    /// Waits for `Welcome` and starts the session's tasks. They close the connection when they end, since a client
    /// needs all its streams.
    pub(crate) async fn welcomed(
        mut self,
        connection: &Connection,
    ) -> Result<(Arc<Session>, Welcome), ClientError> {
        let mut splitter = FrameSplitter::for_responses();
        let frame = loop {
            if let Some(frame) =
                splitter.next_frame().map_err(|error| ClientError::Protocol(error.to_string()))?
            {
                break frame;
            }
            match self.receive.read_chunk(usize::MAX, true).await {
                Ok(Some(chunk)) => splitter.push(chunk.bytes),
                Ok(None) | Err(_) => return Err(ClientError::ConnectionLost),
            }
        };
        let welcome = match decode_response(&frame) {
            Ok((HELLO_ID, Response::Welcome { node, core, cores, version })) => {
                Welcome { node, core, cores, version }
            }
            Ok((_, Response::Refused(refusal))) => return Err(ClientError::Refused(refusal)),
            Ok((_, other)) => return Err(unexpected(&other)),
            Err(malformed) => return Err(ClientError::Protocol(malformed.to_string())),
        };
        let session = Arc::new(Session {
            state: Mutex::new(State { next_id: HELLO_ID + 1, ..State::default() }),
            wake: Notify::new(),
            room: Notify::new(),
        });
        tokio::spawn(read(session.clone(), connection.clone(), self.receive, splitter));
        tokio::spawn(write(session.clone(), self.send));
        Ok((session, welcome))
    }
}

/// The error for a response that does not belong to the request.
pub(crate) fn unexpected(response: &Response) -> ClientError {
    ClientError::Protocol(format!("a response of kind {:?}", response.kind()))
}

async fn write(session: Arc<Session>, mut send: SendStream) {
    loop {
        let woken = session.wake.notified();
        let outgoing = {
            let mut state = session.lock();
            if state.lost {
                return;
            }
            let room = Vec::with_capacity(state.outgoing.len().min(OUTGOING_BYTES_MAX));
            core::mem::replace(&mut state.outgoing, room)
        };
        if outgoing.is_empty() {
            woken.await;
            continue;
        }
        session.room.notify_waiters();
        if send.write_chunk(Bytes::from(outgoing)).await.is_err() {
            // The reader sees the same end and tells everyone.
            return;
        }
    }
}

async fn read(
    session: Arc<Session>,
    connection: Connection,
    mut receive: RecvStream,
    mut splitter: FrameSplitter,
) {
    let reason = loop {
        match answers(&session, &mut splitter) {
            Ok(()) => {}
            Err(reason) => break reason,
        }
        match receive.read_chunk(usize::MAX, true).await {
            Ok(Some(chunk)) => splitter.push(chunk.bytes),
            Ok(None) => break "the server ended a stream".to_owned(),
            Err(error) => break error.to_string(),
        }
    };
    tracing::debug!(reason, "session ended");
    session.lose();
    connection.close(VarInt::from_u32(0), b"");
}

fn answers(session: &Session, splitter: &mut FrameSplitter) -> Result<(), String> {
    while let Some(frame) = splitter.next_frame().map_err(|error| error.to_string())? {
        let (id, response) = decode_response(&frame).map_err(|error| error.to_string())?;
        session.complete(id, response);
    }
    Ok(())
}

impl Session {
    /// Hands the request to the stream; waits while too much is waiting there already. With
    /// [`ClientError::ConnectionLost`] the request was not taken.
    pub(crate) async fn call(self: &Arc<Self>, request: &Request) -> Result<Call, ClientError> {
        loop {
            let room = self.room.notified();
            tokio::pin!(room);
            room.as_mut().enable();
            {
                let mut state = self.lock();
                if state.lost {
                    return Err(ClientError::ConnectionLost);
                }
                if state.outgoing.len() < OUTGOING_BYTES_MAX {
                    return self.add(&mut state, request);
                }
            }
            room.await;
        }
    }

    fn add(self: &Arc<Self>, state: &mut State, request: &Request) -> Result<Call, ClientError> {
        let id = state.push(request)?;
        let (sender, receiver) = oneshot::channel();
        state.pending.insert(id, Pending::Call(sender));
        self.wake.notify_one();
        let abandoned_receive = match request {
            Request::Receive(Receive { queue, .. }) => Some(queue.clone()),
            _ => None,
        };
        Ok(Call { session: self.clone(), id, receiver, abandoned_receive, answered: false })
    }

    fn complete(&self, id: u64, response: Response) {
        let mut state = self.lock();
        match state.pending.remove(&id) {
            // A caller that is just going away takes the response out itself, see `Call::drop`.
            Some(Pending::Call(sender)) => drop(sender.send(response)),
            Some(Pending::AbandonedReceive(queue)) => self.give_back(&mut state, queue, response),
            // Of a request that timed out.
            None => {}
        }
    }

    fn abandon(&self, id: u64, receive_from: Option<String>, response: Option<Response>) {
        let mut state = self.lock();
        let waiting = state.pending.remove(&id).is_some();
        let Some(queue) = receive_from else { return };
        if let Some(response) = response {
            self.give_back(&mut state, queue, response);
        } else if waiting && !state.lost && state.push(&Request::CancelReceive { request: id }).is_ok() {
            state.pending.insert(id, Pending::AbandonedReceive(queue));
            self.wake.notify_one();
        }
    }

    /// Gives messages back that nobody takes any more, so that they need not wait for the end of their leases.
    fn give_back(&self, state: &mut State, queue: String, response: Response) {
        let Response::Received { messages } = response else { return };
        if messages.is_empty() || state.lost {
            return;
        }
        let receipts = messages.iter().map(|message| message.receipt.to_string()).collect();
        if state.push(&Request::Undelivered { queue, receipts }).is_ok() {
            self.wake.notify_one();
        }
    }

    /// Fails everything that is pending, now and later.
    pub(crate) fn lose(&self) {
        let mut state = self.lock();
        state.lost = true;
        state.pending = Map::default();
        drop(state);
        self.wake.notify_one();
        self.room.notify_waiters();
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        // Nothing panics while it holds the lock; a state is whole at any time.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl State {
    /// Appends the request's frame and gives its number.
    fn push(&mut self, request: &Request) -> Result<u64, ClientError> {
        let (id, start) = (self.next_id, self.outgoing.len());
        encode_request(id, request, &mut self.outgoing);
        let bytes = self.outgoing.len() - start - overtake_wire::LENGTH_BYTES;
        if bytes > REQUEST_FRAME_BYTES_MAX {
            self.outgoing.truncate(start);
            let detail = format!("a request must be at most {REQUEST_FRAME_BYTES_MAX} bytes, is {bytes}");
            return Err(ClientError::Refused(Refusal::too_large("request", detail)));
        }
        self.next_id += 1;
        Ok(id)
    }
}

/// A request under way. Dropped before its answer it is forgotten; a receive is taken back.
pub(crate) struct Call {
    session: Arc<Session>,
    id: u64,
    receiver: oneshot::Receiver<Response>,
    abandoned_receive: Option<String>,
    answered: bool,
}

impl Call {
    pub(crate) async fn answer(mut self) -> Result<Response, ClientError> {
        let answer = (&mut self.receiver).await;
        self.answered = true;
        answer.map_err(|_| ClientError::ConnectionLost)
    }
}

impl Drop for Call {
    fn drop(&mut self) {
        if !self.answered {
            self.receiver.close();
            let response = self.receiver.try_recv().ok();
            self.session.abandon(self.id, self.abandoned_receive.take(), response);
        }
    }
}
