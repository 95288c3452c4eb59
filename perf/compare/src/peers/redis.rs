//! Redis: a list for each level and a hash of what is leased, moved by scripts, so that each step is one atomic command.

use crate::job::{
    Answer, Delivered, Failure, LEASE_S, LEVELS, Message, POLL, Session, System, Token, Tuning, WAIT,
    executable,
};
use bytes::Bytes;
use redis::Script;
use redis::aio::MultiplexedConnection;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Instant, SystemTime, UNIX_EPOCH};

pub(super) struct Redis {
    pub strict: bool,
}

const ENQUEUE: &str = "
local queue = ARGV[1]
for i = 2, #ARGV, 2 do
  local id = redis.call('INCR', queue .. ':id')
  redis.call('RPUSH', queue .. ':' .. ARGV[i], id .. ':' .. ARGV[i + 1])
end
return 1";

/// Acks what it is given, then takes.
const NEXT: &str = "
local queue, max, expires = ARGV[1], tonumber(ARGV[2]), ARGV[3]
for i = 5, #ARGV do
  redis.call('HDEL', queue .. ':leased', ARGV[i])
  redis.call('ZREM', queue .. ':expiry', ARGV[i])
end
local taken = {}
for level = 0, tonumber(ARGV[4]) - 1 do
  if #taken >= max then break end
  local found = redis.call('LPOP', queue .. ':' .. level, max - #taken)
  if found then
    for _, message in ipairs(found) do
      local id = string.match(message, '^%d+')
      redis.call('HSET', queue .. ':leased', id, message)
      redis.call('ZADD', queue .. ':expiry', expires, id)
      taken[#taken + 1] = message
    end
  end
end
return taken";

impl System for Redis {
    fn name(&self) -> String {
        if self.strict { "Redis, appendfsync always".into() } else { "Redis, appendfsync everysec".into() }
    }

    fn is_strict(&self) -> bool {
        self.strict
    }

    fn settings(&self) -> String {
        let sync = if self.strict { "always" } else { "everysec" };
        format!(
            "appendonly yes, appendfsync {sync}, no snapshots; Lua scripts, ack and receive in one call; polled every 1 ms when empty"
        )
    }

    fn tuning(&self) -> Tuning {
        Tuning { batch: 100, sessions: 8 }
    }

    fn install(&self) -> &'static str {
        "apt-get install redis-server"
    }

    fn find(&self) -> Result<PathBuf, String> {
        executable(&["redis-server"], self.install())
    }

    fn commands(&self, folder: &Path, port: u16) -> Result<Vec<Command>, Failure> {
        let mut command = Command::new(self.find()?);
        command.args([
            "--port",
            &port.to_string(),
            "--bind",
            "127.0.0.1",
            "--save",
            "",
            "--appendonly",
            "yes",
        ]);
        command.args(["--appendfsync", if self.strict { "always" } else { "everysec" }]);
        command.arg("--dir").arg(folder);
        Ok(vec![command])
    }

    fn create<'a>(&'a self, port: u16, _queue: &'a str) -> Answer<'a, ()> {
        Box::pin(async move {
            let mut connection = connect(port).await?;
            // Answers with an error while the log is being loaded.
            Ok(redis::cmd("GET").arg("ready").query_async::<()>(&mut connection).await?)
        })
    }

    fn connect<'a>(&'a self, port: u16, queue: &'a str) -> Answer<'a, Box<dyn Session>> {
        Box::pin(async move {
            let session = Scripts {
                connection: connect(port).await?,
                queue: queue.to_owned(),
                enqueue: Script::new(ENQUEUE),
                next: Script::new(NEXT),
            };
            Ok(Box::new(session) as Box<dyn Session>)
        })
    }
}

async fn connect(port: u16) -> Result<MultiplexedConnection, Failure> {
    Ok(redis::Client::open(format!("redis://127.0.0.1:{port}/"))?.get_multiplexed_async_connection().await?)
}

struct Scripts {
    connection: MultiplexedConnection,
    queue: String,
    enqueue: Script,
    next: Script,
}

impl Scripts {
    async fn call(&mut self, tokens: &[Token], max: usize) -> Result<Vec<Delivered>, Failure> {
        let now_s = SystemTime::now().duration_since(UNIX_EPOCH)?.as_secs();
        let mut call = self.next.prepare_invoke();
        call.arg(&self.queue).arg(max).arg(now_s + u64::from(LEASE_S)).arg(LEVELS);
        for token in tokens {
            if let Token::Number(id) = token {
                call.arg(*id);
            }
        }
        let taken: Vec<Vec<u8>> = call.invoke_async(&mut self.connection).await?;
        let delivered = |message: Vec<u8>| {
            let at = message.iter().position(|byte| *byte == b':')?;
            let id = core::str::from_utf8(&message[..at]).ok()?.parse().ok()?;
            Some(Delivered { body: Bytes::from(message).slice(at + 1..), token: Token::Number(id) })
        };
        Ok(taken.into_iter().filter_map(delivered).collect())
    }
}

impl Session for Scripts {
    fn enqueue<'a>(&'a mut self, messages: &'a [Message]) -> Answer<'a, ()> {
        Box::pin(async move {
            let mut call = self.enqueue.prepare_invoke();
            call.arg(&self.queue);
            for message in messages {
                call.arg(message.level).arg(&message.body[..]);
            }
            Ok(call.invoke_async::<()>(&mut self.connection).await?)
        })
    }

    fn receive(&mut self, max: usize) -> Answer<'_, Vec<Delivered>> {
        self.next(vec![], max)
    }

    fn ack(&mut self, tokens: Vec<Token>) -> Answer<'_, ()> {
        Box::pin(async move { self.call(&tokens, 0).await.map(drop) })
    }

    fn next(&mut self, tokens: Vec<Token>, max: usize) -> Answer<'_, Vec<Delivered>> {
        Box::pin(async move {
            let (start, mut tokens) = (Instant::now(), tokens);
            loop {
                let taken = self.call(&tokens, max).await?;
                tokens.clear();
                if !taken.is_empty() || start.elapsed() > WAIT {
                    return Ok(taken);
                }
                tokio::time::sleep(POLL).await;
            }
        })
    }
}
