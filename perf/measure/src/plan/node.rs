//! One node, as it is bought: what the plan counts in, and what may be used of it.

use super::{Exact, bits_about, bytes};

/// The node of a plan. What is absent is [assumed](Node::DEFAULT).
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Node {
    /// Cores.
    pub cores: Option<u128>,
    /// Memory.
    pub memory_bytes: Option<u128>,
    /// Disk for the data folder.
    pub disk_bytes: Option<u128>,
    /// Network, each way, in bits a second.
    pub network_bits: Option<u128>,
    /// So many of them, where that is given; else as many as it takes.
    pub count: Option<u128>,
}

impl Node {
    /// A small server, as one is rented today: 4 cores, 16 GB, 2 TB, 10 Gbit/s.
    pub const DEFAULT: Sizes = Sizes {
        cores: 4,
        memory_bytes: 16_000_000_000,
        disk_bytes: 2_000_000_000_000,
        network_bits: 10_000_000_000,
    };

    pub(super) fn sizes(&self) -> Sizes {
        Sizes {
            cores: self.cores.unwrap_or(Self::DEFAULT.cores).max(1),
            memory_bytes: self.memory_bytes.unwrap_or(Self::DEFAULT.memory_bytes),
            disk_bytes: self.disk_bytes.unwrap_or(Self::DEFAULT.disk_bytes),
            network_bits: self.network_bits.unwrap_or(Self::DEFAULT.network_bits),
        }
    }

    /// What was not given, each with the flag that gives it.
    pub(super) fn assumed(&self) -> Option<String> {
        let sizes = self.sizes();
        let cores = || format!("{} cores (--cores-per-node)", sizes.cores);
        let memory = || format!("{} of memory (--memory-gb-per-node)", sizes.memory());
        let disk = || format!("{} of disk (--disk-gb-per-node)", sizes.disk());
        let network = || format!("{} of network (--network-gbit-per-node)", sizes.network());
        let parts: Vec<String> = [
            self.cores.is_none().then(cores),
            self.memory_bytes.is_none().then(memory),
            self.disk_bytes.is_none().then(disk),
            self.network_bits.is_none().then(network),
        ]
        .into_iter()
        .flatten()
        .collect();
        (!parts.is_empty()).then(|| format!("that a node has {}", parts.join(", ")))
    }
}

/// The sizes of a node.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Sizes {
    /// Cores.
    pub cores: u128,
    /// Memory.
    pub memory_bytes: u128,
    /// Disk.
    pub disk_bytes: u128,
    /// Network, each way, in bits a second.
    pub network_bits: u128,
}

impl Sizes {
    pub(super) fn memory(&self) -> String {
        bytes(Exact::whole(self.memory_bytes))
    }

    pub(super) fn disk(&self) -> String {
        bytes(Exact::whole(self.disk_bytes))
    }

    pub(super) fn network(&self) -> String {
        bits_about(Exact::whole(self.network_bits), 3)
    }
}
