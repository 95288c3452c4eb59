//! `overtake dlq …`.

use super::queues::{purged_answer, sure};
use super::{Session, ask};
use crate::cli::dlq::{DlqCommand, DlqListArgs, RedriveArgs, Which};
use crate::cli::queue::SureArgs;
use crate::exit::{Exit, Failure, Outcome};
use crate::render::dlq as render;
use crate::render::units::count;
use overtake_client::{Redrive, RedriveSelection};
use overtake_gateway::json;
use std::time::Duration;

/// Between two looks at how far a redrive is.
const LOOK_PERIOD: Duration = Duration::from_millis(500);

/// Runs one of them.
pub fn run(command: DlqCommand) -> Outcome {
    match command {
        DlqCommand::List(with) => ask(with, list),
        DlqCommand::Redrive(with) => ask(with, redrive),
        DlqCommand::Purge(with) => ask(with, purge),
    }
}

async fn list(session: &Session, args: DlqListArgs) -> Outcome {
    let asked = session.client.dlq_list(&args.queue.queue, args.page.limit, args.page.after);
    let page = asked.await.map_err(|error| session.failure(error))?;
    session.screen.answer(
        || json::DeadLetters {
            messages: page.entries.iter().cloned().map(Into::into).collect(),
            next: page.next.clone(),
        },
        |view| render::list(&page.entries, page.next.as_deref(), view),
    )?;
    Ok(Exit::Ok)
}

async fn purge(session: &Session, args: SureArgs) -> Outcome {
    sure(session, &args, "delete all dead letters of", "")?;
    let purged = session.client.dlq_purge(&args.queue).await.map_err(|error| session.failure(error))?;
    purged_answer(session, purged, "dead letters")
}

async fn redrive(session: &Session, args: RedriveArgs) -> Outcome {
    let RedriveArgs { queue, which, priority, max_per_s, dry_run, wait } = args;
    let queue = queue.queue;
    let before = if wait { redriven(session, &queue).await? } else { 0 };
    let request = Redrive { queue: queue.clone(), selection: selection(which), priority, max_per_s, dry_run };
    let moved = session.client.dlq_redrive(request).await.map_err(|error| session.failure(error))?;
    if wait {
        follow(session, &queue, before, moved).await?;
    }
    let verb = if dry_run {
        "would move"
    } else if max_per_s.is_some() && !wait {
        "will move"
    } else {
        "moved"
    };
    session.screen.answer(|| json::Redriven { moved }, |_| format!("{} {verb}\n", count(moved)))?;
    Ok(if moved == 0 { Exit::Nothing } else { Exit::Ok })
}

fn selection(which: Which) -> RedriveSelection {
    match which.from_priority {
        Some(level) => RedriveSelection::FromPriority(level),
        None if which.all => RedriveSelection::All,
        None => RedriveSelection::Ids(which.id),
    }
}

async fn redriven(session: &Session, queue: &str) -> Result<u64, Failure> {
    let stats = session.client.stats(queue).await.map_err(|error| session.failure(error))?;
    Ok(stats.totals.redriven)
}

/// Stays until as many were redriven as shall be. The redrive is the server's: interrupting this does not stop it.
async fn follow(session: &Session, queue: &str, before: u64, moved: u64) -> Result<(), Failure> {
    loop {
        let done = redriven(session, queue).await?.saturating_sub(before);
        if done >= moved {
            session.screen.progress_done();
            return Ok(());
        }
        session.screen.progress(&format!("{} of {} moved", count(done), count(moved)));
        tokio::time::sleep(LOOK_PERIOD).await;
    }
}
