//! Works on a queue until Ctrl-C or SIGTERM: `worker SERVER QUEUE`.
//!
//! Prints each body. A body `fail …` fails, `panic …` panics, `slow …` takes longer than it may, and `later …` asks for
//! another try in a second: all of them come back, with the reason kept by the queue.

use overtake_client::{
    Client, ConnectOptions, Delivered, HandlerError, Retry, RetryAfter, Worker, WorkerOptions,
};
use std::error::Error;
use std::process::ExitCode;
use std::time::Duration;
use tokio::signal::unix::{SignalKind, signal};

async fn work(message: Delivered) -> Result<(), HandlerError> {
    let text = str::from_utf8(&message.body)?;
    match text.split_whitespace().next() {
        Some("fail") => return Err("told to fail".into()),
        Some("panic") => panic!("told to panic"),
        Some("slow") => tokio::time::sleep(Duration::from_secs(3_600)).await,
        Some("later") if message.deliveries == 1 => {
            return Err(RetryAfter { delay_s: 1, error: "told to wait".into() }.into());
        }
        _ => {}
    }
    println!("P{} {text}", message.priority);
    Ok(())
}

#[tokio::main(flavor = "current_thread")]
async fn main() -> ExitCode {
    match run().await {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("worker: {error}");
            ExitCode::FAILURE
        }
    }
}

async fn run() -> Result<(), Box<dyn Error>> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [server, queue] = &arguments[..] else { return Err("usage: worker SERVER QUEUE".into()) };
    let (mut interrupt, mut terminate) = (signal(SignalKind::interrupt())?, signal(SignalKind::terminate())?);

    let options = ConnectOptions { servers: vec![server.parse()?], ..ConnectOptions::default() };
    let client = Client::connect(options).await?;
    let options = WorkerOptions {
        concurrency: 4,
        lease_s: 10,
        label: Some("worker example".into()),
        timeout: Some(Duration::from_millis(500)),
        retry: Retry::Backoff { first: Duration::from_secs(1), factor: 2.0, max: Duration::from_secs(60) },
        ..WorkerOptions::default()
    };
    let worker = Worker::start(client.clone(), queue, options, work);

    tokio::select! {
        _ = interrupt.recv() => {}
        _ = terminate.recv() => {}
    }
    println!("{:?}", worker.stop().await);
    client.close().await;
    Ok(())
}
