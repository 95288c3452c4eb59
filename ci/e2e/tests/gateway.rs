//! The HTTP front end alone, in front of a server elsewhere: the same contract, and clear answers while the server is
//! away.

use overtake_e2e::server::free_address;
use overtake_e2e::{Client, Queue, Server, eventually};
use serde_json::json;
use std::net::SocketAddr;
use std::process::{Child, Stdio};

struct Gateway {
    child: Child,
    http: SocketAddr,
}

impl Gateway {
    fn start(server: &Server) -> Self {
        let http = free_address();
        let mut command = overtake_e2e::binary::command();
        command.args(["gateway", "--http", &http.to_string(), "--connect", &server.quic().to_string()]);
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
        match command.spawn() {
            Ok(child) => Self { child, http },
            Err(error) => panic!("{command:?}: {error}"),
        }
    }
}

impl Drop for Gateway {
    fn drop(&mut self) {
        // It may have ended already.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

#[test]
fn a_gateway_of_its_own_serves_the_contract() {
    let mut server = Server::start();
    let queue = server.create("far", json!({}));
    let gateway = Gateway::start(&server);
    let client = Client::new(gateway.http);
    let ready = || client.try_call("GET", "/readyz", &[], None).map(|reply| reply.status).unwrap_or(0);
    eventually("the gateway to be ready", || (ready() == 200).then_some(()));
    let far = Queue::new(client.clone(), "far");
    let id = far.put(1, "through the gateway");
    let message = queue.receive_one(json!({}));
    assert_eq!((&message.id, message.text().as_str()), (&id, "through the gateway"));
    assert_eq!(far.ack(&message.receipt), "ok");
    assert_eq!(far.stats()["totals"], queue.stats()["totals"]);

    server.kill();
    client.call("GET", "/healthz").expect_status(200);
    client.call("GET", "/readyz").problem(503);
    far.try_enqueue(json!({"priority": 0})).problem(503);
    server.start_again();
    eventually("the gateway to be ready again", || (ready() == 200).then_some(()));
    let id = far.put(0, "after the restart");
    assert_eq!(far.receive_one(json!({})).id, id);
    far.stats();
}
