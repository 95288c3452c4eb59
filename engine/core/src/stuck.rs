//! A disk that hangs: nothing fails, and nothing ends. A leader whose disk does can commit nothing that it would tell its
//! clients of, while to its followers it looks alive: it lets others lead, and tells them that it can lead nothing until
//! its disk goes on.

use crate::cluster::Address;
use crate::mesh::MeshMessage;
use crate::{Core, Output};
use overtake_log::BatchNumber;
use std::collections::BTreeSet;

/// A disk on which no write of the journal has ended for so long hangs, in nanoseconds. A slow one is still faster, even
/// while it makes new files; and a failover by elections takes as long.
const HANGS_AFTER_NS: u64 = 500_000_000;

/// See the module's text.
#[derive(Default)]
pub(crate) struct Stuck {
    /// When a write ended last, or none was under way. Looked at before a turn begins new ones: a core with nothing to do
    /// may have had its last turn long ago.
    moved_ns: u64,
    durable: BatchNumber,
    own: bool,
    others: BTreeSet<Address>,
}

impl Core {
    /// Looks whether this core's disk hangs; tells the other nodes where that changes.
    pub(crate) fn watch_disk(&mut self) {
        let now_ns = self.now.monotonic_ns;
        let Some((journal, _)) = self.storage.journal() else { return };
        let (durable, writing) = (journal.durable(), journal.is_writing());
        let watch = &mut self.stuck;
        let ended = durable != watch.durable;
        let hung = (writing || ended) && now_ns.saturating_sub(watch.moved_ns) >= HANGS_AFTER_NS;
        // Where nothing else happened a hang is noticed when it is over.
        self.counters.disk_hangs += u64::from(hung && !watch.own);
        if ended || !writing {
            (watch.moved_ns, watch.durable) = (now_ns, durable);
        }
        let stuck = hung && !ended;
        if core::mem::replace(&mut watch.own, stuck) != stuck {
            for to in self.links.all_up().collect::<Vec<_>>() {
                self.out.push(Output::Mesh { to, message: MeshMessage::Stuck { stuck } });
            }
        }
    }

    /// This core's disk hangs.
    pub(crate) fn is_stuck(&self) -> bool {
        self.stuck.own
    }

    /// A link is there again: who is at its other end begins with a disk that goes on.
    pub(crate) fn tell_stuck(&mut self, to: Address) {
        self.stuck.others.remove(&to);
        if self.stuck.own {
            self.out.push(Output::Mesh { to, message: MeshMessage::Stuck { stuck: true } });
        }
    }

    /// Another core's disk hangs, or goes on.
    pub(crate) fn peer_stuck(&mut self, from: Address, stuck: bool) {
        if stuck {
            self.stuck.others.insert(from);
        } else {
            self.stuck.others.remove(&from);
        }
    }

    /// The disk of whoever hosts a replica hangs.
    pub(crate) fn is_peer_stuck(&self, host: Address) -> bool {
        self.stuck.others.contains(&host)
    }
}
