//! The HTTP front end in a process of its own, in front of a server of a test; killed on drop.

use crate::client::Client;
use crate::server::{Server, free_address};
use crate::time::eventually;
use std::net::SocketAddr;
use std::process::{Child, Stdio};

/// A running gateway.
#[derive(Debug)]
pub struct Gateway {
    child: Child,
    http: SocketAddr,
}

impl Gateway {
    /// Starts a gateway in front of `server` and waits until it is ready.
    #[track_caller]
    pub fn start(server: &Server) -> Self {
        let http = free_address();
        let mut command = crate::binary::command();
        command.args(["gateway", "--http", &http.to_string(), "--connect", &server.quic().to_string()]);
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
        let gateway = Self { child: command.spawn().expect("the binary can be started"), http };
        gateway.wait_until_ready();
        gateway
    }

    /// A client of it.
    pub fn client(&self) -> Client {
        Client::new(self.http)
    }

    /// Waits until it says that it is ready.
    #[track_caller]
    pub fn wait_until_ready(&self) {
        let client = self.client();
        eventually("the gateway to be ready", || {
            let reply = client.try_call("GET", "/readyz", &[], None);
            reply.is_ok_and(|reply| reply.status == 200).then_some(())
        });
    }
}

impl Drop for Gateway {
    fn drop(&mut self) {
        // It may have ended already.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
