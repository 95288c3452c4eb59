//! The slow look at everything that is on disk: one batch or block after the other, so that damage is known before it is
//! needed, and can be mended. What it finds is told once and stops nothing: whoever needs what is damaged stops then.

use crate::config::ScrubConfig;
use crate::{Core, Output};
use overtake_log::{JournalError, Scrubbed};
use std::collections::BTreeSet;

/// See the module's text.
#[derive(Default)]
pub(crate) struct Scrub {
    /// The journal has been read in this pass, the lane files follow.
    lanes: bool,
    under_way: bool,
    /// When the next piece is read; none before the first one.
    next_ns: Option<u64>,
    pass_began_ns: u64,
    /// What was told already.
    told: BTreeSet<String>,
}

impl Scrub {
    /// When, on the monotonic clock, something is to be done though nothing happened.
    pub(crate) fn next_wake(&self) -> Option<u64> {
        self.next_ns.filter(|_| !self.under_way)
    }
}

impl Core {
    /// Reads the next piece, if it is time to.
    pub(crate) fn go_on_scrubbing(&mut self) {
        let now_ns = self.now.monotonic_ns;
        let ScrubConfig { piece_every_ns, pass_every_ns } = self.config.scrub;
        if self.stopping || self.scrub.under_way || !self.storage.is_running() {
            return;
        }
        if *self.scrub.next_ns.get_or_insert(now_ns + piece_every_ns) > now_ns {
            return;
        }
        // Whoever waits for the disk comes first.
        if self.storage.backlog_bytes() > 0 {
            self.scrub.next_ns = Some(now_ns + piece_every_ns);
            return;
        }
        let journal = !self.scrub.lanes;
        self.scrub.under_way = self.storage.scrub(self.scrub.lanes);
        if self.scrub.under_way {
            self.put_out_operations();
        } else if journal {
            self.scrub.lanes = true;
            self.scrub.next_ns = Some(now_ns + piece_every_ns);
        } else {
            self.counters.scrub_passes += 1;
            let next_ns = (self.scrub.pass_began_ns + pass_every_ns).max(now_ns + piece_every_ns);
            self.scrub.lanes = false;
            self.scrub.next_ns = Some(next_ns);
            self.scrub.pass_began_ns = next_ns;
        }
    }

    /// A piece was read.
    pub(crate) fn scrubbed(&mut self, Scrubbed { bytes, damage }: Scrubbed) {
        self.scrub.under_way = false;
        self.scrub.next_ns = Some(self.now.monotonic_ns + self.config.scrub.piece_every_ns);
        self.counters.scrubbed_bytes += bytes;
        if let Some(damage) = damage {
            self.damage_found(&damage);
        }
    }

    fn damage_found(&mut self, damage: &JournalError) {
        let told =
            format!("core {}: found while looking through what is on disk: {damage}", self.config.core);
        if self.scrub.told.insert(told.clone()) {
            self.counters.damage_found += 1;
            self.out.push(Output::Warning(told));
        }
    }
}
