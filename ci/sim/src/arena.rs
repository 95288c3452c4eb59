//! What clients see of a simulated system, whether it is one node or several.

use crate::world::World;
use overtake_base::Now;
use overtake_core::SessionId;
use overtake_wire::message::Request;

/// See the module's text.
pub trait Arena {
    /// Virtual time in nanoseconds.
    fn time_ns(&self) -> u64;
    /// What a client's own clocks show.
    fn now(&self) -> Now;
    /// Whether anybody takes connections.
    fn is_open(&self) -> bool;
    /// Opens a session on a core that the seed chooses.
    fn connect(&mut self) -> SessionId;
    /// Closes a session from the client's side.
    fn disconnect(&mut self, session: SessionId);
    /// Sends a request. The number of the node that it goes to; none where the session is gone.
    fn send(&mut self, session: SessionId, request: u64, body: &Request) -> Option<usize>;
    /// Asks for a timer's notice after so many nanoseconds.
    fn set_timer(&mut self, after_ns: u64, number: u64);
}

impl Arena for World {
    fn time_ns(&self) -> u64 {
        self.time_ns()
    }

    fn now(&self) -> Now {
        self.now()
    }

    fn is_open(&self) -> bool {
        self.node.is_running()
    }

    fn connect(&mut self) -> SessionId {
        self.connect()
    }

    fn disconnect(&mut self, session: SessionId) {
        self.disconnect(session);
    }

    fn send(&mut self, session: SessionId, request: u64, body: &Request) -> Option<usize> {
        self.send(session, request, body).then_some(0)
    }

    fn set_timer(&mut self, after_ns: u64, number: u64) {
        self.set_timer(after_ns, number);
    }
}
