//! Works on messages until it is told to stop.

use overtake_client::{Client, Delivered, Report, Worker, WorkerOptions};

pub async fn work(client: Client, until: impl Future<Output = ()>) -> Report {
    let worker = Worker::start(client, "mail", WorkerOptions::default(), |message: Delivered| async move {
        println!("{}", core::str::from_utf8(&message.body)?);
        Ok(())
    });
    until.await;
    worker.stop().await
}
