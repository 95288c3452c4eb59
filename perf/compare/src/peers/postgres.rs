//! PostgreSQL: a table, an index over what is visible, `FOR UPDATE SKIP LOCKED`.

use crate::job::{
    Answer, Delivered, Failure, LEASE_S, Message, POLL, Session, System, Token, Tuning, WAIT, executable,
};
use bytes::Bytes;
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Instant;
use tokio_postgres::{Client, NoTls, Statement};

pub(super) struct Postgres {
    pub strict: bool,
}

const INSTALL: &str = "apt-get install postgresql";
const VERSIONS: [&str; 6] = ["18", "17", "16", "15", "14", "13"];

fn program(name: &str) -> Result<PathBuf, String> {
    let mut names: Vec<String> =
        VERSIONS.iter().map(|v| format!("/usr/lib/postgresql/{v}/bin/{name}")).collect();
    names.push(name.to_owned());
    executable(&names.iter().map(String::as_str).collect::<Vec<_>>(), INSTALL)
}

/// The server refuses to run as root: then it runs as `postgres`, or as `nobody`.
fn user() -> Option<(u32, u32)> {
    if !rustix::process::getuid().is_root() {
        return None;
    }
    let users = std::fs::read_to_string("/etc/passwd").unwrap_or_default();
    ["postgres:", "nobody:"].iter().find_map(|name| {
        let mut fields = users.lines().find(|line| line.starts_with(name))?.split(':').skip(2);
        Some((fields.next()?.parse().ok()?, fields.next()?.parse().ok()?))
    })
}

fn as_user(mut command: Command) -> Command {
    if let Some((user, group)) = user() {
        command.uid(user).gid(group);
    }
    command
}

impl System for Postgres {
    fn name(&self) -> String {
        if self.strict {
            "PostgreSQL, synchronous commit".into()
        } else {
            "PostgreSQL, asynchronous commit".into()
        }
    }

    fn is_strict(&self) -> bool {
        self.strict
    }

    fn settings(&self) -> String {
        let commit = if self.strict { "on" } else { "off" };
        format!(
            "synchronous_commit {commit}, fsync on, shared_buffers 1 GB, max_wal_size 8 GB; SKIP LOCKED over a partial index, array inserts and deletes; polled every 1 ms when empty"
        )
    }

    fn tuning(&self) -> Tuning {
        Tuning { batch: 200, sessions: 4 }
    }

    fn install(&self) -> &'static str {
        INSTALL
    }

    fn find(&self) -> Result<PathBuf, String> {
        program("postgres")
    }

    fn prepare(&self, folder: &Path) -> Result<(), Failure> {
        if let Some((user, group)) = user() {
            std::os::unix::fs::chown(folder, Some(user), Some(group))?;
        }
        let mut command = as_user(Command::new(program("initdb")?));
        command.args(["--username", "compare", "--auth", "trust", "--encoding", "UTF8", "--no-locale", "-D"]);
        let output = command.arg(folder.join("data")).current_dir(folder).output()?;
        match output.status.success() {
            true => Ok(()),
            false => Err(format!("initdb: {}", String::from_utf8_lossy(&output.stderr)).into()),
        }
    }

    fn commands(&self, folder: &Path, port: u16) -> Result<Vec<Command>, Failure> {
        let mut command = as_user(Command::new(self.find()?));
        command.arg("-D").arg(folder.join("data")).arg("-k").arg(folder).current_dir(folder);
        let commit = if self.strict { "synchronous_commit=on" } else { "synchronous_commit=off" };
        let port = format!("port={port}");
        let settings = [
            port.as_str(),
            commit,
            "listen_addresses=127.0.0.1",
            "shared_buffers=1GB",
            "max_wal_size=8GB",
            "max_connections=300",
            "checkpoint_timeout=15min",
            "wal_compression=off",
        ];
        for setting in settings {
            command.args(["-c", setting]);
        }
        Ok(vec![command])
    }

    fn create<'a>(&'a self, port: u16, queue: &'a str) -> Answer<'a, ()> {
        Box::pin(async move {
            let client = connect(port).await?;
            let sql = format!(
                "CREATE TABLE IF NOT EXISTS {queue} (id bigserial PRIMARY KEY, level smallint NOT NULL, body bytea NOT NULL, leased_until timestamptz);
                 ALTER TABLE {queue} ALTER COLUMN body SET STORAGE EXTERNAL;
                 CREATE INDEX IF NOT EXISTS {queue}_visible ON {queue} (level, id) WHERE leased_until IS NULL;"
            );
            Ok(client.batch_execute(&sql).await?)
        })
    }

    fn connect<'a>(&'a self, port: u16, queue: &'a str) -> Answer<'a, Box<dyn Session>> {
        Box::pin(async move {
            let client = connect(port).await?;
            let enqueue = format!(
                "INSERT INTO {queue} (level, body) SELECT * FROM unnest($1::smallint[], $2::bytea[])"
            );
            let receive = format!(
                "WITH picked AS (SELECT id FROM {queue} WHERE leased_until IS NULL ORDER BY level, id LIMIT $1 FOR UPDATE SKIP LOCKED)
                 UPDATE {queue} q SET leased_until = now() + interval '{LEASE_S} seconds' FROM picked WHERE q.id = picked.id RETURNING q.id, q.body"
            );
            let ack = format!("DELETE FROM {queue} WHERE id = ANY($1::bigint[])");
            let session = Table {
                enqueue: client.prepare(&enqueue).await?,
                receive: client.prepare(&receive).await?,
                ack: client.prepare(&ack).await?,
                client,
            };
            Ok(Box::new(session) as Box<dyn Session>)
        })
    }
}

async fn connect(port: u16) -> Result<Client, Failure> {
    let target = format!("host=127.0.0.1 port={port} user=compare dbname=postgres");
    let (client, connection) = tokio_postgres::connect(&target, NoTls).await?;
    tokio::spawn(async move { drop(connection.await) });
    Ok(client)
}

struct Table {
    client: Client,
    enqueue: Statement,
    receive: Statement,
    ack: Statement,
}

impl Session for Table {
    fn enqueue<'a>(&'a mut self, messages: &'a [Message]) -> Answer<'a, ()> {
        Box::pin(async move {
            let levels: Vec<i16> = messages.iter().map(|message| i16::from(message.level)).collect();
            let bodies: Vec<&[u8]> = messages.iter().map(|message| &message.body[..]).collect();
            self.client.execute(&self.enqueue, &[&levels, &bodies]).await?;
            Ok(())
        })
    }

    fn receive(&mut self, max: usize) -> Answer<'_, Vec<Delivered>> {
        Box::pin(async move {
            let start = Instant::now();
            loop {
                let rows = self.client.query(&self.receive, &[&(max as i64)]).await?;
                if !rows.is_empty() || start.elapsed() > WAIT {
                    let delivered = |row: &tokio_postgres::Row| Delivered {
                        body: Bytes::from(row.get::<_, Vec<u8>>(1)),
                        token: Token::Number(row.get::<_, i64>(0) as u64),
                    };
                    return Ok(rows.iter().map(delivered).collect());
                }
                tokio::time::sleep(POLL).await;
            }
        })
    }

    fn ack(&mut self, tokens: Vec<Token>) -> Answer<'_, ()> {
        Box::pin(async move {
            let id = |token| match token {
                Token::Number(id) => Some(id as i64),
                _ => None,
            };
            let ids: Vec<i64> = tokens.into_iter().filter_map(id).collect();
            self.client.execute(&self.ack, &[&ids]).await?;
            Ok(())
        })
    }
}
