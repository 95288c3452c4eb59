//! Commands that look: `stats`, `peek`, `inspect`, `cluster`; and `cancel`, which needs the same arguments.

use super::Session;
use super::stop::Stop;
use crate::cli::NoArgs;
use crate::cli::messages::{OneMessageArgs, PeekArgs, PeekState, StatsArgs};
use crate::exit::{Exit, Outcome};
use crate::render::{messages, nodes, stats as render};
use overtake_client::{DeadLetter, MessageId, MessageState, PeekStates};
use overtake_gateway::json;
use std::time::Duration;

/// Before a server that is away is asked again, at least.
const RETRY_PAUSE: Duration = Duration::from_secs(1);

/// Counts and totals, once or again and again.
pub async fn stats(session: &Session, args: StatsArgs) -> Outcome {
    let stop = if args.watch { Some(Stop::listen()?) } else { None };
    let queue = args.queue.queue;
    loop {
        let stats = match session.client.stats(&queue).await.map_err(|error| session.read_failure(error)) {
            Ok(stats) => stats,
            Err(failure) => {
                let passes = matches!(failure.exit, Exit::NoConnection | Exit::Later);
                let Some(stop) = stop.as_ref().filter(|_| passes) else { return Err(failure) };
                session.screen.note(&format!("overtake: {failure}"));
                tokio::select! {
                    () = tokio::time::sleep(args.interval.max(RETRY_PAUSE)) => continue,
                    () = stop.asked() => return Ok(Exit::Ok),
                }
            }
        };
        if args.watch && !session.screen.is_json() {
            session.screen.clear()?;
        }
        session
            .screen
            .answer(|| json::Stats::from(stats.clone()), |view| render::stats(&queue, &stats, view))?;
        let Some(stop) = &stop else { return Ok(Exit::Ok) };
        tokio::select! {
            () = tokio::time::sleep(args.interval) => {}
            () = stop.asked() => return Ok(Exit::Ok),
        }
    }
}

/// Messages without leasing them.
pub async fn peek(session: &Session, args: PeekArgs) -> Outcome {
    let shown = |state| args.state.is_empty() || args.state.contains(&state);
    let states = PeekStates {
        visible: shown(PeekState::Visible),
        delayed: shown(PeekState::Delayed),
        leased: shown(PeekState::Leased),
    };
    let asked =
        session.client.peek(&args.queue.queue, states, args.priority, args.page.limit, args.page.after);
    let page = asked.await.map_err(|error| session.read_failure(error))?;
    session.screen.answer(
        || json::Peeked {
            messages: page.entries.iter().cloned().map(Into::into).collect(),
            next: page.next.clone(),
        },
        |view| messages::peeked(&page.entries, page.next.as_deref(), view),
    )?;
    Ok(Exit::Ok)
}

/// One message.
pub async fn inspect(session: &Session, args: OneMessageArgs) -> Outcome {
    let found = session.client.inspect(&args.queue, args.id).await;
    let found = found.map_err(|error| session.read_failure(error))?;
    let story = if found.state == MessageState::Dead && !session.screen.is_json() {
        dead_letter(session, &args).await
    } else {
        None
    };
    session.screen.answer(
        || json::Inspected::from(found.clone()),
        |view| messages::inspected(&found, story.as_ref(), view),
    )?;
    Ok(Exit::Ok)
}

/// The dead letter with this id, which the look by id does not tell whole. None where it was redriven meanwhile.
async fn dead_letter(session: &Session, args: &OneMessageArgs) -> Option<DeadLetter> {
    // A cursor is the id of the last message of the page before.
    let after = args.id.0.checked_sub(1).map(|before| MessageId(before).to_string());
    let page = session.client.dlq_list(&args.queue, 1, after).await.ok()?;
    page.entries.into_iter().find(|letter| letter.id == args.id)
}

/// Deletes one message.
pub async fn cancel(session: &Session, args: OneMessageArgs) -> Outcome {
    session.client.cancel(&args.queue, args.id).await.map_err(|error| session.failure(error))?;
    session.screen.answer(
        || serde_json::json!({ "cancelled": args.id.to_string() }),
        |_| format!("{} cancelled\n", args.id),
    )?;
    Ok(Exit::Ok)
}

/// Nodes and shards.
pub async fn cluster(session: &Session, _: NoArgs) -> Outcome {
    let (all, shards) = session.client.cluster().await.map_err(|error| session.read_failure(error))?;
    session.screen.answer(
        || json::Cluster {
            nodes: all.iter().cloned().map(Into::into).collect(),
            shards: shards.iter().cloned().map(Into::into).collect(),
        },
        |view| nodes::cluster(&all, &shards, view),
    )?;
    Ok(Exit::Ok)
}
