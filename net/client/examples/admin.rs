//! Everything an administrator does with a queue, once: `admin SERVER QUEUE`. Makes the queue and deletes it again.

use overtake_client::*;
use std::error::Error;
use std::process::ExitCode;

#[tokio::main(flavor = "current_thread")]
async fn main() -> ExitCode {
    match run().await {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("admin: {error}");
            ExitCode::FAILURE
        }
    }
}

async fn run() -> Result<(), Box<dyn Error>> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [server, queue] = &arguments[..] else { return Err("usage: admin SERVER QUEUE".into()) };
    let options = ConnectOptions { servers: vec![server.parse()?], ..ConnectOptions::default() };
    let client = Client::connect(options).await?;

    // A field of a patch is left alone (None), set (Some(Some(value))) or put back to its default (Some(None)).
    let patch = QueueConfigPatch {
        levels: Some(Some(3)),
        max_deliveries: Some(Some(1)),
        ..QueueConfigPatch::default()
    };
    let (created, config) = client.put_queue(queue, patch).await?;
    println!("created: {created}, {} levels", config.levels);
    let patch = QueueConfigPatch { lease_s: Some(Some(60)), ..QueueConfigPatch::default() };
    let (created, config) = client.put_queue(queue, patch).await?;
    println!("created: {created}, leases of {} s", config.lease_s);
    println!("kept for {} s", client.get_queue(queue).await?.retention_s);
    let mut after = None;
    loop {
        let page = client.list_queues(100, after).await?;
        for listed in page.entries.iter().filter(|listed| listed.name == **queue) {
            println!("listed: {} messages", listed.depth);
        }
        match page.next {
            Some(next) => after = Some(next),
            None => break,
        }
    }

    let message = |priority, body: &str, delay| EnqueueMessage {
        priority,
        body: body.to_owned().into(),
        delay,
        ..EnqueueMessage::default()
    };
    let messages = vec![
        message(0, "dies", Delay::None),
        message(1, "is cancelled", Delay::AfterS(3_600)),
        message(2, "is purged", Delay::None),
    ];
    let stored: Vec<Enqueued> =
        client.enqueue(queue, messages).await?.into_iter().collect::<Result<_, _>>()?;

    let states = PeekStates { visible: true, delayed: true, leased: true };
    for peeked in client.peek(queue, states, None, 10, None).await?.entries {
        println!("P{} {:?}", peeked.priority, peeked.state);
    }
    println!("why: {}", client.inspect(queue, stored[1].id).await?.why);
    client.cancel(queue, stored[1].id).await?;

    // The one delivery that the queue allows fails.
    let receive = Receive { max: 1, wait_s: 5, ..Receive::new(queue.as_str()) };
    for delivered in client.receive(receive).await? {
        let release = Release {
            receipt: delivered.receipt.to_string(),
            delay_s: None,
            error: Some("an example".into()),
        };
        let settle = Settle { queue: queue.clone(), release: vec![release], ..Settle::default() };
        println!("released: {:?}", client.settle(settle).await?.release);
    }
    for dead in client.dlq_list(queue, 10, None).await?.entries {
        println!("dead of: {}", dead.last_error);
    }
    let redrive = |dry_run| Redrive {
        queue: queue.clone(),
        selection: RedriveSelection::All,
        priority: Some(2),
        max_per_s: None,
        dry_run,
    };
    println!("would come back: {}", client.dlq_redrive(redrive(true)).await?);
    println!("came back: {}", client.dlq_redrive(redrive(false)).await?);
    println!("dead letters purged: {}", client.dlq_purge(queue).await?);
    println!("purged: {}", client.purge(queue).await?);

    let totals = client.stats(queue).await?.totals;
    println!("enqueued {}, cancelled {}, purged {}", totals.enqueued, totals.cancelled, totals.purged);
    client.delete_queue(queue).await?;
    let (nodes, shards) = client.cluster().await?;
    println!("{} node, {} shards", nodes.len(), shards.len());
    for connection in client.connections() {
        println!("core {} of {}", connection.core + 1, connection.cores);
    }
    client.close().await;
    Ok(())
}
