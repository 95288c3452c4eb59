//! `overtake queue …`.

use super::{Session, ask};
use crate::cli::queue::{CreateArgs, ListArgs, QueueArgs, QueueCommand, SureArgs, UpdateArgs};
use crate::exit::{Exit, Failure, Outcome};
use crate::render::{queues as render, text};
use overtake_base::QueueConfig;
use overtake_client::{ClientError, ErrorCode};
use overtake_gateway::json;
use std::io::{IsTerminal, stdin};

/// Runs one of them.
pub fn run(command: QueueCommand) -> Outcome {
    match command {
        QueueCommand::Create(with) => ask(with, create),
        QueueCommand::Update(with) => ask(with, update),
        QueueCommand::List(with) => ask(with, list),
        QueueCommand::Show(with) => ask(with, show),
        QueueCommand::Delete(with) => ask(with, delete),
        QueueCommand::Purge(with) => ask(with, purge),
    }
}

/// The server creates and changes by one request; which one was meant is asked first. Of two that create the same
/// queue at the same moment, the later one may so change what the earlier one made.
async fn exists(session: &Session, queue: &str) -> Result<bool, Failure> {
    match session.client.get_queue(queue).await {
        Ok(_) => Ok(true),
        Err(ClientError::Refused(refusal)) if refusal.code == ErrorCode::NotFound => Ok(false),
        Err(error) => Err(session.failure(error)),
    }
}

async fn create(session: &Session, args: CreateArgs) -> Outcome {
    let patch = args.patch().map_err(Failure::usage)?;
    let CreateArgs { queue, or_update, .. } = args;
    if !or_update && exists(session, &queue).await? {
        let next = format!("change it with `overtake queue update {queue}`, or add --or-update");
        return Err(Failure::new(Exit::Failed, format!("{queue} exists already; {next}")));
    }
    let (_, config) =
        session.client.put_queue(&queue, patch).await.map_err(|error| session.failure(error))?;
    answer(session, &queue, &config)
}

async fn update(session: &Session, args: UpdateArgs) -> Outcome {
    let patch = args.settings.patch().map_err(Failure::usage)?;
    let queue = args.queue;
    if !exists(session, &queue).await? {
        let next = format!("create it with `overtake queue create {queue}`");
        return Err(Failure::new(Exit::Nothing, format!("there is no queue {queue}; {next}")));
    }
    let (_, config) =
        session.client.put_queue(&queue, patch).await.map_err(|error| session.failure(error))?;
    answer(session, &queue, &config)
}

async fn show(session: &Session, args: QueueArgs) -> Outcome {
    let config = session.client.get_queue(&args.queue).await.map_err(|error| session.failure(error))?;
    answer(session, &args.queue, &config)
}

fn answer(session: &Session, queue: &str, config: &QueueConfig) -> Outcome {
    session.screen.answer(|| json::QueueConfig::from(config), |view| render::config(queue, config, view))?;
    Ok(Exit::Ok)
}

async fn list(session: &Session, args: ListArgs) -> Outcome {
    let page = session.client.list_queues(args.page.limit, args.page.after).await;
    let page = page.map_err(|error| session.failure(error))?;
    session.screen.answer(
        || json::Queues {
            queues: page.entries.iter().cloned().map(Into::into).collect(),
            next: page.next.clone(),
        },
        |view| render::list(&page.entries, page.next.as_deref(), view),
    )?;
    Ok(Exit::Ok)
}

async fn delete(session: &Session, args: SureArgs) -> Outcome {
    sure(session, &args, "delete queue", "with all its messages")?;
    session.client.delete_queue(&args.queue).await.map_err(|error| session.failure(error))?;
    if !session.screen.is_json() {
        session.screen.print(&format!("{} deleted\n", args.queue))?;
    }
    Ok(Exit::Ok)
}

async fn purge(session: &Session, args: SureArgs) -> Outcome {
    sure(session, &args, "delete all visible and delayed messages of", "")?;
    let purged = session.client.purge(&args.queue).await.map_err(|error| session.failure(error))?;
    purged_answer(session, purged, "messages")
}

/// How many a purge deleted.
pub fn purged_answer(session: &Session, purged: u64, what: &str) -> Outcome {
    let count = crate::render::units::count(purged);
    session.screen.answer(|| json::Purged { purged }, |_| format!("{count} {what} deleted\n"))?;
    Ok(Exit::Ok)
}

/// Asks before destroying, where a person can answer.
pub fn sure(session: &Session, args: &SureArgs, what: &str, more: &str) -> Result<(), Failure> {
    if args.yes || !stdin().is_terminal() || !session.screen.is_terminal() {
        return Ok(());
    }
    session.screen.print(&format!("{what} {} {more}? [y/N] ", text::one_line(&args.queue)))?;
    let mut answer = String::new();
    let read = stdin().read_line(&mut answer);
    match (read, answer.trim()) {
        (Ok(_), "y" | "Y" | "yes") => Ok(()),
        _ => Err(Failure::new(Exit::Failed, "nothing done")),
    }
}
