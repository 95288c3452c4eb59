//! Takes messages and settles each by hand.

use overtake_client::{Client, ClientError, Consumer, ConsumerOptions, Settled};

pub async fn consume(client: Client, messages: usize) -> Result<(), ClientError> {
    let options = ConsumerOptions { keep_leases: true, ..ConsumerOptions::default() };
    let mut consumer = Consumer::new(client, "mail", options);
    for _ in 0..messages {
        let message = consumer.next().await?;
        match core::str::from_utf8(&message.body) {
            Ok(text) => {
                println!("{text}");
                if message.ack().await? != Settled::Ok {
                    println!("the lease had ended: it may come again");
                }
            }
            // Not waited for: it goes with the next batch.
            Err(error) => drop(message.release(error.to_string())),
        }
    }
    consumer.close().await;
    Ok(())
}
