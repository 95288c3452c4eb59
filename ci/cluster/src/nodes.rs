//! Three nodes, each with what this machine can give it: a network, a disk, a clock of its own.

use crate::clock;
use crate::disk::{DISK_MIB, Disk};
use crate::machine::Machine;
use crate::network::Network;
use overtake_client::{ConnectOptions, Trust};
use overtake_e2e::cluster::{Cluster, Place};
use overtake_e2e::scratch::Scratch;
use overtake_e2e::time::sleep_ms;
use std::path::PathBuf;
use std::time::{Duration, Instant};

/// How many there are.
pub const NODES: usize = 3;
/// Shards, each with a replica on every node.
pub const SHARDS: u16 = 12;
/// Leaders are spread anew some seconds after a node came back; it is waited for them so long.
const BALANCE_LIMIT: Duration = Duration::from_secs(40);

/// What is asked for.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Needs {
    /// A network of its own for each node.
    pub network: bool,
    /// A disk of its own for each node.
    pub disks: bool,
    /// A clock of its own for each node.
    pub clocks: bool,
}

impl Needs {
    /// What of this the machine cannot do, and why.
    #[must_use]
    pub fn lacks(self, machine: &Machine) -> Option<String> {
        let network = machine.namespaces.clone().err().filter(|_| self.network);
        let disks = machine.disks.clone().err().filter(|_| self.disks);
        let clocks = machine.clocks.clone().err().filter(|_| self.clocks);
        network.or(disks).or(clocks)
    }

    /// What either asks for.
    #[must_use]
    pub const fn and(self, other: Self) -> Self {
        Self {
            network: self.network || other.network,
            disks: self.disks || other.disks,
            clocks: self.clocks || other.clocks,
        }
    }
}

/// The running nodes. Fields go in this order: processes before what they stand on.
#[derive(Debug)]
pub struct Nodes {
    /// The processes.
    pub cluster: Cluster,
    /// By node; empty where they have none of their own.
    pub disks: Vec<Disk>,
    /// Absent on loopback.
    pub network: Option<Network>,
    /// The files that are the nodes' clocks; empty where they have this machine's.
    clocks: Vec<PathBuf>,
    _scratch: Scratch,
}

impl Nodes {
    /// Starts three, ready to serve, leaders spread evenly.
    ///
    /// # Panics
    /// Where the machine cannot do what is needed.
    #[must_use]
    pub fn start(machine: &Machine, needs: Needs) -> Self {
        let scratch = Scratch::new();
        let network = needs.network.then(|| Network::make(NODES).expect("tried before"));
        let disk = |_| Disk::make(DISK_MIB).expect("tried before");
        let disks: Vec<Disk> = (0..NODES).filter(|_| needs.disks).map(disk).collect();
        let clock = |node: usize| scratch.path().join(format!("clock-{}", node + 1));
        let clocks: Vec<PathBuf> = (0..NODES).filter(|_| needs.clocks).map(clock).collect();
        clocks.iter().for_each(|file| clock::set(file, 0));
        let fake = machine.clocks.as_ref().ok().filter(|_| needs.clocks);
        let place = |node: usize| {
            let mut place = Place::default();
            if let Some(network) = &network {
                place.address = network.address(node);
                place.started_by = network.started_by(node);
            }
            place.data = disks.get(node).map(Disk::folder);
            place.environment = fake.map(|fake| fake.environment(&clocks[node])).unwrap_or_default();
            place
        };
        let cluster = Cluster::prepare_at((0..NODES).map(place).collect(), SHARDS, 1);
        let mut nodes = Self { cluster, disks, network, clocks, _scratch: scratch };
        (0..NODES).for_each(|node| nodes.cluster.launch(node));
        nodes.cluster.wait_until_all_are_ready();
        nodes.wait_for_balance();
        nodes
    }

    /// Waits until each node leads as many shards as the others, for a while.
    pub fn wait_for_balance(&self) {
        let start = Instant::now();
        let even = [usize::from(SHARDS) / NODES; NODES];
        while self.cluster.leads(0) != even && start.elapsed() < BALANCE_LIMIT {
            sleep_ms(100);
        }
    }

    /// How clients connect.
    #[must_use]
    pub fn options(&self) -> ConnectOptions {
        let servers = self.cluster.servers().into_iter().map(Into::into).collect();
        let trust = match self.network {
            Some(_) => Trust::from_file(self.cluster.cert_dir().join("ca.pem")).expect("an authority"),
            None => Trust::default(),
        };
        let request_timeout = Duration::from_secs(10);
        ConnectOptions { servers, trust, request_timeout, ..ConnectOptions::default() }
    }

    /// Sets a node's clock to so many seconds off.
    ///
    /// # Panics
    /// Where the nodes have no clocks of their own.
    pub fn set_clock(&self, node: usize, off_s: i64) {
        clock::set(&self.clocks[node], off_s);
    }

    /// What the nodes stand on, in words.
    #[must_use]
    pub fn description(&self) -> String {
        let network = if self.network.is_some() { "a network namespace each" } else { "loopback" };
        let disks = if self.disks.is_empty() { "one disk" } else { "an ext4 loop disk each" };
        let clocks = if self.clocks.is_empty() { "one clock" } else { "a clock each (libfaketime)" };
        format!("{network}, {disks}, {clocks}")
    }
}

impl Drop for Nodes {
    fn drop(&mut self) {
        // A process whose disk hangs cannot end.
        self.disks.iter_mut().for_each(Disk::heal);
        (0..NODES).for_each(|node| self.cluster.kill(node));
    }
}
