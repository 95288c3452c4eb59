//! A round of each fault on three real nodes. What is asserted are promises, never times.

#![allow(clippy::expect_used, reason = "a failed expectation is how a test speaks")]

use overtake_cluster_tests::fault::Fault;
use overtake_cluster_tests::load::Traffic;
use overtake_cluster_tests::machine::{Machine, say};
use overtake_cluster_tests::nodes::{Needs, Nodes};
use overtake_cluster_tests::round::{self, Plan};
use std::sync::OnceLock;
use std::time::Duration;

const TRAFFIC: Traffic = Traffic { per_s: 200, body_bytes: 100 };

fn machine() -> &'static Machine {
    static LOOKED: OnceLock<Machine> = OnceLock::new();
    LOOKED.get_or_init(Machine::look)
}

/// One round of each of these faults, each at another node, on one cluster.
fn rounds(faults: &[Fault]) {
    let machine = machine();
    let can = |fault: &&Fault| match fault.needs().lacks(machine) {
        Some(why) => {
            say(&format!("SKIPPED: {}: {why}", fault.name()));
            false
        }
        None => true,
    };
    let faults: Vec<Fault> = faults.iter().filter(can).copied().collect();
    if faults.is_empty() {
        return;
    }
    let needs = faults.iter().fold(Needs::default(), |needs, fault| needs.and(fault.needs()));
    let mut nodes = Nodes::start(machine, needs);
    for (number, fault) in faults.into_iter().enumerate() {
        let plan = plan(fault, number % 3);
        let round = round::run(&mut nodes, &fault.name(), plan);
        println!("{}: {:?}, given up {}", fault.name(), round.verdict, round.given_up);
        assert!(!round.led.is_empty(), "the node led something");
        assert!(round.verdict.answered > 100, "the round tried too little");
        assert!(round.verdict.delivered > round.verdict.again, "nothing was delivered");
        round.check();
    }
}

fn plan(fault: Fault, node: usize) -> Plan {
    let lasts = Duration::from_millis(1_500);
    let plan = Plan { lasts, ..Plan::new(fault, node, TRAFFIC) };
    match fault {
        // A journal's spare part is to be full soon.
        Fault::DiskFull => Plan { traffic: Traffic { per_s: 100, body_bytes: 60_000 }, ..plan },
        _ => plan,
    }
}

#[test]
fn processes_that_are_killed_or_stand_still_break_no_promise() {
    rounds(&[Fault::Kill, Fault::Stop, Fault::KillAll]);
}

#[test]
fn cables_that_are_pulled_or_cut_one_way_break_no_promise() {
    rounds(&[Fault::Unplug, Fault::Mute, Fault::Deaf, Fault::Apart]);
}

#[test]
fn disks_that_hang_or_stutter_or_fail_break_no_promise() {
    rounds(&[Fault::DiskHang, Fault::DiskStutter, Fault::DiskFail]);
}

#[test]
fn a_full_disk_refuses_what_is_new_and_nothing_is_lost() {
    rounds(&[Fault::DiskFull]);
}

#[test]
fn a_clock_that_jumps_breaks_no_promise() {
    rounds(&[Fault::ClockAhead, Fault::ClockBack]);
}
