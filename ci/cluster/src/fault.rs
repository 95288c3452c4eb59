//! What is done to a node, and how it is undone.

use crate::nodes::{NODES, Needs, Nodes};
use clap::ValueEnum;

/// How far a clock jumps.
const JUMP_S: i64 = 3_600;
/// What a full disk has left: less than the part that is kept free for acks and checkpoints (256 MiB), but not nothing.
const LEFT_BYTES: u64 = 200 * 1024 * 1024;

/// One kind of fault.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, ValueEnum)]
pub enum Fault {
    /// kill -9
    Kill,
    /// kill -9 of all three nodes at once, and a start of all three
    KillAll,
    /// SIGSTOP: it holds its sockets and says nothing; SIGCONT later
    Stop,
    /// Its cable is pulled
    Unplug,
    /// Nothing that it sends arrives, while it hears everybody
    Mute,
    /// Nothing that is sent to it arrives, while everybody hears it
    Deaf,
    /// It and one other node do not hear each other; the third one and clients hear all
    Apart,
    /// Its disk hangs: no write ends
    DiskHang,
    /// Its disk hangs for 60 ms again and again
    DiskStutter,
    /// Its disk runs full
    DiskFull,
    /// Its disk fails: every write is refused from now on. Later it is repaired and the process started again
    DiskFail,
    /// Its wall clock jumps an hour ahead
    ClockAhead,
    /// Its wall clock jumps an hour back
    ClockBack,
}

impl Fault {
    /// Its name on the command line.
    #[must_use]
    pub fn name(self) -> String {
        self.to_possible_value().map_or_else(String::new, |value| value.get_name().to_owned())
    }

    /// What it can be done to.
    #[must_use]
    pub const fn needs(self) -> Needs {
        let none = Needs { network: false, disks: false, clocks: false };
        match self {
            Self::Kill | Self::KillAll | Self::Stop => none,
            Self::Unplug | Self::Mute | Self::Deaf | Self::Apart => Needs { network: true, ..none },
            Self::DiskHang | Self::DiskStutter | Self::DiskFull | Self::DiskFail => {
                Needs { disks: true, ..none }
            }
            Self::ClockAhead | Self::ClockBack => Needs { clocks: true, ..none },
        }
    }

    /// Whether the node's shards must deliver new messages while it lasts. A full disk takes no new ones.
    #[must_use]
    pub const fn is_survived(self) -> bool {
        !matches!(self, Self::DiskFull)
    }

    /// Whether the other nodes must lead what the node led, for as long as it lasts.
    #[must_use]
    pub const fn moves_leaders(self) -> bool {
        match self {
            Self::Kill | Self::Stop | Self::Unplug | Self::Mute | Self::Deaf => true,
            Self::DiskHang | Self::DiskFail | Self::ClockAhead | Self::ClockBack => true,
            Self::KillAll | Self::Apart | Self::DiskStutter | Self::DiskFull => false,
        }
    }

    /// Does it to a node.
    pub fn begin(self, nodes: &mut Nodes, node: usize) {
        let network = || nodes.network.as_ref().expect("a network");
        let other = (node + 1) % NODES;
        match self {
            Self::Kill => nodes.cluster.kill(node),
            Self::KillAll => {
                (0..NODES).for_each(|node| nodes.cluster.kill(node));
                (0..NODES).for_each(|node| nodes.cluster.launch(node));
            }
            Self::Stop => nodes.cluster.pause(node),
            Self::Unplug => network().pull(node),
            Self::Mute => network().cut_from(node),
            Self::Deaf => network().cut_to(node),
            Self::Apart => {
                network().cut(node, other);
                network().cut(other, node);
            }
            Self::DiskHang => nodes.disks[node].hang(),
            Self::DiskStutter => nodes.disks[node].stutter(),
            Self::DiskFull => nodes.disks[node].fill(LEFT_BYTES),
            Self::DiskFail => nodes.disks[node].fail(),
            Self::ClockAhead => nodes.set_clock(node, JUMP_S),
            Self::ClockBack => nodes.set_clock(node, -JUMP_S),
        }
    }

    /// Undoes it, and waits until all nodes are ready.
    pub fn end(self, nodes: &mut Nodes, node: usize) {
        match self {
            Self::Kill => nodes.cluster.launch(node),
            Self::KillAll => {}
            Self::Stop => nodes.cluster.resume(node),
            Self::Unplug => nodes.network.as_ref().expect("a network").plug(node),
            Self::Mute | Self::Deaf | Self::Apart => nodes.network.as_ref().expect("a network").heal(),
            Self::DiskHang => nodes.disks[node].go_on(),
            Self::DiskStutter | Self::DiskFull => nodes.disks[node].heal(),
            Self::DiskFail => {
                let ended = nodes.cluster.wait_until_ended(node);
                assert!(!ended.success(), "a node whose disk fails says so");
                nodes.disks[node].repair();
                nodes.cluster.launch(node);
            }
            Self::ClockAhead | Self::ClockBack => nodes.set_clock(node, 0),
        }
        nodes.cluster.wait_until_all_are_ready();
    }
}
