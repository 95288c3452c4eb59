//! Another node of a cluster, and what else the file says of where a node belongs.

use crate::file::{bounded, cores};
use crate::text;
use overtake_base::limits::NODE_ID_MAX;
use serde::de::Error as _;
use serde::{Deserialize, Deserializer};

/// Another node, as the command line or the file names it.
#[derive(Clone, PartialEq, Eq, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Peer {
    /// Its id.
    #[serde(deserialize_with = "some_node_id")]
    pub id: u64,
    /// Where its core 0 listens for nodes, `HOST:PORT`.
    #[serde(deserialize_with = "address")]
    pub address: String,
    /// Its zone.
    #[serde(default, deserialize_with = "zone")]
    pub zone: Option<String>,
    /// Its cores; as many as this node has, where absent.
    #[serde(default, deserialize_with = "cores")]
    pub cores: Option<u16>,
    /// Its HTTP address, to be shown.
    pub http: Option<String>,
}

pub(crate) fn node_id<'de, D: Deserializer<'de>>(input: D) -> Result<Option<u64>, D::Error> {
    bounded(input, 1, NODE_ID_MAX).map(Some)
}

fn some_node_id<'de, D: Deserializer<'de>>(input: D) -> Result<u64, D::Error> {
    bounded(input, 1, NODE_ID_MAX)
}

pub(crate) fn zone<'de, D: Deserializer<'de>>(input: D) -> Result<Option<String>, D::Error> {
    text::zone(&String::deserialize(input)?).map(Some).map_err(D::Error::custom)
}

fn address<'de, D: Deserializer<'de>>(input: D) -> Result<String, D::Error> {
    text::host_and_port(&String::deserialize(input)?).map_err(D::Error::custom)
}
