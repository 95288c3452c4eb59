//! Answers on their way to clients. A connection whose client does not take its answers gets no more large ones: what
//! reads much waits in line until there is room, and messages for a receive that comes back to a full connection go
//! back to their places. So memory is bounded by connection and by core however much is asked for, connections take
//! turns at large answers, and a client that reads what it asked for is never cut off.

use crate::convert::refused;
use crate::event::ConnectionId;
use crate::identity::Tenant;
use crate::sessions::Origin;
use crate::{AnswerConfig, Core, SessionId};
use overtake_base::hash::Map;
use overtake_base::limits::{LISTED_BYTES_MAX, PAGE_BYTES_MAX, PARKED_REQUESTS_MAX, PAYLOAD_BYTES_MAX};
use overtake_wire::message::{Refusal, Request, Response};
use std::collections::VecDeque;

/// What a queue takes in a listing, or a short answer about one thing, about and not less.
const SHORT_BYTES: usize = 1_024;
/// A receive of so many messages never waits for its turn: it takes less of it than it would wait for.
const FEW_MESSAGES: u32 = 16;
/// What is so little that a connection counts as one that took everything.
const NOTHING_BYTES: usize = 256 * 1024;

/// A request that waits for room.
#[derive(Debug)]
pub(crate) struct Parked {
    session: SessionId,
    request: u64,
    tenant: Tenant,
    body: Request,
}

#[derive(Default)]
struct Connection {
    sessions: usize,
    unread_bytes: usize,
    /// What answers under way may take.
    reserved_bytes: usize,
    parked: VecDeque<Parked>,
}

struct SessionAnswers {
    connection: ConnectionId,
    open: bool,
    unread_bytes: usize,
}

/// The answers of one core's clients.
pub(crate) struct Answers {
    config: AnswerConfig,
    /// Until they are closed and everything that was sent is taken.
    sessions: Map<SessionId, SessionAnswers>,
    connections: Map<ConnectionId, Connection>,
    /// What the answers of reads under way may take. A client may use a number twice, against the rules.
    running: Map<(SessionId, u64), Vec<(ConnectionId, usize)>>,
    /// Connections with requests that wait, in turn.
    line: VecDeque<ConnectionId>,
    unread_bytes: usize,
    reserved_bytes: usize,
    /// What reads may still take in this turn.
    turn_bytes: usize,
    /// Messages that receives may still ask for in this turn.
    turn_messages: u32,
    /// Something waits only because the turn is over.
    turn_over: bool,
}

/// What to do with a request.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Verdict {
    Start,
    Wait,
    /// Too many wait.
    Full,
}

/// How much the answer of a request may take, in bytes; none where that is no more than the request itself took, or
/// known only when it comes, as with receives.
fn answer_bytes(request: &Request) -> Option<usize> {
    let listed = |limit: &u32| {
        let each = LISTED_BYTES_MAX + PAYLOAD_BYTES_MAX;
        (*limit as usize).saturating_mul(each).min(PAGE_BYTES_MAX + each)
    };
    match request {
        Request::Peek { limit, .. } | Request::DlqList { limit, .. } => Some(listed(limit)),
        Request::Inspect { .. } => Some(listed(&1)),
        Request::ListQueues { limit, .. } => Some((*limit as usize).saturating_mul(SHORT_BYTES)),
        Request::Metrics => Some(PAGE_BYTES_MAX / 4),
        Request::Stats { .. } | Request::GetQueue { .. } | Request::Cluster => Some(64 * SHORT_BYTES),
        _ => None,
    }
}

impl Answers {
    pub(crate) fn new(config: AnswerConfig) -> Self {
        Self {
            config,
            sessions: Map::default(),
            connections: Map::default(),
            running: Map::default(),
            line: VecDeque::new(),
            unread_bytes: 0,
            reserved_bytes: 0,
            turn_bytes: config.turn_bytes,
            turn_messages: config.turn_messages,
            turn_over: false,
        }
    }

    pub(crate) fn opened(&mut self, session: SessionId, connection: ConnectionId) {
        self.sessions.insert(session, SessionAnswers { connection, open: true, unread_bytes: 0 });
        self.connections.entry(connection).or_default().sessions += 1;
    }

    pub(crate) fn closed(&mut self, session: SessionId) {
        let Some(state) = self.sessions.get_mut(&session) else { return };
        state.open = false;
        if let Some(connection) = self.connections.get_mut(&state.connection) {
            connection.parked.retain(|parked| parked.session != session);
        }
        self.forget_if_over(session);
    }

    fn forget_if_over(&mut self, session: SessionId) {
        let over = |state: &&SessionAnswers| !state.open && state.unread_bytes == 0;
        let Some(id) = self.sessions.get(&session).filter(over).map(|state| state.connection) else { return };
        self.sessions.remove(&session);
        if let Some(connection) = self.connections.get_mut(&id) {
            connection.sessions -= 1;
        }
        self.forget_connection_if_over(id);
    }

    /// What is under way for closed sessions still takes memory: while it does, its connection is remembered.
    fn forget_connection_if_over(&mut self, id: ConnectionId) {
        let over = |connection: &Connection| connection.sessions == 0 && connection.reserved_bytes == 0;
        if self.connections.get(&id).is_some_and(over) {
            self.connections.remove(&id);
        }
    }

    /// An answer was handed to the shell.
    pub(crate) fn sent(&mut self, session: SessionId, bytes: usize) {
        let Some(state) = self.sessions.get_mut(&session) else { return };
        state.unread_bytes += bytes;
        self.unread_bytes += bytes;
        if let Some(connection) = self.connections.get_mut(&state.connection) {
            connection.unread_bytes += bytes;
        }
    }

    /// Answers are off the shell's hands.
    pub(crate) fn taken(&mut self, session: SessionId, bytes: usize) {
        let Some(state) = self.sessions.get_mut(&session) else { return };
        // The shell tells of each byte once. If it ever told of more, counting less is no reason to end.
        debug_assert!(state.unread_bytes >= bytes, "more of an answer was taken than was sent");
        let bytes = bytes.min(state.unread_bytes);
        state.unread_bytes -= bytes;
        self.unread_bytes -= bytes;
        if let Some(connection) = self.connections.get_mut(&state.connection) {
            connection.unread_bytes -= bytes;
        }
        self.forget_if_over(session);
    }

    fn connection_of(&self, session: SessionId) -> Option<(ConnectionId, &Connection)> {
        let id = self.sessions.get(&session)?.connection;
        Some((id, self.connections.get(&id)?))
    }

    /// True where messages must not be added to what the client of a session has not taken.
    pub(crate) fn is_over(&self, session: SessionId) -> bool {
        self.connection_of(session).is_some_and(|(_, connection)| {
            connection.unread_bytes > self.config.received_bytes
                || connection.unread_bytes > NOTHING_BYTES && self.unread_bytes > self.config.core_bytes
        })
    }

    /// True where an answer of that many bytes may be begun. `None`: a receive.
    fn has_room(&self, connection: &Connection, bytes: Option<usize>) -> bool {
        let under_way = connection.unread_bytes + connection.reserved_bytes;
        let Some(bytes) = bytes else { return connection.unread_bytes <= self.config.read_bytes / 2 };
        let all = self.unread_bytes + self.reserved_bytes;
        // Who took everything always gets something, so that nothing waits for ever; the core's bound is for those who
        // did not.
        (under_way + bytes <= self.config.read_bytes && all + bytes <= self.config.core_bytes)
            || under_way <= NOTHING_BYTES.min(self.config.read_bytes) && all <= 2 * self.config.core_bytes
    }

    /// A turn gives room for one read and one receive of any size, and for every receive of a few messages.
    fn is_in_turn(&self, body: &Request) -> bool {
        if let Request::Receive(receive) = body {
            let whole = self.turn_messages == self.config.turn_messages;
            return whole || receive.max <= FEW_MESSAGES.max(self.turn_messages);
        }
        let whole = self.turn_bytes == self.config.turn_bytes;
        whole || answer_bytes(body).is_none_or(|bytes| bytes <= self.turn_bytes)
    }

    fn begin_turn(&mut self) {
        self.turn_bytes = self.config.turn_bytes;
        self.turn_messages = self.config.turn_messages;
    }

    fn judge(&self, session: SessionId, body: &Request) -> Verdict {
        let Some((_, connection)) = self.connection_of(session) else { return Verdict::Start };
        let bytes = answer_bytes(body);
        if bytes.is_none() && !matches!(body, Request::Receive(_)) {
            return Verdict::Start;
        }
        // A receive need not wait behind reads that only wait for their turn.
        let first = bytes.is_none() || connection.parked.is_empty();
        if first && self.is_in_turn(body) && self.has_room(connection, bytes) {
            Verdict::Start
        } else if connection.parked.len() >= PARKED_REQUESTS_MAX {
            Verdict::Full
        } else {
            Verdict::Wait
        }
    }

    /// Counts what the answer of a request that starts may take.
    fn start(&mut self, session: SessionId, request: u64, body: &Request) {
        if let Request::Receive(receive) = body {
            self.turn_messages = self.turn_messages.saturating_sub(receive.max);
        }
        let Some(bytes) = answer_bytes(body) else { return };
        let Some((id, _)) = self.connection_of(session) else { return };
        self.running.entry((session, request)).or_default().push((id, bytes));
        self.reserved_bytes += bytes;
        self.turn_bytes = self.turn_bytes.saturating_sub(bytes);
        if let Some(connection) = self.connections.get_mut(&id) {
            connection.reserved_bytes += bytes;
        }
    }

    /// A request is answered, or its session gone.
    pub(crate) fn finished(&mut self, session: SessionId, request: u64) {
        let std::collections::hash_map::Entry::Occupied(mut running) = self.running.entry((session, request))
        else {
            return;
        };
        let Some((id, bytes)) = running.get_mut().pop() else { return };
        if running.get().is_empty() {
            running.remove();
        }
        self.reserved_bytes -= bytes;
        if let Some(connection) = self.connections.get_mut(&id) {
            connection.reserved_bytes -= bytes;
        }
        self.forget_connection_if_over(id);
    }

    fn park(&mut self, parked: Parked) {
        let Some((id, _)) = self.connection_of(parked.session) else { return };
        let Some(connection) = self.connections.get_mut(&id) else { return };
        connection.parked.push_back(parked);
        if connection.parked.len() == 1 {
            self.line.push_back(id);
        }
    }

    /// Takes a parked receive back; false where there is none.
    pub(crate) fn unpark(&mut self, session: SessionId, request: u64) -> bool {
        let Some((id, _)) = self.connection_of(session) else { return false };
        let Some(connection) = self.connections.get_mut(&id) else { return false };
        let is_it = |parked: &Parked| {
            parked.session == session
                && parked.request == request
                && matches!(parked.body, Request::Receive(_))
        };
        let place = connection.parked.iter().position(is_it);
        place.and_then(|place| connection.parked.remove(place)).is_some()
    }

    /// The next request that there is room for, connections in turn.
    fn next_to_start(&mut self) -> Option<Parked> {
        self.turn_over = false;
        for _ in 0..self.line.len() {
            let id = self.line.pop_front()?;
            let Some(connection) = self.connections.get(&id) else { continue };
            let Some(first) = connection.parked.front() else { continue };
            let bytes = answer_bytes(&first.body);
            if !self.has_room(connection, bytes) {
                self.line.push_back(id);
                continue;
            }
            if !self.is_in_turn(&first.body) {
                // First in the next turn.
                self.line.push_front(id);
                self.turn_over = true;
                return None;
            }
            let connection = self.connections.get_mut(&id)?;
            let parked = connection.parked.pop_front();
            if !connection.parked.is_empty() {
                self.line.push_back(id);
            }
            return parked;
        }
        None
    }

    /// Everything that waits.
    fn take_parked(&mut self) -> Vec<Parked> {
        let line = core::mem::take(&mut self.line);
        let mut all = Vec::new();
        for id in line {
            if let Some(connection) = self.connections.get_mut(&id) {
                all.extend(connection.parked.drain(..));
            }
        }
        all
    }

    /// True where a request waits only for the next turn.
    pub(crate) fn wants_turn(&self) -> bool {
        self.turn_over
    }
}

impl Core {
    /// Carries a validated request of a client out, when there is room for its answer.
    pub(crate) fn execute_in_room(
        &mut self,
        session: SessionId,
        request: u64,
        tenant: Tenant,
        body: Request,
    ) {
        let refusal = match self.answers.judge(session, &body) {
            Verdict::Start => {
                self.answers.start(session, request, &body);
                return self.execute(Origin::Session { session, request }, &tenant, body);
            }
            Verdict::Wait => {
                self.counters.requests_parked += 1;
                return self.answers.park(Parked { session, request, tenant, body });
            }
            Verdict::Full => {
                let detail = format!(
                    "{PARKED_REQUESTS_MAX} requests of this connection wait for room: read the answers that are on \
                     their way first"
                );
                Refusal::rate(detail, 100)
            }
        };
        self.respond(Origin::Session { session, request }, refused(refusal));
    }

    /// Begins a turn with what has waited and now has room.
    pub(crate) fn start_parked(&mut self) {
        self.answers.begin_turn();
        while let Some(Parked { session, request, tenant, body }) = self.answers.next_to_start() {
            self.answers.start(session, request, &body);
            self.execute(Origin::Session { session, request }, &tenant, body);
        }
    }

    /// Answers everything that waits: the server is stopping.
    pub(crate) fn end_parked(&mut self) {
        for Parked { session, request, tenant, body } in self.answers.take_parked() {
            self.execute(Origin::Session { session, request }, &tenant, body);
        }
    }

    /// Takes a receive that waits for room back; it is answered empty.
    pub(crate) fn cancel_parked(&mut self, session: SessionId, request: u64) {
        if self.answers.unpark(session, request) {
            self.respond(Origin::Session { session, request }, Response::Received { messages: Vec::new() });
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use overtake_wire::message::{PeekStates, Receive};
    use proptest::prelude::*;
    use std::collections::BTreeMap;

    const CONFIG: AnswerConfig = AnswerConfig {
        read_bytes: 10_000_000,
        received_bytes: 12_000_000,
        core_bytes: 30_000_000,
        turn_bytes: 5_000_000,
        turn_messages: 100,
    };

    fn peek(limit: u32) -> Request {
        Request::Peek {
            queue: "q".into(),
            states: PeekStates { visible: true, delayed: true, leased: true },
            priority: None,
            limit,
            after: None,
        }
    }

    fn receive(max: u32) -> Request {
        Request::Receive(Receive { max, ..Receive::new("q") })
    }

    fn tenant() -> Tenant {
        "t".into()
    }

    #[derive(Clone, Debug)]
    enum Step {
        Peek { session: u64, limit: u32 },
        Receive { session: u64, max: u32 },
        Answer { pick: usize, bytes: usize },
        Take { session: u64, share: u8 },
        Reopen { session: u64 },
        Turn,
    }

    fn steps() -> impl Strategy<Value = Vec<Step>> {
        let session = 0..6u64;
        let step = prop_oneof![
            2 => (session.clone(), 1..=1_000u32).prop_map(|(session, limit)| Step::Peek { session, limit }),
            2 => (session.clone(), 1..=1_000u32).prop_map(|(session, max)| Step::Receive { session, max }),
            4 => (any::<usize>(), 1..4_000_000usize).prop_map(|(pick, bytes)| Step::Answer { pick, bytes }),
            3 => (session.clone(), any::<u8>()).prop_map(|(session, share)| Step::Take { session, share }),
            1 => session.prop_map(|session| Step::Reopen { session }),
            3 => Just(Step::Turn),
        ];
        proptest::collection::vec(step, 1..200)
    }

    /// What the core does with it, and what it must come to.
    struct World {
        answers: Answers,
        /// By the place of a session: its number.
        numbers: [u64; 6],
        next: u64,
        under_way: Vec<(u64, u64, Request)>,
        unread: BTreeMap<u64, usize>,
        asked: usize,
        started: usize,
        dropped: usize,
    }

    impl World {
        fn new() -> Self {
            let mut world = Self {
                answers: Answers::new(CONFIG),
                numbers: [0; 6],
                next: 0,
                under_way: Vec::new(),
                unread: BTreeMap::new(),
                asked: 0,
                started: 0,
                dropped: 0,
            };
            (0..6).for_each(|place| world.open(place));
            world
        }

        /// Two connections, three sessions each.
        fn open(&mut self, place: u64) {
            self.next += 1;
            self.numbers[place as usize] = self.next;
            self.answers.opened(SessionId(self.next), ConnectionId(place / 3));
        }

        fn ask(&mut self, place: u64, body: Request) {
            self.next += 1;
            self.asked += 1;
            let (session, request) = (SessionId(self.numbers[place as usize]), self.next);
            match self.answers.judge(session, &body) {
                Verdict::Start => self.start(session, request, body),
                Verdict::Wait => self.answers.park(Parked { session, request, tenant: tenant(), body }),
                Verdict::Full => self.dropped += 1,
            }
        }

        fn start(&mut self, session: SessionId, request: u64, body: Request) {
            self.answers.start(session, request, &body);
            self.started += 1;
            self.under_way.push((session.0, request, body));
        }

        fn answer(&mut self, pick: usize, bytes: usize) {
            if self.under_way.is_empty() {
                return;
            }
            let (session, request, body) = self.under_way.swap_remove(pick % self.under_way.len());
            let session = SessionId(session);
            self.answers.finished(session, request);
            let over = answer_bytes(&body).is_none() && self.answers.is_over(session);
            let bytes = if over { 20 } else { bytes.min(answer_bytes(&body).unwrap_or(2_000_000)) };
            if self.numbers.contains(&session.0) {
                self.answers.sent(session, bytes);
                *self.unread.entry(session.0).or_default() += bytes;
            }
        }

        fn take(&mut self, session: u64, share: u8) {
            if let Some(unread) = self.unread.get_mut(&session) {
                let bytes = *unread * usize::from(share) / 255;
                *unread -= bytes;
                self.answers.taken(SessionId(session), bytes);
            }
        }

        fn turn(&mut self) {
            self.answers.begin_turn();
            while let Some(Parked { session, request, body, .. }) = self.answers.next_to_start() {
                self.start(session, request, body);
            }
        }

        fn waiting(&self) -> usize {
            self.answers.connections.values().map(|connection| connection.parked.len()).sum()
        }

        fn check(&self) {
            for connection in self.answers.connections.values() {
                let page = PAGE_BYTES_MAX + LISTED_BYTES_MAX + PAYLOAD_BYTES_MAX;
                // Beyond its bound only what receives add, and they stop at theirs.
                let most = CONFIG.received_bytes.max(CONFIG.read_bytes) + 2_000_000 + page;
                assert!(connection.unread_bytes <= most, "{} unread", connection.unread_bytes);
                assert!(connection.reserved_bytes <= CONFIG.read_bytes, "{}", connection.reserved_bytes);
            }
            assert_eq!(self.answers.unread_bytes, self.unread.values().sum::<usize>());
            assert_eq!(self.asked, self.started + self.dropped + self.waiting());
        }
    }

    proptest! {
        /// However clients ask and read, what they leave unread is bounded; when they read, everything that waits is
        /// started; and nothing of it is left behind when they are gone.
        #[test]
        fn what_is_unread_is_bounded_and_nothing_waits_for_ever(steps in steps()) {
            let mut world = World::new();
            for step in steps {
                match step {
                    Step::Peek { session, limit } => world.ask(session, peek(limit)),
                    Step::Receive { session, max } => world.ask(session, receive(max)),
                    Step::Answer { pick, bytes } => world.answer(pick, bytes),
                    Step::Take { session, share } => world.take(world.numbers[session as usize], share),
                    Step::Reopen { session } => {
                        let number = world.numbers[session as usize];
                        let before = world.waiting();
                        world.answers.closed(SessionId(number));
                        world.dropped += before - world.waiting();
                        world.open(session);
                    }
                    Step::Turn => world.turn(),
                }
                world.check();
            }
            for _ in 0..1_000 {
                while !world.under_way.is_empty() {
                    world.answer(0, 1_000);
                }
                for session in world.unread.keys().copied().collect::<Vec<_>>() {
                    world.take(session, 255);
                }
                world.turn();
            }
            prop_assert_eq!(world.waiting(), 0);
            for number in world.numbers {
                world.answers.closed(SessionId(number));
            }
            let Answers { sessions, connections, running, unread_bytes, reserved_bytes, .. } = &world.answers;
            prop_assert!(sessions.is_empty() && connections.is_empty() && running.is_empty());
            prop_assert_eq!((*unread_bytes, *reserved_bytes), (0, 0));
        }
    }

    #[test]
    fn connections_take_turns_at_large_answers() {
        let mut world = World::new();
        (0..50).for_each(|_| world.ask(0, peek(1_000)));
        world.ask(3, peek(1_000));
        // The first of the fifty had come before.
        world.turn();
        world.turn();
        assert!(
            world.under_way.iter().any(|(session, ..)| *session == world.numbers[3]),
            "not behind all fifty"
        );
    }

    #[test]
    fn receives_of_many_messages_take_turns_and_those_of_a_few_wait_for_nobody() {
        let mut world = World::new();
        world.turn();
        (0..5).for_each(|session| world.ask(session, receive(1_000)));
        world.ask(5, receive(FEW_MESSAGES));
        assert_eq!((world.started, world.waiting()), (2, 4), "the first and the short one");
        for waiting in (0..4).rev() {
            world.turn();
            assert_eq!(world.waiting(), waiting);
        }
        world.turn();
        (0..9).for_each(|session| world.ask(session % 6, receive(25)));
        assert_eq!(world.waiting(), 5, "as many as ask for 100 together");
    }

    #[test]
    fn a_number_used_twice_is_counted_twice() {
        let mut answers = Answers::new(CONFIG);
        let session = SessionId(1);
        answers.opened(session, ConnectionId(1));
        answers.start(session, 7, &peek(1));
        answers.start(session, 7, &peek(1));
        answers.finished(session, 7);
        assert!(answers.reserved_bytes > 0);
        answers.finished(session, 7);
        assert_eq!(answers.reserved_bytes, 0);
    }
}
