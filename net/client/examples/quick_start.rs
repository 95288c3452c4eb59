//! Stores a message and works on what comes until Ctrl-C: `quick_start [SERVER]`.

use overtake_client::{
    Client, ConnectOptions, Delivered, EnqueueMessage, Producer, ProducerOptions, Worker, WorkerOptions,
};
use std::error::Error;
use std::process::ExitCode;

#[tokio::main(flavor = "current_thread")]
async fn main() -> ExitCode {
    match run().await {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("quick_start: {error}");
            ExitCode::FAILURE
        }
    }
}

async fn run() -> Result<(), Box<dyn Error>> {
    let mut options = ConnectOptions::default(); // 127.0.0.1:7400, or the server that is named:
    if let Some(server) = std::env::args().nth(1) {
        options.servers = vec![server.parse()?];
    }
    let client = Client::connect(options).await?;

    let producer = Producer::new(client.clone(), "mail", ProducerOptions::default());
    let message = EnqueueMessage { priority: 1, body: "hello".into(), ..EnqueueMessage::default() };
    println!("stored as {}", producer.send(message).await?.await?.id);

    let worker = Worker::start(client, "mail", WorkerOptions::default(), |message: Delivered| async move {
        println!("{}", core::str::from_utf8(&message.body)?);
        Ok(())
    });
    tokio::signal::ctrl_c().await?;
    println!("{:?}", worker.stop().await);
    Ok(())
}
