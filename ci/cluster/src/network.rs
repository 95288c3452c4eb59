//! A network of our own: a namespace for each node, joined by veth pairs to a bridge, on which this process has an address
//! too. A cable is pulled by setting its outer end down. One direction is cut by a neighbour entry that names a card that
//! nobody has: what is sent goes out and arrives nowhere, as in a switch that lost its way, and the sender learns nothing.
//! That needs no packet filter and no queue discipline, which small kernels lack.

use crate::machine::tool;
use std::collections::BTreeSet;
use std::net::{IpAddr, Ipv4Addr};
use std::path::Path;
use std::sync::atomic::{AtomicU32, Ordering};

/// Beginning of the names of all that is made here; the process's number follows, so that what a killed one left can be
/// told.
const PREFIX: &str = "ovt";
/// Our own end of the network.
const OWN: u8 = 254;
/// A card that nobody has.
const NOBODY: &str = "02:00:5e:00:53:01";
/// Of 198.18.0.0/15, which is for measurements between machines and routed nowhere, each network takes 256 addresses.
const NETWORKS: u32 = 512;
const INSIDE: &str = "eth0";

static NEXT: AtomicU32 = AtomicU32::new(0);

/// The network; taken down when it is dropped.
#[derive(Debug)]
pub struct Network {
    tag: String,
    /// The first three numbers of its addresses.
    prefix: [u8; 3],
    nodes: usize,
}

impl Network {
    /// A network of so many nodes; why not, where that cannot be had.
    ///
    /// # Errors
    /// What the system said.
    pub fn make(nodes: usize) -> Result<Self, String> {
        remove_what_dead_processes_left();
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        // Sixteen processes at a time, each with sixteen networks, would still fit into the fifteen letters of a name.
        let tag = format!("{PREFIX}{}x{number}", std::process::id());
        let taken = tool(&["ip", "-o", "-4", "address"])?;
        let first = std::process::id().wrapping_mul(31).wrapping_add(number);
        let prefix = (0..NETWORKS)
            .map(|by| first.wrapping_add(by) % NETWORKS)
            .map(|at| [198, 18 + (at / 256) as u8, (at % 256) as u8])
            .find(|[a, b, c]| !taken.contains(&format!(" {a}.{b}.{c}.")))
            .ok_or("every network of 198.18.0.0/15 is taken")?;
        // From here on what was made goes with it.
        let network = Self { tag, prefix, nodes };
        network.build()?;
        Ok(network)
    }

    fn build(&self) -> Result<(), String> {
        let bridge = self.bridge();
        tool(&["ip", "link", "add", &bridge, "type", "bridge", "stp_state", "0"])?;
        tool(&["ip", "address", "add", &format!("{}/24", self.at(OWN)), "dev", &bridge])?;
        tool(&["ip", "link", "set", &bridge, "up"])?;
        for node in 0..self.nodes {
            let (space, outside) = (self.namespace(node), self.outside(node));
            tool(&["ip", "netns", "add", &space])?;
            tool(&["ip", "link", "add", &outside, "type", "veth", "peer", "name", INSIDE, "netns", &space])?;
            tool(&["ip", "link", "set", &outside, "master", &bridge, "up"])?;
            let address = format!("{}/24", self.address(node));
            tool(&["ip", "-n", &space, "address", "add", &address, "dev", INSIDE])?;
            tool(&["ip", "-n", &space, "link", "set", INSIDE, "up"])?;
            tool(&["ip", "-n", &space, "link", "set", "lo", "up"])?;
        }
        Ok(())
    }

    fn bridge(&self) -> String {
        format!("{}b", self.tag)
    }

    fn namespace(&self, node: usize) -> String {
        format!("{}n{node}", self.tag)
    }

    /// The end of a node's cable that is on the bridge.
    fn outside(&self, node: usize) -> String {
        format!("{}v{node}", self.tag)
    }

    fn at(&self, last: u8) -> IpAddr {
        let [a, b, c] = self.prefix;
        IpAddr::V4(Ipv4Addr::new(a, b, c, last))
    }

    /// A node's address.
    #[must_use]
    pub fn address(&self, node: usize) -> IpAddr {
        self.at(1 + node as u8)
    }

    /// Words of a command that runs another one where the node is.
    #[must_use]
    pub fn started_by(&self, node: usize) -> Vec<String> {
        ["ip", "netns", "exec", &self.namespace(node)].map(str::to_owned).to_vec()
    }

    /// Pulls a node's cable.
    pub fn pull(&self, node: usize) {
        tool(&["ip", "link", "set", &self.outside(node), "down"]).expect("a cable that is there");
    }

    /// Puts it back.
    pub fn plug(&self, node: usize) {
        tool(&["ip", "link", "set", &self.outside(node), "up"]).expect("a cable that is there");
    }

    /// From now on nothing that one node sends to another arrives; the other way is as it was.
    pub fn cut(&self, from: usize, to: usize) {
        self.lose(Some(from), self.address(to));
    }

    /// Nothing that a node sends arrives anywhere, also not here.
    pub fn cut_from(&self, node: usize) {
        let others = (0..self.nodes).filter(|other| *other != node).map(|other| self.address(other));
        others.chain([self.at(OWN)]).for_each(|to| self.lose(Some(node), to));
    }

    /// Nothing that anybody sends to a node arrives there.
    pub fn cut_to(&self, node: usize) {
        let others = (0..self.nodes).filter(|other| *other != node);
        others.map(Some).chain([None]).for_each(|from| self.lose(from, self.address(node)));
    }

    /// Heals every cut of one direction.
    pub fn heal(&self) {
        let ends = (0..self.nodes).map(Some).chain([None]);
        let all: Vec<IpAddr> = (0..self.nodes).map(|node| self.address(node)).chain([self.at(OWN)]).collect();
        for from in ends {
            for to in &all {
                // Where nothing was cut there may be no entry.
                let _ = self.neighbour(from, &["del"], *to, &[]);
            }
        }
    }

    fn lose(&self, from: Option<usize>, to: IpAddr) {
        self.neighbour(from, &["replace"], to, &["lladdr", NOBODY, "nud", "permanent"])
            .expect("a neighbour entry can be made");
    }

    /// Changes what an end, a node's or our own, thinks of where an address is.
    fn neighbour(&self, end: Option<usize>, what: &[&str], to: IpAddr, more: &[&str]) -> Result<(), String> {
        let (space, to) = (end.map(|node| self.namespace(node)), to.to_string());
        let bridge = self.bridge();
        let mut words = vec!["ip"];
        if let Some(space) = &space {
            words.extend(["-n", space]);
        }
        words.push("neigh");
        words.extend(what);
        words.extend([to.as_str(), "dev", if space.is_some() { INSIDE } else { &bridge }]);
        words.extend(more);
        tool(&words).map(drop)
    }
}

impl Drop for Network {
    fn drop(&mut self) {
        for node in 0..self.nodes {
            // The node's end goes with its namespace, and the other end with it; a build that failed made less.
            let _ = tool(&["ip", "link", "del", &self.outside(node)]);
            let _ = tool(&["ip", "netns", "del", &self.namespace(node)]);
        }
        let _ = tool(&["ip", "link", "del", &self.bridge()]);
    }
}

/// Names are ours with a process's number in them.
fn maker(name: &str) -> Option<u32> {
    let number = name.strip_prefix(PREFIX)?;
    number.split_once('x')?.0.parse().ok()
}

fn remove_what_dead_processes_left() {
    let is_left =
        |name: &&str| maker(name).is_some_and(|process| !Path::new(&format!("/proc/{process}")).exists());
    let spaces = tool(&["ip", "netns", "list"]).unwrap_or_default();
    for space in spaces.lines().filter_map(|line| line.split_whitespace().next()).filter(is_left) {
        let _ = tool(&["ip", "netns", "del", space]);
    }
    let links = tool(&["ip", "-o", "link"]).unwrap_or_default();
    // "7: NAME@PEER: <...>"
    let names = links.lines().filter_map(|line| line.split([':', '@']).nth(1)).map(str::trim);
    for link in names.filter(is_left).collect::<BTreeSet<_>>() {
        let _ = tool(&["ip", "link", "del", link]);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_our_own_names_are_ours() {
        assert_eq!(maker("ovt1234x0b"), Some(1234));
        assert_eq!(maker("ovt1234x12n2"), Some(1234));
        for other in ["eth0", "ovt", "ovtx0", "ovt12", "docker0", "xovt12x0"] {
            assert_eq!(maker(other), None, "{other}");
        }
    }
}
