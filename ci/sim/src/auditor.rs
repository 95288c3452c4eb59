//! Whoever makes queues and looks after the end of a run: it asks one thing after the other, on a session of its own.

use crate::arena::Arena;
use crate::history::{History, Outcome};
use crate::run::Stopped;
use overtake_core::SessionId;
use overtake_wire::message::{Request, Response};

/// See the module's text.
#[derive(Default)]
pub struct Auditor {
    session: Option<SessionId>,
    request: u64,
    answer: Option<(u64, Response)>,
}

impl Auditor {
    /// Asks; gives the call's number in the history.
    pub fn ask(
        &mut self,
        arena: &mut impl Arena,
        history: &mut History,
        queue: usize,
        request: Request,
    ) -> Result<usize, Stopped> {
        let session = match self.session {
            Some(session) => session,
            None => *self.session.insert(arena.connect()),
        };
        self.request += 1;
        self.answer = None;
        match arena.send(session, self.request, &request) {
            Some(node) => Ok(history.ask(queue, node, arena.time_ns(), request, Vec::new())),
            None => Err(Stopped::Broken("the auditor's connection is gone on a healthy node".into())),
        }
    }

    /// Whether this is the auditor's session.
    #[must_use]
    pub fn owns(&self, session: SessionId) -> bool {
        self.session == Some(session)
    }

    /// A response on its session; one to an earlier question is too late.
    pub fn hears(&mut self, request: u64, response: Response, now_ns: u64) {
        if request == self.request {
            self.answer = Some((now_ns, response));
        }
    }

    /// The answer to the call asked last, once it is there.
    pub fn answer(&mut self, history: &mut History, call: usize) -> Option<Response> {
        let (at_ns, response) = self.answer.take()?;
        history.calls[call].outcome = Outcome::Answered(at_ns, response.clone());
        Some(response)
    }

    /// It goes; the next question comes on a new connection, to a core that the seed chooses.
    pub fn leaves(&mut self, arena: &mut impl Arena) {
        if let Some(session) = self.session.take() {
            arena.disconnect(session);
        }
    }
}
