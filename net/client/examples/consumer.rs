//! Takes so many messages and settles each by hand: `consumer SERVER QUEUE COUNT`.
//!
//! Prints bodies that are UTF-8 and acks them; gives others back with an error, to be tried again or to die.

use overtake_client::{Client, ConnectOptions, Consumer, ConsumerOptions, Settled};
use std::error::Error;
use std::process::ExitCode;

#[tokio::main(flavor = "current_thread")]
async fn main() -> ExitCode {
    match run().await {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("consumer: {error}");
            ExitCode::FAILURE
        }
    }
}

async fn run() -> Result<(), Box<dyn Error>> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [server, queue, count] = &arguments[..] else {
        return Err("usage: consumer SERVER QUEUE COUNT".into());
    };
    let count: usize = count.parse()?;

    let options = ConnectOptions { servers: vec![server.parse()?], ..ConnectOptions::default() };
    let client = Client::connect(options).await?;
    let options = ConsumerOptions {
        // One at a time: what is most urgent now, not what was a while ago.
        max: 1,
        lease_s: 10,
        keep_leases: true,
        label: Some("consumer example".into()),
        ..ConsumerOptions::default()
    };
    let mut consumer = Consumer::new(client.clone(), queue, options);

    let mut settled = Vec::new();
    while settled.len() < count {
        let message = consumer.next().await?;
        let id = message.id;
        settled.push(match str::from_utf8(&message.body) {
            Ok(text) => {
                println!("P{} {text}", message.priority);
                (id, message.ack())
            }
            Err(error) => (id, message.release(format!("the body is not UTF-8: {error}"))),
        });
    }
    for (id, outcome) in settled {
        if outcome.await? != Settled::Ok {
            eprintln!("{id}: its lease had ended; it may be delivered again");
        }
    }
    consumer.close().await;
    client.close().await;
    Ok(())
}
