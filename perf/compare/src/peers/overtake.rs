//! Overtake itself: one core, one connection for each session.

use crate::job::{
    Answer, Delivered, Failure, LEASE_S, LEVELS, Message, Session, System, Token, Tuning, executable,
};
use overtake_client::{Client, ConnectOptions, EnqueueMessage, QueueConfigPatch, Receive, Settle, Settled};
use std::net::{Ipv4Addr, SocketAddr};
use std::path::{Path, PathBuf};
use std::process::Command;

pub(super) struct Overtake {
    pub binary: Option<PathBuf>,
}

impl System for Overtake {
    fn name(&self) -> String {
        "Overtake".into()
    }

    fn is_strict(&self) -> bool {
        true
    }

    fn settings(&self) -> String {
        "one node, one core, as it comes: every answer after the flush".into()
    }

    fn tuning(&self) -> Tuning {
        Tuning { batch: 100, sessions: 4 }
    }

    fn install(&self) -> &'static str {
        "cargo build --release -p overtake"
    }

    fn find(&self) -> Result<PathBuf, String> {
        match &self.binary {
            Some(path) if path.is_file() => Ok(path.clone()),
            Some(path) => Err(format!("{} is not there: cargo build --release -p overtake", path.display())),
            None => executable(
                &["overtake"],
                "cargo build --release -p overtake, and give --overtake target/release/overtake",
            ),
        }
    }

    fn commands(&self, folder: &Path, port: u16) -> Result<Vec<Command>, Failure> {
        let mut command = Command::new(self.find()?);
        command.arg("serve").arg("--data").arg(folder.join("data")).args(["--cores", "1"]);
        command.args(["--quic", &format!("127.0.0.1:{port}"), "--http", &format!("127.0.0.1:{}", port + 1)]);
        Ok(vec![command])
    }

    fn create<'a>(&'a self, port: u16, queue: &'a str) -> Answer<'a, ()> {
        Box::pin(async move {
            let client = client(port).await?;
            let patch = QueueConfigPatch { levels: Some(Some(LEVELS)), ..QueueConfigPatch::default() };
            client.put_queue(queue, patch).await?;
            client.close().await;
            Ok(())
        })
    }

    fn connect<'a>(&'a self, port: u16, queue: &'a str) -> Answer<'a, Box<dyn Session>> {
        Box::pin(async move {
            let session = Native { client: client(port).await?, queue: queue.to_owned() };
            Ok(Box::new(session) as Box<dyn Session>)
        })
    }
}

async fn client(port: u16) -> Result<Client, Failure> {
    let servers = vec![SocketAddr::from((Ipv4Addr::LOCALHOST, port)).into()];
    Ok(Client::connect(ConnectOptions { servers, ..ConnectOptions::default() }).await?)
}

struct Native {
    client: Client,
    queue: String,
}

impl Native {
    async fn take(&self, max: usize) -> Result<Vec<Delivered>, Failure> {
        let receive = Receive {
            max: max as u32,
            wait_s: 1,
            lease_s: Some(LEASE_S),
            ..Receive::new(self.queue.as_str())
        };
        let messages = self.client.receive(receive).await?;
        let delivered = |message: overtake_client::Delivered| Delivered {
            body: message.body,
            token: Token::Receipt(message.receipt.to_string()),
        };
        Ok(messages.into_iter().map(delivered).collect())
    }

    async fn settle(&self, tokens: Vec<Token>) -> Result<(), Failure> {
        let receipt = |token| match token {
            Token::Receipt(receipt) => Some(receipt),
            _ => None,
        };
        let ack: Vec<String> = tokens.into_iter().filter_map(receipt).collect();
        if ack.is_empty() {
            return Ok(());
        }
        let settled =
            self.client.settle(Settle { queue: self.queue.clone(), ack, ..Settle::default() }).await?;
        match settled.ack.iter().all(|outcome| *outcome == Settled::Ok) {
            true => Ok(()),
            false => Err("an ack was not taken".into()),
        }
    }
}

impl Session for Native {
    fn enqueue<'a>(&'a mut self, messages: &'a [Message]) -> Answer<'a, ()> {
        Box::pin(async move {
            let message = |message: &Message| EnqueueMessage {
                priority: message.level.into(),
                body: message.body.clone(),
                ..EnqueueMessage::default()
            };
            for outcome in self.client.enqueue(&self.queue, messages.iter().map(message).collect()).await? {
                outcome.map_err(|refusal| refusal.to_string())?;
            }
            Ok(())
        })
    }

    fn receive(&mut self, max: usize) -> Answer<'_, Vec<Delivered>> {
        Box::pin(async move { self.take(max).await })
    }

    fn ack(&mut self, tokens: Vec<Token>) -> Answer<'_, ()> {
        Box::pin(async move { self.settle(tokens).await })
    }

    fn next(&mut self, tokens: Vec<Token>, max: usize) -> Answer<'_, Vec<Delivered>> {
        Box::pin(async move {
            let (settled, taken) = tokio::join!(self.settle(tokens), self.take(max));
            settled?;
            taken
        })
    }
}
