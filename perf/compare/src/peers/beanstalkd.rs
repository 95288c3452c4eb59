//! beanstalkd: priorities are its own; a batch is several commands sent together.

use crate::job::{
    Answer, Delivered, Failure, LEASE_S, Message, Session, System, Token, Tuning, WAIT, executable,
};
use bytes::Bytes;
use core::fmt::Write as _;
use std::path::{Path, PathBuf};
use std::process::Command;
use tokio::io::{AsyncBufReadExt as _, AsyncReadExt as _, AsyncWriteExt as _, BufReader};
use tokio::net::TcpStream;

pub(super) struct Beanstalkd {
    pub strict: bool,
}

impl System for Beanstalkd {
    fn name(&self) -> String {
        if self.strict { "beanstalkd -f0".into() } else { "beanstalkd -f50".into() }
    }

    fn is_strict(&self) -> bool {
        self.strict
    }

    fn settings(&self) -> String {
        let sync = if self.strict { "-f0: a flush for every change" } else { "-f50: a flush every 50 ms" };
        format!("{sync}, log files of 10 MB; commands of a batch sent together")
    }

    fn tuning(&self) -> Tuning {
        Tuning { batch: 50, sessions: 4 }
    }

    fn install(&self) -> &'static str {
        "apt-get install beanstalkd"
    }

    fn version(&self, program: &Path) -> Command {
        let mut command = Command::new(program);
        command.arg("-v");
        command
    }

    fn find(&self) -> Result<PathBuf, String> {
        executable(&["beanstalkd"], self.install())
    }

    fn commands(&self, folder: &Path, port: u16) -> Result<Vec<Command>, Failure> {
        let mut command = Command::new(self.find()?);
        command.args(["-l", "127.0.0.1", "-p", &port.to_string(), "-z", "131072", "-b"]).arg(folder);
        command.arg(if self.strict { "-f0" } else { "-f50" });
        Ok(vec![command])
    }

    fn create<'a>(&'a self, port: u16, _queue: &'a str) -> Answer<'a, ()> {
        Box::pin(async move { Ok(TcpStream::connect(("127.0.0.1", port)).await.map(drop)?) })
    }

    fn connect<'a>(&'a self, port: u16, queue: &'a str) -> Answer<'a, Box<dyn Session>> {
        Box::pin(async move {
            let stream = TcpStream::connect(("127.0.0.1", port)).await?;
            stream.set_nodelay(true)?;
            let mut session = Tube { stream: BufReader::with_capacity(256 * 1024, stream) };
            session.send(format!("use {queue}\r\nwatch {queue}\r\nignore default\r\n").as_bytes()).await?;
            session.expect("USING").await?;
            session.expect("WATCHING").await?;
            session.expect("WATCHING").await?;
            Ok(Box::new(session) as Box<dyn Session>)
        })
    }
}

struct Tube {
    stream: BufReader<TcpStream>,
}

impl Tube {
    async fn send(&mut self, bytes: &[u8]) -> Result<(), Failure> {
        Ok(self.stream.get_mut().write_all(bytes).await?)
    }

    async fn line(&mut self) -> Result<String, Failure> {
        let mut line = String::new();
        if self.stream.read_line(&mut line).await? == 0 {
            return Err("beanstalkd closed the connection".into());
        }
        Ok(line.trim_end().to_owned())
    }

    async fn expect(&mut self, word: &str) -> Result<String, Failure> {
        let line = self.line().await?;
        if line.starts_with(word) {
            Ok(line)
        } else {
            Err(format!("beanstalkd answered {line:?}, not {word}").into())
        }
    }

    /// One answer to a reserve; None where there was nothing.
    async fn reserved(&mut self) -> Result<Option<Delivered>, Failure> {
        let line = self.line().await?;
        let mut words = line.split(' ');
        match (
            words.next(),
            words.next().and_then(|id| id.parse().ok()),
            words.next().and_then(|n| n.parse().ok()),
        ) {
            (Some("RESERVED"), Some(id), Some(length)) => {
                let length: usize = length;
                let mut body = vec![0; length + 2];
                self.stream.read_exact(&mut body).await?;
                body.truncate(length);
                Ok(Some(Delivered { body: Bytes::from(body), token: Token::Number(id) }))
            }
            (Some("TIMED_OUT" | "DEADLINE_SOON"), ..) => Ok(None),
            _ => Err(format!("beanstalkd answered {line:?} to a reserve").into()),
        }
    }
}

impl Session for Tube {
    fn enqueue<'a>(&'a mut self, messages: &'a [Message]) -> Answer<'a, ()> {
        Box::pin(async move {
            let mut out = Vec::with_capacity(messages.len() * 1_100);
            for message in messages {
                out.extend_from_slice(
                    format!("put {} 0 {LEASE_S} {}\r\n", message.level, message.body.len()).as_bytes(),
                );
                out.extend_from_slice(&message.body);
                out.extend_from_slice(b"\r\n");
            }
            self.send(&out).await?;
            for _ in messages {
                self.expect("INSERTED").await?;
            }
            Ok(())
        })
    }

    fn receive(&mut self, max: usize) -> Answer<'_, Vec<Delivered>> {
        Box::pin(async move {
            // Its waits are whole seconds.
            let wait_s = WAIT.as_secs().max(1);
            self.send(format!("reserve-with-timeout {wait_s}\r\n").as_bytes()).await?;
            let Some(first) = self.reserved().await? else { return Ok(vec![]) };
            let mut taken = vec![first];
            if max > 1 {
                self.send("reserve-with-timeout 0\r\n".repeat(max - 1).as_bytes()).await?;
                for _ in 1..max {
                    taken.extend(self.reserved().await?);
                }
            }
            Ok(taken)
        })
    }

    fn ack(&mut self, tokens: Vec<Token>) -> Answer<'_, ()> {
        Box::pin(async move {
            let mut out = String::new();
            for token in &tokens {
                if let Token::Number(id) = token {
                    let _ = write!(out, "delete {id}\r\n");
                }
            }
            self.send(out.as_bytes()).await?;
            for _ in &tokens {
                self.expect("DELETED").await?;
            }
            Ok(())
        })
    }
}
