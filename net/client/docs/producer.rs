//! Sends two messages and waits for both to be stored.

use overtake_client::{Client, ClientError, EnqueueMessage, Producer, ProducerOptions};

pub async fn produce(client: Client) -> Result<(), ClientError> {
    let producer = Producer::new(client, "mail", ProducerOptions::default());
    let message = |priority, body: &'static str| EnqueueMessage {
        priority,
        body: body.into(),
        ..EnqueueMessage::default()
    };
    let first = producer.send(message(1, "a")).await?;
    let second = producer.send(message(4, "b")).await?;
    println!("stored as {} and {}", first.await?.id, second.await?.id);
    producer.close().await;
    Ok(())
}
