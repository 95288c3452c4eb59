//! `RabbitMQ`: a quorum queue for each level, or one classic queue with priorities. Messages are pushed to consumers up to
//! a prefetch, and taken from there most urgent first.

use crate::job::{
    Answer, Delivered, Failure, LEVELS, Message, Session, System, Token, Tuning, WAIT, executable,
};
use bytes::Bytes;
use futures_util::StreamExt as _;
use lapin::options::{
    BasicAckOptions, BasicConsumeOptions, BasicPublishOptions, BasicQosOptions, ConfirmSelectOptions,
    QueueDeclareOptions,
};
use lapin::types::{AMQPValue, FieldTable};
use lapin::{BasicProperties, Channel, Confirmation, Connection, ConnectionProperties};
use std::cell::RefCell;
use std::collections::VecDeque;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::rc::Rc;
use tokio::sync::Notify;

#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Kind {
    Quorum,
    Classic,
    ClassicTransient,
}

pub(super) struct RabbitMq {
    pub kind: Kind,
}

/// Unacked messages of each consumer, at most.
const PREFETCH: u16 = 200;
const PERSISTENT: u8 = 2;
const TRANSIENT: u8 = 1;

impl RabbitMq {
    /// The queue that a level is in.
    fn queue_of(&self, queue: &str, level: u8) -> String {
        if self.kind == Kind::Quorum { format!("{queue}.{level}") } else { queue.to_owned() }
    }

    fn queues(&self) -> u8 {
        if self.kind == Kind::Quorum { LEVELS } else { 1 }
    }
}

impl System for RabbitMq {
    fn name(&self) -> String {
        match self.kind {
            Kind::Quorum => "RabbitMQ, quorum queues".into(),
            Kind::Classic => "RabbitMQ, classic priority queue".into(),
            Kind::ClassicTransient => "RabbitMQ, classic, transient messages".into(),
        }
    }

    fn is_strict(&self) -> bool {
        self.kind != Kind::ClassicTransient
    }

    fn settings(&self) -> String {
        let queues = match self.kind {
            Kind::Quorum => "a quorum queue for each level, one node",
            Kind::Classic => "one durable classic queue, x-max-priority 5, persistent messages",
            Kind::ClassicTransient => "one durable classic queue, x-max-priority 5, messages not persistent",
        };
        format!(
            "{queues}; publisher confirms, publishes of a batch under way together, prefetch {PREFETCH}, acks as AMQP has them (not confirmed)"
        )
    }

    fn tuning(&self) -> Tuning {
        Tuning { batch: 200, sessions: 4 }
    }

    fn install(&self) -> &'static str {
        "apt-get install rabbitmq-server"
    }

    /// The server itself would start.
    fn version(&self, program: &Path) -> Command {
        let mut command = Command::new(program.with_file_name("rabbitmqctl"));
        command.args(["--silent", "version"]);
        command
    }

    fn find(&self) -> Result<PathBuf, String> {
        executable(&["/usr/lib/rabbitmq/bin/rabbitmq-server"], self.install())
    }

    fn prepare(&self, folder: &Path) -> Result<(), Failure> {
        let text = "loopback_users = none\nlog.console = false\ndisk_free_limit.absolute = 100MB\n";
        std::fs::write(folder.join("rabbitmq.conf"), text)?;
        Ok(std::fs::write(folder.join("enabled_plugins"), "[].\n")?)
    }

    fn commands(&self, folder: &Path, port: u16) -> Result<Vec<Command>, Failure> {
        // A name server of our own, so that it ends with the rest.
        let epmd_port = (port + 1).to_string();
        let mut names = Command::new(executable(&["epmd"], self.install())?);
        names.args(["-address", "127.0.0.1", "-port", &epmd_port]);
        let mut server = Command::new(self.find()?);
        server.env("HOME", folder).env("ERL_EPMD_PORT", &epmd_port).env("ERL_EPMD_ADDRESS", "127.0.0.1");
        server
            .env("RABBITMQ_NODENAME", format!("compare{port}@localhost"))
            .env("RABBITMQ_NODE_IP_ADDRESS", "127.0.0.1");
        server.env("RABBITMQ_NODE_PORT", port.to_string()).env("RABBITMQ_DIST_PORT", (port + 2).to_string());
        server
            .env("RABBITMQ_MNESIA_BASE", folder.join("mnesia"))
            .env("RABBITMQ_LOG_BASE", folder.join("log"));
        server.env("RABBITMQ_CONFIG_FILE", folder.join("rabbitmq.conf"));
        server.env("RABBITMQ_ENABLED_PLUGINS_FILE", folder.join("enabled_plugins"));
        server.env("RABBITMQ_SERVER_ADDITIONAL_ERL_ARGS", "-kernel inet_dist_use_interface {127,0,0,1}");
        Ok(vec![names, server])
    }

    fn create<'a>(&'a self, port: u16, queue: &'a str) -> Answer<'a, ()> {
        Box::pin(async move {
            let connection = connect(port).await?;
            let channel = connection.create_channel().await?;
            for level in 0..self.queues() {
                let mut arguments = FieldTable::default();
                if self.kind == Kind::Quorum {
                    arguments.insert("x-queue-type".into(), AMQPValue::LongString("quorum".into()));
                } else {
                    arguments.insert("x-max-priority".into(), AMQPValue::LongInt(i32::from(LEVELS)));
                }
                let name = self.queue_of(queue, level);
                channel
                    .queue_declare(name.as_str().into(), QueueDeclareOptions::durable(), arguments)
                    .await?;
            }
            connection.close(200, "done".into()).await?;
            Ok(())
        })
    }

    fn connect<'a>(&'a self, port: u16, queue: &'a str) -> Answer<'a, Box<dyn Session>> {
        Box::pin(async move {
            let connection = connect(port).await?;
            let channel = connection.create_channel().await?;
            channel.confirm_select(ConfirmSelectOptions::default()).await?;
            let queues = (0..LEVELS).map(|level| self.queue_of(queue, level)).collect();
            let session = Amqp {
                _connection: connection,
                channel,
                queues,
                consumed: self.queues(),
                mode: if self.kind == Kind::ClassicTransient { TRANSIENT } else { PERSISTENT },
                arrived: None,
            };
            Ok(Box::new(session) as Box<dyn Session>)
        })
    }
}

async fn connect(port: u16) -> Result<Connection, Failure> {
    let uri = format!("amqp://guest:guest@127.0.0.1:{port}/%2f");
    Ok(Connection::connect(&uri, ConnectionProperties::default()).await?)
}

/// Messages that were pushed and not taken yet, by level.
#[derive(Default)]
struct Arrived {
    levels: RefCell<Vec<VecDeque<Delivered>>>,
    more: Notify,
}

struct Amqp {
    _connection: Connection,
    channel: Channel,
    queues: Vec<String>,
    /// Queues that there are.
    consumed: u8,
    mode: u8,
    arrived: Option<Rc<Arrived>>,
}

impl Amqp {
    /// Messages are pushed from the first receive on.
    async fn arrived(&mut self) -> Result<Rc<Arrived>, Failure> {
        if let Some(arrived) = &self.arrived {
            return Ok(arrived.clone());
        }
        let arrived = Rc::new(Arrived::default());
        arrived.levels.borrow_mut().resize_with(usize::from(LEVELS), VecDeque::new);
        self.channel.basic_qos(PREFETCH, BasicQosOptions::default()).await?;
        for level in 0..self.consumed {
            let name = &self.queues[usize::from(level)];
            let tag = format!("consumer{level}");
            let (options, arguments) = (BasicConsumeOptions::default(), FieldTable::default());
            let mut pushed = self
                .channel
                .basic_consume(name.as_str().into(), tag.as_str().into(), options, arguments)
                .await?;
            let arrived = arrived.clone();
            tokio::task::spawn_local(async move {
                while let Some(Ok(delivery)) = pushed.next().await {
                    let token = Token::Number(delivery.delivery_tag);
                    let delivered = Delivered { body: Bytes::from(delivery.data), token };
                    let level = usize::from(delivered.level().min(LEVELS - 1));
                    arrived.levels.borrow_mut()[level].push_back(delivered);
                    arrived.more.notify_one();
                }
            });
        }
        self.arrived = Some(arrived.clone());
        Ok(arrived)
    }
}

impl Session for Amqp {
    fn enqueue<'a>(&'a mut self, messages: &'a [Message]) -> Answer<'a, ()> {
        Box::pin(async move {
            let mut confirmations = Vec::with_capacity(messages.len());
            for message in messages {
                // Its highest number is the most urgent.
                let properties = BasicProperties::default()
                    .with_delivery_mode(self.mode)
                    .with_priority(LEVELS - 1 - message.level);
                let name = self.queues[usize::from(message.level)].as_str();
                let options = BasicPublishOptions::default();
                confirmations.push(
                    self.channel
                        .basic_publish("".into(), name.into(), options, &message.body, properties)
                        .await?,
                );
            }
            for confirmation in confirmations {
                if !matches!(confirmation.await?, Confirmation::Ack(_)) {
                    return Err("RabbitMQ did not confirm a message".into());
                }
            }
            Ok(())
        })
    }

    fn receive(&mut self, max: usize) -> Answer<'_, Vec<Delivered>> {
        Box::pin(async move {
            let arrived = self.arrived().await?;
            let mut taken = Vec::new();
            loop {
                for level in arrived.levels.borrow_mut().iter_mut() {
                    while taken.len() < max
                        && let Some(delivered) = level.pop_front()
                    {
                        taken.push(delivered);
                    }
                }
                if !taken.is_empty() || tokio::time::timeout(WAIT, arrived.more.notified()).await.is_err() {
                    return Ok(taken);
                }
            }
        })
    }

    fn ack(&mut self, tokens: Vec<Token>) -> Answer<'_, ()> {
        Box::pin(async move {
            for token in tokens {
                if let Token::Number(tag) = token {
                    self.channel.basic_ack(tag, BasicAckOptions::default()).await?;
                }
            }
            Ok(())
        })
    }
}
