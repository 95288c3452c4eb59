//! `overtake dlq …`.

use super::queues::{askable, purged_answer, sure};
use super::{Session, ask};
use crate::cli::dlq::{DlqCommand, DlqListArgs, RedriveArgs, Which};
use crate::cli::queue::SureArgs;
use crate::exit::{Exit, Failure, Outcome};
use crate::render::units::count;
use crate::render::{dlq as render, text};
use overtake_client::{Redrive, RedriveSelection, Stats};
use overtake_gateway::json;
use std::time::{Duration, Instant};

/// Between two looks at how far a redrive is.
const LOOK_PERIOD: Duration = Duration::from_millis(500);
/// Between two lines about it in a log.
const NOTE_PERIOD: Duration = Duration::from_secs(10);

/// Runs one of them.
pub fn run(command: DlqCommand) -> Outcome {
    match command {
        DlqCommand::List(with) => ask(with, list),
        DlqCommand::Redrive(with) if with.args.wait && with.args.max_per_s == Some(0) => {
            Err(Failure::usage("--max-per-s 0 pauses, so that --wait would never end: leave one of them out"))
        }
        DlqCommand::Redrive(with) => ask(with, redrive),
        DlqCommand::Purge(with) => ask(askable(with)?, purge),
    }
}

async fn list(session: &Session, args: DlqListArgs) -> Outcome {
    let asked = session.client.dlq_list(&args.queue.queue, args.page.limit, args.page.after);
    let page = asked.await.map_err(|error| session.read_failure(error))?;
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
    sure(session, &args, |queue| format!("delete all dead letters of {queue}")).await?;
    let purged = session.client.dlq_purge(&args.queue).await.map_err(|error| session.failure(error))?;
    purged_answer(session, purged, "dead letters")
}

async fn redrive(session: &Session, args: RedriveArgs) -> Outcome {
    let RedriveArgs { queue, which, priority, max_per_s, dry_run, wait } = args;
    let queue = queue.queue;
    let before = if wait { look(session, &queue).await?.totals.redriven } else { 0 };
    let request = Redrive { queue: queue.clone(), selection: selection(which), priority, max_per_s, dry_run };
    let moved = session.client.dlq_redrive(request).await.map_err(|error| session.failure(error))?;
    if wait {
        follow(session, &queue, before, moved).await?;
    }
    let pace = if wait { None } else { max_per_s };
    let text = outcome_text(&queue, moved, dry_run, pace);
    session.screen.answer(|| json::Redriven { moved }, |_| text)?;
    Ok(if moved == 0 { Exit::Nothing } else { Exit::Ok })
}

/// What became of a redrive, and how one goes on that is paused or slow. `pace`: of one that goes on by itself.
fn outcome_text(queue: &str, moved: u64, dry_run: bool, pace: Option<u64>) -> String {
    let (number, queue) = (count(moved), text::one_line(queue));
    let now = format!("`overtake dlq redrive {queue} --all` moves them now");
    match pace {
        _ if moved == 0 => "no such dead letters\n".to_owned(),
        _ if dry_run => format!("{number} would move\n"),
        Some(0) => format!("paused: {number} stay dead letters; {now}\n"),
        Some(per_s) => format!(
            "{number} will move, at most {} a second, and stay dead letters until then; {now}\n",
            count(per_s)
        ),
        None => format!("{number} moved\n"),
    }
}

fn selection(which: Which) -> RedriveSelection {
    match which.from_priority {
        Some(level) => RedriveSelection::FromPriority(level),
        None if which.all => RedriveSelection::All,
        None => RedriveSelection::Ids(which.id),
    }
}

async fn look(session: &Session, queue: &str) -> Result<Stats, Failure> {
    session.client.stats(queue).await.map_err(|error| session.read_failure(error))
}

/// Stays until as many were redriven as shall be. The redrive is the server's: interrupting this does not stop it.
async fn follow(session: &Session, queue: &str, before: u64, moved: u64) -> Result<(), Failure> {
    let mut told = Instant::now();
    loop {
        let stats = look(session, queue).await?;
        let done = stats.totals.redriven.saturating_sub(before);
        // What was purged meanwhile does not move any more.
        if done >= moved || stats.dlq == 0 {
            session.screen.progress_done();
            return Ok(());
        }
        let text = format!("{} of {} moved", count(done), count(moved));
        session.screen.progress(&text);
        if !session.screen.shows_progress() && told.elapsed() > NOTE_PERIOD {
            told = Instant::now();
            session.screen.note(&text);
        }
        tokio::time::sleep(LOOK_PERIOD).await;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_redrive_says_what_it_did_and_how_it_goes_on() {
        assert_eq!(outcome_text("q", 0, false, None), "no such dead letters\n");
        assert_eq!(outcome_text("q", 1_200, true, Some(5)), "1,200 would move\n");
        assert_eq!(outcome_text("q", 3, false, None), "3 moved\n");
        let paused = outcome_text("q", 30, false, Some(0));
        assert_eq!(paused, "paused: 30 stay dead letters; `overtake dlq redrive q --all` moves them now\n");
        let slow = outcome_text("q", 30, false, Some(5));
        assert!(slow.starts_with("30 will move, at most 5 a second") && slow.contains("--all"), "{slow}");
    }
}
