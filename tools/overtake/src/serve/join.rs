//! How a node with an empty data folder comes to a cluster: it asks a server of it, as a client does, to be added, and keeps
//! what it is told. Asking twice is the same as asking once.

use super::{ClusterOptions, ServeError, ServeOptions};
use crate::certificates::NodeCertificates;
use overtake_client::{Client, ClientError, ClusterChange, ConnectOptions, Credentials, NewNode, Trust};
use overtake_queue::members::Members;
use std::net::{SocketAddr, ToSocketAddrs};
use std::time::Duration;

/// Time between two attempts where no server answers.
const AGAIN_AFTER: Duration = Duration::from_secs(1);
/// How often that is tried.
const ATTEMPTS: u32 = 60;

/// Asks to be added; gives the cluster as it is then.
pub(super) async fn join(
    options: &ServeOptions,
    asked: &ClusterOptions,
    certificates: &NodeCertificates,
    cores: u16,
) -> Result<Members, ServeError> {
    let failed = |detail: String| ServeError::Join { detail };
    let node = NewNode {
        id: asked.node.0,
        zone: options.zone.clone(),
        address: asked.advertise.clone(),
        http: options.http.to_string(),
        cores,
    };
    let mut last = String::new();
    for _ in 0..ATTEMPTS {
        let servers: Vec<SocketAddr> =
            asked.join.iter().filter_map(|name| name.to_socket_addrs().ok()?.next()).collect();
        if servers.is_empty() {
            last = format!("{} is not known", asked.join.join(", "));
        } else {
            match ask(options, certificates, servers, node.clone()).await {
                Ok(members) => return Members::of_bytes(&members).map_err(|error| failed(error.to_string())),
                Err(error) if may_pass(&error) => last = error.to_string(),
                Err(error) => return Err(failed(error.to_string())),
            }
        }
        tokio::time::sleep(AGAIN_AFTER).await;
    }
    Err(failed(format!("no server of it answers: {last}")))
}

fn may_pass(error: &ClientError) -> bool {
    match error {
        ClientError::Refused(refusal) => refusal.retry_is_safe() || refusal.stored_unknown,
        _ => true,
    }
}

async fn ask(
    options: &ServeOptions,
    certificates: &NodeCertificates,
    servers: Vec<SocketAddr>,
    node: NewNode,
) -> Result<bytes::Bytes, ClientError> {
    // All nodes have the same tokens.
    let admin = options.tokens.iter().find(|token| token.rights.admin);
    let token = admin.map_or_else(String::new, |token| token.token.clone());
    let connect = ConnectOptions {
        servers: servers.into_iter().map(Into::into).collect(),
        token,
        trust: Trust::Certificates(certificates.authorities.clone()),
        credentials: Some(Credentials {
            certificates: certificates.chain.clone(),
            private_key: certificates.key.clone(),
        }),
        ..ConnectOptions::default()
    };
    let client = Client::connect(connect).await?;
    let joined = client.change_cluster(ClusterChange::Add(node)).await;
    client.close().await;
    joined
}
