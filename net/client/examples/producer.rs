//! Stores each line of standard input as a message: `producer SERVER QUEUE [PRIORITY] < lines.txt`.
//!
//! Lines are sent in batches; each is confirmed when it is on the server's disk. A lost connection or a restarting
//! server is waited for, and nothing is stored twice.

use overtake_client::{Client, ConnectOptions, Delay, EnqueueMessage, Producer, ProducerOptions};
use std::error::Error;
use std::process::ExitCode;
use std::time::Duration;

#[tokio::main(flavor = "current_thread")]
async fn main() -> ExitCode {
    match run().await {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("producer: {error}");
            ExitCode::FAILURE
        }
    }
}

async fn run() -> Result<(), Box<dyn Error>> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [server, queue, rest @ ..] = &arguments[..] else {
        return Err("usage: producer SERVER QUEUE [PRIORITY]".into());
    };
    let priority = rest.first().map_or(Ok(2), |text| text.parse())?;

    let options = ConnectOptions { servers: vec![server.parse()?], ..ConnectOptions::default() };
    let client = Client::connect(options).await?;
    let options = ProducerOptions { linger: Duration::from_millis(2), ..ProducerOptions::default() };
    let producer = Producer::new(client.clone(), queue, options);

    let mut confirmations = Vec::new();
    for line in std::io::stdin().lines() {
        let message = EnqueueMessage {
            priority,
            body: line?.into(),
            delay: Delay::None,
            headers: vec![("made-by".into(), "the producer example".into())],
            ..EnqueueMessage::default()
        };
        // Waits while 16 MiB are not confirmed yet.
        confirmations.push(producer.send(message).await?);
    }
    producer.flush().await;

    let mut failed = 0;
    for (number, confirmation) in confirmations.into_iter().enumerate() {
        match confirmation.await {
            Ok(stored) => println!("{}", stored.id),
            Err(error) => {
                eprintln!("line {}: {error}", number + 1);
                failed += 1;
            }
        }
    }
    producer.close().await;
    client.close().await;
    if failed > 0 { Err(format!("{failed} lines are not stored").into()) } else { Ok(()) }
}
