//! `overtake cluster …`: who is in the cluster.

use super::values;
use clap::Args;
use overtake_config::Peer;

/// `overtake cluster add`
#[derive(Args, Debug)]
pub struct AddArgs {
    /// The node: where it listens for nodes, then its zone, cores (1) and HTTP address, where not the default
    #[arg(value_name = "ID@HOST:PORT[/ZONE,CORES,HTTP]", value_parser = values::peer)]
    pub node: Peer,
}

/// `overtake cluster drain`
#[derive(Args, Debug)]
pub struct DrainArgs {
    /// Its id
    #[arg(value_parser = values::node_id)]
    pub node: u64,
    /// The node holds replicas again, also those that it has not given away yet
    #[arg(long, conflicts_with = "force")]
    pub undo: bool,
    /// Though shards have fewer replicas then than they could
    #[arg(long)]
    pub force: bool,
    /// Say what is to be done, and do not wait until it is
    #[arg(long)]
    pub no_wait: bool,
}

/// `overtake cluster remove`
#[derive(Args, Debug)]
pub struct RemoveArgs {
    /// Its id, which is not used again
    #[arg(value_parser = values::node_id)]
    pub node: u64,
    /// The node is dead and will not come back: what it held goes to other nodes, and then it is removed. It must not
    /// be started again
    #[arg(long)]
    pub force: bool,
    /// Say what is to be done, and do not wait until it is
    #[arg(long)]
    pub no_wait: bool,
}

/// `overtake cluster replace`
#[derive(Args, Debug)]
pub struct ReplaceArgs {
    /// The node that is dead; it must not be started again
    #[arg(value_parser = values::node_id)]
    pub dead: u64,
    /// The new one, which was started with --join and an id of its own
    #[arg(value_parser = values::node_id)]
    pub new: u64,
    /// Say what is to be done, and do not wait until it is
    #[arg(long)]
    pub no_wait: bool,
}

/// `overtake cluster rebalance`
#[derive(Args, Debug)]
pub struct RebalanceArgs {
    /// Say what is to be done, and do not wait until it is
    #[arg(long)]
    pub no_wait: bool,
}
