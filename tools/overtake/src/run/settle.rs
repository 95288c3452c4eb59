//! `overtake ack`, `extend`, `release`.

use super::Session;
use crate::cli::messages::{AckArgs, ExtendArgs, ReleaseArgs};
use crate::exit::{Exit, Failure, Outcome};
use crate::render::messages as render;
use crate::render::units::seconds;
use overtake_client::{Extend, Release, Settle, Settled};
use overtake_gateway::json;

/// Deletes what is done.
pub async fn ack(session: &Session, args: AckArgs) -> Outcome {
    let settle = Settle { queue: args.queue, ack: args.receipts.clone(), ..Settle::default() };
    settled(session, settle, &args.receipts, "acked").await
}

/// Keeps leases for longer.
pub async fn extend(session: &Session, args: ExtendArgs) -> Outcome {
    let ExtendArgs { ack: AckArgs { queue, receipts }, lease_s } = args;
    let lease_s = match lease_s {
        Some(lease_s) => lease_s,
        None => lease_of(session, &queue).await?,
    };
    let extend = receipts.iter().map(|receipt| Extend { receipt: receipt.clone(), lease_s }).collect();
    let settle = Settle { queue, extend, ..Settle::default() };
    let done = format!("extended, ends in {}", seconds(u64::from(lease_s)));
    settled(session, settle, &receipts, &done).await
}

/// The lease that the queue gives to a receive that names none.
async fn lease_of(session: &Session, queue: &str) -> Result<u32, Failure> {
    let asked = session.client.get_queue(queue).await.map_err(|error| session.read_failure(error));
    asked.map(|config| config.lease_s).map_err(|failure| match failure.exit {
        Exit::NotAllowed => {
            Failure { message: format!("{failure}; name the new lease with --lease-s"), ..failure.clone() }
        }
        _ => failure,
    })
}

/// Gives messages back.
pub async fn release(session: &Session, args: ReleaseArgs) -> Outcome {
    let ReleaseArgs { ack: AckArgs { queue, receipts }, delay_s, error } = args;
    let release =
        receipts.iter().map(|receipt| Release { receipt: receipt.clone(), delay_s, error: error.clone() });
    let settle = Settle { queue, release: release.collect(), ..Settle::default() };
    settled(session, settle, &receipts, "given back").await
}

async fn settled(session: &Session, settle: Settle, receipts: &[String], done: &str) -> Outcome {
    let lists = session.client.settle(settle).await.map_err(|error| session.failure(error))?;
    let outcomes: Vec<Settled> = [lists.ack, lists.extend, lists.release].concat();
    let pairs = || receipts.iter().zip(outcomes.iter().copied());
    session.screen.answer(
        || json::SettleOutcomes {
            results: json::Pairs(
                pairs().map(|(receipt, outcome)| (receipt.clone(), outcome.into())).collect(),
            ),
        },
        |view| render::settled(pairs().map(|(receipt, outcome)| (receipt.as_str(), outcome)), done, view),
    )?;
    Ok(if outcomes.iter().all(|outcome| *outcome == Settled::Ok) { Exit::Ok } else { Exit::Nothing })
}
