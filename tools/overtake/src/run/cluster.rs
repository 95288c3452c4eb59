//! Commands that change the cluster. Those whose work takes a while say how far it is, until it is done.

use super::Session;
use super::stop::Stop;
use crate::cli::cluster::{AddArgs, DrainArgs, RebalanceArgs, RemoveArgs, ReplaceArgs};
use crate::config::ZONE;
use crate::exit::{Exit, Failure, Outcome};
use overtake_client::{ClusterChange, NewNode, NodeState, NodeStatus, ShardStatus};
use serde_json::json;
use std::time::Duration;

/// Time between two looks.
const LOOK_EVERY: Duration = Duration::from_millis(300);

/// Adds a node.
pub async fn add(session: &Session, args: AddArgs) -> Outcome {
    let node = NewNode {
        id: args.node.id,
        zone: args.node.zone.unwrap_or_else(|| ZONE.into()),
        address: args.node.address,
        http: args.node.http.unwrap_or_default(),
        cores: args.node.cores.unwrap_or(1),
    };
    let id = node.id;
    change(session, ClusterChange::Add(node)).await?;
    said(
        session,
        "added",
        id,
        &format!("node {id} is in the cluster; start it with --join, with an empty data folder"),
    )
}

/// Drains a node.
pub async fn drain(session: &Session, args: DrainArgs) -> Outcome {
    let DrainArgs { node, undo, force, no_wait } = args;
    change(session, ClusterChange::Drain { node, undo, force }).await?;
    if undo {
        return said(session, "active", node, &format!("node {node} holds replicas again"));
    }
    if !no_wait {
        wait(session, |nodes, _| match nodes.iter().find(|status| status.id == node) {
            Some(status) if status.state != NodeState::Draining => {
                Err(format!("node {node} is not being drained any more"))
            }
            Some(status) if status.replicas > 0 => {
                Ok(Some(format!("{} replicas left on node {node}", status.replicas)))
            }
            _ => Ok(None),
        })
        .await?;
    }
    let text = if no_wait {
        format!("node {node} gives away what it leads and holds; overtake cluster status says how far it is")
    } else {
        format!("node {node} holds nothing any more; overtake cluster remove {node} removes it")
    };
    said(session, if no_wait { "draining" } else { "drained" }, node, &text)
}

/// Removes a node.
pub async fn remove(session: &Session, args: RemoveArgs) -> Outcome {
    let RemoveArgs { node, force, no_wait } = args;
    change(session, ClusterChange::Remove { node, force }).await?;
    if force && !no_wait {
        wait_until_gone(session, node).await?;
    }
    if force && no_wait {
        return said(
            session,
            "removing",
            node,
            &format!("what node {node} held goes to others, and then it is removed"),
        );
    }
    said(session, "removed", node, &format!("node {node} is removed; its data folder can be deleted"))
}

/// Replaces a dead node.
pub async fn replace(session: &Session, args: ReplaceArgs) -> Outcome {
    let ReplaceArgs { dead, new, no_wait } = args;
    change(session, ClusterChange::Replace { dead, new }).await?;
    if no_wait {
        return said(
            session,
            "replacing",
            dead,
            &format!("what node {dead} held goes to others, node {new} among them"),
        );
    }
    wait_until_gone(session, dead).await?;
    said(session, "replaced", dead, &format!("node {dead} is removed, and others hold what it held"))
}

/// Spreads replicas evenly.
pub async fn rebalance(session: &Session, args: RebalanceArgs) -> Outcome {
    change(session, ClusterChange::Rebalance).await?;
    if !args.no_wait {
        // The first move begins a moment later.
        let mut quiet = 0;
        wait(session, |_, shards| {
            let moving =
                shards.iter().filter(|shard| shard.adding.is_some() || shard.removing.is_some()).count();
            quiet = if moving == 0 { quiet + 1 } else { 0 };
            Ok((quiet < 4).then(|| format!("{moving} replicas are moving")))
        })
        .await?;
    }
    let text = if args.no_wait { "replicas are being spread" } else { "replicas are spread evenly" };
    session.screen.answer(|| json!({ "rebalanced": !args.no_wait }), |_| format!("{text}\n"))?;
    Ok(Exit::Ok)
}

async fn wait_until_gone(session: &Session, node: u64) -> Result<(), Failure> {
    wait(session, |nodes, _| {
        let left = nodes.iter().find(|status| status.id == node).map(|status| status.replicas);
        Ok(left.map(|left| format!("{left} replicas of node {node} left")))
    })
    .await
}

async fn change(session: &Session, change: ClusterChange) -> Result<(), Failure> {
    session.client.change_cluster(change).await.map(drop).map_err(|error| session.failure(error))
}

fn said(session: &Session, what: &str, node: u64, text: &str) -> Outcome {
    session.screen.answer(|| json!({ what: node }), |_| format!("{text}\n"))?;
    Ok(Exit::Ok)
}

/// Looks again and again, and notes what is news, until `left` says that nothing is left.
async fn wait(
    session: &Session,
    mut left: impl FnMut(&[NodeStatus], &[ShardStatus]) -> Result<Option<String>, String>,
) -> Result<(), Failure> {
    let stop = Stop::listen()?;
    let mut told = String::new();
    loop {
        // A node may be away for a moment, or be the one that goes.
        if let Ok((nodes, shards)) = session.client.cluster().await {
            match left(&nodes, &shards).map_err(|text| Failure::new(Exit::Failed, text))? {
                None => return Ok(()),
                Some(text) if text != told => {
                    session.screen.note(&format!("overtake: {text}"));
                    told = text;
                }
                Some(_) => {}
            }
        }
        tokio::select! {
            () = tokio::time::sleep(LOOK_EVERY) => {}
            () = stop.asked() => {
                let text = "it goes on without this command; overtake cluster status says how far it is";
                return Err(Failure::new(Exit::Failed, text));
            }
        }
    }
}
