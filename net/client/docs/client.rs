//! Stores one message, takes what there is, and acks it.

use overtake_client::{Client, ClientError, EnqueueMessage, Receive, Settle};

pub async fn store_and_take(client: &Client) -> Result<(), ClientError> {
    let message = EnqueueMessage { priority: 1, body: "hello".into(), ..EnqueueMessage::default() };
    for outcome in client.enqueue("mail", vec![message]).await? {
        println!("stored as {}", outcome?.id);
    }
    for message in client.receive(Receive::new("mail")).await? {
        let ack = vec![message.receipt.to_string()];
        client.settle(Settle { queue: "mail".into(), ack, ..Settle::default() }).await?;
    }
    Ok(())
}
