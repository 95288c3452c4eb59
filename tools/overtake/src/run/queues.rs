//! `overtake queue …`.

use super::{Session, ask, is_no_queue};
use crate::cli::With;
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
        QueueCommand::Delete(with) => ask(askable(with)?, delete),
        QueueCommand::Purge(with) => ask(askable(with)?, purge),
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
    let config = session.client.get_queue(&args.queue).await.map_err(|error| session.read_failure(error))?;
    answer(session, &args.queue, &config)
}

fn answer(session: &Session, queue: &str, config: &QueueConfig) -> Outcome {
    session.screen.answer(|| json::QueueConfig::from(config), |view| render::config(queue, config, view))?;
    Ok(Exit::Ok)
}

async fn list(session: &Session, args: ListArgs) -> Outcome {
    let page = session.client.list_queues(args.page.limit, args.page.after).await;
    let page = page.map_err(|error| session.read_failure(error))?;
    let mut queues = Vec::with_capacity(page.entries.len());
    for queue in page.entries {
        // Not part of the list itself. A queue that is deleted meanwhile has none.
        let dead = if session.screen.is_json() { None } else { dead_letters(session, &queue.name).await };
        queues.push((queue, dead));
    }
    session.screen.answer(
        || json::Queues {
            queues: queues.iter().map(|(queue, _)| queue.clone().into()).collect(),
            next: page.next.clone(),
        },
        |view| render::list(&queues, page.next.as_deref(), view),
    )?;
    Ok(Exit::Ok)
}

async fn dead_letters(session: &Session, queue: &str) -> Option<u64> {
    session.client.stats(queue).await.ok().map(|stats| stats.dlq)
}

async fn delete(session: &Session, args: SureArgs) -> Outcome {
    sure(session, &args, |queue| format!("delete queue {queue} with all its messages")).await?;
    session.client.delete_queue(&args.queue).await.map_err(|error| session.failure(error))?;
    session.screen.answer(
        || serde_json::json!({ "deleted": args.queue }),
        |_| format!("{} deleted\n", text::one_line(&args.queue)),
    )?;
    Ok(Exit::Ok)
}

async fn purge(session: &Session, args: SureArgs) -> Outcome {
    sure(session, &args, |queue| format!("delete all visible and delayed messages of {queue}")).await?;
    let purged = session.client.purge(&args.queue).await.map_err(|error| session.failure(error))?;
    purged_answer(session, purged, "messages")
}

/// How many a purge deleted.
pub fn purged_answer(session: &Session, purged: u64, what: &str) -> Outcome {
    let count = crate::render::units::count(purged);
    session.screen.answer(|| json::Purged { purged }, |_| format!("{count} {what} deleted\n"))?;
    Ok(Exit::Ok)
}

/// Refuses, before anything is asked of a server, a command that destroys where nobody can be asked.
pub fn askable(with: With<SureArgs>) -> Result<With<SureArgs>, Failure> {
    if with.args.yes || stdin().is_terminal() {
        return Ok(with);
    }
    Err(Failure::usage(
        "nothing done: this deletes, and nobody can be asked here; add --yes if that is meant",
    ))
}

/// Asks before destroying, unless told not to. A queue that is not there is not asked about.
pub async fn sure(
    session: &Session,
    args: &SureArgs,
    what: impl FnOnce(&str) -> String,
) -> Result<(), Failure> {
    if args.yes {
        return Ok(());
    }
    if let Err(error) = session.client.get_queue(&args.queue).await
        && is_no_queue(&error)
    {
        return Err(session.failure(error));
    }
    session.screen.ask(&format!("{}? [y/N]", what(&text::one_line(&args.queue))));
    let mut answer = String::new();
    let read = stdin().read_line(&mut answer);
    match (read, answer.trim()) {
        (Ok(_), "y" | "Y" | "yes") => Ok(()),
        _ => Err(Failure::new(Exit::Failed, "nothing done")),
    }
}
