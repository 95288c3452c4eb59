//! Works on a queue of a cluster, as a service does in production: several servers by name, a certificate to trust, a
//! token. `several_servers HOST:PORT,HOST:PORT,… CA.pem QUEUE`; the token is in `OVERTAKE_TOKEN`.
//!
//! Stores a message, works on what comes until Ctrl-C, and goes on with the other servers while one is away.

use overtake_client::{
    Client, ConnectOptions, Delivered, EnqueueMessage, Producer, ProducerOptions, ServerAddress, Trust,
    Worker, WorkerOptions,
};
use std::error::Error;
use std::process::ExitCode;

#[tokio::main(flavor = "current_thread")]
async fn main() -> ExitCode {
    match run().await {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("several_servers: {error}");
            ExitCode::FAILURE
        }
    }
}

async fn run() -> Result<(), Box<dyn Error>> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [servers, authority, queue] = &arguments[..] else {
        return Err("usage: several_servers HOST:PORT,HOST:PORT,… CA.pem QUEUE".into());
    };
    // Names are looked up at every attempt to connect.
    let servers: Result<Vec<ServerAddress>, _> = servers.split(',').map(str::parse).collect();
    let options = ConnectOptions {
        servers: servers?,
        // The name in the servers' certificates; `overtake cert node` makes all of them good for this one.
        server_name: "localhost".into(),
        // PEM, with as many certificates as there are; nobody else's are taken.
        trust: Trust::from_file(authority)?,
        token: std::env::var("OVERTAKE_TOKEN").unwrap_or_default(),
        connections: 2,
        ..ConnectOptions::default()
    };
    let client = Client::connect(options).await?;

    let producer = Producer::new(client.clone(), queue, ProducerOptions::default());
    let message = EnqueueMessage { priority: 1, body: "hello".into(), ..EnqueueMessage::default() };
    println!("stored as {}", producer.send(message).await?.await?.id);

    let worker =
        Worker::start(client.clone(), queue, WorkerOptions::default(), |message: Delivered| async move {
            println!("{}", core::str::from_utf8(&message.body)?);
            Ok(())
        });
    tokio::signal::ctrl_c().await?;
    println!("{:?}", worker.stop().await);
    for connection in client.connections() {
        println!("node {} at {}, core {}", connection.node, connection.server, connection.core);
    }
    client.close().await;
    Ok(())
}
