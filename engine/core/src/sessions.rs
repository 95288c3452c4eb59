//! Client sessions: frames in, responses out, who may do what, and requests that another core carries out.

use crate::convert::refused;
use crate::identity::{Identity, Tenant};
use crate::mesh::{Caller, MeshMessage};
use crate::receive::ReceiveAt;
use crate::{ConnectionId, Core, OperationId, Output, SessionId};
use bytes::Bytes;
use overtake_base::hash::Map;
use overtake_base::limits::SESSION_REQUESTS_MAX;
use overtake_wire::code;
use overtake_wire::message::{ErrorCode, Refusal, Request, Response};
use std::collections::BTreeMap;

const NANOS_PER_S: u64 = 1_000_000_000;

/// All sessions of the core.
#[derive(Default)]
pub(crate) struct Sessions {
    all: Map<SessionId, Session>,
    count: u64,
}

#[derive(Default)]
struct Session {
    identity: Option<Identity>,
    /// Requests without an answer yet.
    under_way: usize,
    /// Receives under way, by the client's request id.
    receives: BTreeMap<u64, ReceiveAt>,
}

/// Who gets a response.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Origin {
    /// A client of this core.
    Session { session: SessionId, request: u64 },
    /// A core that forwarded a client's request.
    Core(Caller),
    /// An operation of this core that needed something done first.
    Operation(OperationId),
}

impl Sessions {
    /// Sessions open now.
    pub(crate) fn count(&self) -> u64 {
        self.count
    }

    /// Remembers where a session's receive is waiting, for its cancellation.
    pub(crate) fn note_receive(&mut self, origin: Origin, at: ReceiveAt) {
        if let Origin::Session { session, request } = origin
            && let Some(session) = self.all.get_mut(&session)
        {
            session.receives.insert(request, at);
        }
    }

    fn is_open(&self, session: SessionId) -> bool {
        self.all.contains_key(&session)
    }
}

impl Core {
    pub(crate) fn open_session(&mut self, session: SessionId, connection: ConnectionId) {
        self.answers.opened(session, connection);
        let identity = Identity::anonymous(&self.config);
        self.sessions.all.insert(session, Session { identity, ..Session::default() });
        self.sessions.count += 1;
    }

    pub(crate) fn close_session(&mut self, session: SessionId) {
        let Some(closed) = self.sessions.all.remove(&session) else { return };
        self.sessions.count -= 1;
        self.answers.closed(session);
        for at in closed.receives.into_values() {
            self.cancel_receive(at);
        }
    }

    pub(crate) fn frame(&mut self, session: SessionId, frame: &Bytes) {
        let Some(state) = self.sessions.all.get_mut(&session) else { return };
        match overtake_wire::decode_request(frame) {
            Ok((_, Request::CancelReceive { request })) => {
                if let Some(at) = state.receives.remove(&request) {
                    self.cancel_receive(at);
                } else {
                    self.cancel_parked(session, request);
                }
            }
            Ok((request, _)) if state.receives.contains_key(&request) => {
                // The receive stays what its number means: only this answer is not one to it.
                let detail = format!("request number {request} is that of a receive that has no answer yet");
                self.send(session, request, &refused(Refusal::new(ErrorCode::Invalid, detail)));
            }
            Ok((request, body)) => {
                state.under_way += 1;
                self.request(session, request, body);
            }
            Err((Some(request), malformed)) => {
                state.under_way += 1;
                let refusal = Refusal::new(ErrorCode::Invalid, format!("{malformed}"));
                self.respond(Origin::Session { session, request }, refused(refusal));
                if malformed == overtake_wire::WRONG_VERSION {
                    let reason = "a client of another version";
                    self.out.push(Output::CloseSession { session, code: code::VERSION, reason });
                }
            }
            Err((None, _)) => {
                let reason = "a frame that is not one of this protocol";
                self.out.push(Output::CloseSession { session, code: code::FRAME, reason });
            }
        }
    }

    fn request(&mut self, session: SessionId, request: u64, body: Request) {
        self.counters.requests += 1;
        let origin = Origin::Session { session, request };
        let Some(state) = self.sessions.all.get_mut(&session) else { return };
        if state.under_way > SESSION_REQUESTS_MAX {
            let detail = format!(
                "{SESSION_REQUESTS_MAX} requests of this session have no answer yet: wait for some, or open another"
            );
            return self.respond(origin, refused(Refusal::rate(detail, 100)));
        }
        if let Request::Hello { token } = &body {
            // Without a token nothing may be done but to ask how the node is, as monitors do.
            let known = if let Err(refusal) = body.validate() {
                Err(refusal)
            } else if token.is_empty() {
                Ok(Identity::anonymous(&self.config))
            } else {
                Identity::of_token(&self.config, token).map(Some)
            };
            let response = match known {
                Ok(identity) => {
                    state.identity = identity;
                    self.welcome()
                }
                Err(refusal) => refused(refusal),
            };
            return self.respond(origin, response);
        }
        if matches!(body, Request::Ready | Request::Metrics) {
            // Anybody may ask, but names of queues are only for those who may read them: no tenant's name is empty.
            let reader = state.identity.as_ref().filter(|identity| identity.rights.read);
            let tenant = reader.map_or_else(|| "".into(), |identity| identity.tenant.clone());
            return self.execute_in_room(session, request, tenant, body);
        }
        let Some(identity) = state.identity.clone() else {
            let detail = "this server needs a token";
            return self.respond(origin, refused(Refusal::new(ErrorCode::Unauthorized, detail)));
        };
        if let Err(refusal) = identity.may(&body).and_then(|()| body.validate()) {
            return self.respond(origin, refused(refusal));
        }
        self.execute_in_room(session, request, identity.tenant, body);
    }

    fn welcome(&self) -> Response {
        Response::Welcome {
            node: self.config.node.0,
            core: self.config.core.0,
            cores: self.config.cores,
            version: self.config.version.clone(),
        }
    }

    /// Carries a validated request out, on this core or on the one that must.
    pub(crate) fn execute(&mut self, origin: Origin, tenant: &Tenant, request: Request) {
        if let Some(refusal) = self.not_now(&request) {
            return self.respond(origin, refused(refusal));
        }
        match request {
            Request::Enqueue { queue, messages } => {
                self.start_enqueue(origin, tenant, queue, messages, false);
            }
            Request::Receive(receive) => {
                let deadline_ns = self.now.monotonic_ns + u64::from(receive.wait_s) * NANOS_PER_S;
                self.start_receive(origin, tenant, receive, deadline_ns);
            }
            Request::Settle(settle) => self.start_settle(origin, tenant, &settle),
            Request::PutQueue { queue, patch } => self.put_queue(origin, tenant, &queue, patch, false),
            Request::DeleteQueue { queue } => self.delete_queue(origin, tenant, &queue),
            Request::GetQueue { queue } => self.get_queue(origin, tenant, &queue),
            Request::ListQueues { limit, after } => self.list_queues(origin, tenant, limit, after.as_deref()),
            Request::Cluster => self.cluster(origin),
            Request::ChangeCluster(change) => self.change_cluster(origin, change),
            Request::Ready => self.ready(origin),
            request => self.start_gather(origin, tenant, request),
        }
    }

    pub(crate) fn not_now(&self, request: &Request) -> Option<Refusal> {
        if matches!(request, Request::Ready | Request::Cluster) {
            return None;
        }
        if self.stopping {
            return Some(
                Refusal::new(ErrorCode::Stopping, "the server is stopping; try another node, or again soon")
                    .after(1_000),
            );
        }
        // All cores, so that nothing is done in parts because another core's shards have no leader yet.
        if self.serving.len() < usize::from(self.config.cores) {
            return Some(Refusal::no_quorum("the server is starting: it recovers its log; try again", 1_000));
        }
        None
    }

    /// Whether anyone is still there to take a response.
    pub(crate) fn is_wanted(&self, origin: Origin) -> bool {
        match origin {
            Origin::Session { session, .. } => self.sessions.is_open(session),
            Origin::Core(caller) => self.is_there(caller),
            Origin::Operation(_) => true,
        }
    }

    /// Hands a response to the shell.
    fn send(&mut self, session: SessionId, request: u64, response: &Response) {
        let mut frame = Vec::new();
        overtake_wire::encode_response(request, response, &mut frame);
        // Listings and receives are bounded; this is for what grows with its users, such as worker labels.
        if frame.len() > overtake_wire::RESPONSE_FRAME_BYTES_MAX {
            frame.clear();
            let refusal = Refusal::internal("the answer is larger than a frame may be");
            overtake_wire::encode_response(request, &refused(refusal), &mut frame);
        }
        self.answers.sent(session, frame.len());
        self.out.push(Output::Frame { session, frame: frame.into() });
    }

    /// Gives a response to whoever asked.
    pub(crate) fn respond(&mut self, origin: Origin, response: Response) {
        match origin {
            Origin::Session { session, request } => {
                self.answers.finished(session, request);
                let Some(state) = self.sessions.all.get_mut(&session) else { return };
                state.receives.remove(&request);
                state.under_way -= 1;
                self.send(session, request, &response);
            }
            Origin::Core(caller) if caller.at == self.me => self.forward_replied(caller.call, response),
            Origin::Core(caller) => {
                self.waiting.forget_forwarded(caller);
                if self.is_there(caller) {
                    let message = MeshMessage::ForwardReply { call: caller.call, response };
                    self.out.push(Output::Mesh { to: caller.at, message });
                }
            }
            Origin::Operation(operation) => self.operation_resumed(operation, response),
        }
    }
}
