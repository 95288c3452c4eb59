//! Commands that look: `stats`, `peek`, `inspect`, `cluster`; and `cancel`, which needs the same arguments.

use super::Session;
use super::stop::Stop;
use crate::cli::NoArgs;
use crate::cli::messages::{OneMessageArgs, PeekArgs, PeekState, StatsArgs};
use crate::exit::{Exit, Outcome};
use crate::render::{messages, nodes, stats as render};
use overtake_client::PeekStates;
use overtake_gateway::json;

/// Counts and totals, once or again and again.
pub async fn stats(session: &Session, args: StatsArgs) -> Outcome {
    let stop = if args.watch { Some(Stop::listen()?) } else { None };
    let queue = args.queue.queue;
    loop {
        let stats = session.client.stats(&queue).await.map_err(|error| session.failure(error))?;
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
    let page = asked.await.map_err(|error| session.failure(error))?;
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
    let found = session.client.inspect(&args.queue, args.id).await.map_err(|error| session.failure(error))?;
    session
        .screen
        .answer(|| json::Inspected::from(found.clone()), |view| messages::inspected(&found, view))?;
    Ok(Exit::Ok)
}

/// Deletes one message.
pub async fn cancel(session: &Session, args: OneMessageArgs) -> Outcome {
    session.client.cancel(&args.queue, args.id).await.map_err(|error| session.failure(error))?;
    if !session.screen.is_json() {
        session.screen.print(&format!("{} cancelled\n", args.id))?;
    }
    Ok(Exit::Ok)
}

/// Nodes and shards.
pub async fn cluster(session: &Session, _: NoArgs) -> Outcome {
    let (all, shards) = session.client.cluster().await.map_err(|error| session.failure(error))?;
    session.screen.answer(
        || json::Cluster {
            nodes: all.iter().cloned().map(Into::into).collect(),
            shards: shards.iter().cloned().map(Into::into).collect(),
        },
        |view| nodes::cluster(&all, &shards, view),
    )?;
    Ok(Exit::Ok)
}
